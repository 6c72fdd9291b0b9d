"""The scripts of benchmarks/ as functions."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from support.running_benchmarks import FOLDER, Benchmarks

LOGGERS = ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero")  # which measuring.quiet silences


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Benchmarks]:
    monkeypatch.syspath_prepend(str(FOLDER))
    levels, threads = {name: logging.getLogger(name).level for name in LOGGERS}, torch.get_num_threads()
    yield Benchmarks(capsys)
    torch.set_num_threads(threads)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
