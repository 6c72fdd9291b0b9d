"""An attack used inside another: rebuilt from a run directory, or from a copy among the outer attack's artifacts.

keep(Path("runs/inverter"), artifacts / "inverter")           # config, artifacts and weights, without the optimizer
inverter = attack_of(artifacts / "inverter", dimension=384)
"""

from __future__ import annotations

import json
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unembed.core.atomic_files import replacing, write_file
from unembed.runs import layout
from unembed.runs.checkpoints import finished_checkpoint, load_checkpoint
from unembed.runs.config_file import read_config
from unembed.runs.keys import weights_key
from unembed.runs.trust import check_trusted

if TYPE_CHECKING:
    from unembed.attacks.base import Attack


def keep(run: Path, folder: Path) -> None:
    """Copy the parts of a run that are needed for inversion."""
    content = load_checkpoint(finished_checkpoint(run))
    wanted = {name: content[name] for name in ("state_dict", "base") if name in content}
    with replacing(folder) as copy:
        shutil.copy2(run / layout.CONFIG, copy / layout.CONFIG)
        shutil.copytree(run / layout.ARTIFACTS, copy / layout.ARTIFACTS)
        write_file(copy / layout.CHECKPOINT, lambda file: torch.save(wanted, file))


def attack_of(folder: Path, dimension: int) -> Attack:
    """The attack of a run in eval mode, for vectors of ``dimension``.

    InputError: It is not a run of a trained attack, names classes that are neither ours nor trusted, or its weights
        do not fit.
    """
    from hydra.utils import instantiate

    config = read_config(folder)
    check_trusted(config, folder, built=["attack"])
    attack: Attack = instantiate(config.attack, _convert_="all")
    attack.connect(folder / layout.ARTIFACTS, None, from_checkpoint=True)
    attack.restore(finished_checkpoint(folder), dimension)
    return attack


def class_of(folder: Path) -> type:
    """The class of a run's attack, without building it.

    Raises:
        InputError: It is not a run, or names classes that are neither ours nor trusted.
    """
    from hydra.utils import get_class

    config = read_config(folder)
    check_trusted(config, folder, built=["attack"])
    return get_class(str(config.attack._target_))


def identity(folder: Path) -> str:
    """A hash of an attack's weights and configuration, without decoding and refining."""
    from omegaconf import OmegaConf

    attack = OmegaConf.to_container(read_config(folder).attack)
    assert isinstance(attack, dict)
    attack = {name: value for name, value in attack.items() if name not in ("decoding", "refine")}
    content = load_checkpoint(finished_checkpoint(folder))
    described = json.dumps([attack, weights_key(content["state_dict"])], sort_keys=True)
    return blake2b(described.encode(), digest_size=16).hexdigest()
