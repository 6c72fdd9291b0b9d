"""The user's own metrics of a run, rebuilt from its config.yaml for resampling."""

from __future__ import annotations

from collections.abc import Collection

from omegaconf import OmegaConf

from unembed.metrics.scoring import TextMetric
from unembed.reports.comparison.entries import Entry
from unembed.runs.trust import check_trusted
from unembed.scoring.models import own_metrics


def own_metrics_of(entry: Entry, keys: Collection[str]) -> dict[str, TextMetric]:
    """The metrics by key; if none of ``keys`` is one, nothing is imported.

    Raises:
        InputError: The run names a class that is neither ours nor trusted, or does not exist.
    """
    if not any(one.key in keys for one in entry.results.described):
        return {}
    from hydra.utils import instantiate

    named = (entry.results.config.get("scoring") or {}).get("metrics") or {}
    config = OmegaConf.create({"scoring": {"metrics": named}})
    check_trusted(config, entry.results.directory)
    return {metric.description.key: metric for metric in own_metrics(instantiate(config.scoring.metrics))}
