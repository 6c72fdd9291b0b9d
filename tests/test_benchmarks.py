"""Benchmarks are run by hand: each runs to its last line at its smallest size, and what it prints is sane."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import configuration

FOLDER = Path(__file__).parent.parent / "benchmarks"
PEERS = {"search_peer.py", "make_published_fixtures.py"}  # run in an environment of the package vec2text
WITHOUT_MAIN = {"common.py", "budget.py", "lm_inversion_tables.py"}
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in PEERS)
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a benchmark by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_finds_what_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    found = runpy.run_path(str(FOLDER / name), run_name="imported")
    assert callable(found.get("main")) or name in WITHOUT_MAIN


@pytest.mark.parametrize("more", [[], ["datamodule.batch_size=8"]])
def test_the_number_of_texts_can_be_chosen(load: Load, more: list[str]) -> None:
    overrides = load("common").texts_of(argparse.Namespace(path=None), 3000, 100)
    config = configuration.compose("train", [*overrides, *more])
    assert configuration.check(config) == []
    source = config.datamodule.source
    assert (source.sentences, source.valid, source.test) == (3200, 100, 100)
