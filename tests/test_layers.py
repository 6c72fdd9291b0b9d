"""import-linter holds the packages to their order; the scripts and the core are held to theirs here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.processes import ROOT

OURS = ("attacks", "callbacks", "configs", "datamodules", "defenses", "embedders", "metrics", "unembed")
SCRIPTS = {path.stem for path in ROOT.glob("*.py")}


def imported(path: Path) -> set[str]:
    """All modules that a file imports, those inside functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", sorted((ROOT / "unembed" / "core").glob("*.py")), ids=lambda path: path.stem)
def test_the_core_imports_nothing_else_of_ours(path: Path) -> None:
    assert [
        name for name in imported(path) if name.startswith("unembed.") and not name.startswith("unembed.core")
    ] == []


def test_nothing_of_ours_is_imported_by_a_second_name() -> None:
    files = [path for folder in (*OURS, "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    second = {*OURS[:-1], "models", "reports", "scoring", "configuration", "run_directory", "denoisers", "attackers"}
    assert {
        str(path): names for path in files if (names := {n for n in imported(path) if n.partition(".")[0] in second})
    } == {}
    listed = {str(path) for path in (ROOT / "configs").rglob("*.yaml") for name in second - {"configs"}
              if f"_target_: {name}." in path.read_text(encoding="utf-8")}  # fmt: skip
    assert listed == set()
