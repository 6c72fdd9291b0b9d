"""The attacks, one a file; each is a LightningModule that turns target vectors into texts.

from unembed.attacks import Attack, Prediction, Targets       # what an attack of your own needs
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unembed.attacks.base import Attack
    from unembed.attacks.parts.predictions import Prediction, Targets

__all__ = ["Attack", "Prediction", "Targets"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # imports torch
        return getattr(import_module("unembed.attacks.base"), name)
    raise AttributeError(f"module 'unembed.attacks' has no attribute {name!r}")
