"""Pass the configuration of rank 0 to the other ranks that Lightning starts.

    with handed_on(config):     # the first rank
        trainer.fit(...)        # starts the others with this process's command line and environment
    ...
    configs = inherited()       # another rank: [config]

If each rank composed the command line again, the configurations would differ: the clock gives another directory, a
multirun has several jobs, each rank would measure its own precision, and a resumed run keeps settings that are not on
the command line.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf import DictConfig, OmegaConf

from unembed.core.ranks import local_rank

_FILE = "UNEMBED_INHERITED"  # environment variable: a file with the configurations
_OF_LIGHTNING = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")  # kept by Lightning


@contextmanager
def handed_on(*configs: DictConfig) -> Iterator[None]:
    """Inside, child processes inherit ``configs``, if the trainer of the last one may start any."""
    trainer = configs[-1].get("trainer") or {}
    if not is_parallel(trainer):
        yield
        return
    with tempfile.NamedTemporaryFile("w", prefix="unembed-", suffix=".yaml") as file:
        OmegaConf.save(OmegaConf.create(list(configs)), file)
        file.flush()
        before = {name: os.environ.get(name) for name in (_FILE, *_OF_LIGHTNING)}
        os.environ[_FILE] = file.name
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
        _end_process_group()


def _end_process_group() -> None:
    """End the process group, since the next job of a multirun starts its own ranks."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def inherited() -> list[DictConfig] | None:
    """The configurations passed to this rank; None in a process that inherited none."""
    if _FILE not in os.environ or local_rank() == 0:
        return None
    return list(OmegaConf.load(os.environ[_FILE]))


def is_parallel(trainer: DictConfig | dict[str, object]) -> bool:
    """Whether training may use several processes."""
    usual = {"strategy": "auto", "devices": 1, "num_nodes": 1}
    return any(trainer.get(name, value) != value for name, value in usual.items())
