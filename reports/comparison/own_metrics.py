"""The metrics of the user that a run was scored by, built again from its config.yaml to be resampled."""

from __future__ import annotations

from collections.abc import Collection

from omegaconf import OmegaConf

from metrics.scoring import TextMetric
from reports.comparison.entries import Entry
from run_directory.trust import check_trusted
from scoring.models import own_metrics


def own_metrics_of(entry: Entry, keys: Collection[str]) -> dict[str, TextMetric]:
    """By key; empty where the run has none of ``keys``, so that no class is imported that is not asked for.

    Raises:
        InputError: The run names a class that is neither ours nor trusted, or that is not there.
    """
    if not any(one.key in keys for one in entry.results.described):
        return {}
    from hydra.utils import instantiate

    named = (entry.results.config.get("scoring") or {}).get("metrics") or {}
    config = OmegaConf.create({"scoring": {"metrics": named}})
    check_trusted(config, entry.results.directory)
    return {metric.description.key: metric for metric in own_metrics(instantiate(config.scoring.metrics))}
