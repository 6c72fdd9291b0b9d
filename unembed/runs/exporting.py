"""Write a trained run as an attacker that can be shipped: weights in few bits, artifacts, and its record.

    copy_weights(finished_checkpoint(run), folder / layout.CHECKPOINT)   # int8 and float16, without the optimizer
    copy_parts(run, folder)                                              # artifacts/, record.json, data.json

Loading gives float32 again (unembed/runs/quantized.py), so nothing else needs to know of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from unembed.core.atomic_files import read_json, write_file, write_json
from unembed.core.errors import InputError
from unembed.runs import layout
from unembed.runs.checkpoints import SCALES, load_checkpoint
from unembed.runs.config_file import read_config
from unembed.runs.keys import file_key
from unembed.runs.quantized import quantized
from unembed.runs.record import data_of, tested_weights, training_of
from unembed.runs.stored_attack import class_of

_OF_TRAINING = {"optimizer_states", "lr_schedulers", "loops", "callbacks", "random_states"}


def check_exportable(run: Path) -> None:
    """Check that an attack of this kind can be shipped.

    Raises:
        InputError: It cannot.
    """
    if not getattr(class_of(run), "exportable", True):
        raise InputError(
            f"run={run}: attack={read_config(run).choices.attack} cannot be exported: its maps hold vectors of the "
            "texts that the attacker knew; pass on the whole run directory, to those who may have them"
        )


def copy_weights(checkpoint: Path, target: Path) -> None:
    """Write the weights of a checkpoint: large matrices in eight bits, the rest in half precision.

    Raises:
        InputError: A weight is too large for float16.
    """
    content = load_checkpoint(checkpoint)
    kept = {name: value for name, value in content.items() if name not in _OF_TRAINING}
    kept["state_dict"], kept[SCALES] = quantized(content["state_dict"])
    for name, tensor in [*kept["state_dict"].items(), *kept[SCALES].items()]:
        if bool(tensor.isinf().any()):
            largest = float(content["state_dict"][name].abs().max())
            raise InputError(f"{checkpoint}: {name} holds {largest:.3g}, too large for half precision")
    write_file(target, lambda file: torch.save(kept, file))


def copy_parts(run: Path, folder: Path) -> None:
    """Copy what is needed beside the weights: artifacts, the record, and names, sizes and hashes of the data files.

    Raises:
        InputError: An artifact names a directory of this machine; or the run was trained against a defense that is
            fitted to data.
    """
    if (run / layout.ARTIFACTS / layout.DEFENSE).exists():
        raise InputError(
            f"run={run}: {layout.ARTIFACTS}/{layout.DEFENSE} is the state of a defense, which is not shipped"
        )
    shutil.copytree(run / layout.ARTIFACTS, folder / layout.ARTIFACTS)
    described = [file for file in (folder / layout.ARTIFACTS).rglob("*") if file.suffix in (".json", ".yaml")]
    for file in sorted(described):
        if json.dumps(str(run.resolve()))[1:-1] in file.read_text(encoding="utf-8"):
            raise InputError(f"{run / file.relative_to(folder)}: names {run.resolve()}, a path of this machine")
    write_json(folder / layout.RECORD, read_json(run / layout.RECORD))
    files = [{"path": Path(one.path).name, "bytes": one.bytes, "sha256": one.sha256} for one in data_of(run) or ()]
    write_json(folder / layout.DATA, {"files": files})


def copy_results(
    evaluation: Path, folder: Path, names: Sequence[str] = (layout.PREDICTIONS, layout.METRICS, layout.DESCRIPTIONS)
) -> None:
    """Copy predictions and metrics of an evaluation whose texts may be passed on, or other files of it."""
    for name in names:
        if (evaluation / name).is_file():
            shutil.copyfile(evaluation / name, folder / name)


def shipped_results(run: Path, config: Mapping[str, Any]) -> list[str]:
    """Of an exported attacker, the scores and predictions that it has and that ``config`` would give; else none."""
    from omegaconf import OmegaConf

    stored = OmegaConf.to_container(read_config(run))
    assert isinstance(stored, dict)
    values = {str(name): value for name, value in stored.items()}
    if values.get("run_dir") != layout.EXPORTED or different_part(values, config) is not None:
        return []
    return [name for name in (layout.CALIBRATION, layout.PREDICTIONS) if (run / name).is_file()]


def different_part(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first part of two configurations that differs and changes predictions; None if none does."""
    return next((node for node in ("attack", "defense", "embedder") if one.get(node) != other.get(node)), None)


def check_evaluation(
    directory: Path, key: str, config: Mapping[str, Any], run: Path, checkpoint: Path
) -> dict[str, Any]:
    """Check that an evaluation, or the test of a run, is of the attack that is exported; returns its settings.

    Args:
        directory: Of the evaluation.
        key: The config key that names it.
        config: The settings that are exported.
        run: The run that is exported.
        checkpoint: Its weights.

    Raises:
        InputError: It is none; had another attack, decoding, defense or weights; or the run was trained since.
    """
    from omegaconf import OmegaConf

    if not (directory / layout.PREDICTIONS).is_file() or not (directory / layout.CONFIG).is_file():
        raise InputError(f"{key}={directory}: not the output directory of an evaluation, which holds predictions.jsonl")
    tested = OmegaConf.to_container(read_config(directory))
    assert isinstance(tested, dict)
    values = {str(name): value for name, value in tested.items()}
    if (node := different_part(values, config)) is not None:
        raise InputError(f"{key}={directory}: was made with another {node} than that which is exported")
    if tested_weights(directory) not in (None, file_key(checkpoint)):
        raise InputError(
            f"{key}={directory}: was made with other weights than those of {checkpoint}, which are exported; evaluate "
            "those"
        )
    then, now = training_of(directory), training_of(run)
    if then != now:
        steps = [f"{one['steps']:,} steps" if one and "steps" in one else "an unknown training" for one in (then, now)]
        raise InputError(
            f"{key}={directory}: is of other weights than those which are exported: after {steps[0]}, and run={run} "
            f"after {steps[1]}; evaluate the run again"
        )
    return values
