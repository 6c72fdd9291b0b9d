"""Absolute paths for the files and folders of a configuration, and updated paths for a run that was moved.

    datamodule.path: chat.jsonl    ->  /home/ada/chat.jsonl, relative to the working directory
    embedder.model: gpt2           ->  gpt2 from the hub, or /home/ada/gpt2 if that folder exists

A run's config.yaml is read later from other directories, where a relative path would name another file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf

from unembed.launch.sources import CONFIGS

_DATA = "datamodule"
# Constructor arguments that name a file or folder, or an entry on the hub if no such folder exists.
_TEXTS = {"path", "train", "valid", "test", "documents", "queries", "qrels"}
_NAMED = _TEXTS | {"model", "models", "name", "pretrained", "tokenizer", "directory"}
_NAMED_ENDINGS = ("_run", "_file")
_READING = ("attack", "embedder", "defense", _DATA, "scoring")
_WRITING = ("attack", "callbacks", "logger")
_WRITTEN = {"dirpath", "directory", "save_dir", "cache_dir", "default_root_dir"}
_BUNDLED = "minilm"  # this tokenizer is included here and takes precedence over a folder of that name


class Text(NamedTuple):
    """A text value: its node, its full key, and the constructor argument that it belongs to."""

    node: Any
    place: str | int
    key: str
    argument: str | None

    @property
    def value(self) -> str:
        return str(self.node[self.place])


def make_absolute(config: DictConfig) -> None:
    """Make relative paths of existing files absolute, from the working directory; ``~`` is the home directory."""
    for text in _texts(config, (*_READING, "init_from")):
        if text.argument is not None and (text.argument in _NAMED or text.argument.endswith(_NAMED_ENDINGS)):
            text.node[text.place] = _absolute(text.value)
    if isinstance(config.get("init_from"), str):
        config.init_from = _absolute(config.init_from)


def data_paths(config: DictConfig) -> list[Text]:
    """The values that name files of texts, or data sets of the hub."""
    return [text for text in _texts(config, (_DATA,)) if text.argument in _TEXTS]


def is_data_file(key: str) -> bool:
    """Whether a key names text files, which are compared by content."""
    parts = [part for part in re.split(r"\.|\[\d+\]", key) if part not in ("source", "")]
    return len(parts) == 2 and parts[0] == _DATA and parts[1] in _TEXTS


def chooses_data(line: str) -> bool:
    """Whether an override chooses which texts are read."""
    key, equals, _ = line.lstrip("+~").partition("=")
    parts = [part for part in re.split(r"\.|\[\d+\]", key.partition("@")[0]) if part not in ("source", "")]
    return equals == "=" and parts[0] == _DATA and (len(parts) == 1 or parts[1] in {*_TEXTS, "files", "revision"})


def cache_of(named: str, run: Path) -> str:
    """The run's cache if it exists, else this machine's default: an untrusted run must not create folders.

    A cache inside the run could hold arbitrary vectors and is not used.
    """
    if named and any(Path(named).glob("*/embedder.json")) and not Path(named).resolve().is_relative_to(run.resolve()):
        return named
    return default_cache()


def default_cache() -> str:
    """The user's cache folder."""
    return str(OmegaConf.load(CONFIGS / "paths" / "default.yaml").cache_dir)


def move(config: DictConfig, places: Mapping[str, str]) -> None:
    """Replace directories, such as that of a moved run, in all paths below them."""
    for text in _texts(config, {*_READING, *_WRITING}):
        for old, new in places.items():
            if old.rstrip("/") and (text.value == old or text.value.startswith(f"{old.rstrip('/')}/")):
                text.node[text.place] = f"{new.rstrip('/')}{text.value[len(old.rstrip('/')) :]}"
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


def _texts(config: DictConfig, roots: Sequence[str] | set[str]) -> Iterator[Text]:
    """All text values under ``roots``, except interpolations."""
    for root in roots:
        if not OmegaConf.is_interpolation(config, root) and isinstance(config.get(root), DictConfig):
            yield from list(_under(config[root], root, None))


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
            yield Text(node, place, child, name)
