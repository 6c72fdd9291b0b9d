"""Train, evaluate and defend against text inversion attacks; docs/python.md has the functions.

In a clone, the folders that a user extends stand beside this one: attacks/ is ``unembed.attacks``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unembed.api import (
        Attacker,
        audit_vectors,
        embed,
        list_attackers,
        list_attacks,
        list_defenses,
        list_embedders,
        load,
    )
    from unembed.core.errors import InputError

__all__ = [
    "Attacker",
    "InputError",
    "audit_vectors",
    "embed",
    "list_attackers",
    "list_attacks",
    "list_defenses",
    "list_embedders",
    "load",
]

__version__ = "0.1.0"  # of the package, its records and its reports; pyproject.toml reads it here

_CLONE = Path(__file__).resolve().parent.parent
if (_CLONE / "setup.py").is_file():  # so that scripts of a clone run its own code, however unembed is installed
    __path__.append(str(_CLONE))


def __getattr__(name: str) -> Any:
    """The functions above, imported when they are first used."""
    if name in __all__:
        return getattr(import_module("unembed.api"), name)
    raise AttributeError(f"module 'unembed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
