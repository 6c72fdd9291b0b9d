"""The arguments and type hints of a ``_target_``.

    signature_of("unembed.attacks.geia.GEIA").required                     # {"backbone": True, ...}
    signature_of("unembed.attacks.geia.GEIA").hint("label_smoothing")      # Annotated[float, Field(ge=0, lt=1)]

Arguments that a constructor takes as ``**others`` and passes to ``super().__init__`` or to another constructor are
included; which these are is read from the constructor's source.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unembed.core.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments that can be given by name.

    Attributes:
        required: For each argument, in order, whether it has no default.
        open_ended: Whether any other names are accepted (``**kwargs``).
        hint: The type hint of an argument: ``Any`` if it has none.
    """

    required: Mapping[str, bool]
    open_ended: bool
    hint: Callable[[str], Any]


def signature_of(target: str) -> Signature | None:
    """The signature of ``target``, which is imported; None if it is written in C and has no signature.

    Raises:
        InputError: The module or name does not exist; names the nearest one.
    """
    return _signature(locate(target))


def _signature(called: Callable[..., Any]) -> Signature | None:
    try:
        parameters = inspect.signature(called).parameters
    except ValueError:
        return None
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = (p for p in parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
    required = {p.name: p.default is p.empty for p in named}
    own = Signature(required, open_ended, lambda name: _hint(called, parameters[name]))
    passed = _passed_on(called) if open_ended and isinstance(called, type) else None
    inherited = None if passed is None else _signature(passed[0])
    if passed is None or inherited is None:
        return own
    left = [name for name in list(inherited.required)[passed[1] :] if name not in {*passed[2], *required}]
    return Signature(
        {**required, **{name: inherited.required[name] for name in left}},
        inherited.open_ended,
        lambda name: (own if name in required else inherited).hint(name),
    )


def _passed_on(made: type) -> tuple[Callable[..., Any], int, set[str]] | None:
    """Where a constructor passes its ``**others``: to what, with how many positional arguments and which others."""
    definer = next(one for one in made.__mro__ if "__init__" in vars(one))
    constructor: Any = vars(definer)["__init__"]
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(constructor))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    assert isinstance(node, ast.FunctionDef)
    others = node.args.kwarg.arg if node.args.kwarg is not None else None
    for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
        names = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if names.pop(None, None) != others:
            continue
        fixed = {name for name in names if name is not None}
        if ast.unparse(call.func) == "super().__init__" and len(definer.__bases__) == 1:
            return definer.__bases__[0], len(call.args), fixed
        if isinstance(call.func, ast.Name) and call.func.id in constructor.__globals__:
            return constructor.__globals__[call.func.id], len(call.args), fixed
    return None


def _hint(called: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    # Hints of a class are those of its constructor, evaluated in the namespace of the file that defines it.
    constructor: Any = called
    if isinstance(called, type):
        constructor = called.__init__  # type: ignore[misc]
    names = getattr(inspect.unwrap(constructor), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Any  # imported for type checkers only: the argument's name is checked, its type is not


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
    if "__getattr__" in vars(parent) and hasattr(parent, part):  # a package that imports its names on first use
        return getattr(parent, part)
    callables = {key for key, value in vars(parent).items() if not key.startswith("_") and callable(value)}
    modules = {module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", []))}
    raise InputError(f"no {part} in {parent.__name__}, {did_you_mean(part, callables | modules)}")
