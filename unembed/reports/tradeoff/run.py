"""The trade-off of defenses: ``python evaluate.py run=<dir> experiment=tradeoff collection=<dir>``.

A finished attack inverts unseen documents under each defense of a list, and a search over the same collection is
evaluated under the same defense. The output is tradeoff.json, .md and .html. Finished points are stored in points/, so
the same command with output_dir=<directory> resumes a killed sweep. configs/experiment/tradeoff.yaml has the list of
defenses.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.core.errors import InputError, printable
from unembed.datamodules.collections.texts import HeldOut
from unembed.defenses.base import Defense
from unembed.defenses.threat import Hypotheses, threat_of
from unembed.reports.tradeoff.metrics import with_intervals
from unembed.reports.tradeoff.output import NAME, write_results
from unembed.reports.tradeoff.sweep import POINTS, Bench, Finished, TradeOff
from unembed.runs import layout
from unembed.runs.config_file import write_config
from unembed.runs.keys import settings_key
from unembed.runs.record import data_of
from unembed.session import Session

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from unembed.launch.points import DefensePoint

log = logging.getLogger("tradeoff")
UNDEFENDED = "defense=none"
DEFENDED = "defense.hypotheses=defended"


def trade_off(session: Session, settings: DictConfig, points: Sequence[DefensePoint]) -> None:
    """Restore -> embed -> measure point by point -> write.

    Args:
        session: The session of the finished run.
        settings: The settings of configs/evaluate.yaml.
        points: The defenses to measure, the undefended point first.
    """
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    if session.denoiser is not None:
        raise InputError("denoiser: experiment=tradeoff compares defenses without one; leave it out")
    output = Path(settings.output_dir)
    sweep: TradeOff = instantiate(settings.tradeoff, _convert_="all")
    models = session.models
    trained = threat_of(session.trained.defense)
    width = trained.dimension(session.embedder.dimension)
    attack = session.restored_attack(session.embedder, width, settings.ckpt_path)
    collection = sweep.collection.read()
    training = session.training_data(data_of(session.run))
    source = session.trained.datamodule.get("source") or {}
    split = {key: source[key] for key in ("valid_fraction", "test_fraction", "split_seed") if key in source}
    bench = Bench(sweep, session.embedder, attack, HeldOut(collection, **split), training, models)
    finished = Finished(output / POINTS, _key(session, settings, bench))
    layout.start(output, resuming=finished.folder.is_dir(), key="output_dir")
    write_config(output, {**session.values, "tradeoff": OmegaConf.to_container(settings.tradeoff, resolve=True)})
    bench.embed()
    found = []
    for number, point in enumerate(points):
        log.info("%d of %d: %s", number + 1, len(points), point.name)
        overrides, hypotheses = _answered(point, session)
        kept = finished.find(overrides)
        if kept is None:
            kept = bench.measure(point.name, overrides, partial(_defense, point.config), hypotheses)
            finished.keep(*kept)
        found.append(kept)
    facts = _facts(session, bench)
    notes = _notes(bench, str(session.trained.choices.defense) if trained.adaptive else "none")
    if any(DEFENDED in point.overrides for point, _ in found):
        notes.append(f"With {DEFENDED}, texts that the attack embeds are defended, too; without, they are not.")
    print(printable(write_results(output, with_intervals(found, sweep.resamples), facts, notes, sweep.searches)))
    print(printable(f"Written: {output / NAME}.html, .md and .json"))


def _answered(point: DefensePoint, session: Session) -> tuple[list[str], Hypotheses]:
    """The overrides of a point, and how the attacker's texts are answered: as the point says, or else as the run's
    configuration does. Without a defense there is no difference."""
    own: Hypotheses = point.config.defense.get("hypotheses", "clean")
    overrides = list(point.overrides)
    if UNDEFENDED in overrides or any(word.startswith("defense.hypotheses=") for word in overrides):
        return overrides, own
    defended = session.threat.hypotheses == "defended"
    return ([*overrides, DEFENDED], "defended") if defended else (overrides, own)


def _defense(config: DictConfig) -> Defense:
    return threat_of(config.defense).defense


def _key(session: Session, settings: DictConfig, bench: Bench) -> str:
    """Hash of everything that can change a metric of a point, apart from its defense."""
    from omegaconf import OmegaConf

    values = {name: value for name, value in session.values.items() if name != "defense"}
    texts = blake2b(digest_size=16)
    for example in (*bench.collection.documents, *bench.collection.queries):
        texts.update(example.text.encode("utf-8", "surrogatepass") + b"\0")
    sweep = OmegaConf.to_container(settings.tradeoff, resolve=True)
    assert isinstance(sweep, dict)
    sweep = {key: value for key, value in sweep.items() if key not in ("points", "resamples")}
    relevance = json.dumps(bench.collection.relevance)
    parts = [settings_key(values, bench.embedder.fingerprint), sweep, texts.hexdigest(), relevance]
    return blake2b(json.dumps([*parts, str(settings.ckpt_path)], sort_keys=True).encode(), digest_size=16).hexdigest()


def _facts(session: Session, bench: Bench) -> dict[str, Any]:
    choices, collection = session.config.choices, bench.collection
    return {
        "run": str(session.run),
        "attack": choices.attack,
        "embedder": choices.embedder,
        "documents": len(collection.documents),
        "queries": len(collection.queries),
        "texts attacked": len(bench.texts.examples("test")),
        "similarity": bench.sweep.similarity,
        "left_out": dict(collection.left_out),
    }


def _notes(bench: Bench, defense: str) -> list[str]:
    collection = bench.collection
    trained = "on undefended vectors" if defense == "none" else f"with defense={defense}"
    found = [
        f"The attack was trained {trained}. It reads {len(bench.texts.examples('test')):,} held-out "
        f"documents, cut to {bench.cut} tokens; shorter vectors are filled up with zeros. Below a metric, its change "
        "against the undefended store and the 95 % interval of that (bootstrap over the texts, or the queries); the "
        "first line has the intervals of the metrics themselves. Coloured where the interval leaves zero out, as the "
        "store's owner sees it.",
        f"NDCG@10 with linear gain, over {len(collection.queries):,} queries and {len(collection.documents):,} "
        f"documents, by {bench.sweep.similarity}. A dash: queries and documents are of different dimensions.",
    ]
    if collection.left_out:
        counts = ", ".join(f"{count:,} {what}" for what, count in collection.left_out.items())
        found.append(f"Of the collection's files: {counts}.")
    if bench.known:
        found.append(f"{bench.known:,} held-out documents stand in the attack's training text and were not attacked.")
    return found
