"""Where the files and folders of a configuration lie: absolute paths, and the places of a run that has moved.

    datamodule.path: chat.jsonl    ->  /home/ada/chat.jsonl, where the command is typed there
    embedder.model: gpt2           ->  gpt2, a name on the hub; /home/ada/gpt2 where there is such a folder

A run's config.yaml is read later, from other directories: a relative path would name another file there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf

from configuration.sources import CONFIGS
from errors import InputError

_DATA = "datamodule"
# Arguments of constructors that name a file or folder, or something on the hub where there is no such folder.
_TEXTS = {"path", "train", "valid", "test", "documents", "queries", "qrels"}
_NAMED = _TEXTS | {"model", "models", "name", "pretrained", "tokenizer", "directory"}
_NAMED_ENDINGS = ("_run", "_file")
_READING = ("attack", "embedder", "defense", _DATA, "scoring")
_WRITING = ("attack", "callbacks", "logger")
_WRITTEN = {"dirpath", "directory", "save_dir", "cache_dir", "default_root_dir"}
_BUNDLED = "minilm"  # a tokenizer of that name comes with us, whatever lies beside


class _Text(NamedTuple):
    """A value that is a text: where it stands, its whole key, and the argument that it is or is part of."""

    node: Any
    place: str | int
    key: str
    argument: str | None

    @property
    def value(self) -> str:
        return str(self.node[self.place])


def make_absolute(config: DictConfig) -> None:
    """Make relative paths of what exists absolute, from the working directory; ``~`` is the home directory."""
    for text in _texts(config, (*_READING, "init_from")):
        if text.argument is not None and (text.argument in _NAMED or text.argument.endswith(_NAMED_ENDINGS)):
            text.node[text.place] = _absolute(text.value)
    if isinstance(config.get("init_from"), str):
        config.init_from = _absolute(config.init_from)


def relative_data(config: DictConfig) -> dict[str, str]:
    """Keys of the data whose values are relative paths of what lies in the working directory, with these values."""
    found = (text for text in _texts(config, (_DATA,)) if text.argument in _TEXTS)
    return {text.key: text.value for text in found if _absolute(text.value) != text.value}


def check_data_known(config: DictConfig, run: str) -> None:
    """Whether the paths of a run's data tell where the files are; ``run`` names it in messages.

    Raises:
        InputError: One is relative, as runs of before wrote them, and there is such a file in the working directory.
    """
    for key, path in relative_data(config).items():
        raise InputError(
            f"{run}: its {key}={path} does not say in which directory that was; give {key}=<file> yourself"
        )


def is_data_file(key: str) -> bool:
    """Whether a key names files of texts, of which the content tells whether they are others."""
    parts = [part for part in re.split(r"\.|\[\d+\]", key) if part not in ("source", "")]
    return len(parts) == 2 and parts[0] == _DATA and parts[1] in _TEXTS


def chooses_data(line: str) -> bool:
    """Whether an override says which texts are read."""
    key, equals, _ = line.lstrip("+~").partition("=")
    parts = [part for part in re.split(r"\.|\[\d+\]", key.partition("@")[0]) if part not in ("source", "")]
    return equals == "=" and parts[0] == _DATA and (len(parts) == 1 or parts[1] in {*_TEXTS, "files", "revision"})


def cache_of(named: str, run: Path) -> str:
    """The cache that a run named, where there is one; else this machine's own: an untrusted run makes no folders.

    A cache that came with the run could hold any vectors.
    """
    if named and any(Path(named).glob("*/embedder.json")) and not Path(named).resolve().is_relative_to(run.resolve()):
        return named
    return str(OmegaConf.load(CONFIGS / "paths" / "default.yaml").cache_dir)


def move(config: DictConfig, places: Mapping[str, str]) -> None:
    """Replace directories, such as that of a run that has moved, in all that is named below them."""
    for text in _texts(config, {*_READING, *_WRITING}):
        for old, new in places.items():
            if old.rstrip("/") and (text.value == old or text.value.startswith(f"{old.rstrip('/')}/")):
                text.node[text.place] = f"{new.rstrip('/')}{text.value[len(old.rstrip('/')) :]}"
                break


def outside(config: DictConfig) -> dict[str, str]:
    """What the configuration would have written elsewhere than in the run's directory and its cache, by its keys.

    Of callbacks and loggers, every path that leads elsewhere counts: which of them are written to, only they know.
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
    """The absolute path of what exists; other values as they are. ``{language}`` stands for a part of a path."""
    known = value.partition("{")[0]
    if known in ("", _BUNDLED) or not Path(known).expanduser().exists():
        return value
    return str(Path(value).expanduser().absolute())


def _texts(config: DictConfig, roots: Sequence[str] | set[str]) -> Iterator[_Text]:
    """All texts under ``roots``, those of interpolations left out."""
    for root in roots:
        if not OmegaConf.is_interpolation(config, root) and isinstance(config.get(root), DictConfig):
            yield from list(_under(config[root], root, None))


def _under(node: Any, key: str, argument: str | None) -> Iterator[_Text]:
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
            yield _Text(node, place, child, name)
