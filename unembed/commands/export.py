"""Export a finished run as an attacker that others open by its name: without optimizer, text and paths of this machine.

    unembed export run=<dir> name=minilm                       # unembed/attackers/minilm
    unembed export run=<dir> name=minilm calibration=<dir of an evaluation> predictions=<dir of another>
    unembed export run=<dir> name=minilm attack.decoding.beams=1    # with another decoding

Large matrices are stored in eight bits, other weights in half precision. `calibration` gives the scores of held-out
texts to calibration.jsonl, numbers only; `predictions` the predictions of a test on the built-in corpus, whose text may
be passed on. An attacker that was exported before keeps its own, unless its settings are changed. README.md is a model
card to be completed. unembed/attackers/README.md says how such a directory is used and shipped.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from unembed import launch
from unembed.core.atomic_files import read_json, replacing, write_file, write_json, write_json_lines
from unembed.core.errors import InputError, printable
from unembed.launch.composing import plain
from unembed.launch.console import check_writable
from unembed.launch.locations import data_paths
from unembed.launch.overrides import as_list, raise_all
from unembed.runs import layout
from unembed.runs.config_file import read_config, walk, write_config
from unembed.runs.files import data_of, tested_weights, training_of

_CACHE = "<cache>"  # no path; replaced when the run is opened
_BUILT_IN = "unembed.datamodules.sources.synthetic.SyntheticCorpus"
_OF_TRAINING = {"optimizer_states", "lr_schedulers", "loops", "callbacks", "random_states"}


def export(settings: DictConfig, config: DictConfig) -> None:
    """Check -> weights -> artifacts -> scores -> model card; the directory appears when it is complete."""
    from unembed.audit.estimates import read_scored
    from unembed.audit.model_card import calibration, write_card
    from unembed.runs.checkpoints import finished_checkpoint
    from unembed.runs.stored_attack import class_of

    run, output = Path(settings.run), Path(settings.folder).expanduser()
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*", settings.name) is None:
        raise InputError(f"name={settings.name}: write letters, digits, and . _ - between them")
    check_absent(output, "folder")
    if not getattr(class_of(run), "exportable", True):
        raise InputError(
            f"run={run}: attack={config.choices.attack} cannot be exported: its maps hold vectors of the texts that "
            "the attacker knew; pass on the whole run directory, to those who may have them"
        )
    values = portable(config)
    checkpoint = finished_checkpoint(run, settings.ckpt_path)
    if not (run / layout.RECORD).is_file():
        raise InputError(f"run={run}: its training has not ended ({layout.RECORD} is missing)")
    given = as_list(settings.calibration)
    evaluations = {path.resolve().name: path for path in (Path(one).expanduser() for one in given)}
    if len(evaluations) < len(given):
        raise InputError(f"calibration={','.join(given)}: two directories of one name; their names tell them apart")
    for one in evaluations.values():
        _check_evaluation(one, "calibration", values, run, checkpoint)
    of_corpus = None if settings.predictions is None else Path(settings.predictions).expanduser()
    if of_corpus is not None:
        source = _check_evaluation(of_corpus, "predictions", values, run, checkpoint)["datamodule"].get("source") or {}
        if source.get("_target_") != _BUILT_IN:
            raise InputError(
                f"predictions={of_corpus}: its texts are not those of the built-in corpus (datamodule=synthetic), and "
                "no others are shipped"
            )
    stored = plain(read_config(run))
    keeps_results = stored.get("run_dir") == layout.EXPORTED and _different_part(stored, values) is None
    if of_corpus is None and keeps_results and (run / layout.PREDICTIONS).is_file():
        of_corpus = run
    tests = {f"held-out texts, {name}": one for name, one in evaluations.items()}
    tests |= {} if of_corpus is None else {"built-in corpus": of_corpus}
    tested = {title: read_json(one / layout.METRICS) for title, one in tests.items()}
    keeps_scores = keeps_results and not evaluations and (run / layout.CALIBRATION).is_file()
    scores = read_scored(run) if keeps_scores else calibration(list(evaluations.values()))

    with replacing(output) as folder:
        write_config(folder, values)
        copy_weights(checkpoint, folder / layout.CHECKPOINT)
        _copy_parts(run, folder)
        if keeps_scores:
            shutil.copyfile(run / layout.CALIBRATION, folder / layout.CALIBRATION)
        elif scores:
            write_json_lines(folder / layout.CALIBRATION, (one.model_dump() for one in scores))
        for name in (layout.PREDICTIONS, layout.METRICS, layout.DESCRIPTIONS):
            if of_corpus is not None and (of_corpus / name).is_file():
                shutil.copyfile(of_corpus / name, folder / name)
        write_card(folder, settings.name, values, tested, scores)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file()) / 1e6
    print(printable(f"{output}: {size:.1f} MB, {len(scores):,} calibration scores; complete {output / layout.CARD}"))


def export_trained(run: Path, folder: Path) -> None:
    """Export a run that has just ended, calibrated on its own test texts."""
    config, own = read_config(run), str(run)
    of_corpus = (config.datamodule.get("source") or {}).get("_target_") == _BUILT_IN
    settings = {
        "run": own, "name": folder.name, "folder": str(folder), "ckpt_path": None, "calibration": [own],
        "predictions": own if of_corpus else None,
    }  # fmt: skip
    export(OmegaConf.create(settings), config)


def check_absent(output: Path, key: str) -> None:
    """Check that a directory can be made there."""
    if output.exists():
        raise InputError(f"{key}={output}: exists already; remove it, or choose another")
    check_writable(output)


def portable(config: DictConfig) -> dict[str, Any]:
    """Plain values of a run's configuration, for another machine."""
    from hydra.utils import get_object

    from unembed.callbacks.results import Testing  # imports torch

    shipped = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    assert isinstance(shipped, DictConfig)
    shipped.run_dir, shipped.cache_dir, shipped.ckpt_path, shipped.init_from = layout.EXPORTED, _CACHE, None, None
    shipped.logger, shipped.choices.logger, shipped.export = {}, "none", None
    kinds = {name: get_object(node._target_) for name, node in shipped.callbacks.items() if node is not None}
    of_tests = [name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Testing)]
    shipped.callbacks = {name: shipped.callbacks[name] for name in of_tests}
    for node in shipped.callbacks.values():
        if "cache_dir" in node:
            node.cache_dir = _CACHE
    for text in data_paths(shipped):
        if Path(text.value).is_absolute():
            text.node[text.place] = Path(text.value).name
    values = plain(shipped)
    paths = {
        key: value
        for key, _, value in walk(values)
        if isinstance(value, str) and Path(value).expanduser().is_absolute()
    }
    raise_all([
        f"{key}={path}: the attack is built on another run, which is no part of an export; export that run, and train "
        "this attack where it is used"
        if key.startswith("attack.") and key.endswith("_run")
        else f"{key}={path}: a path of this machine, which nobody else has"
        for key, path in paths.items()
    ])  # fmt: skip
    return values


def copy_weights(checkpoint: Path, target: Path) -> None:
    """Write the weights of a checkpoint: large matrices in eight bits, the rest in half precision.

    Loading gives float32 again (runs/checkpoints.py).
    """
    import torch

    from unembed.runs.checkpoints import SCALES, load_checkpoint, quantized

    content = load_checkpoint(checkpoint)
    kept = {name: value for name, value in content.items() if name not in _OF_TRAINING}
    kept["state_dict"], kept[SCALES] = quantized(content["state_dict"])
    for name, tensor in [*kept["state_dict"].items(), *kept[SCALES].items()]:
        if bool(tensor.isinf().any()):
            largest = float(content["state_dict"][name].abs().max())
            raise InputError(f"{checkpoint}: {name} holds {largest:.3g}, too large for half precision")
    write_file(target, lambda file: torch.save(kept, file))


def _copy_parts(run: Path, folder: Path) -> None:
    """Copy what is needed beside the weights: artifacts, the record, and names, sizes and hashes of the data files."""
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


def _check_evaluation(
    directory: Path, key: str, config: Mapping[str, Any], run: Path, checkpoint: Path
) -> dict[str, Any]:
    """Check that an evaluation, or the test of a run, is of the attack that is exported; returns its settings."""
    from unembed.runs.stored_attack import file_key

    if not (directory / layout.PREDICTIONS).is_file() or not (directory / layout.CONFIG).is_file():
        raise InputError(f"{key}={directory}: not the output directory of an evaluation, which holds predictions.jsonl")
    values = plain(read_config(directory))
    if (part := _different_part(values, config)) is not None:
        raise InputError(f"{key}={directory}: was made with another {part} than that which is exported")
    then, now = training_of(directory), training_of(run)
    if tested_weights(directory) not in (None, file_key(checkpoint)) or then != now:
        raise InputError(
            f"{key}={directory}: was made with other weights than those of {checkpoint}, which are exported; evaluate "
            "those"
        )
    return values


def _different_part(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first part of two configurations that differs and changes predictions; None if none does."""
    return next((part for part in ("attack", "defense", "embedder") if one.get(part) != other.get(part)), None)


def main() -> None:
    """``unembed export``."""
    launch.main(export, "export")
