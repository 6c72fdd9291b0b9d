"""What lies in a run directory besides checkpoints, as evaluate, reports, compare and resumed tests read it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from rich.console import Console

from unembed.audit.inputs import read_truths
from unembed.callbacks.history import History
from unembed.commands import compare
from unembed.reports import trials
from unembed.reports.comparison.entries import read_entries
from unembed.reports.corrections import HYPOTHESES
from unembed.reports.page import print_summary, write_report
from unembed.runs import layout
from unembed.runs.config_file import read_config
from unembed.runs.embedder_check import check_embedder
from unembed.runs.trust import check_trusted

from .broken import Inputs, inputs, json_of, lines_of, trees, written
from .reader import Reader

DIMENSION = 4
CONFIG = b"choices: {attack: geia}\nattack: {_target_: unembed.attacks.geia.GEIA, beams: 2}\nseed: 0\n"
PREDICTIONS = [
    {"index": 0, "reference": "a b", "prediction": "a", "kind": "sequence", "cosine": 0.5, "candidates": ["a"]},
    {"index": 1, "reference": "Ada met Bob", "prediction": "Ada", "kind": "sequence", "cosine": 0.5,
     "spans": [[0, 3, "NAME"]]},
]  # fmt: skip
METRICS = {
    "bleu": 1.0, "cosine": 0.5, "exact_match": 0.0, "rouge_l": None, "entity_recovery/NAME": 2.5, "examples": 2,
    "seconds": 2.0,
}  # fmt: skip
RECORD = {
    "training": {"seconds": 1.5, "steps": 20, "epochs": 1, "planned_steps": 40, "cut_short": True},
    "versions": {"python": "3.11"},
    "parameters": 100,
    "embedder": {"fingerprint": "0" * 64, "dimension": DIMENSION, "asked": {"data": 1}, "sent": {"data": 1}},
}
HISTORY = [
    {"step": 10, "epoch": 0, "seconds": 0.5, "train_loss": 3.1, "val_loss": None, "learning_rate": 0.01},
    {"step": 20, "epoch": 1, "seconds": 1.5, "train_loss": None, "val_loss": 2.0, "learning_rate": 0.0},
]
ANALYSES = {
    "training_texts": 17, "corpus_similarity": 0.9, "similarity_texts": [17, 2], "embedded_words": 5.5,
    "word_frequency": [{"from": 0, "to": 0, "words": 2, "occurrences": 4, "recovered": 1},
                       {"from": 1, "to": 9, "words": 3, "occurrences": 3, "recovered": 2}],
}  # fmt: skip
STEP = {"beams": 1, "bleu": 10.0, "token_f1": 20.0, "exact_match": 0.0, "cosine": 0.5, "queries": 1.0, "seconds": 0.1}
CORRECTIONS = {
    "steps": [0, 1], "beams": [1], "examples": 1, "table": [{**STEP, "step": 0}, {**STEP, "step": 1, "bleu": 11.0}],
}  # fmt: skip
ROUNDS = [
    {"step": 0, "text": "a", "cosine": 0.1, "queries": 1},
    {"step": 1, "text": "a b", "cosine": 0.2, "queries": 3},
]
CORRECTED = [{"index": 0, "beams": 1, "reference": "a b", "rounds": ROUNDS}]
COSINES = {"train, round 0": {"exact": 0.25, "cosines": [1, 3], "edges": [-1.0, 0.0, 1.0]}}
TRIALS = {"bleu": {"mean": 1.5, "standard_error": 0.5, "values": [1.0, 2.0]}}
TRUTHS = [{"text": "one", "index": 0, "spans": [[0, 1, "NAME"]]}, {"text": "two", "index": 2, "language": "en"}]
# What a whole run holds; a reader puts its input in the place of one of these.
RUN = {
    layout.CONFIG: CONFIG, layout.PREDICTIONS: lines_of(PREDICTIONS), layout.METRICS: json_of(METRICS),
    layout.BASELINE: json_of(METRICS), layout.RECORD: json_of(RECORD), layout.HISTORY: lines_of(HISTORY),
    layout.ANALYSES: json_of(ANALYSES), layout.CORRECTIONS: json_of(CORRECTIONS),
    layout.CORRECTION_ROUNDS: lines_of(CORRECTED), f"{layout.ARTIFACTS}/{HYPOTHESES}": json_of(COSINES),
}  # fmt: skip


def readers() -> dict[str, Reader]:
    """By the names of the files, and what reads them."""
    found = {
        "config.yaml": Reader(_config, lambda: CONFIG),
        "record.json": Reader(_record, lambda: RUN[layout.RECORD], trees),
        "history.jsonl, resumed": Reader(_history, lambda: RUN[layout.HISTORY], _lines),
        "trials.json": Reader(_trials, lambda: json_of(TRIALS), trees, 0.5),
        "truths.jsonl": Reader(_truths, lambda: lines_of(TRUTHS), _lines),
    }
    for name, good in RUN.items():
        strategy = {".json": trees, ".jsonl": _lines, ".yaml": inputs}[Path(name).suffix]
        found[f"{name}, reported"] = Reader(_in_run(name, _reported), lambda good=good: good, strategy, 0.3)
    for name in (layout.CONFIG, layout.PREDICTIONS, layout.METRICS, layout.RECORD, layout.ANALYSES):
        reported = found[f"{name}, reported"]
        found[f"{name}, compared"] = Reader(_in_run(name, _compared), reported.good, reported.inputs, 0.1)
    return found


def _lines(whole: bytes) -> Inputs:
    return trees(whole, lines_of)


def _in_run(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    def reader(folder: Path, content: bytes) -> object:
        run = folder / "run"
        if not run.exists():
            for other, sound in RUN.items():
                written(run / other, sound)
        written(run / name, content)
        return read(run)

    return reader


def _reported(run: Path) -> object:
    write_report(run)
    print_summary(run, Console(file=io.StringIO()))
    return read_entries([run])


def _compared(run: Path) -> None:
    other = run.parent / "other"
    if not other.exists():
        for name, sound in RUN.items():
            written(other / name, sound)
    compare.compare(
        compare.read_settings(
            [
                str(run),
                str(other),
                "metrics=cosine,exact_match",
                "resamples=1000",
                f"output={run.parent / 'comparison'}",
            ]
        )
    )


def _config(folder: Path, content: bytes) -> None:
    written(folder / layout.CONFIG, content)
    check_trusted(read_config(folder), folder)


def _record(folder: Path, content: bytes) -> None:
    if not (folder / layout.CHECKPOINT).exists():
        written(folder / layout.CONFIG, CONFIG)
        (folder / layout.CHECKPOINT).parent.mkdir()
        torch.save({"state_dict": {}}, folder / layout.CHECKPOINT)
    written(folder / layout.RECORD, content)
    check_embedder(folder, "init_from", "0" * 64, DIMENSION)


def _history(folder: Path, content: bytes) -> None:
    written(folder / layout.HISTORY, content)
    History(str(folder)).on_train_start(SimpleNamespace(is_global_zero=True, global_step=15), None)  # type: ignore[arg-type]


def _trials(folder: Path, content: bytes) -> None:
    for name in ("one", "other"):
        written(folder / name / layout.PREDICTIONS, RUN[layout.PREDICTIONS])
    written(folder / "one" / trials.TRIALS, json_of(TRIALS))
    written(folder / "other" / trials.TRIALS, content)
    trials.compare(folder / "one", folder / "other")


def _truths(folder: Path, content: bytes) -> object:
    store = SimpleNamespace(ids=["a", "b", "c"])
    return read_truths(str(written(folder / "truths.jsonl", content)), store)  # type: ignore[arg-type]
