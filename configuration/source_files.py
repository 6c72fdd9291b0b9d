"""Reads Python files without running them: what a module defines at its top level, and where an import leads.

find("attacks.geia", "GEIA")     # the file's module, and the syntax tree of the class
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

_FARTHEST = 8  # imports that are followed: a package's __init__ passes a name on from a file, which has it from another


@dataclass(frozen=True, slots=True)
class Found:
    """A definition: its module, its name there, and its statement."""

    module: str
    name: str
    node: ast.stmt


def find(module: str, name: str) -> Found | None:
    """The statement that gives ``module`` its ``name``, imports followed to other files; None where it is not found.

    Of the standard library, and of what is not written in Python, the import statement is what is found.
    """
    found: Found | None = None
    for _ in range(_FARTHEST):
        statement = _definitions(module).get(name)
        if statement is None:
            return found
        found = Found(module, name, statement)
        if not isinstance(statement, ast.ImportFrom) or _is_standard(imported_module(module, statement)):
            return found
        name = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
        module = imported_module(module, statement)
    return None


def imported_module(module: str, statement: ast.ImportFrom) -> str:
    """The absolute name of the module in ``from <name> import ...``, written in ``module``."""
    if not statement.level:
        return statement.module or ""
    path = source_path(module)
    package = module if path is not None and path.name == "__init__.py" else module.rpartition(".")[0]
    for _ in range(statement.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{statement.module}" if statement.module else package


@functools.cache
def source_path(module: str) -> Path | None:
    """The file of a module, found without importing the packages around it; None where there is none in Python."""
    parts = module.split(".")
    try:
        spec = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError):  # a module that is running has no specification
        return None
    for end in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:end]), spec.submodule_search_locations)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


@functools.cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """The names of a module with the last statement that gives them; what stands under an ``if`` is left out."""
    path = source_path(module)
    if path is None:
        return {}
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    names: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update({(alias.asname or alias.name.partition(".")[0]): node for alias in node.names})
        elif isinstance(node, ast.Assign):
            names.update({target.id: node for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            names[node.target.id] = node
    return names
