"""The whole configuration that a command line stands for.

compose("train", ["attack=geia", "embedder=simcse", "attack.decoding.beams=1"])
"""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from unembed.launch.composing import raise_all, settle, survey
from unembed.launch.fine_tuning import fine_tuned, with_origin
from unembed.launch.locations import make_absolute


def compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration of ``python <config_name>.py <overrides>`` with interpolations resolved.

    Values are not checked; see :func:`configuration.check`.

    Raises:
        InputError: Misspelt groups, options or keys; one line each.
    """
    configs, errors = survey(config_name, with_origin(overrides))
    raise_all(errors)
    config = fine_tuned(configs[0], overrides)
    settle(config, measure=True)
    make_absolute(config)
    return config
