"""Data modules as configs/datamodule/<name>.yaml declares them."""

from __future__ import annotations

from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from support.processes import ROOT
from unembed.datamodules.inversion import InversionDataModule


def declared(name: str, seed: int = 0, **changes: Any) -> InversionDataModule:
    """The data module of a configuration; ``__`` in the name of a change stands for a dot."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose(f"datamodule/{name}", [f"+seed={seed}"])
    OmegaConf.set_struct(config, True)
    for key, value in changes.items():
        OmegaConf.update(config, f"datamodule.{key.replace('__', '.')}", value, force_add="__" in key)
    found = instantiate(config.datamodule, _convert_="all")
    assert isinstance(found, InversionDataModule)
    return found
