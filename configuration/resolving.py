"""Which values of a configuration take a measurement of this machine, and so wait until the rest is known to be right.

trainer.precision: ${precision:${.accelerator}}      # imports torch, and times two products
"""

from __future__ import annotations

from omegaconf import DictConfig, ListConfig, OmegaConf

_MEASURED = "${precision:"


def is_measured(node: DictConfig | ListConfig, name: str | int) -> bool:
    """Whether what stands at ``name`` is written as an interpolation that measures."""
    if not OmegaConf.is_interpolation(node, name):
        return False
    written = OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index]
    return _MEASURED in str(written)
