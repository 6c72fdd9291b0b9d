"""Check what an untrusted run directory may have built: the rule for its config.yaml.

    with trusting(["word_guesser"]):                  # trust=word_guesser on the command line
        check_trusted(read_config(run), run)     # before anything in it is built

    runs/x/config.yaml: attack._target_=os.system: none of the classes that configs/attack names; ...

A class may be built where a file of that config group names it (a logger only as a logger, never as an embedder), or
where the user trusts its module. A model's own code runs where the user trusts the model. Addresses, environment
variables and accounts are those of configs/ or the user's: typed on the command line, or named by trust=
(docs/security.md). configs/ are ours and those of installed packages (configs/__init__.py).
"""

from __future__ import annotations

import contextvars
import functools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from unembed import configs
from unembed.core.errors import InputError
from unembed.runs import layout

_NAMED = re.compile(r"^[ ]*(?:- )?(\w+):[ ]*([^\s#]+)", re.MULTILINE)
_ADDRESS = re.compile(r"\s*[\w+.-]+(::[^:]+)*://")  # URLs, including the names that file system libraries use for them
_SETTING = re.compile(r"(.*\.)?(base_url|\w*_env)|logger\.entity")  # keys of addresses, variables and accounts
_HOW = ("_partial_", "_args_", "_recursive_", "_convert_")  # how Hydra builds a node
_BORROWED = re.compile(r"^\s*- /(\w+)@", re.MULTILINE)  # options of another group: a second embedder, in scoring
# Lightning's callbacks that people add on the command line; evaluation only compares their class and builds none.
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
    """Inside, ``names`` are trusted: modules, models with their own code, addresses, variables with keys, accounts."""
    token = _trusted.set((names,) if isinstance(names, str) else tuple(names))
    try:
        yield
    finally:
        _trusted.reset(token)


class _Need(NamedTuple):
    """A part of a configuration that needs the user's word: its key, what ``trust=`` may name for it, and the message.

    For a setting (an address, a variable or an account) it is enough to set its key.
    """

    key: str
    names: Sequence[str]
    message: str
    is_setting: bool = False


def check_trusted(config: DictConfig, run: Path, given: Collection[str] = (), built: Collection[str] = ()) -> None:
    """Check that everything a run's configuration would build or ask is ours, the user's or trusted.

    Addresses under the keys and groups in ``given`` were set on the command line and are the user's own. ``built`` are
    the only parts of the configuration that are built; by default all of it.
    """
    trusted, messages = _trusted.get(), []
    values = OmegaConf.to_container(config, resolve=False)
    assert isinstance(values, dict)
    for key, names, message, is_setting in _needs(values, "", _known()):
        parts = key.split(".")
        is_given = any(".".join(parts[:count]) in given for count in range(1, len(parts) + 1))
        unused = is_setting and (is_given or (built and _root(key) not in built))
        if not unused and not any(name in trusted for name in names):
            messages.append(message)
    choices = values.get("choices") or {}
    if not isinstance(choices, dict):
        messages.append(f"choices={choices!r}: no mapping")
        choices = {}
    for name, choice in choices.items():
        if choice is not None and not (isinstance(choice, str) and _CHOICE.fullmatch(choice)):
            messages.append(f"choices.{name}={choice!r}: no name of an option")
    if messages:
        raise InputError("\n".join(f"{run / layout.CONFIG}: {message}" for message in messages))


def foreign(config: DictConfig) -> list[str]:
    """The names that ``check_trusted`` would ask for: modules, models with code, addresses, variables, accounts."""
    needs = _needs(OmegaConf.to_container(config, resolve=False), "", _known())
    return list(dict.fromkeys(need.names[0] for need in needs))


def _needs(value: Any, key: str, known: frozenset[tuple[str, str]]) -> Iterator[_Need]:
    """All that needs the user's word at or under ``value``; keys with the values in ``known`` do not."""
    if isinstance(value, dict):
        yield from _code(value, f"{key}." if key else "")
        if "base_url" in value and ("base_url", str(value["base_url"])) not in known:
            # No variable belongs to that server; one that is left out has the constructor's default.
            value, known = {**value, "api_key_env": value.get("api_key_env", "OPENAI_API_KEY")}, frozenset()
        for name, child in value.items():
            yield from _needs(child, f"{key}.{name}" if key else str(name), known)
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _needs(child, f"{key}[{number}]", known)
    elif (
        value is not None
        and (key.rpartition(".")[2], str(value)) not in known
        and (_SETTING.fullmatch(key) or _ADDRESS.match(str(value)))
    ):
        advice = f"give {key}=<yours>, or trust=<this one>"
        message = f"{key}={value}: a run chooses no address, key or account; {advice}"
        yield _Need(key, [str(value)], message, is_setting=True)


def _code(node: dict[Any, Any], at: str) -> Iterator[_Need]:
    """What a node would import or run; ``at`` is its key with a dot, or empty."""
    target, group = node.get("_target_"), _root(at)
    parts = str(target).split(".")
    names = [*(".".join(parts[:count]) for count in range(max(1, len(parts) - 1), 0, -1)), str(target)]
    if "_target_" in node and not isinstance(target, str):
        yield _Need(at, names, f"{at}_target_={target!r}: not a class name")
    elif isinstance(target, str) and target not in _classes(group):
        yield _Need(
            at,
            names,
            f"{at}_target_={target}: none of the classes that configs/{group} names, so it is not imported; "
            f"if you trust that code and this run, add trust={names[0]}",
        )
    for name in _HOW:
        if name in node:
            yield _Need(at, names, f"{at}{name}={node[name]!r:.60}: no class of ours needs it")
    if node.get("trust_remote_code"):
        model = str(node.get("name", node.get("model")))
        asks = f"asks to run the code that comes with the model {model}; if you trust it, add trust={model}"
        yield _Need(at, [model], f"{at}trust_remote_code={node['trust_remote_code']}: {asks}")


def _root(key: str) -> str:
    """The group of a key."""
    return re.split(r"[.\[]", key, maxsplit=1)[0]


@functools.cache
def _classes(group: str) -> frozenset[str]:
    """The classes named in the files of a group and of the groups that it takes options from."""
    # A name from an untrusted run is compared with our names, and never becomes part of a path.
    found = [path for folder in configs.folders() for path in folder.iterdir() if path.is_dir() and path.name == group]
    files = [path.read_text(encoding="utf-8") for folder in found for path in folder.rglob("*.yaml")]
    own = {value for text in files for key, value in _NAMED.findall(text) if key == "_target_"}
    borrowed = {other for text in files for other in _BORROWED.findall(text)} - {group}
    added = _ADDED if group == "callbacks" else set()
    return frozenset(own | added).union(*map(_classes, borrowed))


@functools.cache
def _known() -> frozenset[tuple[str, str]]:
    """The keys and values of all addresses and variables that files under configs/ name."""
    paths = [path for folder in configs.folders() for path in folder.rglob("*.yaml")]
    files = [_NAMED.findall(path.read_text(encoding="utf-8")) for path in paths]
    return frozenset(
        (key, value) for file in files for key, value in file if key.endswith("_env") or _ADDRESS.match(value)
    )
