"""Base class of configured callbacks that belong to the test, such as the attribute attack.

A run's other callbacks concern training: checkpoints, progress, the training curve. ``evaluate.py`` keeps only those
derived from ``Testing``. Both scripts call their ``check`` before anything is embedded.
"""

from __future__ import annotations

from lightning import Callback
from omegaconf import DictConfig

from unembed.attacks.base import Attack


class Testing(Callback):
    """A callback that adds results to a test; it must come after Predictions in the list of callbacks."""

    def check(self, attack: Attack) -> None:
        """Check that the attack fits the settings, before anything is embedded.

        Raises:
            InputError: The attack cannot do what the settings ask for.
        """


def of_the_test(config: DictConfig) -> list[Testing]:
    """Build the test callbacks of ``config``; those with a cache use the one of ``config``, null ones are left out."""
    from hydra.utils import get_object, instantiate

    found: list[Testing] = []
    for node in (one for one in config.callbacks.values() if one is not None):
        kind = get_object(node._target_)
        if isinstance(kind, type) and issubclass(kind, Testing):
            cache = {"cache_dir": config.cache_dir} if "cache_dir" in node else {}
            found.append(instantiate(node, _convert_="all", **cache))
    return found
