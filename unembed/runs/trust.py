"""Check what an untrusted run directory may have built: its config.yaml names classes, servers and variables.

    with trusting(["word_guesser"]):                  # trust=word_guesser on the command line
        check_trusted(read_config(run), run)     # before anything in it is built

    runs/x/config.yaml: attack._target_=os.system: none of the classes that configs/attack names; ...

A class may be built where a file of that config group under configs/ names it (a logger only as a logger, never as an
embedder), or where the user trusts its module. Trust must also be given for code that comes with a model, for every
address that configs/ does not name (localhost included), and for every environment variable that configs/ does not
pair with that address (docs/security.md).
"""

from __future__ import annotations

import contextvars
import functools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from unembed import configs
from unembed.core.errors import InputError
from unembed.runs import layout

_CONFIGS = Path(configs.__file__).parent
_NAMED = re.compile(r"^[ ]*(?:- )?(\w+):[ ]*([^\s#]+)", re.MULTILINE)
_ADDRESS = re.compile(r"\s*[\w+.-]+(::[^:]+)*://")  # URLs, including the names that file system libraries use for them
_HOW = ("_partial_", "_args_", "_recursive_", "_convert_")  # how Hydra builds a node
_OF_SERVERS = {"base_url", "api_key_env"}
_ACCOUNT = "logger.entity"  # of Weights & Biases
_NAME = re.compile(r"[\w.:-]+")  # names that need no quotes after trust=
_BORROWED = re.compile(r"^\s*- /(\w+)@", re.MULTILINE)  # options of another group: a second embedder, in scoring
# Lightning's callbacks that people add on the command line; evaluation only compares their class and builds none.
_CALLBACKS = "callbacks"
_ADDED = {
    "lightning.pytorch.callbacks.EarlyStopping",
    "lightning.pytorch.callbacks.LearningRateMonitor",
    "lightning.pytorch.callbacks.RichProgressBar",
    "lightning.pytorch.callbacks.TQDMProgressBar",
    "lightning.pytorch.callbacks.DeviceStatsMonitor",
}
_CHOICE = re.compile(r"\w[\w.+-]*(/\w[\w.-]*)*")  # option of a group: names under configs/ (a+b), no path out of it

_trusted: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("trusted", default=())


@contextmanager
def trusting(names: str | Sequence[str]) -> Iterator[None]:
    """Inside, ``names`` are trusted: modules, models with their own code, servers, environment variables with keys."""
    token = _trusted.set((names,) if isinstance(names, str) else tuple(names))
    try:
        yield
    finally:
        _trusted.reset(token)


def check_trusted(config: DictConfig, run: Path, given: Collection[str] = (), built: Collection[str] = ()) -> None:
    """Check that everything a run's configuration would build is ours or trusted.

    Args:
        config: The configuration of the run.
        run: Its directory, for messages.
        given: Keys and groups set on the command line; their addresses are the user's own.
        built: The only parts of the configuration that are built; by default all of it.

    Raises:
        InputError: One line per untrusted item: the key, the value, and the ``trust=`` to add.
    """
    place = run / layout.CONFIG
    values = OmegaConf.to_container(config, resolve=False)
    messages = [f"{place}: {message}" for message in (*_nodes(values, ""), *_places(values, built, frozenset(given)))]
    choices = values.get("choices") if isinstance(values, dict) else None
    if choices is not None and not isinstance(choices, dict):
        messages.append(f"{place}: choices={choices!r}: no mapping")
    elif choices is not None:
        wrong = {name: choice for name, choice in choices.items() if not _is_choice(choice)}
        messages += [f"{place}: choices.{name}={choice!r}: no name of an option" for name, choice in wrong.items()]
    if messages:
        raise InputError("\n".join(messages))


def foreign(config: DictConfig) -> list[str]:
    """The names that ``check_trusted`` would ask for: modules, models with code, hosts, variables."""
    return list(dict.fromkeys(_foreign(OmegaConf.to_container(config, resolve=False), "")))


def _foreign(value: Any, key: str) -> Iterator[str]:
    known = _known()
    if isinstance(value, dict):
        target, address, variable = (value.get(name) for name in ("_target_", "base_url", "api_key_env"))
        if isinstance(target, str) and target not in _classes(_root(key)):
            yield target.rpartition(".")[0] or target
        if value.get("trust_remote_code"):
            yield str(value.get("name", value.get("model")))
        if variable is not None and (address, variable) not in known.pairs:
            yield str(variable)
        for name, child in value.items():
            yield from _foreign(child, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _foreign(child, f"{key}[{number}]")
    elif isinstance(value, str) and key == _ACCOUNT:
        yield value
    elif isinstance(value, str) and key.endswith("_env"):
        yield from [] if value in known.variables else [value]
    elif isinstance(value, str) and _ADDRESS.match(value) and value not in known.addresses:
        yield _host(value)


def _nodes(value: Any, key: str) -> Iterator[str]:
    """Messages about untrusted nodes at or under ``value``."""
    if isinstance(value, dict):
        yield from _errors(value, key)
        for name, child in value.items():
            yield from _nodes(child, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _nodes(child, f"{key}[{number}]")


def _errors(node: dict[Any, Any], key: str) -> Iterator[str]:
    at = f"{key}." if key else ""
    if "_target_" in node:
        target = node["_target_"]
        if not isinstance(target, str):
            yield f"{at}_target_={target!r}: not a class name"
        elif target not in _classes(_root(key)) and not _is_trusted(target):
            module = target.rpartition(".")[0] or target
            yield (
                f"{at}_target_={target}: none of the classes that configs/{_root(key)} names, so it is not imported; "
                f"if you trust that code and this run, add trust={module}"
            )
    if not _is_trusted(str(node.get("_target_"))):
        yield from (f"{at}{name}={node[name]!r:.60}: no class of ours needs it" for name in _HOW if name in node)
    if node.get("trust_remote_code"):
        name = node.get("name", node.get("model"))
        if name not in _trusted.get():
            yield (
                f"{at}trust_remote_code={node['trust_remote_code']}: asks to run the code that comes with the model "
                f"{name}; if you trust it, add trust={name}"
            )


def _places(value: Any, built: Collection[str], given: frozenset[str], key: str = "") -> Iterator[str]:
    """Messages about untrusted addresses, and variables that hold keys, at or under ``value``."""
    if _is_given(key, given) or (built and key and _root(key) not in built):
        return
    if isinstance(value, dict):
        yield from _server(value, key, given)
        for name, child in value.items():
            if name not in _OF_SERVERS:
                yield from _places(child, built, given, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _places(child, built, given, f"{key}[{number}]")
    elif value is not None:
        yield from _place(key, str(value))


def _server(node: dict[Any, Any], key: str, given: frozenset[str]) -> Iterator[str]:
    """Messages about an embedder's server: its address, and the variable whose key would be sent to it."""
    if not _OF_SERVERS & node.keys():
        return
    at = f"{key}." if key else ""
    known = _known()
    # A key that is left out has the constructor's default.
    address, variable = str(node.get("base_url", known.address)), node.get("api_key_env", known.variable)
    own_address = f"{at}base_url" in given
    bad_address = not own_address and address not in known.addresses and not _is_trusted_host(address)
    if f"{at}api_key_env" in given:
        variable = None  # set by the user
    bad_variable = (
        variable is not None
        and (own_address or (address, str(variable)) not in known.pairs)
        and str(variable) not in _trusted.get()
    )
    host = _host(address)
    if bad_address:
        sent = "texts" if variable is None else f"texts and the key in {variable}"
        names = [host, *([str(variable)] if bad_variable else [])]
        yield f"{at}base_url={address}: that server would be sent {sent}; {_to_add(names)}"
    elif bad_variable:
        where = "the server that you name" if own_address else address
        yield (
            f"{at}api_key_env={variable}: the key in that environment variable would be sent to {where}; "
            f"{_to_add([str(variable)])}, else {at}api_key_env=null or another variable"
        )


def _place(key: str, value: str) -> Iterator[str]:
    """Messages about a value that may be an address, or name the variable of a key."""
    if key.endswith("_env"):
        if value not in _known().variables and value not in _trusted.get():
            yield f"{key}={value}: the run asks for what is in that environment variable; {_to_add([value])}"
    elif key == _ACCOUNT and value not in _trusted.get():
        yield f"{key}={value}: curves and settings would be sent to that account; {_to_add([value])}"
    elif _ADDRESS.match(value) and value not in _known().addresses and not _is_trusted_host(value):
        yield f"{key}={value}: that address would be asked for files; {_to_add([_host(value)])}"


def _is_given(key: str, given: frozenset[str]) -> bool:
    """Whether the command line sets ``key``, or chooses the group that contains it."""
    parts = key.split(".")
    return any(".".join(parts[:count]) in given for count in range(1, len(parts) + 1))


def _to_add(names: list[str]) -> str:
    if not all(_NAME.fullmatch(name) for name in names):  # a line to be copied into a shell
        return "change the run's configuration if you trust it"
    return f"if you trust it, add trust={names[0] if len(names) == 1 else '[' + ','.join(names) + ']'}"


def _is_trusted(target: str) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in _trusted.get())


def _is_choice(choice: Any) -> bool:
    return choice is None or (isinstance(choice, str) and _CHOICE.fullmatch(choice) is not None)


def _host(address: Any) -> str:
    """Host and port of an address; the whole value if it is not an address."""
    try:
        parts = urlsplit(str(address))
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return str(address)
    return f"{parts.hostname}{port}" if parts.hostname else str(address)


def _is_trusted_host(address: Any) -> bool:
    """Whether the host of an address is trusted, on all ports or on its port."""
    host = _host(address)
    return bool({host, re.sub(r":\d+$", "", host)} & set(_trusted.get()))


def _root(key: str) -> str:
    """The group of a key."""
    return re.split(r"[.\[]", key, maxsplit=1)[0]


@functools.cache
def _classes(group: str) -> frozenset[str]:
    """The classes named in the files of a group and of the groups that it takes options from."""
    # A name from an untrusted run is compared with our names, and never becomes part of a path.
    known = {path.name for path in _CONFIGS.iterdir() if path.is_dir()}
    paths = _CONFIGS.glob(f"{group}/**/*.yaml") if group in known else ()
    files = [path.read_text(encoding="utf-8") for path in paths]
    own = {value for text in files for key, value in _NAMED.findall(text) if key == "_target_"}
    borrowed = {other for text in files for other in _BORROWED.findall(text)} - {group}
    added = _ADDED if group == _CALLBACKS else set()
    return frozenset(own | added).union(*map(_classes, borrowed))


@dataclass(frozen=True, slots=True)
class _Known:
    """The addresses and variables that files under configs/ name.

    Attributes:
        addresses: Addresses of servers and data sets.
        variables: Environment variables that hold keys.
        pairs: Address of a server with the variable whose key is sent to it.
        address: The first of these servers.
        variable: The variable of that server.
    """

    addresses: frozenset[str]
    variables: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    address: str
    variable: str


@functools.cache
def _known() -> _Known:
    files = [_NAMED.findall(path.read_text(encoding="utf-8")) for path in sorted(_CONFIGS.rglob("*.yaml"))]
    values = [pair for file in files for pair in file]
    servers = [dict(file) for file in files if any(key == "base_url" for key, _ in file)]
    pairs = [(file["base_url"], file["api_key_env"]) for file in servers]
    return _Known(
        addresses=frozenset(value for _, value in values if _ADDRESS.match(value)),
        variables=frozenset(value for key, value in values if key.endswith("_env")),
        pairs=frozenset(pairs),
        address=pairs[0][0],
        variable=pairs[0][1],
    )
