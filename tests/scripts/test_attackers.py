"""A run is exported as an attacker, opened by its name, and trained further: one small run for all tests."""

from __future__ import annotations

import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from support.files import load, metrics_of, predictions_of, read_lines, rows_of, write_lines
from support.letters import TEXTS
from support.places import Place
from support.tiny_settings import FILES, GEIA
from unembed import launch, train
from unembed.audit.estimates import counted
from unembed.callbacks import blending
from unembed.commands import export, invert
from unembed.core.atomic_files import write_json
from unembed.core.errors import InputError
from unembed.embedders.minilm import MiniLM
from unembed.launch import locations
from unembed.metrics.tokens import same_words, token_overlap, words
from unembed.runs import layout
from unembed.runs.checkpoints import load_checkpoint
from unembed.runs.stored_attack import file_key
from unembed.session import Session

pytestmark = pytest.mark.slow

MORE = [f"{text[:-2]} in {year} ." for year in ("may", "june", "july") for text in TEXTS]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    base = tmp_path_factory.mktemp("place")
    rows = [
        {"text": text, "split": "test" if n % 4 == 0 else "train", "source": "moves" if n % 8 else "stays"}
        for n, text in enumerate(MORE)
    ]
    sources = ["datamodule.attributes=[source]", "datamodule.valid_fraction=0.1", "datamodule.max_tokens=24"]
    return Place(base, write_lines(base / "data.jsonl", rows), [*FILES, *GEIA, *sources])


@pytest.fixture(scope="module")
def run(place: Place) -> Path:
    return place.train("run", "attack.decoding.max_new_tokens=24", f"export={place.base / 'passed_on'}", steps=20)


@pytest.fixture(scope="module")
def on_corpus(place: Place, run: Path) -> Path:
    """A test of the run on the built-in corpus."""
    small = ["++datamodule.source.sentences=80", "++datamodule.source.valid=10", "++datamodule.source.test=20"]
    return place.evaluate(run, "on_corpus", "datamodule=synthetic", *small)


def exported(run: Path, name: str, folder: Path, *overrides: str) -> Path:
    export.export(*launch.on_run("export", [f"run={run}", f"name={name}", f"folder={folder}", *overrides]))
    return folder


@pytest.fixture(scope="module")
def tiny(place: Place, run: Path, on_corpus: Path) -> Path:
    return exported(
        run, "tiny", place.base / "attackers" / "tiny", f"calibration={run}", f"predictions={on_corpus}"
    )  # fmt: skip


@pytest.fixture
def shipped(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The exported attacker as one that is shipped, in a folder where nothing may be written."""
    monkeypatch.setattr(locations, "SHIPPED", tiny.parent)
    before = {path: path.stat().st_mtime_ns for path in tiny.rglob("*")}
    for path in [tiny, *before]:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    yield tiny
    for path in [tiny, *before]:
        path.chmod(stat.S_IRWXU if path.is_dir() else stat.S_IRUSR | stat.S_IWUSR)
    assert {path: path.stat().st_mtime_ns for path in tiny.rglob("*")} == before  # root may write anywhere


def test_an_export_holds_what_inversion_needs_and_nothing_of_this_machine(tiny: Path, place: Place) -> None:
    names = {path.relative_to(tiny).as_posix() for path in tiny.rglob("*") if path.is_file()}
    assert {name for name in names if "/" not in name} == {
        "config.yaml", "record.json", "data.json", "calibration.jsonl", "predictions.jsonl", "metrics.json",
        "README.md",
    }  # fmt: skip
    assert "checkpoints/last.ckpt" in names
    assert "artifacts/decoder/tokenizer.json" in names
    for name in names - {"checkpoints/last.ckpt"}:
        assert str(place.base).encode() not in (tiny / name).read_bytes(), name
    config = yaml.safe_load((tiny / "config.yaml").read_text())
    assert config["datamodule"]["path"] == "data.jsonl"
    assert [Path(file["path"]).name for file in load(tiny / "data.json")["files"]] == ["data.jsonl"]


def test_a_training_makes_the_directory_to_pass_on(place: Place, run: Path, tmp_path: Path) -> None:
    by_command = exported(run, "passed_on", tmp_path / "passed_on", f"calibration={run}")
    for name in ("config.yaml", "record.json", "calibration.jsonl", "README.md", "artifacts/space.safetensors"):
        assert (place.base / "passed_on" / name).read_bytes() == (by_command / name).read_bytes()
    with pytest.raises(InputError, match=r"^export=.*: exists already; remove it, or choose another$"):
        place.train("again", f"export={by_command}", steps=20)
    assert not (place.base / "again").exists()


def test_weights_are_halved_and_loaded_in_single_precision(run: Path, tiny: Path) -> None:
    content = torch.load(tiny / layout.CHECKPOINT, weights_only=True)
    assert {"optimizer_states", "lr_schedulers", "callbacks", "random_states"} & content.keys() == set()
    whole = torch.load(run / layout.CHECKPOINT, weights_only=True)["state_dict"]
    assert content["state_dict"].keys() == whole.keys()
    assert {tensor.dtype for tensor in content["state_dict"].values()} == {torch.float16}
    assert (tiny / layout.CHECKPOINT).stat().st_size < 0.6 * sum(
        tensor.numel() * 4 for tensor in {tensor.data_ptr(): tensor for tensor in whole.values()}.values()
    )  # the head and the embeddings are one matrix in both
    _, config = launch.on_run("invert", [f"run={tiny}", "vectors=mine.npy"])
    session = Session.open(tiny, config)
    attack = session.restored_attack(session.oracle, session.dimension)
    for name, tensor in attack.state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, whole[name], rtol=1e-3, atol=1e-6)


def test_an_exported_attacker_predicts_what_the_run_does(place: Place, tiny: Path, on_corpus: Path) -> None:
    small = ["++datamodule.source.sentences=80", "++datamodule.source.valid=10", "++datamodule.source.test=20"]
    again = place.evaluate(tiny, "again", "datamodule=synthetic", *small)
    assert predictions_of(again) == predictions_of(on_corpus) == predictions_of(tiny)
    assert metrics_of(again)["token_f1"] == metrics_of(tiny)["token_f1"]


def test_calibration_holds_numbers_of_each_test_text(run: Path, tiny: Path) -> None:
    found, rows = read_lines(tiny / "calibration.jsonl"), rows_of(run)
    assert len(found) == len(rows) == 12
    counts = counted([row["reference"] for row in rows], [row["prediction"] for row in rows], None, ordered=True)
    for scores, row, parts in zip(found, rows, counts, strict=True):
        assert scores == {
            "source": row["attributes"]["source"],
            "words": len(words(row["prediction"])),
            "cosine": round(row["cosine"], 4),
            "f1": round(token_overlap(row["reference"], row["prediction"]).f1, 2),
            "exact": same_words(row["reference"], row["prediction"]),
            "classes": {name: list(counts) for name, counts in parts.classes.items()},
            "kinds": {},
        }
    assert {scores["source"] for scores in found} == {"moves", "stays"}


def test_the_model_card_has_the_metrics_of_the_evaluations(run: Path, tiny: Path, on_corpus: Path) -> None:
    card = (tiny / "README.md").read_text()
    assert card.startswith("# tiny\n")
    for title, directory in {f"held-out texts, {run.name}": run, "built-in corpus": on_corpus}.items():
        metrics = load(directory / layout.METRICS)
        assert f"| {title} | {metrics['examples']} | {metrics['token_f1']:.1f} | " in card
    assert "20 steps" in card


def test_an_exported_attacker_keeps_its_results_when_it_is_exported_again(tiny: Path, tmp_path: Path) -> None:
    again = exported(tiny, "again", tmp_path / "again")
    for name in ("calibration.jsonl", "predictions.jsonl", "metrics.json"):
        assert (again / name).read_bytes() == (tiny / name).read_bytes(), name
    assert "| built-in corpus | " in (again / "README.md").read_text()
    # With another decoding they would be of another attacker.
    other = exported(tiny, "other", tmp_path / "other", "attack.decoding.beams=1")
    assert not {"calibration.jsonl", "predictions.jsonl"} & {path.name for path in other.iterdir()}


def test_results_of_other_weights_are_refused(run: Path, on_corpus: Path, tmp_path: Path) -> None:
    def with_record(name: str, **changed: object) -> str:
        folder = tmp_path / name
        shutil.copytree(on_corpus, folder)
        write_json(folder / "record.json", load(on_corpus / "record.json") | changed)
        return f"calibration={folder}"

    before = load(on_corpus / "record.json")
    assert before["checkpoint"] == file_key(run / layout.CHECKPOINT)
    less = with_record("less", training=before["training"] | {"steps": 7, "seconds": 1.5}, checkpoint=None)
    for name, given in {"less": less, "other": with_record("other", checkpoint="0" * 64)}.items():
        with pytest.raises(
            InputError, match=rf"calibration=.*{name}: was made with other weights than those of .*\.ckpt"
        ):
            exported(run, "new", tmp_path / "new", given)


def test_an_attack_on_another_run_says_why_it_is_not_exported(tmp_path: Path) -> None:
    config = launch.compose("train", ["attack=algen", f"attack.source_run={tmp_path}", "trainer.precision=32-true"])
    with pytest.raises(
        InputError, match=r"^attack\.source_run=.*: the attack is built on another run, .* export that run"
    ):
        export.portable(config)


def test_an_export_without_evaluations(run: Path, tmp_path: Path) -> None:
    folder = exported(run, "bare", tmp_path / "bare", "attack.decoding.beams=1")
    assert not (folder / "calibration.jsonl").exists()
    assert not (folder / "predictions.jsonl").exists()
    assert yaml.safe_load((folder / "config.yaml").read_text())["attack"]["decoding"]["beams"] == 1


def test_what_cannot_be_exported_is_said(run: Path, tmp_path: Path, on_corpus: Path) -> None:
    (tmp_path / "taken").mkdir()
    corrupt = tmp_path / "corrupt"
    write_lines(corrupt / "predictions.jsonl", [{**rows_of(run)[0], "attributes": {"source": "My name is Ada, and I"}}])
    (corrupt / "config.yaml").write_text((run / "config.yaml").read_text())
    write_json(corrupt / "metrics.json", {"examples": 1})
    write_json(corrupt / "record.json", load(run / "record.json"))
    lines = {
        (f"folder={tmp_path / 'taken'}",): "folder=.*taken: exists already; remove it, or choose another",
        ("name=../x",): r"name=\.\./x: write letters, digits, and",
        (f"predictions={run}",): "predictions=.*: its texts are not those of the built-in corpus",
        ("attack.decoding.beams=2", f"predictions={on_corpus}"): "predictions=.*: was made with another attack than",
        (f"calibration={tmp_path}",): "calibration=.*: not the output directory of an evaluation",
        (f"calibration=[{corrupt}]",): "attributes.source=My name is Ada, and I.*: should be a short name",
        ("attack/refine=[lexicon]", "attack.refine.lexicon.path=/words.txt"): (
            "^attack.refine.lexicon.path=/words.txt: a path of this machine"
        ),
    }
    for given, message in lines.items():
        with pytest.raises(InputError, match=message):
            exported(run, "tiny", tmp_path / "new", *given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corrupt", "taken"]


def test_a_shipped_attacker_reads_vectors_without_being_named(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    np.save("mine.npy", MiniLM(device="cpu").embed(TEXTS[:3]).numpy())
    invert.invert(*launch.on_run("invert", ["vectors=mine.npy"]))
    assert len(read_lines(tmp_path / "mine.npy.texts.jsonl")) == 3


def test_a_shipped_attacker_is_tested_on_text_that_is_named(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as raised:
        launch.on_run("evaluate", ["run=tiny"])
    assert str(raised.value) == (
        f"run={shipped}: the text that it was made with (data.jsonl) is not part of it; name what to "
        "test on: datamodule=files datamodule.test=<file>, or datamodule=synthetic, the built-in corpus"
    )


# -- training further -------------------------------------------------------------------------------------------------

FURTHER = [line for line in FILES if not line.startswith("attack")]


def test_training_further_takes_the_attack_of_its_origin(
    shipped: Path, place: Place, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "common", FURTHER)
    lines = ["init_from=tiny", "attack.decoding.beams=2", "datamodule.valid_fraction=0.1"]
    further = place.train("further", *lines, steps=2)
    origin, now = (yaml.safe_load((directory / "config.yaml").read_text()) for directory in (run, further))
    assert now["init_from"] == "tiny"
    assert now["choices"]["attack"] == "geia"
    assert now["attack"]["backbone"] == origin["attack"]["backbone"]
    assert now["attack"]["decoding"] == {**origin["attack"]["decoding"], "beams": 2}
    assert now["datamodule"]["max_tokens"] == 24
    rates = {name: value / 2 for name, value in origin["attack"]["optimizer"].items() if name.endswith("lr")}
    assert len(rates) == 2
    assert {**now["attack"]["optimizer"], **rates} == now["attack"]["optimizer"]
    tokenizer = Path("artifacts/decoder/tokenizer.json")
    assert (further / tokenizer).read_bytes() == (shipped / tokenizer).read_bytes()


def test_weights_trained_further_are_blended_with_those_of_the_origin(
    shipped: Path, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three steps at a ruinous rate: a part of the way reads the validation texts better than all of it."""
    monkeypatch.setattr(place, "common", FURTHER)
    ruinous = [f"attack.optimizer.{name}_lr=0.5" for name in ("muon", "adamw")]
    lines = ["init_from=tiny", "datamodule.valid_fraction=0.6", "attack.decoding.rerank=2", *ruinous]
    runs = {
        "trained": place.train("trained", *lines, "callbacks.blending=null", steps=3),
        "blended": place.train("blended", *lines, steps=3),
        "origin": shipped,
    }
    weights = {name: load_checkpoint(run / layout.CHECKPOINT)["state_dict"] for name, run in runs.items()}
    (said,) = [record.message for record in caplog.records if "22 validation texts" in record.message]
    scores = {int(share) / 100: float(score) for score, share in re.findall(r"([\d.]+) % with (\d+)%", said)}
    assert set(scores) == {0.0, 0.25, 0.5, 0.75, 1.0}
    best = max(scores, key=lambda share: scores[share])
    assert best < 1
    assert f"{best:.0%} of the weights are those after the training" in said
    for name, blended in weights["blended"].items():
        expected = torch.lerp(weights["origin"][name].float(), weights["trained"][name], best)
        torch.testing.assert_close(blended, expected)
    # The choice asks the embedder for nothing: all queries are those of the test.
    asked = load(runs["blended"] / "record.json")["embedder"]["asked"]
    assert asked["attack"] == metrics_of(runs["blended"])["queries"] > 0


def test_weights_are_blended_once_however_often_a_run_is_killed(
    shipped: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "common", FURTHER)
    every = ["callbacks.checkpoint.train_time_interval=null", "+callbacks.checkpoint.every_n_train_steps=1"]
    ruinous = [f"attack.optimizer.{name}_lr=0.5" for name in ("muon", "adamw")]
    lines = ["init_from=tiny", "datamodule.valid_fraction=0.6", *every, *ruinous]

    def weights(name: str, *more: str) -> dict[str, torch.Tensor]:
        run = place.train(name, *lines, *more, steps=3)
        found: dict[str, torch.Tensor] = load_checkpoint(run / layout.CHECKPOINT)["state_dict"]
        return found

    undisturbed = weights("undisturbed")
    with monkeypatch.context() as patched:
        patched.setattr(blending, "_blend", killed)
        with pytest.raises(RuntimeError, match="killed"):
            weights("killed")
    seconds = [0.0]
    for _ in range(2):  # killed while it was blending, and in the test
        torch.testing.assert_close(weights("killed", "ckpt_path=last"), undisturbed, rtol=0, atol=0)
        seconds.append(load(place.base / "killed" / "record.json")["training"]["seconds"])
    assert seconds == sorted(seconds)  # of the training, the part before a kill included


def killed(*args: object) -> None:
    raise RuntimeError("killed")


def test_a_language_model_that_reads_no_vectors_is_trained_further(
    shipped: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "common", FURTHER)
    small = [line.replace("attack=geia", "attack=language_model") for line in GEIA]
    origin = place.train("continues", *small, "datamodule.max_tokens=24", steps=2)
    further = place.train("continues_further", f"init_from={origin}", "datamodule.valid_fraction=0.6", steps=2)
    assert metrics_of(further)["examples"] == metrics_of(origin)["examples"]
    with pytest.raises(InputError, match=r"trained decoder of vectors is wanted .* that is a run of LanguageModel"):
        place.train("finished", "attack=finished", f"attack.source_run={origin}")


def test_what_is_given_comes_before_the_origins(shipped: Path) -> None:
    lines = ["init_from=tiny", "datamodule=files", "datamodule.path=mine.jsonl", "trainer.precision=32-true"]
    given = ["attack.optimizer.muon_lr=0.5", "datamodule.max_tokens=7"]
    config = launch.compose("train", [*lines, *given])
    assert (config.attack.optimizer.muon_lr, config.attack.optimizer.adamw_lr) == (0.5, 0.003)
    assert (config.attack.backbone.width, config.datamodule.max_tokens) == (32, 7)
    size = yaml.safe_load((shipped / "config.yaml").read_text())["datamodule"]["batch_size"]
    config = launch.compose("train", [*lines, f"datamodule.batch_size={4 * size}"])
    rates = config.attack.optimizer
    assert (rates.muon_lr, rates.adamw_lr) == pytest.approx((0.012 / 2 * 2, 0.003 / 2 * 2))  # the root of four
    config = launch.compose("train", [*lines, "attack=multiset"])
    assert (config.choices.attack, config.datamodule.max_tokens) == ("multiset", 32)
    blended = {"_target_": "unembed.callbacks.blending.Blending"}
    for line, expected in {
        "seed=1": blended,
        "callbacks.blending=null": None,
        "+callbacks.blending.texts=50": {**blended, "texts": 50},
        "callbacks.blending={texts: 50}": {**blended, "texts": 50},
    }.items():
        assert launch.compose("train", [*lines, line]).callbacks.blending == expected, line
    with pytest.raises(InputError, match=r"^attack.backbone.layesr: unknown key, did you mean layers\?$"):
        launch.compose("train", [*lines, "attack.backbone.layesr=2"])


def test_each_job_of_a_multirun_takes_the_attack_of_its_origin(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["init_from=tiny", "attack.decoding.beams=1,3", "trainer.precision=32-true", "datamodule.limit_test=9"]
    monkeypatch.setattr("sys.argv", ["train.py", "-m", *lines])
    jobs = []
    launch.main(jobs.append, "train")
    assert [job.attack.decoding.beams for job in jobs] == [1, 3]
    assert [(job.choices.attack, job.attack.backbone.width, job.datamodule.max_tokens) for job in jobs] == [
        ("geia", 32, 24), ("geia", 32, 24),
    ]  # fmt: skip


def test_an_origin_that_names_other_code_is_refused(run: Path, tmp_path: Path) -> None:
    config = (run / "config.yaml").read_text().replace("unembed.attacks.parts.backbones.RandomGPT2", "os.system")
    (tmp_path / "config.yaml").write_text(config)
    with pytest.raises(InputError, match=r"attack.backbone._target_=os.system: none of the classes .* add trust=os"):
        launch.compose("train", [f"init_from={tmp_path}", "trainer.precision=32-true"])


def test_an_unknown_origin_is_answered_before_anything_is_made(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "init_from=tny", "trainer.precision=32-true"])
    with pytest.raises(SystemExit, match="2"):
        launch.main(train.train, "train")
    assert capsys.readouterr().err == (
        f"init_from=tny: no directory {tmp_path / 'tny'}; shipped attackers: tiny (did you mean tiny?)\n"
    )
    assert list(tmp_path.iterdir()) == []
