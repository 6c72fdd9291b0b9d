"""Runs by name: a directory, an attacker shipped with unembed, or a repository of the Hugging Face hub.

find_run("runs/x", "run")                     # runs/x, a directory
find_run("minilm", "run")                     # unembed/attackers/minilm of this installation
find_run("hub:ada/inverter@v1", "run")        # a copy of the repository's files in the cache
fitting_attacker("mine.npy")                  # the shipped attacker that reads vectors of this dimension
"""

from __future__ import annotations

from pathlib import Path

from unembed import attackers
from unembed.core.atomic_files import read_json
from unembed.core.commands import command
from unembed.core.errors import InputError, did_you_mean, listed, missing
from unembed.launch.locations import default_cache
from unembed.runs import layout
from unembed.runs.hub import HUB, download

SHIPPED = Path(attackers.__file__).parent


def shipped() -> list[str]:
    """The names of the shipped attackers."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{layout.RECORD}"))


def is_named(run: str) -> bool:
    """Whether ``run`` names a shipped attacker or one of the hub, whose folder takes no results."""
    return run.startswith(HUB) or (run in shipped() and not Path(run).is_dir())


def find_run(named: str, key: str) -> Path:
    """The run directory that a value of the config key ``key`` names; a directory comes before a shipped attacker.

    Raises:
        InputError: There is neither, or the hub's repository cannot be had.
    """
    if named.startswith(HUB):
        return download(named, key, Path(default_cache()))
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


def fitting_attacker(vectors: str, dimension: int | None = None) -> str:
    """The name of the shipped attacker for the dimension of ``vectors``; of a store, where only one is shipped.

    ``dimension`` is that of vectors that are no file.

    Raises:
        InputError: None is shipped, none fits, or several do.
    """
    known = {name: _dimension(SHIPPED / name) for name in shipped()}
    listing = ", ".join(f"{name} ({dimension})" for name, dimension in known.items())
    if not known:
        raise InputError(f"run: missing, and no attacker is shipped; give a trained one by run=<dir>: {_training()}")
    from unembed.datamodules.vector_stores.vector_files import dimension_of

    found = dimension or dimension_of(vectors)
    fitting = [name for name, dimension in known.items() if found in (None, dimension)]
    if len(fitting) > 1:
        raise InputError(f"run: missing, and several shipped attackers may read these vectors: run={'|'.join(fitting)}")
    if not fitting:
        cut = "" if found is None else _longer(found)
        raise InputError(
            f"vectors={vectors}: vectors of dimension {found}, which no shipped attacker reads: {listing}; {cut}give a "
            f"trained one by run=<dir>: {_training()}"
        )
    return fitting[0]


def _longer(found: int) -> str:
    """A hint for vectors that may be the first ``found`` dimensions of those that a shipped attacker reads."""
    from hydra.utils import get_class
    from omegaconf import OmegaConf

    whole = []
    for name in shipped():
        if (dimension := _dimension(SHIPPED / name)) > found:
            node = OmegaConf.load(SHIPPED / name / layout.CONFIG).embedder
            title = node.get("model") or getattr(get_class(node._target_), "title", f"the embedder of {name}")
            whole.append(f"vectors of {title} have {dimension} dimensions")
    return f"{', '.join(dict.fromkeys(whole))}; cut ones need an attacker of their own; " if whole else ""


def _dimension(run: Path) -> int:
    """The dimension of the vectors that a shipped attacker reads."""
    return int(read_json(run / layout.RECORD)["embedder"]["dimension"])


def _training() -> str:
    return command("train", "embedder=<that of the vectors>", "datamodule=files", "datamodule.path=<file>")
