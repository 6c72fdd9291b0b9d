"""Warnings shown before the metrics: a test cut short, or an attack below its baseline.

below_baseline(metrics, baseline)     # "This attack reads less than a lookup of the nearest training text ..."
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unembed.reports.numbers import number


def partial(metrics: Mapping[str, Any]) -> str | None:
    """A warning that a query limit cut the test short, and how to resume it; else None."""
    reason, count = metrics.get("partial_reason"), number(metrics, "partial")
    if reason is None or count is None:
        return None
    return (
        f"CUT SHORT: the search for {count:,.0f} of the texts ended early, and their best until then counts. {reason}. "
        "The same command with the directory of these results (evaluate.py output_dir=<dir>, or train.py run_dir=<dir> "
        "ckpt_path=last) and a higher limit resumes it."
    )


def below_baseline(
    metrics: Mapping[str, Any], baseline: Mapping[str, Any] | None, *, trained: bool = True
) -> str | None:
    """A warning that the nearest training text scores higher than the attack; else None.

    Compared by BLEU, or by word F1 for sets of words. Advice on training is given if the attack was ``trained``.
    """
    for key, name in (("bleu", "BLEU"), ("token_f1", "word F1")):
        ours, theirs = number(metrics, key), number(baseline, key)
        if ours is not None and theirs is not None:
            if ours >= theirs:
                return None
            advice = (
                ": train it longer (trainer.max_steps), on more text, or on text more like the test texts"
                if trained
                else ""
            )
            return (
                f"This attack reads less than a lookup of the nearest training text ({name} {ours:.1f} against "
                f"{theirs:.1f}), so its metrics say little about what the vectors disclose{advice}."
            )
    return None
