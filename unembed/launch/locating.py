"""Import the object that a ``_target_`` names, with suggestions if it does not exist."""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from collections.abc import Callable
from typing import Any

from unembed.core.errors import InputError, did_you_mean


def locate(target: str) -> Callable[..., Any]:
    """Import the object that a ``_target_`` names.

    Raises:
        InputError: The module or name does not exist; names the nearest one.
    """
    found: Any = None
    parts = target.split(".")
    for end, part in enumerate(parts, start=1):
        name = ".".join(parts[:end])
        if isinstance(found, types.ModuleType) and part in vars(found):
            found = vars(found)[part]
        elif found is None or isinstance(found, types.ModuleType):
            found = _import(name, found, part)
        elif part in dir(found):  # a class: its class methods
            found = getattr(found, part)
        else:
            raise InputError(f"{found.__name__} has no {part}")
    if not callable(found):
        raise InputError("cannot be called")
    return typing.cast(Callable[..., Any], found)


def _import(name: str, parent: types.ModuleType | None, part: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise InputError(f"{name} cannot be imported: {error}") from error
    except ImportError as error:
        raise InputError(f"{name} cannot be imported: {error}") from error
    if parent is None:
        raise InputError(f"no module {name}")
    if "__getattr__" in vars(parent):  # a package that imports its names on first use
        try:
            return getattr(parent, part)
        except AttributeError as error:
            raise InputError(str(error)) from error
    callables = {key for key, value in vars(parent).items() if not key.startswith("_") and callable(value)}
    modules = {module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", []))}
    raise InputError(f"no {part} in {parent.__name__}, {did_you_mean(part, callables | modules)}")
