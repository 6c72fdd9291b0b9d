"""Where things are: runs by name, absolute paths for the files of a configuration, and paths of a run that was moved.

    find_run("runs/x", "run")                     # runs/x, a directory
    find_run("minilm", "run")                     # unembed/attackers/minilm of this installation
    find_run("hub:ada/inverter@v1", "run")        # a copy of the repository's files in the cache
    attacker_for("mine.npy", None, 384, sample)   # the shipped attacker that reads these vectors

    datamodule.path: chat.jsonl    ->  /home/ada/chat.jsonl, relative to the working directory
    embedder.model: gpt2           ->  gpt2 from the hub, or /home/ada/gpt2 if that folder exists

A run's config.yaml is read later from other directories, where a relative path would name another file.
"""

from __future__ import annotations

import functools
import logging
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf

from unembed import attackers, configs
from unembed.core.atomic_files import read_json, replacing
from unembed.core.commands import command
from unembed.core.errors import InputError, did_you_mean, listed, missing
from unembed.runs import layout
from unembed.runs.config_file import TEXTS, names_data

if TYPE_CHECKING:
    from torch import Tensor

    from unembed.metrics.identify import Identity

log = logging.getLogger("runs")

SHIPPED = Path(attackers.__file__).parent
_HUB = "hub:"
# Constructor arguments that name a file or folder, or an entry on the hub if no such folder exists.
_NAMED = TEXTS | {"model", "models", "name", "pretrained", "tokenizer", "directory"}
_READING = ("attack", "embedder", "defense", "datamodule", "scoring")
_WRITING = ("attack", "callbacks", "logger")
_WRITTEN = {"dirpath", "directory", "save_dir", "cache_dir", "default_root_dir"}
_BUNDLED = "minilm"  # this tokenizer is included here and takes precedence over a folder of that name


# -- runs by name -----------------------------------------------------------------------------------------------------


def shipped() -> list[str]:
    """The names of the shipped attackers."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{layout.RECORD}"))


def is_named(run: str) -> bool:
    """Whether ``run`` names a shipped attacker or one of the hub, whose folder takes no results."""
    return run.startswith(_HUB) or (run in shipped() and not Path(run).is_dir())


def find_run(named: str, key: str) -> Path:
    """The run directory that a value of the config key ``key`` names; a directory comes before a shipped attacker."""
    if named.startswith(_HUB):
        return _download(named, key, Path(default_cache()))
    directory = Path(named).expanduser()
    if directory.is_dir():
        return directory
    if is_named(named):
        return SHIPPED / named
    known = shipped() if len(directory.parts) == 1 else []
    nearest = did_you_mean(named, known) if known else ""
    meant = f" ({nearest})" if nearest.startswith("did you mean") else ""
    others = f"; shipped attackers: {listed(known)}{meant}" if known else ""
    raise InputError(f"{key}={named}: {missing(directory, 'directory')}{others}")


def attacker_for(
    vectors: str, run: str | None, dimension: int | None, sample: Callable[[], Tensor]
) -> tuple[str, list[str]]:
    """The run that reads ``vectors``, and of several prefixes of its embedder the override that chooses theirs.

    Args:
        vectors: Their address, for messages.
        run: As the user named it; None: a shipped attacker.
        dimension: Of the vectors; None if only ``sample`` tells.
        sample: Fetches some vectors, (n, d), called if several shipped attackers have this dimension, or if the run was
            trained on several prefixes.
    """
    sample = functools.cache(sample)
    names = _fitting(vectors, dimension or sample().shape[1]) if run is None else [run]
    embedders = {name: _embedder_of(name) for name in names}
    if len(names) == 1 and not embedders[names[0]].prefixes:
        return names[0], []
    some = sample()  # tells mistakes in the vectors, before torch is imported
    from unembed.metrics.identify import identify

    identity = identify(some)
    log.info("%s: vectors of %s", vectors, identity.space or "an unknown embedder")
    space = identity.space or identity.nearest
    name = next((one for one in names if space is not None and embedders[one].choice == space.embedder), names[0])
    chosen = embedders[name]
    if not chosen.prefixes:
        return name, []
    known = shlex.split(space.overrides or "") if space is not None and space.embedder == chosen.choice else []
    return name, known or [f'embedder.prefix="{chosen.prefixes[0]}"']


def attacker_of(identity: Identity) -> str | None:
    """The shipped attacker that reads vectors of this identity; None if there is none."""
    space = identity.space
    if space is None or identity.rotated or space.overrides is None:
        return None
    for name in shipped():
        embedder = _embedder_of(name)
        if embedder.choice == space.embedder and (embedder.prefixes or space.overrides == ""):
            return name
    return None


def prefixes_of(run: str) -> list[str]:
    """The prefixes of a run's embedder, if it was trained on several."""
    return _embedder_of(run).prefixes


class _Embedder(NamedTuple):
    """The embedder of a run: its option, and its prefixes if it was trained on several."""

    choice: str
    prefixes: list[str]


def _embedder_of(run: str) -> _Embedder:
    file = find_run(run, "run") / layout.CONFIG
    if not file.is_file():
        return _Embedder("", [])  # what is wrong is told when the run is opened
    config = OmegaConf.load(file)
    prefixes = OmegaConf.select(config, "embedder.prefix")
    several = [*map(str, prefixes)] if isinstance(prefixes, ListConfig) else []
    return _Embedder(str(OmegaConf.select(config, "choices.embedder")), several)


def _fitting(vectors: str, dimension: int) -> list[str]:
    """The shipped attackers for vectors of this dimension."""
    known = {name: int(read_json(SHIPPED / name / layout.RECORD)["embedder"]["dimension"]) for name in shipped()}
    fitting = [name for name, expected in known.items() if expected == dimension]
    if not fitting:
        listing = ", ".join(f"{name} ({expected})" for name, expected in known.items()) or "there is none"
        training = command("train", "experiment=attackers/general", "embedder=<that of the vectors>")
        raise InputError(
            f"vectors={vectors}: vectors of dimension {dimension}, which no shipped attacker reads: {listing}; give a "
            f"trained one by run=<dir>: {training}"
        )
    return fitting


def default_cache() -> str:
    """The user's cache folder."""
    return str(OmegaConf.load(Path(configs.__file__).parent / "paths" / "default.yaml").cache_dir)


def cache_of(named: str, run: Path) -> str:
    """The run's cache if it exists, else this machine's default: an untrusted run must not create folders.

    A cache inside the run could hold arbitrary vectors and is not used.
    """
    if named and any(Path(named).glob("*/embedder.json")) and not Path(named).resolve().is_relative_to(run.resolve()):
        return named
    return default_cache()


# -- runs of the Hugging Face hub -------------------------------------------------------------------------------------

_FORM = re.compile(r"hub:([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?")
# What the commands read of a run; other files, such as code, are not downloaded.
_FILES = [
    layout.CONFIG, layout.RESUMED, layout.RECORD, layout.DATA, layout.CHECKPOINT, f"{layout.ARTIFACTS}/*",
    layout.PREDICTIONS, layout.METRICS, layout.BASELINE, layout.ANALYSES, layout.DESCRIPTIONS, layout.CALIBRATION,
    layout.CARD,
]  # fmt: skip


@functools.cache
def _download(named: str, key: str, cache: Path) -> Path:
    """The run directory of a repository; what an earlier command has downloaded works offline.

    The hub's cache holds links, which a run directory must not (layout.check_links), so the files are copied. A
    downloaded run is untrusted like any other (docs/security.md).
    """
    import httpx
    from huggingface_hub import snapshot_download

    parts = _FORM.fullmatch(named)
    if parts is None:
        raise InputError(f"{key}={named}: write hub:<owner>/<name>, or hub:<owner>/<name>@<revision>")
    owner, name, revision = parts.groups()
    try:
        snapshot = Path(snapshot_download(f"{owner}/{name}", revision=revision, allow_patterns=_FILES))
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"{key}={named}: neither in the hub's cache on this machine nor to be had from the hub "
            f"({type(error).__name__}: {reason}); on a machine without a connection, copy the repository's folder and "
            "give its path"
        ) from error
    if not (snapshot / layout.CONFIG).is_file():
        raise InputError(f"{key}={named}: holds no {layout.CONFIG}: not the repository of a run directory")
    commit = snapshot.name
    if revision is None:
        log.warning("%s=%s may change; pin what is read now by %s=%s@%s", key, named, key, named, commit)
    folder = cache / "attackers" / f"{owner}--{name}" / commit
    if not folder.is_dir():
        with replacing(folder) as copy:
            shutil.copytree(snapshot, copy, dirs_exist_ok=True)
    return folder


# -- paths in a configuration -----------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A text value: its node, its full key, and the constructor argument that it belongs to."""

    node: Any
    place: str | int
    key: str
    argument: str | None
    value: str


def make_absolute(config: DictConfig) -> None:
    """Make relative paths of existing files absolute, from the working directory; ``~`` is the home directory."""
    for text in _texts(config, _READING):
        if text.argument is not None and text.argument.endswith("_run") and is_named(text.value):
            text.node[text.place] = str(find_run(text.value, text.key))
        elif text.argument is not None and (text.argument in _NAMED or text.argument.endswith(("_run", "_file"))):
            text.node[text.place] = _absolute(text.value)
    if isinstance(config.get("init_from"), str):
        config.init_from = _absolute(config.init_from)


def data_paths(config: DictConfig) -> list[Text]:
    """The values that name files of texts, or data sets of the hub."""
    return [text for text in _texts(config, ("datamodule",)) if text.argument in TEXTS]


def chooses_data(line: str) -> bool:
    """Whether an override chooses which texts are read."""
    key, equals, _ = line.lstrip("+~").partition("=")
    key = key.partition("@")[0]
    return equals == "=" and (key == "datamodule" or names_data(key, "files", "revision"))


def move(config: DictConfig, places: Mapping[str, str]) -> None:
    """Replace directories, such as that of a moved run, in all paths below them."""
    for text in _texts(config, {*_READING, *_WRITING}):
        for old, new in ((old.rstrip("/"), new.rstrip("/")) for old, new in places.items()):
            if old and f"{text.value}/".startswith(f"{old}/"):
                text.node[text.place] = f"{new}{text.value[len(old) :]}"
                break


def outside(config: DictConfig) -> dict[str, str]:
    """Keys and paths to which the configuration would write outside the run's directory and its cache.

    For callbacks and loggers every outside path counts, since only they know which paths they write to.
    """
    inside = [Path(str(config[key])).resolve() for key in ("run_dir", "cache_dir")]
    found: dict[str, str] = {}
    for text in _texts(config, _WRITING):
        path = Path(text.value).expanduser()
        leads_away = not text.key.startswith("attack.") and (path.is_absolute() or ".." in path.parts)
        if (leads_away or text.argument in _WRITTEN) and not any(map(path.resolve().is_relative_to, inside)):
            found[text.key] = text.value
    return found


def _absolute(value: str) -> str:
    """The absolute path of an existing file; other values unchanged. ``{language}`` is a placeholder in a path."""
    known = value.partition("{")[0]
    if known in ("", _BUNDLED) or not Path(known).expanduser().exists():
        return value
    return str(Path(value).expanduser().absolute())


def _texts(config: DictConfig, roots: Collection[str]) -> list[Text]:
    """All text values under ``roots``, except interpolations."""
    nodes = {root: config.get(root) for root in roots if not OmegaConf.is_interpolation(config, root)}
    return [text for root, node in nodes.items() if isinstance(node, DictConfig) for text in _under(node, root, None)]


def _under(node: Any, key: str, argument: str | None) -> Iterator[Text]:
    places: list[str | int] = list(node) if isinstance(node, DictConfig) else list(range(len(node)))
    of_constructor = isinstance(node, DictConfig) and "_target_" in node
    for place in places:
        if OmegaConf.is_missing(node, place) or OmegaConf.is_interpolation(node, place):
            continue
        child = f"{key}[{place}]" if isinstance(place, int) else f"{key}.{place}"
        name = str(place) if of_constructor else argument if isinstance(place, int) or argument == "models" else None
        value = node[place]
        if isinstance(value, DictConfig | ListConfig):
            yield from _under(value, child, name)
        elif isinstance(value, str):
            yield Text(node, place, child, name, value)
