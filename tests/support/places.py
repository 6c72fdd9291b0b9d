"""A folder with texts, a cache and runs, and the scripts as functions: for tests that train tiny attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from support.files import write_lines
from unembed import evaluate, launch, train
from unembed.runs.trust import trusting


class Place:
    """A folder with texts and a cache.

    Args:
        base: The folder.
        texts: Of ``data.jsonl``: every fifth is a test text; or a file that names its splits.
        common: Overrides of every training.
        embedder: Class of the tests' own (``_target_``) and its arguments, in place of what ``embedder=`` names.
    """

    def __init__(
        self, base: Path, texts: Sequence[str] | Path, common: Sequence[str], embedder: Mapping[str, Any] | None = None
    ) -> None:
        self.base, self.common, self.embedder = base, common, embedder
        self.cache = base / "cache"
        self.trusted = "" if embedder is None else str(embedder["_target_"]).rpartition(".")[0]
        self.data = texts if isinstance(texts, Path) else self.write("data.jsonl", texts)

    def write(self, name: str, texts: Sequence[str]) -> Path:
        splits = ["test" if n % 5 == 0 else "valid" if n % 7 == 0 else "train" for n in range(len(texts))]
        rows = [{"text": text, "split": split} for text, split in zip(texts, splits, strict=True)]
        return write_lines(self.base / name, rows)

    def train(self, name: str, *overrides: str, steps: int = 10) -> Path:
        """What train.py makes of the overrides, as the run ``base/name``."""
        run = self.base / name
        lines = [
            *self.common, f"run_dir={run}", f"trainer.max_steps={steps}", f"datamodule.path={self.data}",
            f"cache_dir={self.cache}", *overrides,
        ]  # fmt: skip
        config = launch.compose("train", lines)
        if self.embedder is not None:
            config.embedder = OmegaConf.create(dict(self.embedder))
        assert launch.check(config) == []
        with trusting(self.trusted):  # of a run that another is built from
            train.train(config)
        return run

    def evaluate(self, run: Path, name: str, *overrides: str) -> Path:
        """What evaluate.py makes of a run, in ``base/name``."""
        given = [f"run={run}", f"output_dir={self.base / name}", *overrides]
        given += [f"trust={self.trusted}"] if self.trusted else []
        with trusting(self.trusted):
            evaluate.evaluate(*launch.on_run("evaluate", given))
        return self.base / name
