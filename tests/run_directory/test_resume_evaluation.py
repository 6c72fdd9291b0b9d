"""kill -9 in the middle of a test, then the same again: nothing is inverted twice, and the results are the same.

This file is also the program that is killed: ``python test_resume_evaluation.py <directory> <seconds a text>``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from support.assembled import Texts, data_module, quiet_trainer
from support.files import metrics_of
from support.letters import Letters
from support.processes import ROOT, Warm
from unembed import evaluate as evaluate_script
from unembed import launch, train
from unembed.attacks.base import Attack
from unembed.attacks.parts.batch_cache import BatchCache, SearchState, counted
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.vec2text.search import Round
from unembed.callbacks.iterative_correction import IterativeCorrection
from unembed.callbacks.results import Predictions, RunRecord
from unembed.core.errors import InputError
from unembed.embedders.base import fingerprint_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs import layout
from unembed.runs.stored_attack import settings_key
from unembed.scoring.models import ScoringModels

NAMES = ["ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hal", "ida", "jon", "kit", "lea"]
TEXTS = [f"{name} met {other} in rome" for name in NAMES for other in NAMES if name != other][:40]
BATCH = 4


class Slow(Attack):
    """Asks for a text of its own and a shared one for each target, slowly, and notes which it was given."""

    trainable = False

    def __init__(self, pause: float = 0.0, weight: float = 1.0) -> None:
        super().__init__()
        self.pause, self.given = pause, list[int]()
        self.weight = torch.nn.Parameter(torch.tensor(weight))

    def setup(self, stage: str) -> None:
        self.dimension = self.data.dimension

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        assert oracle is not None
        self.given += targets.index.tolist()
        time.sleep(self.pause * len(targets.index))
        oracle.embed([f"guess {i}" for i in targets.index.tolist()] + ["a shared guess"])
        return [Prediction((f"{TEXTS[i][:-2]}\u2028", TEXTS[i]), tokens=(i, 7)) for i in targets.index.tolist()]

    def correct(self, targets: Targets, oracle: CachedEmbedder | None, *, steps: int, beams: int) -> list[list[Round]]:
        assert oracle is not None
        time.sleep(self.pause)
        oracle.embed([f"correction {i} {beams}" for i in targets.index.tolist()])
        began = time.perf_counter()
        return [
            [
                Round(
                    TEXTS[i][: 6 + 7 * step * beams], 1 - 1 / (i + step * beams + 2), step, time.perf_counter() - began
                )
                for step in range(steps + 1)
            ]
            for i in targets.index.tolist()
        ]


def evaluate(directory: Path, attack: Slow, *, settings: str = "plain", batch: int = BATCH) -> Path:
    """What evaluate.py does with a run, without a run."""
    embedder = CachedEmbedder(Letters(), directory / "cache")
    source = Texts(train=[], test=TEXTS)
    data = data_module(source, Letters(), directory, eval_batch_size=batch, drop_repeated=False)
    attack.connect(directory / "artifacts", embedder)
    output = directory / "out"
    attack.batch_cache = BatchCache(output / layout.TEST_BATCHES, settings)
    trainer = quiet_trainer(
        callbacks=[
            Predictions(output, embedder, None, ScoringModels()), IterativeCorrection([0, 1, 2], [1, 2]),
            RunRecord(output, embedder),
        ],
    )  # fmt: skip
    trainer.test(attack, data, verbose=False)
    attack.batch_cache.clear()
    return output


def files(directory: Path) -> list[Path]:
    return sorted((directory / "out" / layout.TEST_BATCHES).glob("*.json"))


def contents(output: Path) -> dict[str, Any]:
    """All that a test leaves, apart from its own time and that of others."""
    table = json.loads((output / "corrections.json").read_text())
    return {
        "predictions": (output / layout.PREDICTIONS).read_bytes(),
        "metrics": metrics_of(output),
        "table": [{name: value for name, value in row.items() if name != "seconds"} for row in table["table"]],
        "asked": json.loads((output / layout.RECORD).read_text())["embedder"]["asked"],
    }


@pytest.mark.slow
def test_a_killed_test_resumes_and_ends_alike(tmp_path: Path, warm: Warm) -> None:
    killed, unbroken = tmp_path / "killed", tmp_path / "unbroken"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    warm.start([__file__, str(killed), "0.03"], environment=environment).kill_when(lambda: len(files(killed)) >= 8)
    stood = {path: path.read_bytes() for path in files(killed)}
    assert 8 <= len(stood) < 30
    firsts = [int(path.stem[-9:]) for path in stood if "predictions" in path.name]
    predicted = {index for first in firsts for index in range(first, first + BATCH)}
    assert not (killed / "out" / layout.METRICS).exists()
    attack, other = Slow(), Slow()
    evaluate(killed, attack)
    evaluate(unbroken, other)
    assert set(attack.given) == set(range(40)) - predicted
    assert sorted(other.given) == list(range(40))
    assert contents(killed / "out") == contents(unbroken / "out")
    assert contents(killed / "out")["metrics"]["queries"] == 41
    assert contents(killed / "out")["asked"]["attack"] == 41 + 80
    # The time of the finished batches is that of the session that was killed: 0.03 s a text.
    assert json.loads((killed / "out" / layout.METRICS).read_text())["seconds"] >= 0.03 * len(predicted)
    assert not files(killed)
    assert not list(tmp_path.rglob("*.part"))


def finished(directory: Path) -> None:
    """Leave the files of all batches in ``directory``, as after a kill before the metrics were written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchCache, "clear", lambda self: None)
        evaluate(directory, Slow())


def test_all_batches_finished_and_the_scoring_killed(tmp_path: Path) -> None:
    finished(tmp_path)
    before = contents(tmp_path / "out")
    again = Slow()
    evaluate(tmp_path, again)
    assert again.given == []
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("changed", ["settings", "weights", "batch", "vectors"])
def test_what_changed_is_inverted_again(tmp_path: Path, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path)
    if changed == "vectors":
        monkeypatch.setattr(Letters, "fingerprint", fingerprint_of(kind="letters", used="again"))
        monkeypatch.setattr(Letters, "embed", lambda self, texts: torch.ones(len(texts), Letters.dimension))
    attack = Slow(weight=2.0 if changed == "weights" else 1.0)
    evaluate(
        tmp_path, attack, settings="others" if changed == "settings" else "plain", batch=5 if changed == "batch" else 4
    )
    assert sorted(attack.given) == list(range(40))


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    finished(tmp_path)
    files(tmp_path)[-1].write_text('{"key": ')
    attack = Slow()
    evaluate(tmp_path, attack)
    assert attack.given == [36, 37, 38, 39]


def test_an_interrupted_search_of_other_settings_is_begun_anew(tmp_path: Path) -> None:
    kept = SearchState(tmp_path / "search.pt", "key")
    assert kept.read() is None
    kept.write({"stage": 1})
    assert kept.read() == {"stage": 1}
    assert SearchState(tmp_path / "search.pt", "another").read() is None


def test_settings_that_cannot_change_a_text_do_not_matter() -> None:
    config = {
        "attack": {"beams": 1}, "seed": 0, "run_dir": "a", "callbacks": {}, "embedder": {"max_queries": 5},
        "trainer": {"devices": 1, "precision": "32-true"}, "access": {"attack": "GEIA", "has": "weights"},
    }  # fmt: skip
    key = settings_key(config, "embedder")
    assert settings_key({**config, "access": {"attack": "renamed", "has": "weights"}}, "embedder") == key
    assert settings_key({name: config[name] for name in config if name != "access"}, "embedder") == key
    moved = {**config, "run_dir": "b", "ckpt_path": "last", "embedder": {"max_queries": 9}, "callbacks": {"x": 1}}
    assert settings_key({**moved, "trainer": {"devices": 8, "precision": "32-true"}}, "embedder") == key
    for other in (
        settings_key(config, "another embedder"),
        settings_key({**config, "attack": {"beams": 2}}, "embedder"),
        settings_key({**config, "seed": 1}, "embedder"),
        settings_key({**config, "trainer": {"devices": 1, "precision": "bf16-true"}}, "embedder"),
    ):
        assert other != key


def test_queries_of_a_block_are_also_those_of_the_whole(tmp_path: Path) -> None:
    embedder = CachedEmbedder(Letters(), tmp_path)
    embedder.embed(["a", "b"])
    with counted(embedder) as queries:
        embedder.embed(["b", "c"])
        embedder.embed(["d"], "scoring")
    none = {"training": 0, "lexicon": 0}
    assert queries.asked == {**none, "attack": 2, "scoring": 1}
    assert queries.sent == {**none, "attack": 1, "scoring": 1}
    assert embedder.queries.asked == {**none, "attack": 3, "scoring": 1}
    assert embedder.queries.sent == {**none, "attack": 3, "scoring": 1}


def again(*lines: str) -> None:
    """evaluate.py in this process, which has the libraries loaded."""
    evaluate_script.evaluate(*launch.on_run("evaluate", [*lines, "trainer.enable_progress_bar=false"]))


@pytest.mark.slow
def test_evaluate_resumes_after_kill_9(tmp_path: Path, warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real command line is killed, with four queries a text."""
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    run, out, unbroken = (tmp_path / name for name in ("run", "out", "unbroken"))
    tiny = ["attack=geia", "attack.backbone.layers=1", "attack.backbone.width=32", "attack.backbone.heads=2",
            "trainer=cpu", "attack.decoding.max_new_tokens=12", "trainer.max_steps=2", "trainer.max_time=null",
            "~callbacks.progress", "datamodule.source.sentences=200", "+datamodule.source.valid=20",
            "+datamodule.source.test=60", "datamodule.limit_train=100", "datamodule.limit_valid=2",
            "datamodule.limit_test=24", "logger=none", f"run_dir={run}"]  # fmt: skip
    train.train(launch.compose("train", tiny))
    command = [f"run={run}", "attack.decoding.rerank=4", "datamodule.eval_batch_size=4"]

    def done() -> int:
        return len(list((out / layout.TEST_BATCHES).glob("*.json")))

    warm.start([str(ROOT / "evaluate.py"), *command, f"output_dir={out}"]).kill_when(lambda: done() >= 3)
    assert 3 <= done() < 6
    shutil.copytree(out, tmp_path / "other")
    again(*command, f"output_dir={out}")
    again(*command, f"output_dir={unbroken}")
    assert (out / layout.PREDICTIONS).read_bytes() == (unbroken / layout.PREDICTIONS).read_bytes()
    first, second = (json.loads((path / layout.METRICS).read_text()) for path in (out, unbroken))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert first["queries"] > 24
    assert not (out / layout.TEST_BATCHES).exists()
    with pytest.raises(InputError, match=r"^output_dir=.*: already holds .*choose"):
        again(*command, f"output_dir={out}")
    # The same directory with another decoding: nothing of the finished batches is taken for it.
    again(command[0], "attack.decoding.beams=1", "datamodule.eval_batch_size=4", f"output_dir={tmp_path / 'other'}")
    assert json.loads((tmp_path / "other" / layout.METRICS).read_text())["queries"] == 0


if __name__ == "__main__":
    evaluate(Path(sys.argv[1]), Slow(float(sys.argv[2])))
