"""Training that starts from the weights of a finished run, on other text: ``python train.py init_from=<run> ...``.

Zhu et al. (2024, figure 3) fine-tune an attacker on a small part of the target's own text. The new run starts with the
artifacts and weights of the old one; optimizer, schedule and random state are new.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unembed.core.atomic_files import replacing
from unembed.core.commands import shown_value
from unembed.core.errors import InputError
from unembed.runs import layout
from unembed.runs.config_file import read_config
from unembed.runs.embedder_check import check_embedder

# Settings that may differ: training and decoding. All others determine the modules or the artifacts.
FREE = {
    "optimizer", "decoding", "gradient_checkpointing", "lr", "noise", "seed", "label_smoothing",
    "hypotheses", "search", "initial", "constant", "refine",
}  # fmt: skip


def check_origin(run: Path, attack: dict[str, Any], fingerprint: str, dimension: int) -> None:
    """Check that a new run can start from ``run``.

    Args:
        run: Directory of a finished run.
        attack: The new run's attack configuration as plain values.
        fingerprint: Fingerprint of the new run's embedder.
        dimension: Dimension of that embedder's vectors.

    Raises:
        InputError: The run has not finished, used another embedder, or its attack differs in more than training and
            decoding.
    """
    check_embedder(run, "init_from", fingerprint, dimension)
    config = read_config(run)
    from omegaconf import OmegaConf

    there = dict(_values(OmegaConf.to_container(config.attack), "attack"))
    here = dict(_values(attack, "attack"))
    different = [
        f"{key}={shown_value(here.get(key, '(unset)'))}, {shown_value(there.get(key, '(unset)'))} there"
        for key in here | there
        if here.get(key) != there.get(key)
    ]
    if different:
        raise InputError(f"init_from={run}: was made with another attack: {'; '.join(different)}")


def copy_artifacts(run: Path, artifacts: Path) -> None:
    """Copy the artifacts of ``run``.

    The fitted state of a defense is not copied: the defense is fitted anew to the new run's text.
    """
    with replacing(artifacts) as copy:
        shutil.copytree(run / layout.ARTIFACTS, copy, dirs_exist_ok=True)
        (copy / layout.DEFENSE).unlink(missing_ok=True)
        if (artifacts / layout.DEFENSE).is_file():
            shutil.copy2(artifacts / layout.DEFENSE, copy / layout.DEFENSE)


def _values(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """All plain values under ``node`` by key, except settings that may differ."""
    if isinstance(node, dict):
        for name, child in node.items():
            if name not in FREE:
                yield from _values(child, f"{key}.{name}")
    else:
        yield key, node
