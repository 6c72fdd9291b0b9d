"""Holds every value of a composed configuration against the constructor that it goes to, before anything is built.

    attack.decoding.beams=0: must be at least 1
    attack.decodng: unknown key, did you mean decoding?
    datamodule.path: missing

A constructor's bounds are its type hints (``pydantic.PositiveInt``, ``Literal[...]``, ``Annotated[float, Field(gt=0)]``).
A node with ``_partial_: true`` may leave out arguments, since the code that calls it gives the rest.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException
from pydantic import ConfigDict, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from errors import InputError, did_you_mean

MISSING = "???"
_RESERVED = {"_target_", "_partial_", "_convert_", "_recursive_", "_args_"}
_TEMPLATES = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "none_required": "must be null",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "is_instance_of": "must be a {class}",
    "needs_python_object": "must be a node with _target_",
    "finite_number": "must be finite",
}

# The keys at the root of train.yaml, evaluate.yaml and invert.yaml that go to no constructor.
_ROOT_HINTS: dict[str, Any] = {
    "seed": NonNegativeInt,
    "run_dir": str,
    "cache_dir": str,
    "ckpt_path": str | None,
    "run": str,
    "output_dir": str,
    "vectors": str,
    "output": str,
    "limit": PositiveInt | None,
    "batch_size": PositiveInt,
}


def check(config: DictConfig) -> list[str]:
    """One line for each thing that is wrong with ``config``; the list is empty where everything fits."""
    messages: list[str] = []
    plain = _resolve(config, "", messages)
    for name, value in plain.items():
        if name in _ROOT_HINTS and value != MISSING:
            messages += _value_errors(name, value, _ROOT_HINTS[name])
    messages += _missing(plain, "")
    messages += _nodes(plain, "")
    return list(dict.fromkeys(messages))


def parameters(target: str) -> list[str]:
    """Names of the arguments that ``target`` takes; nothing where it cannot be imported or tells none."""
    try:
        signature = inspect.signature(_locate(target))
    except (InputError, ValueError):
        return []
    return [p.name for p in signature.parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _resolve(node: Any, key: str, messages: list[str]) -> Any:
    """Plain containers with all interpolations resolved; what cannot be resolved is reported and left out."""
    if isinstance(node, DictConfig):
        names: list[Any] = list(node.keys())
    elif isinstance(node, ListConfig):
        names = list(range(len(node)))
    else:
        return node
    values: dict[Any, Any] = {}
    for name in names:
        child = _join(key, name)
        if OmegaConf.is_missing(node, name):
            values[name] = MISSING
            continue
        try:
            values[name] = _resolve(node[name], child, messages)
        except InterpolationToMissingValueError:
            continue  # the key that it points to is reported as missing itself
        except OmegaConfBaseException as error:
            messages.append(f"{child}: {_first_line(error)}")
    return values if isinstance(node, DictConfig) else list(values.values())


def _missing(value: Any, key: str) -> Iterator[str]:
    if value == MISSING:
        yield f"{key}: missing, give it as {key}=<value>"
    for name, child in _children(value):
        yield from _missing(child, _join(key, name))


def _nodes(value: Any, key: str) -> Iterator[str]:
    """Errors of every node with ``_target_`` at or under ``value``."""
    if isinstance(value, Mapping) and isinstance(value.get("_target_"), str) and value["_target_"] != MISSING:
        yield from _node_errors(value, key)
    for name, child in _children(value):
        yield from _nodes(child, _join(key, name))


def _node_errors(node: Mapping[str, Any], key: str) -> Iterator[str]:
    target = node["_target_"]
    try:
        called = _locate(target)
    except InputError as error:
        yield f"{_join(key, '_target_')}={target}: {error}"
        return
    try:
        signature = inspect.signature(called)
    except ValueError:  # written in C, without a signature: nothing to hold against
        return
    accepted = {
        name: p for name, p in signature.parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    }
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    positional = len(node.get("_args_", []))
    for name, value in node.items():
        if name in _RESERVED or value == MISSING:
            continue
        if name in accepted:
            yield from _value_errors(_join(key, name), value, _hint(called, accepted[name]))
        elif not open_ended:
            yield f"{_join(key, name)}: unknown key, {did_you_mean(name, accepted)}"
    if node.get("_partial_"):
        return
    for name, parameter in list(accepted.items())[positional:]:
        if parameter.default is parameter.empty and name not in node:
            yield f"{_join(key, name)}: missing, {target} needs it"


def _locate(target: str) -> Callable[..., Any]:
    """Import what a ``_target_`` names.

    Raises:
        InputError: There is no such module or name; names the nearest one.
    """
    parts = target.split(".")
    found: Any = None
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        if isinstance(found, types.ModuleType) and parts[end - 1] in vars(found):
            found = vars(found)[parts[end - 1]]
        elif found is None or isinstance(found, types.ModuleType):
            found = _import(name, found, parts[end - 1])
        else:
            found = inspect.getattr_static(found, parts[end - 1], None) and getattr(found, parts[end - 1])
            if found is None:
                raise InputError(f"{'.'.join(parts[: end - 1])} has no {parts[end - 1]}")
    if not callable(found):
        raise InputError("cannot be called")
    return typing.cast(Callable[..., Any], found)


def _import(name: str, parent: types.ModuleType | None, last: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(f"{name} cannot be imported: {error}") from error
    except ImportError as error:
        raise InputError(f"{name} cannot be imported: {error}") from error
    if parent is None:
        raise InputError(f"no module {name}")
    lazy = inspect.getattr_static(parent, "__getattr__", None)
    if lazy is not None:  # a package that imports its names on first use
        try:
            return getattr(parent, last)
        except AttributeError:
            pass
    public = {n for n in vars(parent) if not n.startswith("_")}
    own = {n for n in public if getattr(vars(parent)[n], "__module__", parent.__name__) == parent.__name__}
    modules = {module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", []))}
    near = did_you_mean(last, own | modules)
    raise InputError(f"no {last} in {parent.__name__}, {near}")


def _hint(called: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The type hint of one argument; ``Any`` where there is none or it cannot be resolved."""
    if parameter.annotation is parameter.empty:
        return Any
    function: Any = called.__init__ if inspect.isclass(called) else called  # type: ignore[misc]
    function = inspect.unwrap(function)
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        hints = typing.get_type_hints(holder, getattr(function, "__globals__", {}), include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Any  # imported for type checkers only: the name is checked, the type is not
    return hints[parameter.name]


def _value_errors(key: str, value: Any, hint: Any) -> list[str]:
    if isinstance(value, Mapping) and "_target_" in value:
        return _instance_errors(key, value, hint)
    if _holds_nodes(value):
        return []
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        return []
    except PydanticUserError:  # models and typed dictionaries carry a config of their own
        adapter = TypeAdapter(hint)
    try:
        # Strict JSON: no text passes for a number and no number for a text, but a list passes for a tuple and a whole
        # number for a float, which is what the constructor will really be handed.
        adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        wrong = [_wording(dict(detail), value) for detail in error.errors(include_url=False)]
        # Several members of a union fail: the useful reasons are those that accept the value's type.
        return [f"{key}={_written(value)}: {' or '.join(dict.fromkeys(wrong))}"]
    return []


def _wording(detail: dict[str, Any], value: Any) -> str:
    context = detail.get("ctx", {})
    kind = detail["type"]
    where = "".join(f"[{part}] " for part in detail["loc"] if isinstance(part, int))
    if kind == "literal_error":
        allowed = [str(choice) for choice in _literals(context["expected"])]
        if isinstance(value, str):
            return where + did_you_mean(value, allowed)
        return f"{where}must be one of {', '.join(allowed)}"
    if kind == "greater_than" and isinstance(context["gt"], int):
        return f"{where}must be at least {context['gt'] + 1}"
    if kind == "less_than" and isinstance(context["lt"], int):
        return f"{where}must be at most {context['lt'] - 1}"
    template = _TEMPLATES.get(kind)
    return where + (template.format(**context) if template else str(detail["msg"]))


def _literals(expected: str) -> list[str]:
    """pydantic names a Literal's values as "'a', 'b' or 'c'"."""
    return [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]


def _instance_errors(key: str, node: Mapping[str, Any], hint: Any) -> list[str]:
    """A node where a hint asks for an object: its class must be one of the hint's classes."""
    if node.get("_partial_"):
        return []
    try:
        made = _locate(node["_target_"])
    except InputError:
        return []  # reported where the node itself is checked
    wanted = list(_members(hint))
    classes = [w for w in wanted if inspect.isclass(w) and not getattr(w, "_is_protocol", False)]
    if not inspect.isclass(made) or len(classes) < len(wanted) or issubclass(made, tuple(classes)):
        return []
    names = " or ".join(w.__name__ for w in classes if w is not type(None))
    return [f"{key}: {node['_target_']} is no {names}"]


def _members(hint: Any) -> Iterator[Any]:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        yield from _members(typing.get_args(hint)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _members(member)
    else:
        yield hint


def _holds_nodes(value: Any) -> bool:
    if isinstance(value, Mapping) and "_target_" in value:
        return True
    return any(_holds_nodes(child) or child == MISSING for _, child in _children(value))


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from enumerate(value)


def _join(key: str, name: str | int) -> str:
    if isinstance(name, int):
        return f"{key}[{name}]"
    return f"{key}.{name}" if key else name


def _written(value: Any) -> str:
    """A value as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
