"""Config directories, and overrides parsed with Hydra's parser and compared with what these directories offer.

    embedder=simsce: did you mean simcse?
    attack.decodng: unknown key, did you mean decoding?

Hydra stops at the first unknown name; here every misspelt group, option and key is reported.

Options of a group may be listed in order: ``'defense=[masking,noise]'`` is rewritten to what Hydra can compose, which
would merge them into one node. A group accepts a list if it has an option ``chain``.

    defense=chain +defense@defense.masking=masking +defense@defense.noise=noise choices.defense=masking+noise
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from unembed import configs
from unembed.core.commands import quoted
from unembed.core.errors import InputError, did_you_mean, holds_secret, missing, secret_refused
from unembed.runs.config_file import walk

CONFIGS = Path(configs.__file__).parent
SEARCH_PATH = "hydra.searchpath"
_FOLDERS = frozenset(["experiment", "stage"])  # groups whose folders sort their options: experiment=geia/table3
_CHAIN = "chain"
_TEXTS = frozenset(["fail_on", "vectors"])  # keys whose values are no words of Hydra's grammar: readable>5,exact>1


class InstalledPackages(SearchPathPlugin):
    """Puts the configurations of installed packages after ours, whose options they cannot replace."""

    def manipulate_search_path(self, search_path: Any) -> None:
        """Called by Hydra."""
        for folder in configs.folders()[1:]:
            search_path.append(configs.GROUP, f"file://{folder}")


Plugins.instance().register(InstalledPackages)


@contextmanager
def application() -> Iterator[Hydra]:
    """Initialise Hydra for configs/ as ``hydra.main`` does; an outer initialisation is restored afterwards."""
    config, outer = HydraConfig.instance().cfg, GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS), job_name="train"):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            yield hydra
    finally:
        HydraConfig.instance().cfg, GlobalHydra.instance().hydra = config, outer


@functools.cache
def options(group: str, search: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Options of a group; empty for an unknown group. ``search`` holds overrides of ``hydra.searchpath``."""
    if "." in group or "[" in group:
        return ()
    with application() as hydra:
        list_of = functools.partial(hydra.config_loader.get_group_options, overrides=list(search))
        folders = list_of(group, ObjectType.GROUP) if group in _FOLDERS else []
        inner = [f"{folder}/{name}" for folder in folders for name in list_of(f"{group}/{folder}", ObjectType.CONFIG)]
        return (*list_of(group, ObjectType.CONFIG), *inner)


def titles(group: str) -> dict[str, str]:
    """The options of a group, each with the comment that its file begins with; empty for a file without one."""
    found = {}
    with application() as hydra:
        for name in options(group):
            source = next(one for one in hydra.config_loader.get_sources() if one.is_config(f"{group}/{name}"))
            folder = files(source.path.replace("/", ".")) if source.scheme() == "pkg" else Path(source.path)
            first = folder.joinpath(group, f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
            found[name] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found


def default_groups(command: str) -> list[str]:
    """The groups in the defaults list of a root configuration, in order."""
    content = OmegaConf.load(CONFIGS / f"{command}.yaml")
    entries = content.defaults if "defaults" in content else []
    names = [str(next(iter(entry))) for entry in entries if isinstance(entry, DictConfig)]
    return [name.split()[-1] for name in names if not name.startswith("override")]


def parts() -> dict[str, tuple[str, ...]]:
    """The groups inside groups, such as ``attack/decoding``, with their options."""
    outer = [group for group in default_groups("train") if group not in (*_FOLDERS, "hydra")]
    with application() as hydra:
        inner = {group: hydra.config_loader.get_group_options(group, ObjectType.GROUP) for group in outer}
    return {(name := f"{group}/{part}"): options(name) for group, names in inner.items() for part in names}


def search_path_of(directory: str | None) -> list[str]:
    """The override that adds a config directory to the search path; empty for none."""
    if directory is None:
        return []
    path = Path(directory).expanduser().absolute()
    if not path.is_dir():
        raise InputError(f"--config-dir={directory}: {missing(path, 'directory')}")
    return [f"{SEARCH_PATH}=[{quoted(f'file://{path}')}]"]


# -- words of a command line ------------------------------------------------------------------------------------------


def refuse_secrets(words: Sequence[str]) -> None:
    """Refuse a command line that contains a password, before any parser could quote it."""
    messages: list[str | None] = []
    for word in words:
        key, _, value = word.lstrip("-+~").partition("=")
        if not re.fullmatch(r"[\w.@/]+", key) or "//" in key:
            key, value = "an argument", word
        if holds_secret(value):
            messages.append(secret_refused(key))
        elif key in ("vectors", "an argument"):
            from unembed.datamodules.vector_stores.base import address_error

            messages.append(address_error(value))
    raise_all([message for message in messages if message is not None])


def as_list(value: str | Sequence[str] | None) -> list[str]:
    """The texts of a setting that is one, a list of them, or null."""
    return [value] if isinstance(value, str) else list(value or ())


def raise_all(errors: Sequence[str]) -> None:
    """Raise all messages as one InputError, if there are any."""
    if errors:
        raise InputError("\n".join(dict.fromkeys(errors)))


def key_of(line: str) -> str:
    """The dotted key of an override: ``scoring.tagger`` for ``+scoring/tagger=spacy`` or ``a@scoring.tagger=x``."""
    group, _, place = line.lstrip("+~").partition("=")[0].partition("@")
    return place or group.replace("/", ".")


def root_of(line: str) -> str:
    """The root key or group that an override changes."""
    return re.split(r"[.\[]", key_of(line), maxsplit=1)[0]


def without(lines: Sequence[str], *roots: str) -> list[str]:
    """The overrides that change none of ``roots``."""
    return [line for line in lines if root_of(line) not in roots]


def as_text(word: str) -> str:
    """An override whose value Hydra's grammar may not know, such as ``vectors=my store (2).npy``, as quoted text."""
    key, equals, value = word.partition("=")
    is_text = equals and key.lstrip("+") in _TEXTS and value not in ("", "null") and value[0] not in "'\""
    return f"{key}={quoted(value)}" if is_text else word


@functools.cache
def parsed(line: str) -> Override:
    """Parse an override with Hydra's parser."""
    return OverridesParser.create().parse_override(line)


def one_line(error: Exception) -> str:
    """The first line of a Hydra error, and that of the OmegaConf error that caused it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if found := re.match(r"Could not override '(\w+)/(\w+)'", str(error)):
        return f"{found[1]}/{found[2]}: the chosen {found[1]} takes no {found[2]} (its YAML lists none under defaults)"
    cause = str(error.__cause__).splitlines()[:1] if isinstance(error.__cause__, OmegaConfBaseException) else []
    return "; ".join([*lines[:1], *cause])


class Overrides:
    """The overrides of a command line, parsed with Hydra's parser: ``overrides`` that are valid, and ``errors``.

    ``search`` are those that add config directories, and thereby groups and options.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = [*words]
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

    def refuse_unknown_options(self, optional: Sequence[str] = ()) -> set[str]:
        """Remove the overrides of groups whose option does not exist; return these groups. ``optional`` may be null."""
        chosen = [o for o in self.groups if o.value() is not None or o.key_or_group not in optional]
        wrong = {o.key_or_group: errors for o in chosen if (errors := _option_errors(o, self.search))}
        self.errors += [message for messages in wrong.values() for message in messages]
        self.overrides = [o for o in self.overrides if not {o.key_or_group, root_of(o.key_or_group)} & set(wrong)]
        return set(wrong)


def elements(override: Override) -> list[str]:
    """One override for each value of a sweep; for an interval its two ends; otherwise the override itself."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    swept = override.value()
    ends = [str(swept.start), str(swept.end)] if isinstance(swept, IntervalSweep) else None
    values = ends or override.sweep_string_iterator()
    return [f"{override.get_key_element()}={value}" for value in values]


def _unrolled(override: Override, search: tuple[str, ...]) -> list[Override]:
    """The override itself, or those that replace its list of options."""
    group, chosen = override.key_or_group, override.value()
    valid = options(group, search)
    if _CHAIN in valid and override.is_sweep_override() and "=[" in str(override.input_line):
        raise HydraException(f"lists of {group} cannot be swept over; start a run for each")
    if _CHAIN not in valid or not isinstance(chosen, list) or not all(option in valid for option in chosen):
        return [override]
    lines, seen = [f"{group}={_CHAIN}"], Counter[str]()
    for option in map(str, chosen):
        seen[option] += 1
        name = option if seen[option] == 1 else f"{option}_{seen[option]}"
        lines.append(f"+{group}@{group}.{name}={option}")
    return [*map(parsed, [*lines, f"choices.{group}={'+'.join(map(str, chosen)) or _CHAIN}"])]


def _option_errors(override: Override, search: tuple[str, ...]) -> list[str]:
    """A message for each option that does not exist, including all options of a sweep."""
    chosen, group = override.value(), override.key_or_group
    if override.is_delete():
        return []  # a missing option is reported when the configuration is composed
    valid = options(group, search)
    if chosen is None:
        none = f", or write {group}=[] where it takes a list" if "/" in group else ""
        return [f"{group}=null: null is no option, {did_you_mean('null', valid)}; or leave this out{none}"]
    listed = chosen if isinstance(chosen, list) else [line.partition("=")[2] for line in elements(override)]
    names = [str(option).strip("'\"") for option in listed]
    return [f"{group}={name}: {did_you_mean(name, valid)}" for name in names if name not in valid]


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
        outer, inner = "/".join(parts[: end - 1]), "/".join(parts[:end])
        if isinstance(place, list) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
        elif isinstance(place, dict) and part in place:
            place = place[part]
        elif override.is_add() or override.is_force_add():
            return None
        elif end < len(parts) and options(inner):
            chosen = f"[{parts[end]}]" if parts[end] in options(inner) else "<option>"  # such as attack.refine.rerank
            return f"{key}: {part} is not chosen, add {inner}={chosen}; valid: {', '.join(options(inner))}"
        elif place is None and options(outer):  # such as denoiser: null
            return f"{key}: {outer} is not chosen, add {outer}=<option>; valid: {', '.join(options(outer))}"
        elif isinstance(place, dict):
            return f"{'.'.join(parts[:end])}: {_unknown(place, part, override, groups if end == 1 else [])}"
        else:
            return f"{key}: unknown key, {outer.replace('/', '.')} has no keys"
    if override.is_add() and not isinstance(override.value(), dict | list):
        return f"{override.input_line}: already exists, leave out the +"
    return None


def _unknown(siblings: dict[str, Any], name: str, override: Override, groups: Sequence[str]) -> str:
    deeper = [path for path, *_ in walk(siblings) if path.endswith(f".{name}") and not path.startswith("hydra.")]
    if len(deeper) == 1:
        return f"unknown key, did you mean {deeper[0]}?"
    names = {key for key in siblings if not key.startswith("_") and key != "hydra"}
    nearest = did_you_mean(name, names | set(groups))
    if "_target_" in siblings and not nearest.startswith("did you mean"):
        nearest += f"; an argument that no option sets is added by +{override.input_line}"
    return f"unknown key, {nearest}"
