"""The default attack: lexicon search where it works, the decoder's own texts elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.files import load, metrics_of, predictions_of
from support.processes import ROOT, Warm
from unembed import evaluate, launch, train
from unembed.launch.composing import survey
from unembed.runs import layout

pytestmark = pytest.mark.slow

TINY = [
    "trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.max_steps=4", "~callbacks.progress",
    "attack.backbone.layers=1", "attack.backbone.width=32", "attack.backbone.heads=2", "attack.decoding.beams=2",
    "attack.decoding.max_new_tokens=8", "attack.refine.lexicon.vocabulary=false", "attack.refine.lexicon.numbers=10",
    "attack.refine.lexicon.max_queries=12", "datamodule.limit_train=64", "datamodule.limit_valid=8",
    "datamodule.limit_test=11", "datamodule.batch_size=16", "datamodule.eval_batch_size=4",
    "++datamodule.source.sentences=300", "++datamodule.source.valid=20", "++datamodule.source.test=60",
]  # fmt: skip
LEFT_OUT = "attack/refine=[lexicon] is left out: "


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("default")


@pytest.fixture(scope="module")
def default(base: Path) -> Path:
    return trained(base, "default")


def trained(base: Path, name: str, *overrides: str) -> Path:
    """The run that train.py makes without an attack named."""
    lines = [*TINY, f"run_dir={base / name}", f"cache_dir={base / 'cache'}", *overrides]
    train.train(launch.compose("train", lines))
    return base / name


def evaluated(run: Path, name: str, *overrides: str) -> Path:
    lines = [f"run={run}", f"output_dir={run.parent / name}", *overrides]
    evaluate.evaluate(*launch.on_run("evaluate", lines))
    return run.parent / name


def test_the_default_searches_the_lexicon(default: Path) -> None:
    assert list(load_refiners(default)) == ["lexicon"]
    assert 1 < load(default / layout.METRICS)["queries_per_target"] <= 12
    assert load(default / layout.RECORD)["embedder"]["asked"]["lexicon"] > 20


def test_an_evaluation_finds_the_same_texts_and_without_search_fewer_words(default: Path) -> None:
    assert metrics_of(evaluated(default, "again")) == metrics_of(default)
    alone = metrics_of(evaluated(default, "alone", "attack/refine=[]"))
    assert alone["queries"] == 0
    assert alone["cosine"] < metrics_of(default)["cosine"]


@pytest.mark.slow
def test_two_ranks_search_as_one(default: Path, warm: Warm) -> None:
    """From an empty cache, as the training: each rank embeds the lexicon."""
    out = default.parent / "two"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    options = [
        f"run={default}", f"output_dir={out}", f"cache_dir={default.parent / 'empty'}", "trainer=ddp",
        "trainer.accelerator=cpu",
    ]  # fmt: skip
    done = warm.run([str(ROOT / "evaluate.py"), *options], environment=environment)
    assert done.returncode == 0, done.stderr
    assert load(out / layout.RECORD)["world_size"] == 2
    assert predictions_of(out) == predictions_of(default)
    assert metrics_of(out) == pytest.approx(metrics_of(default))


def load_refiners(run: Path) -> Sequence[str]:
    return list(launch.on_run("evaluate", [f"run={run}"])[1].attack.refine)


ADAPTIVE = "defense.adaptive=true"
MASKED = "lie elsewhere than defended ones; add defense.hypotheses=defended"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["defense=truncation", ADAPTIVE], MASKED),
        (["defense=[noise,masking]", ADAPTIVE], MASKED),
        (["defense=truncation", ADAPTIVE, "defense.hypotheses=defended"], None),
        (["defense=[noise,rounding]", ADAPTIVE], None),
    ],
    ids=["truncated", "masked", "queried", "noisy"],
)
def test_where_texts_cannot_be_compared_the_decoder_stands_alone(
    base: Path,
    overrides: list[str],
    reason: str | None,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    with caplog.at_level("INFO", "train"):
        run = trained(base, request.node.callspec.id, *overrides)
    assert load_refiners(run) == ([] if reason else ["lexicon"])
    assert (load(run / layout.METRICS)["queries"] == 0) == (reason is not None)
    notices = [message for message in caplog.messages if message.startswith(LEFT_OUT)]
    assert [message.endswith(reason or "") for message in notices] == ([True] if reason else [])


def test_a_search_that_is_named_must_be_possible() -> None:
    def required(*overrides: str) -> bool:
        (config,), errors = survey("train", list(overrides))
        assert errors == []
        return bool(config.attack.refine.lexicon.required)

    assert not required()
    assert required("attack/refine=[lexicon]")
    assert required("attack=geia", "attack/refine=[rerank,lexicon]")
