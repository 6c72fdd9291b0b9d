"""Find definitions in Python source files without running them, following imports.

find("unembed.attacks.geia", "GEIA")     # the file's module, and the syntax tree of the class
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

_FARTHEST = 8  # maximum number of imports followed


@dataclass(frozen=True, slots=True)
class Found:
    """A definition: its module, its name there, and its statement."""

    module: str
    name: str
    node: ast.stmt


def find(module: str, name: str) -> Found | None:
    """The statement that defines ``name`` in ``module``, following imports; None if it is not found.

    For the standard library and modules not written in Python, the import statement itself is returned.
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
    """The source file of a module, without importing its packages; None if it has no Python source."""
    parts = module.split(".")
    known = (
        2 if parts[0] == "unembed" and len(parts) > 1 else 1
    )  # importing unembed costs nothing, and says where its folders are
    try:
        spec = importlib.util.find_spec(".".join(parts[:known]))
    except (ImportError, ValueError):  # __main__ has no specification
        return None
    for end in range(known + 1, len(parts) + 1):
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
    """The names defined in a module with their last statements; definitions under an ``if`` are ignored."""
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
