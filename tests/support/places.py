"""A folder with texts, a cache and runs, and the scripts as functions: for tests that train tiny attacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import configuration
import evaluate
import train
from run_directory import layout


class Place:
    """A folder with texts and a cache.

    Args:
        base: The folder.
        texts: Of ``data.jsonl``: every fifth is a test text.
        common: Overrides of every training.
    """

    def __init__(self, base: Path, texts: Sequence[str], common: Sequence[str]) -> None:
        self.base, self.common = base, common
        self.data = self.write("data.jsonl", texts)

    def write(self, name: str, texts: Sequence[str]) -> Path:
        splits = ["test" if n % 5 == 0 else "valid" if n % 7 == 0 else "train" for n in range(len(texts))]
        rows = [{"text": text, "split": split} for text, split in zip(texts, splits, strict=True)]
        (self.base / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.base / name

    def train(self, name: str, *overrides: str, steps: int = 10) -> Path:
        run = self.base / name
        lines = [
            *self.common, f"run_dir={run}", f"trainer.max_steps={steps}", f"datamodule.path={self.data}",
            f"cache_dir={self.base / 'cache'}", *overrides,
        ]  # fmt: skip
        config = configuration.compose("train", lines)
        assert configuration.check(config) == []
        train.train(config)
        return run

    def evaluate(self, run: Path, name: str, *overrides: str) -> Path:
        out = self.base / name
        evaluate.evaluate(*configuration.on_run("evaluate", [f"run={run}", f"output_dir={out}", *overrides]))
        return out


def figures(directory: Path) -> dict[str, Any]:
    """metrics.json without the time."""
    loaded = json.loads((directory / layout.METRICS).read_text())
    return {key: value for key, value in loaded.items() if key != "seconds"}


def read(path: Path, key: str) -> list[str]:
    """A field of a file of JSON lines."""
    return [json.loads(line)[key] for line in path.read_text().splitlines()]


def predictions(directory: Path) -> list[str]:
    """The texts of predictions.jsonl."""
    return read(directory / layout.PREDICTIONS, "prediction")
