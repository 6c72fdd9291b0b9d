"""A run directory that is untrusted: nothing that it names is imported, run, looked up or written over."""

from __future__ import annotations

import ast
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

from support.processes import ROOT
from unembed import launch
from unembed.attacks.parts.decoders import CausalDecoder
from unembed.attacks.parts.decoding import BeamSearch
from unembed.attacks.parts.predictions import Prediction
from unembed.core.atomic_files import write_file, write_json
from unembed.core.errors import InputError, printable
from unembed.datamodules.sources.files import TextFiles
from unembed.datamodules.sources.hub import HubSet
from unembed.embedders.minilm import MiniLM
from unembed.embedders.sentence_transformer import SentenceTransformerEmbedder
from unembed.runs import layout
from unembed.runs.checkpoints import WholeCheckpoints, finished_checkpoint, load_checkpoint, resume_from
from unembed.runs.config_file import read_config, write_config
from unembed.runs.files import training_of
from unembed.runs.stored_attack import attack_of, check_embedder
from unembed.runs.trust import check_trusted, trusting

PACKAGES = ("attacks", "callbacks", "datamodules", "defenses", "embedders", "metrics", "unembed")


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return launch.plain(launch.compose("train", []))


@pytest.fixture
def run(tmp_path: Path, composed: dict[str, Any]) -> Path:
    """A run directory as train.py leaves it, as far as its files are looked at."""
    directory = tmp_path / "run"
    write_config(directory, {**composed, "run_dir": str(directory), "cache_dir": str(tmp_path / "c")})
    write_file(directory / layout.CHECKPOINT, lambda file: torch.save({"state_dict": {}}, file))
    (directory / layout.ARTIFACTS).mkdir()
    embedder = {"fingerprint": MiniLM().fingerprint, "dimension": 384}
    write_json(directory / layout.RECORD, {"embedder": embedder})
    return directory


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module on the path that notes its import: the file that it writes then."""
    (tmp_path / "library").mkdir()
    seen = tmp_path / "imported"
    source = f"from pathlib import Path\nPath({str(seen)!r}).touch()\n"
    source += "from unembed.attacks.bag_of_words import BagOfWords as Evil\n"
    (tmp_path / "library" / "hostile_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    monkeypatch.delitem(sys.modules, "hostile_module", raising=False)
    return seen


def change(run: Path, key: str, value: Any) -> None:
    config = yaml.safe_load((run / layout.CONFIG).read_text())
    *path, last = key.split(".")
    node = config
    for name in path:
        node = node[int(name)] if isinstance(node, list) else node.setdefault(name, {})
    node[last] = value
    (run / layout.CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))


def refused(run: Path, *overrides: str) -> str:
    """The message of evaluate.py; without overrides that of what it asks first, which takes no second."""

    def looked_at() -> None:
        if overrides:
            launch.on_run("evaluate", [f"run={run}", *overrides])
        check_trusted(read_config(run), run)
        layout.check_links(run)

    with pytest.raises(InputError) as caught:
        looked_at()
    return str(caught.value)


def test_a_run_as_it_was_written_is_read(run: Path) -> None:
    _, config = launch.on_run("evaluate", [f"run={run}", "attack.decoding.beams=2"])
    assert (config.attack.decoding.beams, config.run_dir) == (2, str(run))


@pytest.mark.parametrize(
    ("key", "target"),
    [
        ("attack._target_", "os.system"),
        ("attack._target_", "hostile_module.Evil"),
        ("attack._target_", "unembed.attacks.geia.torch.load"),  # ours by its beginning only
        ("attack._target_", "unembed.runs.init_from.copy_artifacts"),  # ours, but no class of any configuration
        ("attack._target_", "unembed.attacks.geia.__builtins__"),
        ("attack._target_", "builtins.eval"),
        # Ours elsewhere: as an embedder it would begin a session, and send the key to a server of its settings.
        ("embedder._target_", "unembed.callbacks.wandb_logger.WandbOrDisk"),
        ("scoring.tagger", {"_target_": "unembed.callbacks.wandb_logger.WandbOrDisk"}),
        ("attack.backbone._target_", "lightning.pytorch.callbacks.ModelCheckpoint"),
        ("*", {"_target_": "unembed.attacks.geia.GEIA"}),
        ("9" * 400, {"_target_": "unembed.attacks.geia.GEIA"}),  # longer than a file name may be
        ("attack._target_", ["os.system"]),
        ("attack.backbone._target_", "hostile_module.Evil"),
        ("embedder._target_", "hostile_module.Evil"),
        ("defense._target_", "hostile_module.Evil"),
        ("datamodule.source._target_", "hostile_module.Evil"),
        ("scoring.tagger", {"_target_": "hostile_module.Evil"}),
        ("callbacks.history._target_", "hostile_module.Evil"),
        ("trainer.callbacks", [[{"_target_": "hostile_module.Evil"}]]),
        ("logger._target_", "hostile_module.Evil"),
        ("_target_", "hostile_module.Evil"),
    ],
)
def test_a_class_that_is_not_ours_is_named_and_not_imported(run: Path, module: Path, key: str, target: Any) -> None:
    change(run, key, target)
    message = refused(run)
    assert message.startswith(f"{run / layout.CONFIG}: {key.removesuffix('_target_').removesuffix('.')}")
    assert "_target_=" in message
    if isinstance(target, str):
        assert target in message
        assert message.endswith(f"if you trust that code and this run, add trust={target.rpartition('.')[0]}")
    change(run, key, target)
    with pytest.raises(InputError, match="_target_="):
        attack_of(run, 384)
    assert not module.exists()


def test_trust_names_a_module(run: Path, module: Path) -> None:
    change(run, "attack._target_", "hostile_module.Evil")
    assert "hostile_module.Evil" in refused(run, "trust=hostile")  # not the beginning of a name
    assert not module.exists()
    with pytest.raises(InputError, match="unknown key"):  # it takes other arguments
        launch.on_run("evaluate", [f"run={run}", "trust=hostile_module"])
    config = yaml.safe_load((run / "config.yaml").read_text())
    fitting = {**launch.plain(launch.compose("train", ["attack=bag_of_words"]))["attack"]}
    changed = {**config, "attack": {**fitting, "_target_": "hostile_module.Evil"}}
    (run / "config.yaml").write_text(yaml.safe_dump(changed))
    launch.on_run("evaluate", [f"run={run}", "trust=hostile_module"])
    assert module.exists()  # it is imported
    change(run, "trust", ["os"])  # the run's own word does not count
    change(run, "attack._target_", "os.system")
    assert "os.system" in refused(run)


def test_all_that_is_not_trusted_is_named_at_once(run: Path) -> None:
    change(run, "attack._target_", "a.B")
    change(run, "defense._target_", "c.D")
    assert len(refused(run, "datamodule.limit_test=3").splitlines()) == 2


@pytest.mark.parametrize(
    "resolver", ["${oc.env:OPENAI_API_KEY}", "${oc.decode:x}", "${seed}", "a ${hydra:runtime.cwd}"]
)
@pytest.mark.parametrize("key", ["choices.attack", "datamodule.tokenizer", "seed", "attack.backbone.layers"])
def test_nothing_is_looked_up(run: Path, monkeypatch: pytest.MonkeyPatch, resolver: str, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    change(run, key, resolver)
    message = refused(run)
    assert f"{key}={resolver}" in message
    assert "sk-planted" not in message
    for read in (lambda: read_config(run), lambda: attack_of(run, 384)):
        with pytest.raises(InputError, match="plain values"):
            read()


def test_code_that_comes_with_a_model_needs_the_users_word(run: Path) -> None:
    change(
        run,
        "attack.backbone",
        {"_target_": "unembed.attacks.parts.backbones.Pretrained", "name": "x/y", "trust_remote_code": True},
    )
    assert refused(run).endswith("the code that comes with the model x/y; if you trust it, add trust=x/y")
    _, config = launch.on_run("evaluate", [f"run={run}", "trust=[x/y]"])
    assert config.attack.backbone.trust_remote_code


def test_a_key_is_sent_to_no_server_of_the_runs_choice(run: Path) -> None:
    server = {"_target_": "unembed.embedders.openai_api.OpenAIEmbedder", "api_key_env": AWS}
    # Not this machine's either: who listens there is the run's guess, and a user may have more keys than one.
    for address in ("https://evil.example/v1", "http://api.openai.com.evil.example/v1", "http://[::1", LOCAL):
        change(run, "embedder", {"base_url": address, **server})
        lines = refused(run).splitlines()
        assert len(lines) == 2
        assert f"embedder.base_url={address}: a run chooses no address, key or account; give" in lines[0]
        assert f"embedder.api_key_env={AWS}: a run chooses no address" in lines[1]
    launch.on_run("evaluate", [f"run={run}", f"trust=[{LOCAL},{AWS}]"])
    assert f"base_url={LOCAL}" in refused(run, f"trust=[http://127.0.0.1:8000,{AWS}]")
    change(run, "embedder", {**server, "base_url": OPENAI, "api_key_env": "OPENAI_API_KEY"})
    check_trusted(read_config(run), run)


OPENAI, LOCAL, AWS = "https://api.openai.com/v1", "http://127.0.0.1:8000/v1", "AWS_SECRET_ACCESS_KEY"


@pytest.mark.parametrize(
    ("server", "overrides", "said"),
    [
        ({"base_url": OPENAI, "api_key_env": AWS}, [], f"embedder.api_key_env={AWS}: a run"),
        ({"base_url": OPENAI, "api_key_env": "UNEMBED_ROTATION_KEY"}, [], "api_key_env=UNEMBED_ROTATION_KEY: a run"),
        ({"api_key_env": AWS}, [], f"embedder.api_key_env={AWS}: a run"),
        ({"base_url": OPENAI, "api_key_env": AWS}, [f"trust={AWS}"], None),
        ({"base_url": OPENAI, "api_key_env": AWS}, [f"embedder.api_key_env={AWS}"], None),
        ({"base_url": OPENAI, "api_key_env": None}, [], None),
        # A variable is that of its address, and trusted by its own name.
        ({"base_url": LOCAL}, [f"trust=[{LOCAL}]"], "embedder.api_key_env=OPENAI_API_KEY: a run"),  # the default
        ({"base_url": LOCAL, "api_key_env": "OPENAI_API_KEY"}, [f"trust=[{LOCAL},OPENAI_API_KEY]"], None),
        ({"base_url": LOCAL, "api_key_env": None}, [], f"embedder.base_url={LOCAL}: a run"),
        ({"base_url": LOCAL, "api_key_env": None}, [f"trust=[{LOCAL}]"], None),
        # What is typed is the user's own.
        ({"base_url": LOCAL, "api_key_env": None}, ["embedder.base_url=http://127.0.0.1:9/v1"], None),
        ({"base_url": LOCAL, "api_key_env": "HOME"}, [f"embedder.base_url={LOCAL}"], "api_key_env=HOME: a run"),
        ({"base_url": LOCAL}, [f"embedder.base_url={LOCAL}", "embedder.api_key_env=null"], None),
        ({"base_url": LOCAL, "api_key_env": "HOME"}, ["embedder=minilm"], None),
        ({"base_url": ["http://a/v1"], "api_key_env": None}, [], "embedder.base_url[0]=http://a/v1: a run"),
    ],
)  # fmt: skip
def test_addresses_and_variables_of_a_run_need_the_users_word(
    run: Path, composed: dict[str, Any], server: dict[str, Any], overrides: list[str], said: str | None
) -> None:
    node = {"_target_": "unembed.embedders.openai_api.OpenAIEmbedder", **server}
    change(run, "embedder", node)
    if said is None:
        known = {"base_url": OPENAI, "api_key_env": "OPENAI_API_KEY"}
        change(run, "embedder", {**known, **node})
        launch.on_run("evaluate", [f"run={run}", *overrides])
    else:
        message = refused(run, *(overrides or ["seed=1"]))
        assert said in message
        assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("datamodule.source.path", "https://169.254.169.254/latest", "datamodule.source.path=https://169.254.169.254"),
        (
            "datamodule.source.files",
            {"train": ["s3://bucket/x.parquet"]},
            "train[0]=s3://bucket/x.parquet: a run",
        ),
        ("datamodule.path", "filecache::https://evil.example/x.jsonl", "x.jsonl: a run chooses no address"),
        ("defense.key_env", AWS, f"defense.key_env={AWS}: a run"),
        ("defense.a.key_env", AWS, f"defense.a.key_env={AWS}: a run"),
        ("scoring.second_embedder", {"base_url": LOCAL}, f"scoring.second_embedder.base_url={LOCAL}: a run"),
    ],
)
def test_other_addresses_and_variables(run: Path, key: str, value: Any, said: str) -> None:
    change(run, key, value)
    assert said in refused(run)


def test_a_run_whose_attack_alone_is_built_asks_no_server(run: Path) -> None:
    server = {"_target_": "unembed.embedders.openai_api.OpenAIEmbedder", "base_url": LOCAL, "api_key_env": None}
    change(run, "embedder", server)
    check_trusted(read_config(run), run, built=["attack"])
    change(run, "attack.backbone.name", "https://evil.example/model")
    with pytest.raises(InputError, match=r"attack\.backbone\.name=https://evil"):
        check_trusted(read_config(run), run, built=["attack"])


@pytest.mark.parametrize("choice", ["../../../tmp/evil", "/tmp/evil", "geia,x", ["geia"], "a/../b"])
def test_a_choice_leads_nowhere_else(run: Path, choice: Any) -> None:
    change(run, "choices.attack", choice)
    assert f"choices.attack={choice!r}: no name of an option" in refused(run, "attack/decoding=beam")


def test_writes_go_to_the_run_and_to_a_cache(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "mine"))
    change(run, "run_dir", "/etc")
    change(run, "cache_dir", str(tmp_path / "documents"))
    _, config = launch.on_run("evaluate", [f"run={run}"])
    assert (config.run_dir, config.cache_dir) == (str(run), str(tmp_path / "mine"))
    folder = tmp_path / "documents" / "0123"
    folder.mkdir(parents=True)
    (folder / "embedder.json").write_text("{}")  # a cache, then
    _, config = launch.on_run("evaluate", [f"run={run}"])
    assert config.cache_dir == str(tmp_path / "documents")
    (run / "c" / "0123").mkdir(parents=True)
    (run / "c" / "0123" / "embedder.json").write_text("{}")
    change(run, "cache_dir", str(run / "c"))  # it came with the run, and could hold any vectors
    _, config = launch.on_run("evaluate", [f"run={run}"])
    assert config.cache_dir == str(tmp_path / "mine")
    _, config = launch.on_run("evaluate", [f"run={run}", "cache_dir=/elsewhere"])
    assert config.cache_dir == "/elsewhere"


@pytest.mark.parametrize("name", ["evaluations", "artifacts/decoder", "checkpoints/last.ckpt"])
def test_a_link_out_of_the_run_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "private").mkdir()
    path = run / name
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "private")
    assert refused(run).startswith(f"{path}: a link that leads out of the run, to {tmp_path / 'private'}")
    with pytest.raises(InputError, match="a link that leads out of the run"):
        check_embedder(run, "init_from", MiniLM().fingerprint, 384)
    path.unlink()
    (run / "record2.json").symlink_to(run / layout.RECORD)  # stays in the run
    layout.check_links(run)


def test_training_resumes_in_no_directory_with_links_out_of_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bashrc").write_text("mine\n")
    (run / "log").symlink_to(tmp_path / "bashrc")  # the log would be written there
    monkeypatch.setattr(sys, "argv", ["train.py", f"run_dir={run}", "ckpt_path=last"])
    with pytest.raises(SystemExit) as ended:
        launch.main(lambda config: None, "train")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"{run / 'log'}: a link that leads out of the run")
    assert (tmp_path / "bashrc").read_text() == "mine\n"


def test_a_pipe_in_a_run_is_refused(run: Path) -> None:
    os.mkfifo(run / layout.ARTIFACTS / "words.json")  # reading it would wait for ever
    assert "neither a file nor a directory" in refused(run)


def test_the_environment_is_no_file_of_texts(run: Path) -> None:
    (run / "metrics").mkdir()
    (run / "metrics" / "texts.txt").symlink_to("/proc/self/environ")
    source = TextFiles(test=str(run / "metrics" / "texts.txt"))
    with pytest.raises(InputError, match=r"/environ, which describes processes and is not a data file"):
        source.load()


@pytest.mark.parametrize("place", ["metrics/v", "metrics/v/metrics.csv", "wandb", "evaluations/x/log"])
def test_a_link_out_of_any_folder_of_the_run_is_refused(run: Path, tmp_path: Path, place: str) -> None:
    """A logger would write through it."""
    (tmp_path / "mine").mkdir()
    (run / place).parent.mkdir(parents=True, exist_ok=True)
    (run / place).symlink_to(tmp_path / "mine")
    assert f"{place}: a link that leads out of the run" in refused(run)


def test_links_in_a_circle_are_no_traceback(run: Path) -> None:
    (run / "loop").symlink_to("loop")
    layout.check_links(run)
    check_trusted(read_config(run), run)


def test_curves_are_sent_to_no_account_of_the_runs_choice(run: Path) -> None:
    change(run, "logger", {"_target_": "unembed.callbacks.wandb_logger.WandbOrDisk", "entity": "somebody"})
    assert "logger.entity=somebody: a run chooses no address, key or account" in refused(run)
    with trusting("somebody"):
        check_trusted(read_config(run), run)
    check_trusted(read_config(run), run, given={"logger.entity"})


@pytest.mark.parametrize("key", ["_partial_", "_args_", "_recursive_", "_convert_"])
def test_a_run_does_not_say_how_its_classes_are_built(run: Path, key: str) -> None:
    change(run, f"attack.backbone.{key}", True)
    assert f"attack.backbone.{key}=True: no class of ours needs it" in refused(run)


@pytest.mark.parametrize("written", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_record_holds_finite_numbers(run: Path, written: str) -> None:
    (run / layout.RECORD).write_text(f'{{"training": {{"seconds": {written}}}}}', encoding="utf-8")
    with pytest.raises(InputError, match=f"not JSON that can be read: {written} is not a finite number"):
        training_of(run)


def test_arguments_of_a_pipeline_run_no_code(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text('{"hidden_size": 4}', encoding="utf-8")
    for part, given in (("model_kwargs", {"weights_only": False}), ("model_args", {"allow_all_kernels": True})):
        described = {"max_seq_length": 8, part: {"torch_dtype": "float32", **given}}
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps(described), encoding="utf-8")
        with pytest.raises(InputError, match=f"{part}.{next(iter(given))}: an argument for loading the model"):
            SentenceTransformerEmbedder(str(tmp_path), device="cpu").embed(["a"])


def test_tied_weights_are_read(run: Path) -> None:
    weight = torch.rand(1_000)
    torch.save({"state_dict": dict.fromkeys("abcd", weight)}, run / layout.CHECKPOINT)
    assert len(load_checkpoint(run / layout.CHECKPOINT)["state_dict"]) == 4


def with_pickle(path: Path, pickled: bytes) -> None:
    """A file as torch.save writes it, with another pickle."""
    torch.save({"state_dict": {}}, path)
    with zipfile.ZipFile(path) as stored:
        parts = {part.filename: stored.read(part) for part in stored.infolist()}
    with zipfile.ZipFile(path, "w") as made:
        for name, content in parts.items():
            made.writestr(name, pickled if name.endswith("data.pkl") else content)


@pytest.mark.parametrize(
    ("pickled", "named"),
    [
        (b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.", r" \(os.system\)"),
        (b"\x80\x02cbuiltins\nopen\nX\x04\x00\x00\x00true\x85R.", r" \(open\)"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.", ""),
        (b"(S'true'\nios\nsystem\n.", ""),
    ],
)
def test_a_pickle_names_parts_of_tensors_only(run: Path, pickled: bytes, named: str) -> None:
    """Whoever reads it: Lightning's FSDP strategy unpickles a checkpoint with Python's own reader."""
    with_pickle(run / layout.CHECKPOINT, pickled)
    ways: list[Callable[[], Any]] = [
        lambda: load_checkpoint(run / layout.CHECKPOINT),
        lambda: finished_checkpoint(run),
        lambda: resume_from(run, str(run / layout.CHECKPOINT)),
    ]
    for way in ways:
        with pytest.raises(InputError, match=f"more than tensors and plain values{named}; nothing of it is run"):
            way()
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one; delete it"):
        resume_from(run, "last")


def test_weights_whose_scores_overflow_are_one_message() -> None:
    decoding = BeamSearch(beams=1, max_new_tokens=2)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=4, n_layer=1, n_head=1)).eval()
    for weight in model.parameters():
        weight.data.mul_(1e38)
    found = decoding(CausalDecoder(model), torch.ones(1, 1, 4), eos=0, index=torch.zeros(1, dtype=torch.long))
    with pytest.raises(InputError, match="its weights give scores that are not finite"):
        [Prediction(tuple(map(str, texts))) for texts in found]


@pytest.mark.parametrize("version", ["0.9.0", "1.9.5", 2, "2", "x", "9" * 100])
def test_a_checkpoint_is_not_rewritten_by_lightning(run: Path, version: Any) -> None:
    """Its migrations of old files would make callbacks' paths of other keys."""
    content = {"state_dict": {}, "pytorch-lightning_version": version, "checkpoint_callback_best_model_path": "/etc"}
    torch.save(content, run / layout.CHECKPOINT)
    with pytest.raises(InputError, match="not a checkpoint of Lightning 2 or later"):
        load_checkpoint(run / layout.CHECKPOINT)


def test_callbacks_have_their_numbers_back_and_nothing_else(run: Path) -> None:
    states = {
        "History": {"seconds": 1.5},
        "EarlyStopping": {"wait_count": 2, "best_score": torch.tensor(0.5), "stopping_reason_message": None},
        "ModelCheckpoint": {"best_model_score": None, "best_model_path": "/etc"},
        "Mine": {"best_k_models": {"/etc": torch.tensor(1.0)}},
        "Other": ["/etc"],
        3: {"seconds": 1.0},
    }
    torch.save({"state_dict": {}, "callbacks": states}, run / layout.CHECKPOINT)
    assert load_checkpoint(run / layout.CHECKPOINT)["callbacks"].keys() == {"History", "EarlyStopping"}
    torch.save({"state_dict": {}, "callbacks": 3}, run / layout.CHECKPOINT)
    assert load_checkpoint(run / layout.CHECKPOINT)["callbacks"] == {}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": 1}, "its weights 'a' are not a tensor of real numbers"),
        ({1: torch.ones(1)}, "its weights 1 are not a tensor of real numbers"),
        ({"a": torch.ones(2).to_sparse()}, "its weights 'a' are not a tensor"),
        ({"a": torch.ones(2, device="meta")}, "its weights 'a' are not a tensor"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "its weights 'a' are not a tensor"),
        ({"a": torch.tensor([1.0, float("nan")])}, "a holds NaN: the training diverged"),
    ],
)
def test_a_checkpoint_holds_plain_weights(run: Path, state: Any, said: str) -> None:
    torch.save({"state_dict": state}, run / layout.CHECKPOINT)
    with pytest.raises(InputError, match=said):
        load_checkpoint(run / layout.CHECKPOINT)


@pytest.mark.parametrize(
    "content", [None, b"{{{", b"[1]", b'{"model_type": "evil"}', b'{"model_type": "gpt2", "n_layer": "x"}']
)
def test_artifacts_that_are_missing_or_damaged_are_one_message(run: Path, content: bytes | None) -> None:
    if content is not None:
        (run / layout.ARTIFACTS / "decoder").mkdir()
        (run / layout.ARTIFACTS / "decoder" / "config.json").write_bytes(content)
    with pytest.raises(
        InputError, match=f"{run / layout.ARTIFACTS}: the attack cannot be rebuilt from what lies there"
    ):
        attack_of(run, 384)


@pytest.mark.parametrize("content", [b"[1]", b"{", b"9" * 5000, b"[" * 100_000, b"{}", b'{"embedder": 3}'])
def test_a_damaged_record_is_one_message(run: Path, content: bytes) -> None:
    (run / layout.RECORD).write_bytes(content)
    with pytest.raises(InputError, match=str(run / layout.RECORD)):
        check_embedder(run, "init_from", MiniLM().fingerprint, 384)


def test_what_a_terminal_would_obey_is_not_in_a_message(run: Path) -> None:
    change(run, "attack._target_", "a\x1b[2J\u202e.B")
    message = refused(run)
    assert "_target_=a\ufffd[2J\ufffd.B" in message
    assert printable("tabs\tand lines\n, \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645") == (
        "tabs\tand lines\n, \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("https://evil.example/data", "../../../../../etc/cron.d/evil"),
        ("https://evil.example/data", "/etc/cron.d/evil"),
        ("https://evil.example/../../../..", "evil"),
    ],
)
def test_a_data_set_is_downloaded_into_its_own_folder(
    path: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    hub = HubSet(path, {"train": [name]}, texts=["text"], sizes={}, licence="")
    with pytest.raises(InputError, match="leads out of the folder that the files are kept in"):
        hub.download()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_never_unpickled(run: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"state_dict": {}, "x": Payload()}, run / layout.CHECKPOINT)
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
        load_checkpoint(run / layout.CHECKPOINT)
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
        WholeCheckpoints().load_checkpoint(run / layout.CHECKPOINT)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: !!python/object/apply:os.system ['true']\n", "constructor"),
        (b"[" * 5_000, "cannot be read"),
        (b"x: " + b"y" * 1_000_001, "at most 1,000,000 are read"),
        (b"a: 2020-01-01\n", "neither text nor number"),
        (b"? [1, 2]\n: 3\n", "unhashable|cannot be read"),
        (b"1.5: x\n", "neither text nor number"),
    ],
)  # fmt: skip
def test_a_hostile_configuration_is_one_message(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / layout.CONFIG).write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_config(tmp_path)


def test_our_own_classes_are_those_of_the_configurations(run: Path) -> None:
    places = {
        "trainer": "lightning.Trainer", "attack.attack": "unembed.attacks.geia.GEIA",
        "datamodule": "unembed.datamodules.sources.hub.HubSet",
        "scoring.tagger": "unembed.scoring.taggers.StanzaTagger",
        "scoring.second_embedder": "unembed.embedders.minilm.MiniLM",
        "callbacks.mine": "lightning.pytorch.callbacks.EarlyStopping",
    }  # fmt: skip
    for place, target in places.items():
        change(run, place, {"_target_": target})
        check_trusted(read_config(run), run)
    with trusting("a.b"):
        for target, trusted in {"a.b.C": True, "a.b": True, "a.bc.D": False, "a.C": False}.items():
            change(run, "attack", {"_target_": target})
            if trusted:
                check_trusted(read_config(run), run)
            else:
                with pytest.raises(InputError, match=f"_target_={target}"):
                    check_trusted(read_config(run), run)


def test_no_file_of_ours_unpickles_or_evaluates() -> None:
    files = [*(path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))), *sorted(ROOT.glob("*.py"))]
    assert len(files) > 100
    assert [wrong for path in files for wrong in unsafe(path)] == []


def unsafe(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        at = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            modules = {name.partition(".")[0] for name in [*names, getattr(node, "module", None) or ""]}
            if modules & {"dill", "joblib", "shelve", "marshal", "cloudpickle"}:
                yield f"{at}: {modules}"
            if "pickle" in modules and names != ["UnpicklingError"] and path.name != "qdrant.py":
                yield f"{at}: pickle"  # that file's unpickler finds stand-ins for all classes
        elif isinstance(node, ast.Call):
            name, options = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
            resumes = name in ("trainer.fit", "trainer.test") and "ckpt_path" in options
            if name in ("eval", "exec", "yaml.load", "yaml.unsafe_load", "OmegaConf.load") and path.parent.name != (
                "launch"
            ):
                yield f"{at}: {name}"
            if name in ("pickle.load", "pickle.loads", "pickle.Unpickler"):
                yield f"{at}: {name}"
            if (name == "torch.load" or resumes) and options.get("weights_only") != "True":
                yield f"{at}: {name} without weights_only=True"
            stated = any(keyword.arg in ("trust_remote_code", None) for keyword in node.keywords)
            if name.startswith("Auto") and name.endswith(".from_pretrained") and not stated:
                yield f"{at}: {name} would ask on standard input whether code may run"
            for option in ("allow_pickle", "trust_remote_code"):
                if options.get(option) == "True":
                    yield f"{at}: {option}=True"
