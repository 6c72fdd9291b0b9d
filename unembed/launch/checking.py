"""Check every value of a composed configuration against the constructor that receives it, before building anything.

    attack.decoding.beams=0: must be at least 1
    attack.decodng: unknown key, did you mean decoding?
    datamodule.path: missing, give it as datamodule.path=<value>

The valid range of an argument is its type hint: ``pydantic.PositiveInt``, ``Literal[...]``,
``Annotated[int, Field(ge=2)]``. A node with ``_partial_: true`` may omit arguments, which the calling code adds.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import pkgutil
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationToMissingValueError, OmegaConfBaseException
from pydantic import AfterValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticCustomError, SchemaError

from unembed.core.commands import shown_value
from unembed.core.errors import REDACTED, InputError, did_you_mean, holds_secret, secret_refused
from unembed.runs.config_file import walk

_MISSING = "???"
_UNKNOWN = object()  # replaces an interpolation that cannot be resolved, which is reported once
_HYDRA = {"_target_", "_partial_", "_convert_", "_recursive_", "_args_"}
_LIMITS = ("max_steps", "max_epochs", "max_time")  # of a training, by which the learning rate falls
# Setting names that suggest a secret, in snake case: configurations are written to disk and sent to loggers.
_SECRET = re.compile(
    r"^(key|token|auth|bearer)$|(^|_)((api|access|private|secret)_?key|(api|access|auth|bearer|hf)_?token|passwd|pwd"
    r"|passphrase|secret|credentials?|authorization)$|password$"
)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")  # anything else is probably the key itself, not the name of a variable
_WORD_BOUNDARY = re.compile(r"-|(?<=[a-z0-9])(?=[A-Z])")  # in x-api-key and secretAccessKey
_NEEDS_NODE = "a node with _target_"
_WORDING = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "greater than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "time_delta_type": "a duration",
    "needs_python_object": _NEEDS_NODE,
}


def _duration(limit: Any) -> Any:
    """A limit of time that Lightning takes: a text, or the arguments of ``datetime.timedelta``."""
    with contextlib.suppress(TypeError, OverflowError):
        if limit is None or timedelta(**limit) > timedelta():
            return limit
    if isinstance(limit, str) and re.fullmatch(r"\d+:\d\d:\d\d:\d\d", limit.strip()):
        return limit
    raise PydanticCustomError(
        "duration", "days:hours:minutes:seconds, such as 00:00:10:00 for ten minutes, or null for no limit"
    )


# Keys of train.yaml and of the other commands (evaluate.yaml, ...) that no constructor receives.
_HINTS: dict[str, Any] = {
    "seed": NonNegativeInt, "lookup": NonNegativeInt,
    "trials": PositiveInt, "batch_size": PositiveInt, "defense_limit": PositiveInt, "exposed": PositiveInt,
    "limit": PositiveInt | None, "max_queries": NonNegativeInt | None,
    "false_positives": Annotated[float, Field(gt=0, lt=100)], "readable": Annotated[float, Field(gt=0, le=100)],
    "trainer.max_steps": Annotated[int, Field(ge=-1)], "trainer.max_epochs": Annotated[int, Field(ge=-1)] | None,
    "trainer.max_time": Annotated[Any, AfterValidator(_duration)],
    "show_text": bool, "trust_vectors": bool, "defense.adaptive": bool,
    "defense.hypotheses": Literal["clean", "defended"],
    "defense.recall": Annotated[float, Field(gt=0, le=1)] | None,
    "defenses": list[str], "trust": str | list[str], "calibration": str | list[str], "also": str | list[str] | None,
    **dict.fromkeys(("objective", "run_dir", "cache_dir", "output_dir", "vectors", "output", "candidates", "name",
                     "folder"), str),
    **dict.fromkeys(("ckpt_path", "init_from", "compare", "collection", "run", "texts", "references", "fail_on",
                     "baseline", "config_dir", "predictions", "export"), str | None),
}  # fmt: skip


def check(config: DictConfig) -> list[str]:
    """One line for each mistake in ``config``; empty if there are none. Imports the constructors, and thus torch."""
    messages: list[str] = []
    root = _resolve(config, "", messages)
    values = {key: value for key, _, value in walk(root)}
    messages += [f"{key}: missing, give it as {key}=<value>" for key, value in values.items() if value == _MISSING]
    for key, hint in _HINTS.items():
        messages += _value_errors(key, values[key], hint) if key in values else []
    for key, value in values.items():
        messages += _node_errors(value, key) if _is_node(value) else []
    for name, node in (root.get("callbacks") or {}).items():
        if node is not None and not _is_open(node):
            messages.append(f"callbacks.{name}={shown_value(node)}: must be {_NEEDS_NODE}, or null to leave it out")
    trainer = root.get("trainer") or {}
    if "_target_" in trainer and all(trainer.get(name, -1) in (-1, None) for name in _LIMITS):
        limits = f"trainer.{', '.join(_LIMITS[:-1])} or {_LIMITS[-1]}"
        messages.append(f"trainer.max_steps=-1: nothing ends the training; give {limits}")
    wrong_keys = {_key_of(message) for message in messages}
    messages += [message for message in _secrets(root) if _key_of(message) not in wrong_keys]
    # A wrong value at the root is told once, not again at datamodule.seed, which copies it.
    at_root = [message for message in messages if _key_of(message) in root]
    copies = {m for m in messages for one in at_root if m.endswith(f".{one}") and "." in _key_of(m)}
    return [message for message in dict.fromkeys(messages) if message not in copies]


def secret_errors(config: DictConfig) -> list[str]:
    """The part of :func:`check` that concerns secrets, for a configuration that is only printed."""
    return list(_secrets(OmegaConf.to_container(config, resolve=False)))


def _key_of(message: str) -> str:
    return re.split(r"[=:]", message, maxsplit=1)[0]


def _resolve(node: Any, key: str, messages: list[str]) -> Any:
    """Plain containers with all interpolations resolved; failures are added to ``messages``."""
    if not isinstance(node, DictConfig | ListConfig):
        return node
    values: dict[Any, Any] = {}
    for name in list(node) if isinstance(node, DictConfig) else range(len(node)):
        child = _join(key, name)
        values[name] = _UNKNOWN
        try:
            values[name] = _MISSING if OmegaConf.is_missing(node, name) else _resolve(node[name], child, messages)
        except InterpolationToMissingValueError:
            pass  # the key that it refers to is reported as missing
        except InterpolationKeyError:
            written = OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index]
            hint = f"choose an option that has it, or give {child}=<value>"
            messages.append(f"{child}: it is {written}, which does not exist; {hint}")
        except OmegaConfBaseException as error:
            messages.append(f"{child}: {str(error).splitlines()[0]}")
    return values if isinstance(node, DictConfig) else list(values.values())


def _secrets(values: Any) -> Iterator[str]:
    """Settings that would hold a secret, and values that contain a password."""
    for key, name, value in walk(values):
        given = isinstance(value, str | int | float) and not isinstance(value, bool)
        if isinstance(name, str) and given and _SECRET.search(_WORD_BOUNDARY.sub("_", name).lower()):
            yield (
                f"{key}: a secret does not belong in a configuration, which is written down; export it "
                "(OPENAI_API_KEY, WANDB_API_KEY, HF_TOKEN, UNEMBED_ROTATION_KEY) and leave this out"
            )
        elif str(name).endswith("key_env") and given and not _VARIABLE.fullmatch(str(value)):
            yield f"{key}={REDACTED}: must be the name of an environment variable in capitals, or null"
        elif isinstance(value, str) and holds_secret(value):
            yield secret_refused(key)


def _node_errors(node: Mapping[str, Any], key: str) -> Iterator[str]:
    target = node["_target_"]
    try:
        arguments, open_ended = _arguments(locate(target))
    except InputError as error:
        yield f"{_join(key, '_target_')}={target}: {error}"
        return
    for name in (name for name in node if name not in _HYDRA and _join(key, name) not in _HINTS):
        if name in arguments:
            yield from _value_errors(_join(key, name), node[name], arguments[name].annotation)
        elif not open_ended:
            yield f"{_join(key, name)}: unknown key, {did_you_mean(name, arguments)}"
    if not node.get("_partial_"):
        for name, argument in list(arguments.items())[len(node.get("_args_", [])) :]:
            if argument.default is argument.empty and name not in node:
                yield f"{_join(key, name)}: missing, {target} needs it"


def _arguments(called: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The arguments of a constructor by name, with resolved type hints, and whether it takes any other.

    Those that it takes as ``**others`` and passes on are the arguments of the constructor of its base class.
    """
    arguments: dict[str, inspect.Parameter] = {}
    bases = [base for base in getattr(called, "__mro__", ()) if "__init__" in vars(base)][1:]
    positional, fixed = 0, set[str]()
    for receiver in (called, *bases):
        try:
            parameters = list(inspect.signature(receiver).parameters.values())
        except ValueError:  # written in C
            break
        named = [one for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
        for one in named[positional:]:
            if one.name not in fixed | arguments.keys():
                arguments[one.name] = one.replace(annotation=_hint(receiver, one))
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            return arguments, False
        call = _call_of_base(receiver)
        if call is None:
            break
        positional, fixed = len(call.args), fixed | {keyword.arg for keyword in call.keywords if keyword.arg}
    return arguments, True


def _call_of_base(called: Any) -> ast.Call | None:
    """The call by which a constructor passes its ``**others`` to that of its base class; None if there is none."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(called.__init__)))
    except (OSError, TypeError, SyntaxError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    of_base = [call for call in calls if ast.unparse(call.func) == "super().__init__"]
    return next((call for call in of_base if any(keyword.arg is None for keyword in call.keywords)), None)


def _hint(called: Any, parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    # Hints of a class are those of its constructor, evaluated in the namespace of the file that defines it.
    function = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]
    names = getattr(inspect.unwrap(function), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Any  # imported for type checkers only: the argument's name is checked, its type is not


def locate(target: str) -> Callable[..., Any]:
    """Import the object that a ``_target_`` names."""
    found: Any = None
    parts = target.split(".")
    for end, part in enumerate(parts, start=1):
        if found is not None and hasattr(found, part):
            found = getattr(found, part)
            continue
        path, parent = ".".join(parts[:end]), ".".join(parts[: end - 1])
        try:
            found = importlib.import_module(path)
        except ImportError as error:
            if not isinstance(error, ModuleNotFoundError) or not f"{path}.".startswith(f"{error.name}."):
                raise InputError(f"{path} cannot be imported: {error}") from error
            if found is None:
                raise InputError(f"no module {path}") from error
            modules = {module.name for module in pkgutil.iter_modules(getattr(found, "__path__", []))}
            names = modules | {name for name in vars(found) if not name.startswith("_")}
            raise InputError(f"no {part} in {parent}, {did_you_mean(part, names)}") from error
    if not callable(found):
        raise InputError("cannot be called")
    return typing.cast(Callable[..., Any], found)


def _value_errors(key: str, value: Any, hint: Any) -> list[str]:
    if _is_node(value):
        return []  # checked as a node
    if _is_open(value):
        return _null_parts(key, value)
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        return []
    except PydanticUserError:  # models and typed dictionaries have their own pydantic configuration
        adapter = TypeAdapter(hint)
    except SchemaError:  # a protocol, which no plain value but null can be
        is_null = value is None and type(None) in _members(hint)
        return [] if is_null else [f"{key}={shown_value(value)}: must be {_NEEDS_NODE}"]
    try:
        # Strict JSON validation: no conversion between texts and numbers, but a list is accepted for a tuple and an
        # integer for a float, since constructors receive them so.
        adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        secret = key.endswith("key_env") or (isinstance(value, str) and holds_secret(value))
        shown = REDACTED if secret else shown_value(value)
        return _null_parts(key, value) or [f"{key}={shown}: {_reason(error, value, hint)}"]
    return []


def _null_parts(key: str, value: Any) -> list[str]:
    """Messages about null among named nodes, such as refiners."""
    parts = [_join(key, name) for name, part in value.items() if part is None] if isinstance(value, Mapping) else []
    return [f"{part}=null: to leave it out, write ~{part}" for part in parts]


def _reason(error: ValidationError, value: Any, hint: Any) -> str:
    """What the value must be; the messages for the members of a union are joined."""
    wanted: list[str] = []
    for detail in error.errors(include_url=False):
        kind, bounds = detail["type"], detail.get("ctx", {})
        where = "".join(f"[{part}] " for part in detail["loc"] if isinstance(part, int))
        if kind == "greater_than" and isinstance(bounds["gt"], int):
            wanted.append(f"{where}at least {bounds['gt'] + 1}")
        elif kind == "less_than" and isinstance(bounds["lt"], int):
            wanted.append(f"{where}at most {bounds['lt'] - 1}")
        elif kind in _WORDING:
            wanted.append(where + _WORDING[kind].format(**bounds))
        elif kind != "literal_error":
            wanted.append(where + detail["msg"].replace("Input should be ", ""))
    literals = [one for one in _members(hint) if typing.get_origin(one) is Literal]
    choices = [str(choice) for one in literals for choice in typing.get_args(one)]
    if choices and not wanted and isinstance(value, str):
        return did_you_mean(value, set(choices))
    wanted += [f"one of {', '.join(dict.fromkeys(choices))}"] if choices else []
    return f"must be {' or '.join(dict.fromkeys(wanted))}"


def _members(hint: Any) -> Iterator[Any]:
    """The members of a union, or the hint itself, without bounds."""
    if typing.get_origin(hint) is Annotated:
        yield from _members(typing.get_args(hint)[0])
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _members(member)
    else:
        yield hint


def _is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("_target_"), str) and value["_target_"] != _MISSING


def _is_open(value: Any) -> bool:
    """Whether a value is not plain data: missing, unresolved, or a container of nodes."""
    every = [value, *(child for _, _, child in walk(value))]
    return any(one == _MISSING or one is _UNKNOWN or _is_node(one) for one in every)


def _join(key: str, name: str | int) -> str:
    if isinstance(name, int):
        return f"{key}[{name}]"
    return f"{key}.{name}" if key else name
