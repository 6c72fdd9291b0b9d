"""Check every value of a composed configuration against the constructor that receives it, before building anything.

    attack.decoding.beams=0: must be at least 1
    attack.decodng: unknown key, did you mean decoding?
    datamodule.path: missing, give it as datamodule.path=<value>

The valid range of an argument is its type hint: ``pydantic.PositiveInt``, ``Literal[...]``,
``Annotated[int, Field(ge=2)]``. A node with ``_partial_: true`` may omit arguments, which the calling code adds.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationToMissingValueError, OmegaConfBaseException
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import SchemaError

from unembed.core.commands import shown_value
from unembed.core.errors import BLOTTED, InputError, did_you_mean, holds_secret, secret_refused
from unembed.launch.signatures import locate, signature_of
from unembed.launch.trainer import CHECKED, limit_errors

_MISSING = "???"
# Setting names that suggest a secret, in snake case: configurations are written to disk and sent to loggers.
_SECRET = re.compile(
    r"^(key|token|auth|bearer)$|(^|_)((api|access|private|secret)_?key|(api|access|auth|bearer|hf)_?token|passwd|pwd"
    r"|passphrase|secret|credentials?|authorization)$|password$"
)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")  # anything else is probably the key itself, not the name of a variable
_WORDS = re.compile(r"-|(?<=[a-z0-9])(?=[A-Z])")  # word boundaries in x-api-key and secretAccessKey
_UNKNOWN = object()  # replaces an interpolation that cannot be resolved, which is reported once
_RESERVED = {"_target_", "_partial_", "_convert_", "_recursive_", "_args_"}
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
    "needs_python_object": "a node with _target_",
}

# Root keys of train.yaml, and of the scripts on a finished run (evaluate.yaml, ...), that no constructor receives.
_ROOT: dict[str, Any] = {
    "seed": NonNegativeInt,
    "objective": str,
    "run_dir": str,
    "cache_dir": str,
    "ckpt_path": str | None,
    "init_from": str | None,
    "trust": str | list[str],
    "trials": PositiveInt,
    "compare": str | None,
    "collection": str | None,
    "run": str | None,
    "output_dir": str,
    "vectors": str,
    "output": str,
    "limit": PositiveInt | None,
    "batch_size": PositiveInt,
    "texts": str | None,
    "candidates": str,
    "references": str | None,
    "false_positives": Annotated[float, Field(gt=0, lt=100)],
    "readable": Annotated[float, Field(gt=0, le=100)],
    "fail_on": str | None,
    "lookup": NonNegativeInt,
    "baseline": str | None,
    "defenses": list[str],
    "defense_limit": PositiveInt,
    "also": str | list[str] | None,
    "search": bool,
    "exposed": PositiveInt,
    "show_text": bool,
    "trust_vectors": bool,
    "config_dir": str | None,
    "name": str,
    "calibration": str | list[str],
    "predictions": str | None,
    "folder": str,
}

# Keys of a group's node that the user of the object reads, not its constructor.
_BESIDE: dict[str, dict[str, Any]] = {"defense": {"adaptive": bool, "hypotheses": Literal["clean", "defended"]}}


def check(config: DictConfig) -> list[str]:
    """One line for each mistake in ``config``; empty if there are none. Imports the constructors, and thus torch."""
    messages: list[str] = []
    values = _resolve(config, "", messages)
    messages += [f"{key}: missing, give it as {key}=<value>" for key, _, value in _walk(values) if value == _MISSING]
    secrets = list(_secrets(values))
    for name, hint in _ROOT.items():
        if name in values:
            messages += _value_errors(name, values[name], hint)
    for group, hints in _BESIDE.items():
        node = values.get(group)
        for name in hints if _is_node(node) else ():
            messages += _value_errors(f"{group}.{name}", node[name], hints[name]) if name in node else []
    for key, _, value in _walk(values):
        messages += _node_errors(value, key) if _is_node(value) else []
    for name, node in (values.get("callbacks") or {}).items():
        if node is not None and not _is_open(node):
            message = "must be a node with _target_, or null to leave it out"
            messages.append(f"callbacks.{name}={shown_value(node)}: {message}")
    messages += limit_errors(values.get("trainer"))
    refused = {message.partition("=")[0] for message in messages}
    messages += [message for message in secrets if message.partition(":")[0] not in refused]
    return _said_once(dict.fromkeys(messages), values)


def secret_errors(config: DictConfig) -> Iterator[str]:
    """The part of :func:`check` that concerns secrets, for a configuration that is only printed."""
    yield from _secrets(OmegaConf.to_container(config, resolve=False))


def _said_once(messages: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """``messages`` without those on keys that copy a wrong value from the root, such as datamodule.seed."""
    every = list(messages)
    wrong = {message for message in every if re.split(r"[=:]", message, maxsplit=1)[0] in values}
    return [m for m in every if not any(m.endswith(f".{root}") and m.split("=")[0].count(".") for root in wrong)]


def _resolve(node: Any, key: str, messages: list[str]) -> Any:
    """Plain containers with all interpolations resolved; failures are added to ``messages``."""
    if not isinstance(node, DictConfig | ListConfig):
        return node
    values: dict[Any, Any] = {}
    for name in list(node) if isinstance(node, DictConfig) else range(len(node)):
        child = _join(key, name)
        values[name] = _UNKNOWN
        try:
            if OmegaConf.is_missing(node, name):
                values[name] = _MISSING
            else:
                values[name] = _resolve(node[name], child, messages)
        except InterpolationToMissingValueError:
            pass  # the key that it refers to is reported as missing
        except InterpolationKeyError:
            written_as = OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index]
            messages.append(
                f"{child}: it is {written_as}, which does not exist; choose an option that has it, "
                f"or give {child}=<value>"
            )
        except OmegaConfBaseException as error:
            messages.append(f"{child}: {str(error).splitlines()[0]}")
    return values if isinstance(node, DictConfig) else list(values.values())


def _secrets(values: Any) -> Iterator[str]:
    """Settings that would hold a secret, and values that contain a password."""
    for key, name, value in _walk(values):
        given = isinstance(value, str | int | float) and not isinstance(value, bool)
        if isinstance(name, str) and given and _SECRET.search(_WORDS.sub("_", name).lower()):
            yield (
                f"{key}: a secret does not belong in a configuration, which is written down; export it "
                "(OPENAI_API_KEY, WANDB_API_KEY, HF_TOKEN, UNEMBED_ROTATION_KEY) and leave this out"
            )
        elif str(name).endswith("key_env") and given and not _VARIABLE.fullmatch(str(value)):
            yield f"{key}={BLOTTED}: must be the name of an environment variable in capitals, or null"
        elif isinstance(value, str) and holds_secret(value):
            yield secret_refused(key)


def _node_errors(node: Mapping[str, Any], key: str) -> Iterator[str]:
    target = node["_target_"]
    try:
        signature = signature_of(target)
    except InputError as error:
        yield f"{_join(key, '_target_')}={target}: {error}"
        return
    if signature is None:
        return
    beside = _BESIDE.get(key, {})
    checked = {name for name in node if name in _RESERVED or name in beside or _join(key, name) == CHECKED}
    for name in (name for name in node if name not in checked):
        if name in signature.required:
            yield from _value_errors(_join(key, name), node[name], signature.hint(name))
        elif not signature.open_ended:
            yield f"{_join(key, name)}: unknown key, {did_you_mean(name, signature.required)}"
    if not node.get("_partial_"):
        for name, needed in list(signature.required.items())[len(node.get("_args_", [])) :]:
            if needed and name not in node:
                yield f"{_join(key, name)}: missing, {target} needs it"


def _value_errors(key: str, value: Any, hint: Any) -> list[str]:
    if _is_node(value):
        return _instance_errors(key, value, hint)
    if _is_open(value):
        return _left_out(key, value)
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        return []
    except PydanticUserError:  # models and typed dictionaries have their own pydantic configuration
        adapter = TypeAdapter(hint)
    except SchemaError:  # a protocol, which no plain value but null can be
        if value is None and type(None) in _members(hint):
            return []
        return [f"{key}={shown_value(value)}: must be {_WORDING['needs_python_object']}"]
    try:
        # Strict JSON validation: no conversion between texts and numbers, but a list is accepted for a tuple and an
        # integer for a float, since constructors receive them so.
        adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        text = BLOTTED if _is_secret(key, value) else shown_value(value)
        return _left_out(key, value) or [f"{key}={text}: {_reason(error, value, hint)}"]
    return []


def _left_out(key: str, value: Any) -> list[str]:
    """Messages about null among named nodes, such as refiners."""
    if not isinstance(value, Mapping):
        return []
    return [
        f"{_join(key, name)}=null: to leave it out, write ~{_join(key, name)}" for name in value if value[name] is None
    ]


def _reason(error: ValidationError, value: Any, hint: Any) -> str:
    """What the value must be; the messages for the members of a union are joined."""
    wanted: list[str] = []
    for detail in error.errors(include_url=False):
        kind, bounds = detail["type"], detail.get("ctx", {})
        if kind == "literal_error":
            continue
        where = "".join(f"[{part}] " for part in detail["loc"] if isinstance(part, int))
        if kind == "greater_than" and isinstance(bounds["gt"], int):
            wanted.append(f"{where}at least {bounds['gt'] + 1}")
        elif kind == "less_than" and isinstance(bounds["lt"], int):
            wanted.append(f"{where}at most {bounds['lt'] - 1}")
        elif kind in _WORDING:
            wanted.append(where + _WORDING[kind].format(**bounds))
        else:
            wanted.append(where + detail["msg"].replace("Input should be ", ""))
    choices = [
        str(choice)
        for member in _members(hint)
        if typing.get_origin(member) is Literal
        for choice in typing.get_args(member)
    ]
    if choices and not wanted and isinstance(value, str):
        return did_you_mean(value, set(choices))
    wanted += [f"one of {', '.join(dict.fromkeys(choices))}"] if choices else []
    return f"must be {' or '.join(dict.fromkeys(wanted)) or error.errors()[0]['msg']}"


def _instance_errors(key: str, node: Mapping[str, Any], hint: Any) -> list[str]:
    """Check a node for a hint that asks for an object: its class must be one of the hint's classes."""
    try:
        made = locate(node["_target_"])
    except InputError:
        return []  # reported where the node itself is checked
    wanted = [member for member in _members(hint) if member is not type(None)]
    classes = [w for w in wanted if isinstance(w, type) and not getattr(w, "_is_protocol", False)]
    if node.get("_partial_") or not isinstance(made, type) or len(classes) < len(wanted):
        return []  # the class alone does not tell the result of a function, a protocol or a generic type
    if issubclass(made, tuple(classes)):
        return []
    return [f"{key}: {node['_target_']} makes no {' or '.join(w.__name__ for w in classes)}"]


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
    return value == _MISSING or value is _UNKNOWN or _is_node(value) or any(_is_open(v) for _, v in _children(value))


def _walk(value: Any, key: str = "") -> Iterator[tuple[str, str | int, Any]]:
    """Full key, name and value of everything below ``value``."""
    for name, child in _children(value):
        yield _join(key, name), name, child
        yield from _walk(child, _join(key, name))


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from enumerate(value)


def _join(key: str, name: str | int) -> str:
    if isinstance(name, int):
        return f"{key}[{name}]"
    return f"{key}.{name}" if key else name


def _is_secret(key: str, value: Any) -> bool:
    return key.endswith("key_env") or (isinstance(value, str) and holds_secret(value))
