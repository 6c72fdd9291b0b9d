"""Exact match and recovery of unseen names against queries a text, of several attacks on the same test texts.

    python train.py attack=geia run_dir=runs/geia
    python benchmarks/lexicon_curve.py --run runs/geia --output curve.json
    python benchmarks/lexicon_curve.py --run runs/geia --output curve.json --white-box discrete_steps \\
        attack/refine=[lexicon,discrete_steps] attack.refine.lexicon.names=true
    python benchmarks/lexicon_curve.py --run runs/geia --output noise.json defense=noise defense.level=0.003

Attacks: the nearest training text; the run's own attack; its proposals, reranked; both with lexicon search behind
them; and a refiner that knows the embedder's weights behind these (``--white-box``). Each is run with several
budgets. Each point is written when it is known, and the same command computes what is missing: the vectors of texts
that were embedded before are in the cache. The picture is written beside the output; ``--other 'Vec2Text' '1.3:73.4'``
adds points of exact match that were measured elsewhere, as queries:percent. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from drawing import beside
from markupsafe import Markup
from measuring import Rows, command_line, quiet

from unembed import launch
from unembed.attacks.base import Attack
from unembed.attacks.nearest_neighbor import BLOCK, nearest
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner, Rerank
from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.entities import (
    LexiconEntityRecovery,
    UnseenEntityRecovery,
    entity_keys,
    span_text,
    unseen_entities,
)
from unembed.metrics.matches import ExactMatch
from unembed.metrics.scored import Scored
from unembed.metrics.word_overlap import TokenOverlap
from unembed.reports.svg import Frame, Point, dot, text
from unembed.session import Session

BUDGETS = (1, 3, 10, 30, 100, 300, 500)
MOST_BEAMS = 30
SHOWN = ("exact", "exact_folded", "unseen_entities", "unseen_entities_in_lexicon")
WIDTH, HEIGHT = 430.0, 320.0  # of a panel
Found = Sequence[Prediction]
Way = Callable[[Targets, int, CachedEmbedder], Found]


@dataclass(frozen=True, slots=True)
class Line:
    """One attack at several budgets: queries a text at the most."""

    name: str
    budgets: tuple[int, ...]
    way: Way


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="a finished run of an attack that writes texts")
    parser.add_argument("--output", type=Path, required=True, help="the file to write, or to complete: JSON lines")
    parser.add_argument("--targets", type=int, default=500, help="test texts (default 500)")
    parser.add_argument("--lines", nargs="+", help="only these, by name")
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS, help=f"queries a text (default {BUDGETS})")
    parser.add_argument("--white-box", help="name of a refiner behind lexicon in attack/refine")
    parser.add_argument("--other", nargs="+", action="append", default=[], help="a name, and its points")
    parser.add_argument("overrides", nargs="*", help="of the configuration, as for evaluate.py")
    options = parser.parse_args(argv)
    with torch.no_grad():
        measure(lexicon_session(options.run, options.targets, options.overrides), options)


def lexicon_session(run: Path, targets: int, overrides: Sequence[str]) -> Session:
    """A finished run with lexicon search behind its attack, unless the overrides choose other refiners."""
    quiet()
    chosen = any(line.startswith("attack/refine=") for line in overrides)
    refine = [] if chosen else ["attack/refine=[lexicon]"]
    try:
        _, config = launch.on_run("evaluate", [f"run={run}", f"datamodule.limit_test={targets}", *refine, *overrides])
        return Session.open(run, config)
    except InputError as error:
        raise SystemExit(str(error)) from error


def measure(session: Session, options: argparse.Namespace) -> None:
    """Compute the points that are missing."""
    attack = session.restored_attack(session.oracle, session.dimension)
    attack.check_refining(session.dimension, session.oracle)  # gives the searches the attack's decoder
    texts = Texts(session, options.targets, attack)
    settings = {"run": str(options.run), "targets": len(texts.rows), "overrides": sorted(options.overrides)}
    points = Rows(options.output)
    for line in lines(attack, texts, options):
        for budget in line.budgets:
            known = points.have(line=line.name, budget=budget, settings=settings)
            if known or (options.lines and line.name not in options.lines):
                continue
            oracle = CachedEmbedder(session.embedder.embedder, Path(session.config.cache_dir))
            began = time.process_time()
            found = [one for block in texts.blocks(session) for one in line.way(block, budget, oracle)]
            seconds = time.process_time() - began
            oracle.flush()
            asked = oracle.queries.asked["attack"] / len(found)
            row = {"line": line.name, "budget": budget, "settings": settings, "queries": round(asked, 2),
                   "processor_seconds": round(seconds, 1), **texts.score(found)}  # fmt: skip
            points.add(row)
            shares = "".join(f"{100 * row[key][0] / max(1, row[key][1]):>8.1f}" for key in SHOWN)
            print(f"{line.name:<32}{budget:>6}{asked:>8.1f}{shares}{seconds:>8.1f} s", flush=True)
    write_file(options.output.with_suffix(".svg"), picture(points, options.other))
    print(json.dumps({"points": len(points), "targets": len(texts.rows)}))


def lines(attack: Attack, texts: Texts, options: argparse.Namespace) -> Iterator[Line]:
    """The attacks that are compared."""
    budgets, named = tuple(options.budgets), attack.refiners.named
    lexicon: Any = named["lexicon"]
    proposals: dict[int, Found] = {}

    def alone(targets: Targets, budget: int, oracle: CachedEmbedder) -> Found:
        first = int(targets.index[0])
        if first not in proposals:
            proposals[first] = attack.propose(targets, oracle)
        return proposals[first]

    def closest(targets: Targets, budget: int, oracle: CachedEmbedder) -> Found:
        return texts.nearest(targets)

    def reranked(targets: Targets, budget: int, oracle: CachedEmbedder) -> Found:
        attack.decoding.propose(budget)  # type: ignore[operator, union-attr]
        return Rerank(budget).refine(targets, attack.propose(targets, oracle), oracle)

    def behind(start: Way, *refiners: Refiner) -> Way:
        def refined(targets: Targets, budget: int, oracle: CachedEmbedder) -> Found:
            lexicon.max_queries = budget
            found = start(targets, 0, oracle)
            for refiner in refiners:
                found = refiner.refine(targets, found, oracle)
            return found

        return refined

    yield Line("nearest", (0,), closest)
    yield Line("attack", (0,), alone)
    yield Line("attack + lexicon", budgets, behind(alone, lexicon))
    yield Line("nearest + lexicon", budgets, behind(closest, lexicon))
    if options.white_box:
        yield Line("attack + lexicon + white box", budgets, behind(alone, lexicon, named[options.white_box]))
    # The last: the width of the beam search only grows.
    yield Line("attack + reranking", tuple(n for n in budgets if 1 < n <= MOST_BEAMS), reranked)


class Texts:
    """Test texts and what is known of the training text."""

    def __init__(self, session: Session, count: int, attack: Attack) -> None:
        self.data = session.datamodule
        self.data.setup("fit")
        self.data.setup("test")
        self.rows = list(self.data.examples("test"))[:count]
        examples = self.data.examples("train")
        self.training: Sequence[str] = examples.texts
        known = frozenset(key for one in examples for key in entity_keys(one.reference, one.spans))
        self.unseen = [unseen_entities(one.reference, one.spans, known) for one in self.rows]
        values = [[span_text(one.reference, span) for span in one.spans] for one in self.rows]
        held = iter(attack.refiners.in_lexicon([value for own in values for value in own], attack.oracle) or ())
        self.in_lexicon = [tuple(next(held) for _ in own) for own in values]

    def blocks(self, session: Session) -> Iterator[Targets]:
        """The targets in the batches of a test."""
        vectors = self.data.vectors("test", list(range(len(self.rows))))
        for index in torch.arange(len(self.rows)).split(session.config.datamodule.eval_batch_size):
            yield Targets(vectors[index], index)

    def nearest(self, targets: Targets) -> list[Prediction]:
        """The training text nearest to each target."""
        count = len(self.training)
        blocks = (self.data.vectors("train", range(at, min(at + BLOCK, count))) for at in range(0, count, BLOCK))
        return [Prediction((self.training[row],)) for row in nearest(targets.vectors, blocks)]

    def score(self, found: Found) -> dict[str, Any]:
        """Successes and trials of each metric."""
        columns = zip(self.rows, found, self.unseen, self.in_lexicon, strict=True)
        rows = [
            Scored(one.reference, guess.candidates[0], one.spans, unseen=unseen, in_lexicon=held)
            for one, guess, unseen, held in columns
        ]
        held = [row for row in rows if any(row.unseen or ())]
        shares = {
            "exact": (ExactMatch(), rows),
            "exact_folded": (ExactMatch("no_punctuation"), rows),
            "exact_folded_of_texts_with_unseen": (ExactMatch("no_punctuation"), held),
            "unseen_entities": (UnseenEntityRecovery(), rows),
            "unseen_entities_in_lexicon": (LexiconEntityRecovery(inside=True, unseen=True), rows),
            "unseen_entities_outside_lexicon": (LexiconEntityRecovery(inside=False, unseen=True), rows),
        }
        found_of = {key: metric.statistics(some).sum(0).astype(int).tolist() for key, (metric, some) in shares.items()}
        return {**found_of, "word_f1": round(float(TokenOverlap("f1").of(rows) or 0), 2)}


# -- the picture -------------------------------------------------------------------------------------------------------

PANELS = {"exact_folded": "texts that come back exactly, %", "unseen_entities": "names that training never showed, %"}
TICKS = (0, 1, 3, 10, 30, 100, 300)
NOTHING = 0.35  # where no query stands on the logarithmic axis
NAMES = {
    "nearest": "nearest training text",
    "attack": "GEIA",
    "attack + reranking": "GEIA, reranked",
    "nearest + lexicon": "nearest + lexicon search",
    "attack + lexicon": "GEIA + lexicon search",
    "attack + lexicon + white box": "GEIA + lexicon + white box",
}
Curve = dict[str, list[Point]]  # (queries, percent), by panel


def picture(rows: Sequence[dict[str, Any]], others: Sequence[Sequence[str]]) -> str:
    """Two panels: exact match and unseen names against queries."""
    curves: dict[str, Curve] = {}
    for line, name in NAMES.items():
        own = sorted((row for row in rows if row["line"] == line), key=lambda row: float(row["queries"]))
        curves[name] = {
            key: [(row["queries"], 100 * row[key][0] / row[key][1]) for row in own if row[key][1]] for key in PANELS
        }
    for name, *points in others:
        pairs = [point.split(":") for point in points]
        curves[name] = {"exact_folded": [(float(queries), float(share)) for queries, share in pairs]}
    curves = {name: curve for name, curve in curves.items() if any(curve.values())}
    title = f"Exact match and unseen names against queries, {rows[0]['settings']['targets']} texts"
    return beside(title, [panel(key, curves) for key in PANELS], WIDTH, HEIGHT, key=list(curves))


def panel(key: str, curves: dict[str, Curve]) -> Markup:
    frame = Frame((math.log10(NOTHING) - 0.1, math.log10(600)), (0, 100), WIDTH, HEIGHT)
    parts = frame.axes("queries a text", PANELS[key], x_ticks=0)
    parts += [text(frame.x(place(tick)), frame.floor + 17, str(tick), "middle") for tick in TICKS]
    for number, (name, curve) in enumerate(curves.items()):
        points = [(place(queries), share) for queries, share in curve.get(key, [])]
        if len(points) > 1:
            parts.append(frame.curve(points, f"series{number}"))
        parts += [dot(frame.x(x), frame.y(y), 3.4, f"series{number}", f"{name}: {y:.1f} %") for x, y in points]
    return frame.svg(PANELS[key], parts)


def place(queries: float) -> float:
    """A number of queries on the logarithmic axis."""
    return math.log10(max(queries, NOTHING))


if __name__ == "__main__":
    main()
