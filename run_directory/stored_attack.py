"""An attack inside another: rebuilt from a run directory, or from a copy that an attack keeps among its artifacts.

keep(Path("runs/inverter"), artifacts / "inverter")           # config, artifacts and weights, without the optimiser
inverter = attack_of(artifacts / "inverter", dimension=384)
"""

from __future__ import annotations

import json
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import runs
from run_directory.batch_cache import weights_key
from run_directory.trust import check_trusted

if TYPE_CHECKING:
    from attacks.base import Attack


def keep(run: Path, folder: Path) -> None:
    """Copy of a run what is needed to invert with it; first beside ``folder``, then renamed."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    shutil.copy2(run / runs.CONFIG, part / runs.CONFIG)
    shutil.copytree(run / runs.ARTIFACTS, part / runs.ARTIFACTS)
    content = runs.load_checkpoint(runs.finished_checkpoint(run))
    wanted = {name: content[name] for name in ("state_dict", "base") if name in content}
    runs.write(part / runs.CHECKPOINT, lambda file: torch.save(wanted, file))
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def attack_of(folder: Path, dimension: int) -> Attack:
    """The attack of a run, in eval mode, for vectors of width ``dimension``.

    Raises:
        InputError: It is no run of a trained attack, names classes that are neither ours nor trusted, or its weights do
            not fit.
    """
    from hydra.utils import instantiate

    config = runs.read_config(folder)
    check_trusted(config, folder, built="attack")
    attack: Attack = instantiate(config.attack, _convert_="all")
    attack.connect(folder / runs.ARTIFACTS, None, from_checkpoint=True)
    attack.restore(runs.finished_checkpoint(folder), dimension)
    return attack


def class_of(folder: Path) -> type:
    """The class of a run's attack, without building it.

    Raises:
        InputError: It is no run, or names classes that are neither ours nor trusted.
    """
    from hydra.utils import get_class

    config = runs.read_config(folder)
    check_trusted(config, folder, built="attack")
    return get_class(str(config.attack._target_))


def identity(folder: Path) -> str:
    """A hash of what makes a run's attack say what it says: its configuration, without decoding, and its weights."""
    from omegaconf import OmegaConf

    attack = OmegaConf.to_container(runs.read_config(folder).attack)
    assert isinstance(attack, dict)
    attack.pop("decoding", None)
    content = runs.load_checkpoint(runs.finished_checkpoint(folder))
    described = json.dumps([attack, weights_key(content["state_dict"])], sort_keys=True)
    return blake2b(described.encode(), digest_size=16).hexdigest()
