"""Benchmarks are run by hand: what they import must still be there."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
PEERS = {"search_peer.py", "make_published_fixtures.py"}  # run in an environment of the package vec2text
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in PEERS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_finds_what_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    found = runpy.run_path(str(FOLDER / name), run_name="imported")
    assert callable(found.get("main")) or name in {"common.py", "lm_inversion_tables.py"}
