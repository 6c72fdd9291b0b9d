"""What a run directory may have built. It may come from a stranger, and its config.yaml names classes.

    with trusting(["word_guesser"]):                  # trust=word_guesser on the command line
        check_trusted(runs.read_config(run), run)     # before anything of it is built

    runs/x/config.yaml: attack._target_=os.system: none of the classes that configs/attack names; ...

A class may be built in the place of the configuration where one of our own files under configs/ names it (a logger
where a logger stands, and not where an embedder does), or where the user trusts its module. Code that comes with a
model, and a server that would be sent a key, need the user's word too (docs/security.md).
"""

from __future__ import annotations

import contextvars
import functools
import ipaddress
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

import runs
from errors import InputError

_CONFIGS = Path(__file__).resolve().parent.parent / "configs"
_NAMED = re.compile(r"^\s*(?:- )?(_target_|base_url):\s*([^\s#]+)", re.MULTILINE)
_BORROWED = re.compile(r"^\s*- /(\w+)@", re.MULTILINE)  # options of another group: a second embedder, in scoring
# Lightning's own callbacks that people add on the command line; evaluation looks at their class, and builds none.
_CALLBACKS = "callbacks"
_ADDED = {
    "lightning.pytorch.callbacks.EarlyStopping",
    "lightning.pytorch.callbacks.LearningRateMonitor",
    "lightning.pytorch.callbacks.RichProgressBar",
    "lightning.pytorch.callbacks.TQDMProgressBar",
    "lightning.pytorch.callbacks.DeviceStatsMonitor",
}
_CHOICE = re.compile(r"\w[\w.+-]*(/\w[\w.-]*)*")  # of a group: names under configs/ (a+b), never a way out of it

_trusted: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("trusted", default=())


@contextmanager
def trusting(names: str | Sequence[str]) -> Iterator[None]:
    """Within it, ``names`` are trusted: modules, models whose own code may run, hosts that may be sent a key."""
    token = _trusted.set((names,) if isinstance(names, str) else tuple(names))
    try:
        yield
    finally:
        _trusted.reset(token)


def check_trusted(config: DictConfig, run: Path) -> None:
    """Whether all that the configuration of a run would have built is ours, or trusted.

    Raises:
        InputError: A line for each thing that is not: the key, the value, and what to add if it is trusted.
    """
    place = run / runs.CONFIG
    values = OmegaConf.to_container(config, resolve=False)
    messages = [f"{place}: {message}" for message in _nodes(values, "")]
    choices = values.get("choices") if isinstance(values, dict) else None
    if choices is not None and not isinstance(choices, dict):
        messages.append(f"{place}: choices={choices!r}: no mapping")
    elif choices is not None:
        wrong = {name: choice for name, choice in choices.items() if not _is_choice(choice)}
        messages += [f"{place}: choices.{name}={choice!r}: no name of an option" for name, choice in wrong.items()]
    if messages:
        raise InputError("\n".join(messages))


def _nodes(value: Any, key: str) -> Iterator[str]:
    """What is not trusted at or under ``value``."""
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
            yield f"{at}_target_={target!r}: no name of a class"
        elif target not in _classes(_root(key)) and not _is_trusted(target):
            module = target.rpartition(".")[0] or target
            yield (
                f"{at}_target_={target}: none of the classes that configs/{_root(key)} names, so it is not imported; "
                f"if you trust that code and this run, add trust={module}"
            )
    if node.get("trust_remote_code"):
        name = node.get("name", node.get("model"))
        if name not in _trusted.get():
            yield (
                f"{at}trust_remote_code={node['trust_remote_code']}: asks to run the code that comes with the model "
                f"{name}; if you trust it, add trust={name}"
            )
    address = node.get("base_url")
    if address is not None and address not in _servers():
        host = _host(address)
        if not _is_this_machine(host) and host not in _trusted.get():
            yield (
                f"{at}base_url={address}: that server would be sent texts and the key in "
                f"{node.get('api_key_env')}; if you trust it, add trust={host}"
            )


def _is_trusted(target: str) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in _trusted.get())


def _is_choice(choice: Any) -> bool:
    return choice is None or (isinstance(choice, str) and _CHOICE.fullmatch(choice) is not None)


def _host(address: Any) -> str:
    try:
        return urlsplit(str(address)).hostname or str(address)
    except ValueError:
        return str(address)


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _root(key: str) -> str:
    """The group that a key lies in."""
    return re.split(r"[.\[]", key, maxsplit=1)[0]


@functools.cache
def _classes(group: str) -> frozenset[str]:
    """The classes that the files of a group name, those that it borrows from another group included."""
    # A name that a stranger chose is compared with names of ours, and is itself no part of a path.
    known = {path.name for path in _CONFIGS.iterdir() if path.is_dir()}
    paths = _CONFIGS.glob(f"{group}/**/*.yaml") if group in known else ()
    files = [path.read_text(encoding="utf-8") for path in paths]
    own = {value for text in files for key, value in _NAMED.findall(text) if key == "_target_"}
    borrowed = {other for text in files for other in _BORROWED.findall(text)} - {group}
    added = _ADDED if group == _CALLBACKS else set()
    return frozenset(own | added).union(*map(_classes, borrowed))


@functools.cache
def _servers() -> frozenset[str]:
    """The servers that the files under configs/ name."""
    found = [pair for path in _CONFIGS.rglob("*.yaml") for pair in _NAMED.findall(path.read_text(encoding="utf-8"))]
    return frozenset(value for key, value in found if key == "base_url")
