"""The trade-off of defenses: ``python evaluate.py run=<dir> experiment=tradeoff collection=<dir>``.

A finished attack meets each defense of a list on documents that it has not seen, and a search over the same collection
meets it too. The output is tradeoff.json, .md and .html; points that are finished are kept in points/, so the same
command with output_dir=<the directory of a sweep that was killed> goes on with it. configs/experiment/tradeoff.yaml has
the list.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import configuration
from errors import printable
from run_directory import layout
from run_directory.checkpoints import finished_checkpoint
from run_directory.config_file import read_config, write_config

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from datamodules.collections.base import Collection
    from defenses.base import Defense
    from reports.tradeoff.sweep import Bench, TradeOff

log = logging.getLogger("tradeoff")
UNDEFENDED = "defense=none"


def trade_off(settings: DictConfig, config: DictConfig) -> None:
    """Check all points -> rebuild -> embed -> measure point by point -> write."""
    import torch
    from hydra.utils import instantiate
    from lightning import seed_everything

    from datamodules.collections.texts import HeldOut
    from defenses.threat import threat_of
    from embedders.cache.cached import CachedEmbedder
    from reports.tradeoff.metrics import with_intervals
    from reports.tradeoff.output import NAME, write_results
    from reports.tradeoff.sweep import POINTS, Bench, Finished
    from run_directory.record import data_of
    from scoring.models import scoring_models

    run, output = Path(settings.run), Path(settings.output_dir)
    sweep = instantiate(settings.tradeoff, _convert_="all")
    lines = [UNDEFENDED, *(line for line in sweep.points if line != UNDEFENDED)]
    points = configuration.defense_points(config, lines, "tradeoff.points", settings.config_dir)
    original = read_config(run)
    models = scoring_models(config)
    seed_everything(config.seed, workers=True, verbose=False)
    embedder = CachedEmbedder(instantiate(config.embedder, _convert_="all"), Path(config.cache_dir))
    attack = instantiate(config.attack, _convert_="all")
    attack.connect(run / layout.ARTIFACTS, embedder, from_checkpoint=True)
    checkpoint = finished_checkpoint(run, settings.ckpt_path) if attack.trainable else None
    trained = threat_of(original.defense)
    width = trained.defense.output_dimension(embedder.dimension) if trained.adaptive else embedder.dimension

    collection = sweep.collection.read()
    training = instantiate(original.datamodule, _convert_="all")
    training.expect([] if settings.unknown_data else data_of(run), "put back what it was")
    source = original.datamodule.get("source") or {}
    split = {key: source[key] for key in ("valid_fraction", "test_fraction", "split_seed") if key in source}
    bench = Bench(sweep, embedder, attack, HeldOut(collection, **split), training, models)
    finished = Finished(output / POINTS, _key(settings, config, bench))
    layout.start(
        output, resuming=finished.folder.is_dir() and not (output / layout.ARTIFACTS).exists(), key="output_dir"
    )
    write_config(output, configuration.plain(config))
    attack.restore(checkpoint, width)
    attack.to(torch.device("cuda" if torch.cuda.is_available() and config.trainer.accelerator != "cpu" else "cpu"))
    bench.embed()
    found = []
    for number, point in enumerate(points):
        log.info("%d of %d: %s", number + 1, len(points), point.name)
        kept = finished.find(point.overrides)
        if kept is None:
            kept = bench.measure(point.name, point.overrides, partial(_built, point.config.defense))
            finished.keep(*kept)
        found.append(kept)
    facts = _facts(run, config, sweep, bench)
    notes = _notes(bench, str(original.choices.defense) if trained.adaptive else "none")
    print(printable(write_results(output, with_intervals(found, sweep.resamples), facts, notes, sweep.searches)))
    print(printable(f"Written: {output / NAME}.html, .md and .json"))


def _built(node: DictConfig) -> Defense:
    from defenses.threat import threat_of

    return threat_of(node).defense


def _key(settings: DictConfig, config: DictConfig, bench: Bench) -> str:
    """Hash of all that can change a figure of a point, apart from its defense."""
    from run_directory.batch_cache import settings_key

    plain = configuration.plain(config)
    plain.pop("defense", None)
    texts = blake2b(digest_size=16)
    for example in (*bench.collection.documents, *bench.collection.queries):
        texts.update(example.text.encode("utf-8", "surrogatepass") + b"\0")
    sweep = configuration.plain(settings.tradeoff)
    sweep = {key: sweep[key] for key in sweep if key not in ("points", "resamples")}
    checkpoint = str(settings.ckpt_path)
    judged = json.dumps(bench.collection.judgements)
    parts = [settings_key(plain, bench.embedder.fingerprint), sweep, texts.hexdigest(), judged, checkpoint]
    return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _facts(run: Path, config: DictConfig, sweep: TradeOff, bench: Bench) -> dict[str, Any]:
    collection: Collection = bench.collection
    return {
        "run": str(run),
        "attack": config.choices.attack,
        "embedder": config.choices.embedder,
        "documents": len(collection.documents),
        "queries": len(collection.queries),
        "texts attacked": len(bench.texts.examples("test")),
        "similarity": sweep.similarity,
        "left_out": dict(collection.left_out),
    }


def _notes(bench: Bench, defense: str) -> list[str]:
    collection = bench.collection
    trained = "on undefended vectors" if defense == "none" else f"with defense={defense}"
    found = [
        f"The attack was trained {trained}. It reads {len(bench.texts.examples('test')):,} held-out "
        f"documents, cut to {bench.cut} tokens; shorter vectors are filled up with zeros. Below a figure, its change "
        "against the undefended store and the 95 % interval of that (bootstrap over the texts, or the queries); the "
        "first line has the intervals of the figures themselves. Coloured where the interval leaves zero out, as the "
        "store's owner sees it.",
        f"NDCG@10 with linear gain, over {len(collection.queries):,} queries and {len(collection.documents):,} "
        f"documents, by {bench.sweep.similarity}. A dash: queries and documents are of different widths.",
    ]
    if collection.left_out:
        counts = ", ".join(f"{count:,} {what}" for what, count in collection.left_out.items())
        found.append(f"Of the collection's files: {counts}.")
    if bench.known:
        found.append(f"{bench.known:,} held-out documents stand in the attack's training text and were not attacked.")
    return found
