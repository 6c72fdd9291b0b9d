"""The top-level modules keep to the import order too; import-linter, which checks the packages, reads packages only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.processes import ROOT

# A file may import from those before its own place.
ORDER = [
    "errors",
    "limits",
    "atomic_files",
    "commands",
    "examples",
    "temporary_map",
    "ranks",
    "stopping",
    "temporary_map",
    "tensor_files",
    "attackers",
    "metrics",
    "embedders",
    "defenses",
    "denoisers",
    "scoring",
    "datamodules",
    "run_directory",
    "claims",
    "models",
    "attacks",
    "reports",
    "callbacks",
    "configuration",
    "attack_tests",
    "train",
    "evaluate",
    "invert",
    "audit",
    "membership",
    "compare",
    "export",
]
SCRIPTS = {"train", "evaluate", "invert", "audit", "membership", "compare", "export"}


def imported(path: Path) -> set[str]:
    """The top-level names of all imports of a file, those inside functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("name", [path.stem for path in sorted(ROOT.glob("*.py"))])
def test_a_top_level_module_imports_only_what_stands_below_it(name: str) -> None:
    below = set(ORDER[: ORDER.index(name)]) - SCRIPTS
    assert imported(ROOT / f"{name}.py") & set(ORDER) <= below


def test_errors_and_examples_stand_at_the_bottom() -> None:
    assert not imported(ROOT / "errors.py") & set(ORDER)
    assert imported(ROOT / "examples.py") & set(ORDER) <= {"errors"}
    assert imported(ROOT / "run_directory" / "layout.py") & set(ORDER) <= {"errors", "atomic_files"}
