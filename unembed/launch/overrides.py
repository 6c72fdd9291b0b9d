"""Parse overrides with Hydra's parser and check them against the config search path.

    embedder=simsce: did you mean simcse?
    attack.decodng: unknown key, did you mean decoding?

Hydra stops at the first unknown name; this module reports every misspelt group, option and key.

Options of a group may be listed in order: ``'defense=[masking,noise]'`` is rewritten to what Hydra can compose, which
would merge them into one node. A group accepts a list if it has an option ``chain``.

    defense=chain +defense@defense.masking=masking +defense@defense.noise=noise choices.defense=masking+noise
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from unembed.core import limits
from unembed.core.commands import quoted
from unembed.core.errors import InputError, did_you_mean, holds_secret, missing, secret_refused
from unembed.datamodules.vector_stores.address import address_error
from unembed.launch.sources import SEARCH_PATH, options

_CHAIN = "chain"
_TEXTS = frozenset(["fail_on", "vectors"])  # keys whose values are no words of Hydra's grammar: readable>5,exact>1


def refuse_secrets(words: Sequence[str]) -> None:
    """Refuse a command line that contains a password, before any parser could quote it.

    Raises:
        InputError: One line for each such word, with its key only.
    """
    messages = []
    for word in words:
        key, _, value = word.lstrip("-+~").partition("=")
        if not re.fullmatch(r"[\w.@/]+", key) or "//" in key:
            key, value = "an argument", word
        if holds_secret(value):
            messages.append(secret_refused(key))
        elif key in ("vectors", "an argument") and (reason := address_error(value)) is not None:
            messages.append(reason)
    if messages:
        raise InputError("\n".join(messages))


def key_of(line: str) -> str:
    """The dotted key of an override: ``scoring.tagger`` for ``+scoring/tagger=spacy``, even if it is invalid."""
    return re.split(r"[=@]", line.lstrip("+~"), maxsplit=1)[0].replace("/", ".")


def as_text(word: str) -> str:
    """An override whose value Hydra's grammar may not know, such as ``vectors=my store (2).npy``, as quoted text."""
    key, equals, value = word.partition("=")
    is_text = equals and key.lstrip("+") in _TEXTS and value not in ("", "null") and value[0] not in "'\""
    return f"{key}={quoted(value)}" if is_text else word


def root_of(line: str) -> str:
    """The root key or group that an override changes."""
    return re.split(r"[.\[]", key_of(line), maxsplit=1)[0]


def without(lines: Sequence[str], *roots: str) -> list[str]:
    """The overrides that change none of ``roots``."""
    return [line for line in lines if root_of(line) not in roots]


class Given:
    """The overrides of a command line, parsed with Hydra's parser.

    Attributes:
        overrides: The valid ones; lists of options are rewritten for Hydra.
        search: Overrides that add config directories, and thereby groups and options.
        errors: A message for each override that cannot be parsed.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.search = tuple(word for word in words if key_of(word) == SEARCH_PATH)
        self.overrides: list[Override] = []
        self.errors: list[str] = []
        for word in words:
            if not re.match(r"~|[^=\s]+=", word):
                self.errors.append(f"{word}: write key=value or group=option, without spaces around =")
                continue
            try:
                self.overrides += _unrolled(parsed(word), self.search)
            except HydraException as error:
                self.errors.append(f"{word}: {one_line(error)}")

    @property
    def lines(self) -> list[str]:
        """The overrides in the form that Hydra composes."""
        return [str(o.input_line) for o in self.overrides]

    @property
    def groups(self) -> list[Override]:
        """Overrides that choose an option; ``attack={...}`` sets values instead."""
        return [o for o in self.overrides if options(o.key_or_group, self.search) and not isinstance(o.value(), dict)]

    @property
    def values(self) -> list[Override]:
        """Overrides that set, add or remove a value."""
        groups = self.groups
        return [o for o in self.overrides if o not in groups and o.key_or_group != SEARCH_PATH]

    def refuse(self, reason: str, wrong: Callable[[Override], bool]) -> None:
        """Remove the overrides that are ``wrong``, adding a message for each."""
        self.errors += [f"{o.input_line}: {reason}" for o in self.overrides if wrong(o)]
        self.overrides = [o for o in self.overrides if not wrong(o)]

    def wrong_options(self) -> dict[str, list[str]]:
        """Messages about options that do not exist, by group."""
        return {o.key_or_group: found for o in self.groups if (found := _option_errors(o, self.search))}


def elements(override: Override) -> list[str]:
    """One override for each value of a sweep; for an interval its two ends; otherwise the override itself."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    swept = override.value()
    if isinstance(swept, IntervalSweep):
        values = [str(swept.start), str(swept.end)]
    else:
        values = list(override.sweep_string_iterator())
    return [f"{override.get_key_element()}={value}" for value in values]


def _option_errors(override: Override, search: tuple[str, ...]) -> list[str]:
    """A message for each option that does not exist, including all options of a sweep."""
    chosen = override.value()
    if override.is_delete():
        return []  # a missing option is reported when the configuration is composed
    valid = options(override.key_or_group, search)
    if chosen is None:
        group = override.key_or_group
        none = f", or write {group}=[] where it takes a list" if "/" in group else ""
        return [f"{group}=null: null is no option, {did_you_mean('null', valid)}; or leave this out{none}"]
    listed = chosen if isinstance(chosen, list) else [line.partition("=")[2] for line in elements(override)]
    names = [str(option).strip("'\"") for option in listed]
    return [f"{override.key_or_group}={name}: {did_you_mean(name, valid)}" for name in names if name not in valid]


def key_error(tree: dict[str, Any], override: Override, groups: Sequence[str]) -> str | None:
    """The mistake in the key of a value override, given the configuration that it would change; None if valid."""
    key = override.key_or_group
    if override.package is not None or "/" in key:
        return f"{override.get_key_element()}: unknown group, {did_you_mean(key, groups)}"
    group = key.replace(".", "/")
    if "/" in group and isinstance(override.value(), list | str) and options(group):
        return f"{key}: a group, write {group}={override.get_value_element_as_str()}"
    parts = re.findall(r"[^.\[\]]+", key)
    place: Any = tree
    for end, part in enumerate(parts, start=1):
        if isinstance(place, list) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
        elif isinstance(place, dict) and part in place:
            place = place[part]
        elif override.is_add() or override.is_force_add():
            return None
        elif end < len(parts) and (valid := options("/".join(parts[:end]))):
            group = "/".join(parts[:end])
            if end == 1:
                return f"{key}: {group} is not chosen, add {group}=<option>; valid: {', '.join(valid)}"
            return f"{key}: {parts[end]} is not chosen, add {group}=[{parts[end]}]; valid: {', '.join(valid)}"
        elif isinstance(place, dict):
            return f"{'.'.join(parts[:end])}: {_unknown(place, part, override, groups if end == 1 else [])}"
        elif place is None and end == 2 and (valid := options(parts[0])):  # such as denoiser: null
            return f"{key}: {parts[0]} is not chosen, add {parts[0]}=<option>; valid: {', '.join(valid)}"
        else:
            return f"{key}: unknown key, {'.'.join(parts[: end - 1])} has no keys"
    if override.is_add() and not isinstance(override.value(), dict | list):
        return f"{override.input_line}: already exists, leave out the +"
    return None


def one_line(error: Exception) -> str:
    """The first line of a Hydra error, and that of the OmegaConf error that caused it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if found := re.match(r"Could not override '(\w+)/(\w+)'", str(error)):
        return f"{found[1]}/{found[2]}: the chosen {found[1]} takes no {found[2]} (its YAML lists none under defaults)"
    cause = str(error.__cause__).splitlines()[:1] if isinstance(error.__cause__, OmegaConfBaseException) else []
    return "; ".join([*lines[:1], *cause])


def _unknown(siblings: dict[str, Any], name: str, override: Override, groups: Sequence[str]) -> str:
    deeper = [path for path in _paths(siblings, "") if path.endswith(f".{name}") and not path.startswith("hydra.")]
    if len(deeper) == 1:
        return f"unknown key, did you mean {deeper[0]}?"
    names = {key for key in siblings if not key.startswith("_") and key != "hydra"}
    nearest = did_you_mean(name, names | set(groups))
    if "_target_" in siblings and not nearest.startswith("did you mean"):
        nearest += f"; an argument that no option sets is added by +{override.input_line}"
    return f"unknown key, {nearest}"


def _paths(tree: Any, key: str) -> Iterator[str]:
    if isinstance(tree, dict):
        for name, child in tree.items():
            path = f"{key}.{name}" if key else str(name)
            yield path
            yield from _paths(child, path)


def search_path_of(directory: str | None) -> list[str]:
    """The override that adds a config directory to the search path; empty for None.

    Raises:
        InputError: The directory does not exist, or one of its files is too large for a configuration.
    """
    if directory is None:
        return []
    path = Path(directory).expanduser().absolute()
    if not path.is_dir():
        raise InputError(f"--config-dir={directory}: {missing(path, 'directory')}")
    for file in Path(directory).expanduser().rglob("*.yaml"):  # keep the path as given
        limits.check_size(file, limits.LARGEST_CONFIG)
    return [f"{SEARCH_PATH}=[{quoted(f'file://{path}')}]"]


@functools.cache
def parsed(line: str) -> Override:
    """Parse an override with Hydra's parser.

    Raises:
        HydraException: It cannot be parsed.
    """
    return OverridesParser.create().parse_override(line)


def _unrolled(override: Override, search: tuple[str, ...]) -> list[Override]:
    """The override itself, or those that replace its list of options; ``search`` as for :func:`options`.

    Raises:
        HydraException: It sweeps over lists, which Hydra would merge.
    """
    group, chosen = override.key_or_group, override.value()
    valid = options(group, search)
    if _CHAIN not in valid:
        return [override]
    if override.is_sweep_override() and "=[" in str(override.input_line):
        raise HydraException(f"lists of {group} cannot be swept over; start a run for each")
    if not isinstance(chosen, list) or not all(option in valid for option in chosen):
        return [override]
    steps, seen = [], Counter[str]()
    for option in map(str, chosen):
        seen[option] += 1
        name = option if seen[option] == 1 else f"{option}_{seen[option]}"
        steps.append(f"+{group}@{group}.{name}={option}")
    return [*map(parsed, [f"{group}={_CHAIN}", *steps, f"choices.{group}={'+'.join(map(str, chosen)) or _CHAIN}"])]
