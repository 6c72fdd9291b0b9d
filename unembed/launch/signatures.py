"""The arguments and type hints of a ``_target_``, read from its source file or by importing it.

    written("unembed.attacks.geia.GEIA").required        # {"backbone": True, ..., "label_smoothing": False}
    written("unembed.attacks.geia.GEIA").hint("label_smoothing")     # Annotated[float, Field(ge=0, lt=1)]

Arguments that a constructor takes as ``**others`` and passes to ``super().__init__`` or to another constructor are
included.

Reading a file takes milliseconds, importing it (torch, lightning, transformers) takes seconds. So mistakes are first
searched in source files; whatever these cannot tell, such as the class of an argument, is left to :func:`imported`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unembed.launch.locating import locate
from unembed.launch.source_files import Found, find, imported_module

UNKNOWN: Any = object()  # a hint that only an import can resolve
# Packages used in type hints that are cheap to import.
_LIGHT = {"annotated_types", "collections", "datetime", "enum", "os", "pathlib", "pydantic", "types", "typing"}


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments that can be given by name.

    Attributes:
        required: For each argument, in order, whether it has no default.
        open_ended: Whether any other names are accepted (``**kwargs``).
        hint: The type hint of an argument: ``Any`` if it has none, ``UNKNOWN`` if only an import can resolve it.
    """

    required: Mapping[str, bool]
    open_ended: bool
    hint: Callable[[str], Any]


def imported(target: str) -> Signature | None:
    """The signature of ``target``; None if it is written in C and has no signature.

    Raises:
        InputError: The module or name does not exist; names the nearest one.
    """
    return _imported(locate(target))


def _imported(called: Callable[..., Any]) -> Signature | None:
    try:
        parameters = inspect.signature(called).parameters
    except ValueError:
        return None
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = (p for p in parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
    required = {p.name: p.default is p.empty for p in named}
    own = Signature(required, open_ended, lambda name: _imported_hint(called, parameters[name]))
    if not open_ended or not isinstance(called, type):
        return own
    definer = next(one for one in called.__mro__ if "__init__" in vars(one))
    try:
        constructor = ast.parse(textwrap.dedent(inspect.getsource(vars(definer)["__init__"]))).body[0]
    except (OSError, TypeError, SyntaxError):
        return own
    handed = _handed_on(constructor) if isinstance(constructor, ast.FunctionDef) else None
    if handed is None or (handed.to is None and len(definer.__bases__) != 1):
        return own
    names = vars(definer)["__init__"].__globals__
    inherited = _imported(definer.__bases__[0] if handed.to is None else names[handed.to])
    if inherited is None:
        return own
    left = handed.left(inherited.required, own.required)
    required = {**own.required, **{name: inherited.required[name] for name in left}}
    return Signature(
        required, inherited.open_ended, lambda name: (own if name in own.required else inherited).hint(name)
    )


def written(target: str) -> Signature | None:
    """The signature read from the source file without imports; None if no file has it."""
    module, _, name = target.rpartition(".")
    found = find(module, name)
    if found is None:
        return None
    arguments: _Arguments | None
    if isinstance(found.node, ast.FunctionDef):
        arguments, open_ended = _of_function(found, found.node, bound=False), found.node.args.kwarg is not None
    elif isinstance(found.node, ast.ClassDef):
        arguments, open_ended = _of_class(found, found.node)
    else:
        return None
    if arguments is None:
        return None
    required = {name: needed for name, (needed, _, _) in arguments.items()}
    return Signature(required, open_ended, lambda name: _written_hint(*arguments[name][1:]))


# For each argument: whether it has no default, its annotation, and the module that contains the annotation.
_Arguments = dict[str, tuple[bool, ast.expr | None, str]]


@dataclass(frozen=True, slots=True)
class _HandedOn:
    """Arguments that a constructor passes to another constructor together with its ``**others``.

    Attributes:
        to: Name of the other class; None: the base class.
        positional: Number of positional arguments passed.
        names: Names of keyword arguments passed.
    """

    to: str | None
    positional: int
    names: frozenset[str]

    def left(self, inherited: Iterable[str], own: Iterable[str]) -> list[str]:
        """The arguments of the other constructor that ``**others`` may contain."""
        return [name for name in list(inherited)[self.positional :] if name not in {*self.names, *own}]


def _handed_on(constructor: ast.FunctionDef) -> _HandedOn | None:
    """None for a constructor that does not pass on ``**others``."""
    for call in (node for node in ast.walk(constructor) if isinstance(node, ast.Call)):
        names = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        to = call.func.id if isinstance(call.func, ast.Name) else None
        known = to is not None or ast.unparse(call.func) == "super().__init__"
        if known and constructor.args.kwarg is not None and names.pop(None, None) == constructor.args.kwarg.arg:
            return _HandedOn(to, len(call.args), frozenset(name for name in names if name is not None))
    return None


def _of_function(found: Found, node: ast.FunctionDef, *, bound: bool) -> _Arguments:
    positional = [*node.args.posonlyargs, *node.args.args]
    first_default = len(positional) - len(node.args.defaults)
    needed = {argument.arg: place < first_default for place, argument in enumerate(positional)}
    needed |= {a.arg: d is None for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)}
    hidden = {argument.arg for argument in node.args.posonlyargs} | ({positional[0].arg} if bound else set())
    by_name = (argument for argument in [*positional, *node.args.kwonlyargs] if argument.arg not in hidden)
    return {argument.arg: (needed[argument.arg], argument.annotation, found.module) for argument in by_name}


def _of_class(found: Found, node: ast.ClassDef) -> tuple[_Arguments | None, bool]:
    """Arguments of a class's constructor, and whether it accepts others; None if no file has them."""
    methods = {statement.name: statement for statement in node.body if isinstance(statement, ast.FunctionDef)}
    joined = next((s.value for s in node.body if isinstance(s, ast.Assign) and "__signature__" in ast.unparse(s)), None)
    if isinstance(joined, ast.Call):  # arguments of several classes joined, each without its first
        of_each = [_of_base(found, each)[0] for each in joined.args]
        return {k: v for each in of_each for k, v in (each or {}).items() if k != "source"}, False
    if "__init__" in methods:
        constructor = methods["__init__"]
        own, handed = _of_function(found, constructor, bound=True), _handed_on(constructor)
        if handed is None or (handed.to is None and len(node.bases) != 1):
            return own, constructor.args.kwarg is not None
        inherited, open_ended = _of_base(found, node.bases[0] if handed.to is None else ast.Name(handed.to))
        if inherited is None:
            return None, False
        return own | {name: inherited[name] for name in handed.left(inherited, own)}, open_ended
    if "__new__" in methods or node.keywords or len(node.bases) > 1 or len(node.decorator_list) > 1:
        return None, False
    inherited, open_ended = _of_base(found, node.bases[0]) if node.bases else ({}, False)
    if not node.decorator_list or inherited is None:
        return inherited, open_ended
    decorator = node.decorator_list[0]
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not isinstance(called, ast.Name) or called.id != "dataclass":
        return None, False
    fields = [statement for statement in node.body if isinstance(statement, ast.AnnAssign)]
    chosen = [keyword.arg for keyword in decorator.keywords] if isinstance(decorator, ast.Call) else []
    if "init" in chosen or not all(_is_argument(field) for field in fields):
        return None, False
    if inherited and not _is_dataclass(found, node.bases[0]):  # a dataclass does not inherit its constructor
        return None, False
    own = {ast.unparse(f.target): (f.value is None, f.annotation, found.module) for f in fields}
    return inherited | own, open_ended


def _is_argument(field: ast.AnnAssign) -> bool:
    """Whether a dataclass field is a constructor argument: not a class variable, nor ``field(init=False)``."""
    keywords = [keyword.arg for keyword in field.value.keywords] if isinstance(field.value, ast.Call) else []
    annotation = ast.unparse(field.annotation)
    plain = "ClassVar" not in annotation and "KW_ONLY" not in annotation
    return plain and set(keywords) <= {"default", "default_factory"}


def _is_dataclass(of: Found, base: ast.expr) -> bool:
    found = _found(of, base)
    decorators = found.node.decorator_list if found is not None and isinstance(found.node, ast.ClassDef) else []
    called = [one.func if isinstance(one, ast.Call) else one for one in decorators]
    return any(isinstance(one, ast.Name) and one.id == "dataclass" for one in called)


def _found(of: Found, base: ast.expr) -> Found | None:
    """The statement that defines a base class; for ``Generic[T]`` the subscript is ignored."""
    name = base.value if isinstance(base, ast.Subscript) else base
    return find(of.module, name.id) if isinstance(name, ast.Name) else None


def _of_base(of: Found, base: ast.expr) -> tuple[_Arguments | None, bool]:
    name, found = base.value if isinstance(base, ast.Subscript) else base, _found(of, base)
    if found is not None and isinstance(found.node, ast.ClassDef):
        return _of_class(found, found.node)
    plain = isinstance(name, ast.Name) and name.id in ("Protocol", "Generic", "ABC")
    return ({} if plain else None), False


def _written_hint(annotation: ast.expr | None, module: str) -> Any:
    if annotation is None:
        return Any
    names: dict[str, Any] = {}
    for name in {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}:
        value = _light_value(module, name)
        if value is UNKNOWN:
            return UNKNOWN
        if value is not None:
            names[name] = value
    return _evaluated(ast.unparse(annotation), names, UNKNOWN)


def _light_value(module: str, name: str) -> Any:
    """The value of ``name`` in ``module`` if no heavy import is needed; None if the file does not define it."""
    found = find(module, name)
    if found is None:
        return None  # a built-in name; an invalid one fails when the hint is evaluated
    if isinstance(found.node, ast.Import | ast.ImportFrom):
        return _light_import(found.module, found.node, found.name)
    if found.module.partition(".")[0] in _LIGHT:
        return getattr(importlib.import_module(found.module), found.name, UNKNOWN)
    if isinstance(found.node, ast.Assign | ast.AnnAssign):
        return _written_hint(found.node.value, found.module)  # an alias of a type
    return UNKNOWN


def _light_import(module: str, statement: ast.Import | ast.ImportFrom, name: str) -> Any:
    alias = next((a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name), None)
    if alias is None:
        return UNKNOWN
    if isinstance(statement, ast.Import):
        imported_name = alias.name if alias.asname else name
        return importlib.import_module(imported_name) if imported_name.partition(".")[0] in _LIGHT else UNKNOWN
    origin = imported_module(module, statement)
    if origin.partition(".")[0] not in _LIGHT:
        return UNKNOWN
    return getattr(importlib.import_module(origin), alias.name, UNKNOWN)


def _imported_hint(called: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    # Hints of a class are those of its constructor, evaluated in the namespace of the file that defines it.
    constructor: Any = called
    if isinstance(called, type):
        constructor = called.__init__  # type: ignore[misc]
    function = inspect.unwrap(constructor)
    # Imported for type checkers only: the argument's name is checked, its type is not.
    return _evaluated(parameter.annotation, getattr(function, "__globals__", {}), Any)


def _evaluated(annotation: Any, names: dict[str, Any], otherwise: Any) -> Any:
    """Evaluate a type hint in the namespace ``names``; ``otherwise`` if it cannot be resolved."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return otherwise
