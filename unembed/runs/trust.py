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
_BORROWED = {"scoring": "embedder"}  # a second embedder, among the models for scoring
_CALLBACKS = "lightning.pytorch.callbacks."
# Lightning's callbacks that people add on the command line; evaluation only compares their class and builds none.
_ADDED = {
    f"{_CALLBACKS}{name}"
    for name in ("EarlyStopping", "LearningRateMonitor", "RichProgressBar", "TQDMProgressBar", "DeviceStatsMonitor")
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
    """What ``trust=`` has to name for a key, one of ``names``. A setting may also be set by the user."""

    key: str
    names: Sequence[str]
    message: str
    is_setting: bool = False


def check_trusted(config: DictConfig, run: Path, given: Collection[str] = (), built: Collection[str] = ()) -> None:
    """Check that everything a run's configuration would build or ask is ours, the user's or trusted.

    Addresses under the keys and groups in ``given`` were set on the command line and are the user's own. ``built`` are
    the only parts of the configuration that are built; by default all of it.
    """
    messages = []
    for key, names, message, is_setting in _needs(config):
        is_given = f"{key}.".startswith(tuple(f"{one}." for one in given))
        unused = is_setting and (is_given or (built and _root(key) not in built))
        if not unused and not {*names} & {*_trusted.get()}:
            messages.append(message)
    choices = config.get("choices")
    for name in map(str, choices if isinstance(choices, DictConfig) else ()):
        choice = choices[name]
        if choice is not None and not (isinstance(choice, str) and _CHOICE.fullmatch(choice)):
            messages.append(f"choices.{name}={choice!r}: no name of an option")
    if messages:
        raise InputError("\n".join(f"{run / layout.CONFIG}: {message}" for message in messages))


def foreign(config: DictConfig) -> list[str]:
    """The names that ``check_trusted`` would ask for: modules, models with code, addresses, variables, accounts."""
    return list(dict.fromkeys(need.names[0] for need in _needs(config)))


def _needs(config: DictConfig) -> Iterator[_Need]:
    known = frozenset(
        (key, value)
        for values in _named().values()
        for key, value in values
        if key.endswith("_env") or _ADDRESS.match(value)
    )
    return _needs_of(OmegaConf.to_container(config, resolve=False), "", known)


def _needs_of(value: Any, key: str, known: frozenset[tuple[str, str]]) -> Iterator[_Need]:
    """All that needs the user's word at or under ``value``; keys with the values in ``known`` do not."""
    if isinstance(value, dict):
        yield from _code(value, f"{key}." if key else "")
        if "base_url" in value and ("base_url", str(value["base_url"])) not in known:
            # No variable belongs to that server; one that is left out has the constructor's default.
            value, known = {**value, "api_key_env": value.get("api_key_env", "OPENAI_API_KEY")}, frozenset()
        for name, child in value.items():
            yield from _needs_of(child, f"{key}.{name}" if key else str(name), known)
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _needs_of(child, f"{key}[{number}]", known)
    elif value is None or (key.rpartition(".")[2], str(value)) in known:
        return
    elif _SETTING.fullmatch(key) or _ADDRESS.match(str(value)):
        advice = f"give {key}=<yours>, or trust=<this one>"
        message = f"{key}={value}: a run chooses no address, key or account; {advice}"
        yield _Need(key, [str(value)], message, is_setting=True)


def _code(node: dict[Any, Any], at: str) -> Iterator[_Need]:
    """What a node would import or run; ``at`` is its key with a dot, or empty."""
    target, group = node.get("_target_"), _root(at)
    parts = str(target).split(".")
    names = [*(".".join(parts[:count]) for count in range(max(1, len(parts) - 1), 0, -1)), str(target)]
    if "_target_" in node and not (isinstance(target, str) and target in _classes(group)):
        message = f"{at}_target_={target}: none of the classes that configs/{group} names, so it is not imported; "
        yield _Need(at, names, f"{message}if you trust that code and this run, add trust={names[0]}")
    for name in (name for name in _HOW if name in node):
        yield _Need(at, names, f"{at}{name}={node[name]!r:.60}: no class of ours needs it")
    if node.get("trust_remote_code"):
        model = str(node.get("name", node.get("model")))
        asks = f"asks to run the code that comes with the model {model}; if you trust it, add trust={model}"
        yield _Need(at, [model], f"{at}trust_remote_code={node['trust_remote_code']}: {asks}")


def _root(key: str) -> str:
    """The group of a key."""
    return re.split(r"[.\[]", key, maxsplit=1)[0]


def _classes(group: str) -> set[str]:
    """The classes named in the files of a group and of the one that it takes options from."""
    values = [pair for name in (group, _BORROWED.get(group, "")) for pair in _named().get(name, ())]
    return {value for key, value in values if key == "_target_"} | (_ADDED if group == "callbacks" else set())


@functools.cache
def _named() -> dict[str, list[tuple[str, str]]]:
    """The keys and values in the files of each group, ours and those of installed packages."""
    found: dict[str, list[tuple[str, str]]] = {}
    for folder in configs.folders():
        for path in folder.rglob("*.yaml"):
            values = _NAMED.findall(path.read_text(encoding="utf-8"))
            found.setdefault(path.relative_to(folder).parts[0], []).extend(values)
    return found
