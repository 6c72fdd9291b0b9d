"""The three scripts from real command lines: what a run leaves, resuming, ranks, reading back, and how they end.

One small run is trained for all tests; they share its cache. Scripts are forked from a process that has imported the
libraries, but for the ranks that one starts; test_terminal_output.py starts each script by the interpreter itself.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml
from numpy.typing import NDArray
from safetensors.torch import save_file

from support.files import load, metrics_of, read_lines, rows_of, write_lines
from support.offline_wandb import recorded
from support.processes import REPEATABLE, ROOT, Script, Warm, program
from support.small_scripts import wait_for
from unembed import launch
from unembed.audit.attackers import reader_of
from unembed.commands import invert
from unembed.core.errors import InputError
from unembed.core.ranks import Ranks
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.synthetic import SyntheticCorpus
from unembed.datamodules.vector_stores.sampling import Sample
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.runs import layout
from unembed.session import Session

pytestmark = pytest.mark.slow

TEST_TEXTS = 37  # no multiple of the batch size, and an odd number of batches: uneven on two ranks
CORPUS = {"sentences": 600, "valid": 60, "test": 100}  # each process generates and cuts them all
DATA = [*(f"++datamodule.source.{key}={value}" for key, value in CORPUS.items()), "datamodule.limit_train=400",
        "datamodule.limit_valid=16", f"datamodule.limit_test={TEST_TEXTS}", "datamodule.eval_batch_size=8"]  # fmt: skip
MODEL = ["attack=geia", "attack.backbone.layers=1", "attack.backbone.width=64", "attack.backbone.heads=2",
         "attack.backbone.dropout=0.1", "attack.prefix.noise=0.1",  # resuming must restore the random numbers too
         "attack.decoding.beams=2", "attack.decoding.max_new_tokens=40"]  # fmt: skip
SHORT = ["trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.max_steps=30", "trainer.max_time=null"]
TINY = [*DATA, *MODEL, *SHORT]
SAVE_OFTEN = ["+callbacks.checkpoint.every_n_train_steps=5", "callbacks.checkpoint.train_time_interval=null"]
TWO_RANKS = ["trainer=ddp", "trainer.accelerator=cpu"]
# train.py with shards of 64 texts: the first one is finished in a second.
SMALL_SHARDS = f"""
import runpy, sys
from unembed.embedders.cache.cached import CachedEmbedder
CachedEmbedder.__init__.__kwdefaults__["shard_size"] = 64
sys.argv[0] = {str(ROOT / "train.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# In the environment of every script: none of them may reach a file.
KEYS = {"OPENAI_API_KEY": "sk-planted-0123456789", "WANDB_API_KEY": "0badcafe" * 5, "HF_TOKEN": "hf_planted0123456789"}
METRICS = {
    "bleu", "bleu_sentence", "bleu1", "bleu2", "bleu4", "rouge1", "rouge2", "rougeL", "token_precision",
    "token_recall", "token_f1", "exact_match", "exact_match_no_punctuation", "edit_distance_mean",
    "edit_distance_median", "cosine", "entity_recovery", "entity_recovery_unseen", "examples", "queries", "seconds",
}  # fmt: skip


class Scripts:
    """Runs the scripts in processes of their own, all with one cache.

    Args:
        cache: Of the vectors.
        warm: Forks the scripts.
    """

    def __init__(self, cache: Path, warm: Warm) -> None:
        self.cache, self.warm = cache, warm

    @property
    def environment(self) -> dict[str, str]:
        # One thread a process: two ranks and one then add up in the same order, so that every bit can be compared.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "WANDB", "RUN_ID", "COV"))}
        return {**kept, **KEYS, **REPEATABLE, "OMP_NUM_THREADS": "1", "UNEMBED_CACHE": str(self.cache),
                "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "WANDB_BASE_URL": "http://127.0.0.1:9"}  # fmt: skip

    def start(self, script: str, *overrides: str, cwd: Path = ROOT) -> Script:
        command = [*(["-c", script] if " " in script else program(script)), *overrides]
        return self.warm.start(command, cwd=cwd, environment=self.environment)

    def run(self, script: str, *overrides: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        command = [*program(script), *overrides]
        return self.warm.run(command, cwd=cwd, environment=self.environment)

    def ranks(self, script: str, *overrides: str) -> list[Script]:
        """Two, as torchrun starts them."""
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            several = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(one.getsockname()[1])}
        environments = ({**self.environment, **several, "RANK": rank, "LOCAL_RANK": rank} for rank in "01")
        return [self.warm.start([*program(script), *overrides], environment=one) for one in environments]

    def succeed(self, script: str, *overrides: str, cwd: Path = ROOT) -> str:
        result = self.run(script, *overrides, cwd=cwd)
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stdout

    def refuse(self, script: str, *overrides: str, cwd: Path = ROOT) -> str:
        """The one line that a mistake of the user gives."""
        result = self.run(script, *overrides, cwd=cwd)
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        assert (result.returncode, len(lines)) == (2, 1), result.stderr[-3000:]
        assert "Traceback" not in result.stdout
        return lines[0]


@contextmanager
def running(script: Script) -> Iterator[Script]:
    try:
        yield script
    finally:
        script.kill()


def sent(run: Path) -> int:
    """Texts that were really sent to the embedder."""
    return sum(load(run / layout.RECORD)["embedder"]["sent"].values())


def unfinished(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.name.endswith((".part", ".tmp"))]


def weights(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run / layout.CHECKPOINT, weights_only=True)["state_dict"]
    return state


def assert_complete(run: Path) -> None:
    """A directory as every finished run leaves it."""
    present = {path.name for path in run.iterdir()}
    assert present >= {
        "config.yaml", "checkpoints", "artifacts", "predictions.jsonl", "metrics.json", "baseline.json",
        "history.jsonl", "record.json", "report.html", "log",
    }  # fmt: skip
    assert set(load(run / layout.METRICS)) >= METRICS
    assert set(load(run / layout.BASELINE)) == set(load(run / layout.METRICS))
    assert [row["index"] for row in rows_of(run)] == list(range(TEST_TEXTS))
    assert unfinished(run) == []


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def scripts(base: Path, warm: Warm) -> Scripts:
    return Scripts(base / "cache", warm)


@pytest.fixture(scope="module")
def trained(base: Path, scripts: Scripts) -> Path:
    """The run that most tests read; its standard output lies beside it."""
    run = base / "trained"
    # Saved as often as in the tests of resuming, which compare their weights with these.
    output = scripts.succeed("train", *TINY, *SAVE_OFTEN, f"run_dir={run}")
    (base / "output").write_text(output)
    return run


@pytest.fixture(scope="module")
def evaluated(base: Path, scripts: Scripts, trained: Path) -> Path:
    scripts.succeed("evaluate", f"run={trained}", f"output_dir={base / 'evaluated'}")
    return base / "evaluated"


@pytest.fixture(scope="module")
def targets(scripts: Scripts, trained: Path) -> NDArray[np.float32]:
    """The vectors of the run's test texts, (n, d)."""
    data = InversionDataModule(SyntheticCorpus(**CORPUS), limit_train=400, limit_valid=16, limit_test=TEST_TEXTS)
    data.connect(CachedEmbedder(MiniLM("cpu"), scripts.cache), Identity())
    data.setup("test")
    return data.vectors("test", range(TEST_TEXTS)).numpy()


# -- one run ----------------------------------------------------------------------------------------------------------


def test_a_run_leaves_everything(trained: Path, base: Path) -> None:
    assert_complete(trained)
    assert load(trained / layout.METRICS)["examples"] == TEST_TEXTS
    assert load(trained / layout.METRICS)["queries"] == 0
    assert "Report: " in (base / "output").read_text()
    assert "<script" not in (trained / "report.html").read_text().lower()
    assert "texts: 400 train, 16 valid, 37 test" in (trained / "log").read_text()
    config = yaml.safe_load((trained / layout.CONFIG).read_text())
    assert (config["trainer"]["max_steps"], config["choices"]["attack"]) == (30, "geia")


def test_checkpoint_is_plain_and_only_the_last_is_kept(trained: Path) -> None:
    assert [path.name for path in (trained / "checkpoints").iterdir()] == ["last.ckpt"]
    checkpoint = torch.load(trained / layout.CHECKPOINT, weights_only=True)
    assert checkpoint["global_step"] == 30
    assert not any("embedder" in name or "oracle" in name for name in checkpoint["state_dict"])


def test_record_and_history(trained: Path) -> None:
    record = load(trained / layout.RECORD)
    assert record["training"]["steps"] == 30
    assert record["embedder"]["sent"]["training"] == 400 + 16 + TEST_TEXTS
    assert record["embedder"]["asked"]["attack"] == 0
    assert record["parameters"] == sum(tensor.numel() for tensor in unique(weights(trained)))
    history = read_lines(trained / layout.HISTORY)
    assert [row["step"] for row in history if row["train_loss"] is not None] == [20]
    assert [row["step"] for row in history if row["val_loss"] is not None] == [7, 14, 21, 28]  # at the ends of epochs
    losses = [row["val_loss"] for row in history if row["val_loss"] is not None]
    assert losses == sorted(losses, reverse=True)


def unique(state: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Tied weights once."""
    return list({tensor.data_ptr(): tensor for tensor in state.values()}.values())


def test_a_directory_that_holds_a_run_is_refused(trained: Path, scripts: Scripts) -> None:
    before = (trained / layout.CONFIG).read_bytes()
    assert "already holds a run; add ckpt_path=last" in scripts.refuse("train", *TINY, f"run_dir={trained}")
    assert (trained / layout.CONFIG).read_bytes() == before


# -- evaluate.py ------------------------------------------------------------------------------------------------------


def test_evaluation_gives_the_metrics_of_training_again(trained: Path, evaluated: Path) -> None:
    assert metrics_of(evaluated) == metrics_of(trained)
    assert metrics_of(evaluated, layout.BASELINE) == metrics_of(trained, layout.BASELINE)
    assert (evaluated / layout.PREDICTIONS).read_bytes() == (trained / layout.PREDICTIONS).read_bytes()
    assert sent(evaluated) == 0
    assert (evaluated / "log").read_text().count("texts: ") == 1  # the data of the training are read once
    assert (evaluated / "report.html").is_file()
    assert unfinished(evaluated) == []


def test_evaluation_with_other_decoding_and_fewer_texts(trained: Path, scripts: Scripts, tmp_path: Path) -> None:
    scripts.succeed(
        "evaluate", f"run={trained}", f"output_dir={tmp_path / 'out'}", "attack.decoding.beams=1",
        "datamodule.limit_test=5",
    )  # fmt: skip
    found, original = rows_of(tmp_path / "out"), rows_of(trained)[:5]
    assert [row["reference"] for row in found] == [row["reference"] for row in original]
    assert load(tmp_path / "out" / layout.METRICS)["examples"] == 5
    assert yaml.safe_load((tmp_path / "out" / layout.CONFIG).read_text())["attack"]["decoding"]["beams"] == 1


def test_evaluation_on_other_text(trained: Path, scripts: Scripts, tmp_path: Path) -> None:
    texts = ["My name is Ada.", "The meeting is on Friday.", "He paid 300 dollars for the flight to Rome."]
    (tmp_path / "mine.txt").write_text("\n".join(texts) + "\n")
    scripts.succeed(
        "evaluate", f"run={trained}", "output_dir=out", "datamodule=files", "datamodule.test=mine.txt", cwd=tmp_path
    )
    own, trained_on = re.findall(r"texts: .* test", (tmp_path / "out" / "log").read_text())
    assert own == "texts: 0 train, 0 valid, 3 test"
    assert trained_on.startswith("texts: 400 train")
    assert [row["reference"] for row in rows_of(tmp_path / "out")] == texts
    assert load(tmp_path / "out" / layout.METRICS)["entity_recovery"] is None
    assert load(tmp_path / "out" / layout.BASELINE)["examples"] == 3


def test_evaluation_without_the_cache(trained: Path, warm: Warm, tmp_path: Path) -> None:
    """As on another machine: texts are embedded again, those of the baseline included; each by one rank."""
    fresh = Scripts(tmp_path / "cache", warm)
    out = tmp_path / "out"
    options = ["datamodule.limit_test=3", "datamodule.eval_batch_size=2", f"cache_dir={fresh.cache}", *TWO_RANKS]
    fresh.succeed("evaluate", f"run={trained}", f"output_dir={out}", *options)
    assert load(out / layout.RECORD)["embedder"]["sent"]["training"] == 403
    assert [row["prediction"] for row in rows_of(out)] == [row["prediction"] for row in rows_of(trained)[:3]]


# -- resuming ---------------------------------------------------------------------------------------------------------


def saved_step(run: Path) -> int:
    try:
        return int(torch.load(run / layout.CHECKPOINT, weights_only=True)["global_step"])
    except FileNotFoundError:
        return 0


def test_killed_training_resumes_and_ends_with_the_same_weights(
    trained: Path, scripts: Scripts, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with running(scripts.start("train", *TINY, *SAVE_OFTEN, "logger=csv", f"run_dir={run}")) as process:
        wait_for(process, lambda: saved_step(run) >= 10)
    last = run / layout.CHECKPOINT
    if last.exists():  # and its last checkpoint is half of one
        last.write_bytes(last.read_bytes()[:-1000])
    step = int(torch.load(run / layout.PREVIOUS, weights_only=True)["global_step"])
    assert 5 <= step < 30
    assert not (run / layout.METRICS).exists()
    often = [*SAVE_OFTEN, "logger=csv", "trainer.log_every_n_steps=1"]
    scripts.succeed("train", *TINY, *often, f"run_dir={run}", "ckpt_path=last")
    assert_complete(run)
    assert f"training resumes from {run / layout.PREVIOUS}" in (run / "log").read_text()
    assert not (run / layout.PREVIOUS).exists()  # the training has ended
    with (run / "metrics" / "version_1" / "metrics.csv").open() as file:
        logged = [int(row["step"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert logged == list(range(step, 30))
    assert sent(run) == 0
    first, second = weights(trained), weights(run)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics_of(run) == metrics_of(trained)
    assert (run / layout.PREDICTIONS).read_bytes() == (trained / layout.PREDICTIONS).read_bytes()
    steps = [(row["step"], row["val_loss"] is None) for row in read_lines(run / layout.HISTORY)]
    assert len(steps) == len(set(steps))
    seen = read_lines(run / layout.HISTORY)
    assert [row["step"] for row in seen if row["val_loss"] is not None] == [7, 14, 21, 28]
    assert [row["seconds"] for row in seen] == sorted(row["seconds"] for row in seen)
    assert load(run / layout.RECORD)["training"]["steps"] == 30


def test_resuming_a_finished_run_only_tests_it_again(trained: Path, scripts: Scripts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for name in (layout.METRICS, layout.PREDICTIONS, "report.html"):
        (run / name).unlink()
    scripts.succeed("train", *TINY, *SAVE_OFTEN, f"run_dir={run}", "ckpt_path=last")
    assert_complete(run)
    assert metrics_of(run) == metrics_of(trained)
    assert read_lines(run / layout.HISTORY) == read_lines(trained / layout.HISTORY)


def test_a_checkpoint_names_nothing_to_remove(trained: Path, scripts: Scripts, tmp_path: Path) -> None:
    """Lightning would remove the best checkpoint so far, whatever it is, when the next one is written."""
    run, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(trained, run)
    (victim / "folder").mkdir(parents=True)
    content = torch.load(run / layout.CHECKPOINT, weights_only=True)
    (own,) = (state for name, state in content["callbacks"].items() if name.startswith("ModelCheckpoint"))
    path = str(run / "checkpoints" / ".." / ".." / "victim")
    own |= {"dirpath": str(run / "checkpoints"), "best_model_path": path, "last_model_path": path}
    own |= {"kth_best_model_path": path, "best_k_models": {path: torch.tensor(0.0)}}
    torch.save(content, run / layout.CHECKPOINT)
    further = [*TINY, *SAVE_OFTEN, "trainer.max_steps=35", f"run_dir={run}", "ckpt_path=last"]
    scripts.succeed("train", *further)
    assert (victim / "folder").is_dir()
    assert saved_step(run) == 35
    assert load(run / layout.RECORD)["training"]["steps"] == 35

    # A state that is none of a training is one message, also where Lightning trips over it (test_runs.py).
    content["optimizer_states"] = [{"parts": []}]
    torch.save(content, run / layout.CHECKPOINT)
    result = scripts.run("train", *further)
    assert result.stderr.splitlines()[-1].startswith(f"{run / layout.CHECKPOINT}: cannot be resumed from: ValueError")
    assert "Traceback" not in result.stderr


def test_killed_embedding_sends_no_finished_text_again(warm: Warm, tmp_path: Path) -> None:
    scripts, run = Scripts(tmp_path / "cache", warm), tmp_path / "run"
    settings = [*TINY, "trainer.max_steps=2", "datamodule.limit_train=200", f"run_dir={run}"]

    def stored() -> int:
        return sum((path.stat().st_size - 64) // (16 + 4 * 384) for path in scripts.cache.rglob("*.shard"))

    with running(scripts.start(SMALL_SHARDS, *settings)) as process:
        wait_for(process, lambda: stored() >= 128)
    before, total = stored(), 200 + 16 + TEST_TEXTS
    assert 128 <= before < total
    assert not (run / layout.CHECKPOINT).exists()
    scripts.succeed("train", *settings, "ckpt_path=last")
    assert load(run / layout.RECORD)["embedder"]["sent"]["training"] == total - before


def test_ctrl_c_keeps_the_last_checkpoint(trained: Path, scripts: Scripts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = [*TINY, *SAVE_OFTEN, "trainer.max_steps=3000", f"run_dir={run}"]
    with running(scripts.start("train", *settings)) as process:
        wait_for(process, lambda: saved_step(run) >= 5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    message = errors.splitlines()[-1]
    assert message.startswith(f"interrupted: {run / 'checkpoints'} is saved; resume with: python train.py ")
    assert message.endswith(f"run_dir={run} ckpt_path=last")
    assert message.endswith(f"; resume with: python train.py run_dir={run} ckpt_path=last")  # no override is needed
    assert saved_step(run) >= 5
    assert unfinished(run) == []


# -- several ranks ----------------------------------------------------------------------------------------------------


def test_two_ranks_evaluate_as_one(trained: Path, evaluated: Path, scripts: Scripts, tmp_path: Path) -> None:
    out = tmp_path / "out"
    scripts.succeed("evaluate", f"run={trained}", f"output_dir={out}", *TWO_RANKS)
    assert load(out / layout.RECORD)["world_size"] == 2
    assert [row["index"] for row in rows_of(out)] == list(range(TEST_TEXTS))
    assert (out / layout.PREDICTIONS).read_bytes() == (evaluated / layout.PREDICTIONS).read_bytes()
    assert metrics_of(out) == metrics_of(evaluated)
    assert metrics_of(out, layout.BASELINE) == metrics_of(evaluated, layout.BASELINE)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture(scope="module")
def on_two_ranks(base: Path, trained: Path, scripts: Scripts) -> list[Path]:
    """The runs of a multirun of two seeds, in the order of these.

    Its default directories hold the time, which the ranks must not each read for themselves. One batch holds all
    validation texts, and one all test texts: the second rank has none, and waits for the first.
    """
    folder = base / "two"
    folder.mkdir()
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    few = ["trainer.max_steps=6", "datamodule.eval_batch_size=64", "seed=1,2"]
    scripts.succeed("train", "-m", *TWO_RANKS, *tiny, *few, cwd=folder)
    assert [path.name for path in folder.iterdir()] == ["runs"]
    return sorted((folder / "runs" / "geia-minilm-synthetic").iterdir())


def test_each_job_of_a_multirun_has_its_ranks_and_one_directory(on_two_ranks: list[Path]) -> None:
    assert [yaml.safe_load((run / layout.CONFIG).read_text())["seed"] for run in on_two_ranks] == [1, 2]
    for run in on_two_ranks:
        assert_complete(run)
        assert load(run / layout.RECORD)["world_size"] == 2
        assert load(run / layout.RECORD)["training"]["steps"] == 6


def test_fewer_evaluation_batches_than_ranks(on_two_ranks: list[Path], scripts: Scripts, tmp_path: Path) -> None:
    run, _ = on_two_ranks
    assert [row["step"] for row in read_lines(run / layout.HISTORY) if row["val_loss"] is not None] == [3, 6]
    scripts.succeed("evaluate", f"run={run}", f"output_dir={tmp_path / 'one'}", "trainer=cpu")
    assert load(tmp_path / "one" / layout.RECORD)["world_size"] == 1
    assert (tmp_path / "one" / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()
    assert metrics_of(tmp_path / "one") == metrics_of(run)


# -- unembed invert ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", [".npy", ".safetensors", ".parquet", ".jsonl"])
def test_vectors_test_callbacks_texts_are_read_back_alike(
    trained: Path, targets: NDArray[np.float32], scripts: Scripts, tmp_path: Path, extension: str
) -> None:
    count = TEST_TEXTS if extension == ".npy" else 8
    path, vectors = tmp_path / f"mine{extension}", targets[:count]
    if extension == ".npy":
        np.save(path, vectors)
    elif extension == ".safetensors":
        save_file({"vectors": torch.from_numpy(vectors.copy())}, path)
    elif extension == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"vector": vectors.tolist()}), path)
    else:
        write_lines(path, vectors.tolist())
    scripts.succeed("invert", f"run={trained}", f"vectors={path}", "batch_size=8")
    found, expected = (
        read_lines(tmp_path / f"mine{extension}.texts.jsonl"),
        rows_of(trained)[:count],
    )
    assert [set(row) for row in found] == [{"index", "text", "cosine"}] * count
    assert [row["index"] for row in found] == list(range(count))
    assert [row["text"] for row in found] == [row["prediction"] for row in expected]
    assert [row["cosine"] for row in found] == [row["cosine"] for row in expected]
    assert unfinished(tmp_path) == []


def test_ranks_and_kills_change_nothing_of_an_inversion(
    trained: Path, targets: NDArray[np.float32], scripts: Scripts, tmp_path: Path
) -> None:
    np.save(tmp_path / "mine.npy", np.tile(targets, (4, 1)).astype(np.float16))
    command = [f"run={trained}", f"vectors={tmp_path / 'mine.npy'}", "batch_size=2", "trust_vectors=true"]

    def ranks(output: Path) -> list[Script]:
        return scripts.ranks("invert", *command, f"output={output}")

    scripts.succeed("invert", *command, f"output={tmp_path / 'one.jsonl'}")
    assert [script.wait() for script in ranks(tmp_path / "two.jsonl")] == [0, 0]
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()

    killed, folder = tmp_path / "killed.jsonl", tmp_path / "killed.jsonl.parts"
    first, second = ranks(killed)
    first.kill_when(lambda: len(list(folder.glob("0*.jsonl"))) >= 2)
    second.kill()
    done = min(folder.glob("0*.jsonl"))
    row = read_lines(done)[0]
    write_lines(done, [{**one, "text": "is not read again"} for one in read_lines(done)])
    assert "holds parts of an inversion of other vectors" in scripts.refuse(
        "invert", *command, f"output={killed}", "cosines=false"
    )
    scripts.succeed("invert", *command, f"output={killed}")  # by one process
    expected = read_lines(tmp_path / "one.jsonl")
    for index in range(row["index"], row["index"] + 8):
        expected[index]["text"] = "is not read again"
    assert read_lines(killed) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.jsonl", "mine.npy", "one.jsonl", "two.jsonl"]


def test_two_ranks_share_an_audit_and_change_nothing_of_it(
    trained: Path, targets: NDArray[np.float32], scripts: Scripts, tmp_path: Path
) -> None:
    np.save(tmp_path / "mine.npy", targets)
    shutil.copytree(trained, tmp_path / "other")
    command = [f"run={trained}", f"vectors={tmp_path / 'mine.npy'}", "limit=null", "batch_size=8",
               f"also={tmp_path / 'other'}",
               "defenses=['defense=noise defense.level=0.05']", "attack.decoding.beams=1"]  # fmt: skip
    found = []
    for name in ("one", "two"):
        apart = Scripts(tmp_path / f"cache_{name}", scripts.warm)
        shutil.copytree(scripts.cache, apart.cache)
        here = [*command, f"output_dir={tmp_path / name}"]
        running = apart.ranks("audit", *here) if name == "two" else [apart.start("audit", *here)]
        said = [script.communicate() for script in running]
        assert [script.returncode for script in running] == [0] * len(running), said
        assert [out for out, _ in said[1:]] == [""] * (len(said) - 1)
        assert not (tmp_path / name / layout.TEST_BATCHES).exists()
        found.append(re.sub(r'"cost": "[\d,]+ s', '"cost": "', (tmp_path / name / "audit.json").read_text()))
    assert found[0] == found[1]


def test_another_rank_reads_its_batches_of_a_store(
    trained: Path, targets: NDArray[np.float32], scripts: Scripts, tmp_path: Path
) -> None:
    settings, config = launch.on_run("audit", [f"run={trained}", "vectors=mine.npy", f"cache_dir={scripts.cache}",
                                               "batch_size=8", f"output_dir={tmp_path}"])  # fmt: skip

    def meet() -> None:
        raise InterruptedError

    sample = Sample("mine", TEST_TEXTS, tuple(range(TEST_TEXTS)), ("",) * TEST_TEXTS, torch.from_numpy(targets))
    with pytest.raises(InterruptedError):
        reader_of("", Session.open(trained, config), settings, Ranks(1, 2, meet)).store_texts(sample)
    names = sorted(path.name for path in (tmp_path / layout.TEST_BATCHES).iterdir())
    assert names == ["reading store-24-000000024.json", "reading store-8-000000008.json"]


def test_bad_input_to_inversion(
    trained: Path, targets: NDArray[np.float32], scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holes = targets.copy()
    holes[2, 5] = np.nan
    for name, vectors in {"wide": np.ones((3, 12), np.float32), "holes": holes, "good": targets}.items():
        np.save(tmp_path / f"{name}.npy", vectors)
    bare = tmp_path / "bare"
    shutil.copytree(trained, bare, ignore=shutil.ignore_patterns("*.ckpt"))
    before = sorted(tmp_path.rglob("*"))
    run = f"run={trained}"
    assert "row 2 holds NaN" in scripts.refuse("invert", run, "vectors=holes.npy", cwd=tmp_path)
    monkeypatch.chdir(tmp_path)  # the others in this process, which has the libraries loaded
    for given, said in {
        (run, "vectors=wide.npy"): "dimension 12",
        (run, "vectors=goof.npy"): r"did you mean good\.npy\?",
        (f"run={bare}", "vectors=good.npy"): "no finished checkpoint",
        ("run=barn", "vectors=good.npy"): r"did you mean bare\?",
        (f"run={tmp_path}", "vectors=good.npy"): r"config\.yaml",
    }.items():
        with pytest.raises(InputError, match=said):
            invert.invert(*launch.on_run("invert", given))
    assert sorted(tmp_path.rglob("*")) == before


def test_bad_input_to_evaluation(trained: Path, scripts: Scripts, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    checkpoint = broken / layout.CHECKPOINT
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1000])
    out = f"output_dir={tmp_path / 'out'}"
    assert "last.ckpt: not a checkpoint, or a damaged one" in scripts.refuse("evaluate", f"run={broken}", out)
    result = scripts.run("evaluate", f"run={trained}", out, "attack.decoding.max_new_tokens=60")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("attack.decoding.max_new_tokens: the decoder has 41 positions")


# -- other attacks and loggers ----------------------------------------------------------------------------------------


def test_nearest_neighbor_from_end_to_end(
    trained: Path, targets: NDArray[np.float32], scripts: Scripts, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    scripts.succeed("train", "attack=nearest_neighbor", *DATA, *SHORT, f"run_dir={run}")
    assert "training" not in load(run / layout.RECORD)
    assert not (run / layout.CHECKPOINT).exists()
    assert metrics_of(run) == metrics_of(run, layout.BASELINE)
    # Beside another attack, the neighbour's texts are also cut into that attack's own tokens; it has none itself.
    beside = metrics_of(trained, layout.BASELINE)
    own = {key: beside.pop(key) for key in ("micro_token_precision", "micro_token_recall", "micro_token_f1")}
    assert {**metrics_of(run), **own} == {**beside, **own}
    assert [metrics_of(run)[key] for key in own] == [None] * 3
    assert all(0 < value < 100 for value in own.values())
    scripts.succeed("evaluate", f"run={run}", f"output_dir={tmp_path / 'out'}")
    assert metrics_of(tmp_path / "out") == metrics_of(run)
    assert (tmp_path / "out" / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()
    np.save(tmp_path / "mine.npy", targets[:9])
    scripts.succeed("invert", f"run={run}", f"vectors={tmp_path / 'mine.npy'}", f"output={tmp_path / 'texts.jsonl'}")
    found, expected = read_lines(tmp_path / "texts.jsonl"), rows_of(run)
    assert [row["text"] for row in found] == [row["prediction"] for row in expected[:9]]


def test_wandb_resumes_without_its_server(trained: Path, scripts: Scripts, tmp_path: Path) -> None:
    scripts.succeed(
        "train", *TINY, "trainer.max_steps=4", "trainer.log_every_n_steps=1", "logger=wandb",
        f"run_dir={tmp_path / 'run'}",
    )  # fmt: skip
    log = (tmp_path / "run" / "log").read_text()
    assert "the W&B server http://127.0.0.1:9 cannot be reached" in log
    assert f"send them later with: wandb sync {tmp_path / 'run' / 'wandb'}/offline-run-*" in log
    assert_complete_but_for_history(tmp_path / "run")
    expected = (b"test/bleu", b"test/samples", b"max_new_tokens", b"train/loss")
    content = recorded(tmp_path / "run", *expected)
    for part in expected:
        assert part in content


def test_no_key_is_written(trained: Path, evaluated: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In anything that the runs of this file have left so far, caches included."""
    every = [path for path in tmp_path_factory.getbasetemp().rglob("*") if path.is_file()]
    written = [path for path in every if path.stat().st_size < 100_000_000]  # others are sparse: a terabyte
    assert {trained / "log", evaluated / "report.html", trained / layout.CHECKPOINT} <= set(written)
    assert [(path, name) for path in written for name, key in KEYS.items() if key.encode() in path.read_bytes()] == []


def test_tensorboard(trained: Path, scripts: Scripts, tmp_path: Path) -> None:
    scripts.succeed("train", *TINY, "trainer.max_steps=4", "logger=tensorboard", f"run_dir={tmp_path / 'run'}")
    assert_complete_but_for_history(tmp_path / "run")
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").glob("tensorboard/**/events*"))
    assert b"test/bleu" in written


def assert_complete_but_for_history(run: Path) -> None:
    """Four steps are too few for a line of history."""
    (run / layout.HISTORY).touch()
    assert_complete(run)


# -- limits of the machine --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], check=False)
    if not made or made.returncode:
        pytest.skip("mounting a small disk takes rights that this user does not have")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_one_message(trained: Path, scripts: Scripts, small_disk: Path) -> None:
    result = scripts.run("train", *TINY, *SAVE_OFTEN, f"run_dir={small_disk / 'run'}")
    assert result.returncode == 2, result.stderr[-3000:]
    assert "Traceback" not in result.stderr
    message = result.stderr.splitlines()[-1]
    assert "No space left on device; resume with: python train.py" in message
    assert message.endswith("ckpt_path=last")
    assert unfinished(small_disk) == []
    assert not (small_disk / "run" / layout.CHECKPOINT).exists()  # it does not fit
    assert yaml.safe_load((small_disk / "run" / layout.CONFIG).read_text())["seed"] == 0


def test_memory_of_the_children(trained: Path, warm: Warm) -> None:
    if sys.platform != "linux":
        pytest.skip("the unit of ru_maxrss differs")
    assert 100_000 < warm.largest < 2_000_000  # kB, of the largest script so far
