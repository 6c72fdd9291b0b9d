"""Callbacks of a configuration that belong to the test, such as the attribute attack.

A run's other callbacks are about its training: checkpoints, progress, the training curve. ``evaluate.py`` keeps those
that are derived from ``Testing``, and both scripts have each of them look at the attack before anything is embedded.
"""

from __future__ import annotations

from lightning import Callback
from omegaconf import DictConfig

from attacks.base import Attack


class Testing(Callback):
    """A callback that adds something to a test; it stands after Predictions in the list of callbacks."""

    def check(self, attack: Attack) -> None:
        """Hold the settings against the attack; before anything is embedded.

        Raises:
            InputError: The attack cannot do what is asked for.
        """


def of_the_test(config: DictConfig) -> list[Testing]:
    """The callbacks of ``config`` that belong to the test, built; those with a cache use that of ``config``."""
    from hydra.utils import get_object, instantiate

    found: list[Testing] = []
    for node in config.callbacks.values():
        kind = get_object(node._target_)
        if isinstance(kind, type) and issubclass(kind, Testing):
            cache = {"cache_dir": config.cache_dir} if "cache_dir" in node else {}
            found.append(instantiate(node, _convert_="all", **cache))
    return found
