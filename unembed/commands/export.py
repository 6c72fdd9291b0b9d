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

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from unembed import launch
from unembed.core.errors import InputError, printable
from unembed.launch.composing import plain
from unembed.launch.ending import check_writable
from unembed.launch.locations import data_paths
from unembed.runs import layout

_CACHE = "<cache>"  # no path; replaced when the run is opened
BUILT_IN = "unembed.datamodules.sources.synthetic.SyntheticCorpus"


def export(settings: DictConfig, config: DictConfig) -> None:
    """Check -> weights -> artifacts -> scores -> model card; the directory appears when it is complete."""
    from unembed.audit.estimates import read_scored
    from unembed.audit.model_card import calibration, write_card
    from unembed.core.atomic_files import read_json, remove_left_over, replacing, write_json_lines
    from unembed.runs.checkpoints import finished_checkpoint
    from unembed.runs.config_file import write_config
    from unembed.runs.exporting import (
        check_evaluation,
        check_exportable,
        copy_parts,
        copy_results,
        copy_weights,
        shipped_results,
    )

    run, output = Path(settings.run), Path(settings.folder).expanduser()
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*", settings.name) is None:
        raise InputError(f"name={settings.name}: write letters, digits, and . _ - between them")
    if output.exists():
        raise InputError(f"folder={output}: exists already; remove it, or choose another")
    check_writable(output)
    check_exportable(run)
    values = portable(config)
    checkpoint = finished_checkpoint(run, settings.ckpt_path)
    if not (run / layout.RECORD).is_file():
        raise InputError(f"run={run}: its training has not ended ({layout.RECORD} is missing)")
    given = [settings.calibration] if isinstance(settings.calibration, str) else settings.calibration
    evaluations = [Path(one).expanduser() for one in given]
    names = [one.resolve().name for one in evaluations]
    if len(set(names)) < len(names):
        raise InputError(
            f"calibration={','.join(map(str, given))}: two directories of one name; their names tell them apart"
        )
    for one in evaluations:
        check_evaluation(one, "calibration", values, run, checkpoint)
    of_corpus = None if settings.predictions is None else Path(settings.predictions).expanduser()
    if of_corpus is not None:
        source = check_evaluation(of_corpus, "predictions", values, run, checkpoint)["datamodule"].get("source") or {}
        if source.get("_target_") != BUILT_IN:
            raise InputError(
                f"predictions={of_corpus}: its texts are not those of the built-in corpus (datamodule=synthetic), and "
                "no others are shipped"
            )
    kept = shipped_results(run, values)
    if of_corpus is None and layout.PREDICTIONS in kept:
        of_corpus = run
    tests = {f"held-out texts, {one.resolve().name}": one for one in evaluations}
    tests |= {} if of_corpus is None else {"built-in corpus": of_corpus}
    tested = {title: read_json(one / layout.METRICS) for title, one in tests.items()}
    made = calibration(evaluations)
    own = read_scored(run) if layout.CALIBRATION in kept and not evaluations else []

    remove_left_over(output)
    with replacing(output) as folder:
        write_config(folder, values)
        copy_weights(checkpoint, folder / layout.CHECKPOINT)
        copy_parts(run, folder)
        if own:
            copy_results(run, folder, [layout.CALIBRATION])
        elif made:
            write_json_lines(folder / layout.CALIBRATION, (one.model_dump() for one in made))
        if of_corpus is not None:
            copy_results(of_corpus, folder)
        write_card(folder, settings.name, values, tested, own or made)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file()) / 1e6
    print(
        printable(f"{output}: {size:.1f} MB, {len(own or made):,} calibration scores; complete {output / layout.CARD}")
    )


def portable(config: DictConfig) -> dict[str, Any]:
    """Plain values of a run's configuration, for another machine.

    Raises:
        InputError: A value is a path of this machine (one line each).
    """
    shipped = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    assert isinstance(shipped, DictConfig)
    shipped.run_dir, shipped.cache_dir, shipped.ckpt_path, shipped.init_from = layout.EXPORTED, _CACHE, None, None
    shipped.logger, shipped.choices.logger = {}, "none"
    shipped.callbacks = {name: node for name, node in shipped.callbacks.items() if _is_of_tests(node)}
    for node in shipped.callbacks.values():
        if "cache_dir" in node:
            node.cache_dir = _CACHE
    for text in data_paths(shipped):
        if Path(text.value).is_absolute():
            text.node[text.place] = Path(text.value).name
    values = plain(shipped)
    found = [f"{key}={value}: {_why(key)}" for key, value in _paths(values, "")]
    if found:
        raise InputError("\n".join(found))
    return values


def _why(key: str) -> str:
    if key.startswith("attack.") and key.endswith("_run"):
        return (
            "the attack is built on another run, which is no part of an export; export that run, and train this attack "
            "where it is used"
        )
    return "a path of this machine, which nobody else has"


def _is_of_tests(node: Any) -> bool:
    from hydra.utils import get_object

    from unembed.callbacks.testing import Testing  # imports torch

    kind = get_object(node._target_) if node is not None else None
    return isinstance(kind, type) and issubclass(kind, Testing)


def _paths(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        places = value.items() if isinstance(value, dict) else enumerate(value)
        for place, child in places:
            yield from _paths(child, f"{key}.{place}" if key else str(place))
    elif isinstance(value, str) and Path(value).expanduser().is_absolute():
        yield key, value


def main() -> None:
    """``unembed export``."""
    launch.main_on_run(export, "export")
