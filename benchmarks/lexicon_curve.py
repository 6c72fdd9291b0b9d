"""Exact match and recovery of unseen names against queries a text, of several attacks on the same test texts.

    python train.py attack=geia run_dir=runs/geia
    python benchmarks/lexicon_curve.py --run runs/geia --output curve.json
    python benchmarks/lexicon_curve.py --run runs/geia --output curve.json --white-box discrete_steps \\
        attack/refine=[lexicon,discrete_steps] attack.refine.lexicon.names=true
    python benchmarks/lexicon_curve.py --run runs/geia --output noise.json defense=noise defense.level=0.003
    python benchmarks/draw_curve.py --points curve.json --output docs/lexicon.svg

Attacks: the nearest training text; the run's own attack; its proposals, reranked; both with lexicon search behind
them; and a refiner that knows the embedder's weights behind these (``--white-box``). Each is run with several
budgets. Each point is written when it is known, and the same command computes what is missing: the vectors of texts
that were embedded before are in the cache. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import command_line, quiet

from unembed import launch
from unembed.attacks.base import Attack
from unembed.attacks.nearest_neighbor import BLOCK, nearest
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner, Rerank
from unembed.core.atomic_files import write_json
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
from unembed.session import Session

BUDGETS = (1, 3, 10, 30, 100, 300, 500)
MOST_BEAMS = 30
REFINE = "attack/refine=[lexicon]"
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
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write, or to complete")
    parser.add_argument("--targets", type=int, default=500, help="test texts (default 500)")
    parser.add_argument("--lines", nargs="+", help="only these, by name")
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS, help=f"queries a text (default {BUDGETS})")
    parser.add_argument("--white-box", help="name of a refiner behind lexicon in attack/refine")
    parser.add_argument("overrides", nargs="*", help="of the configuration, as for evaluate.py")
    options = parser.parse_args(argv)
    quiet()
    try:
        limit = f"datamodule.limit_test={options.targets}"
        chosen = any(line.startswith("attack/refine=") for line in options.overrides)
        overrides = [f"run={options.run}", limit, *([] if chosen else [REFINE]), *options.overrides]
        _, config = launch.on_run("evaluate", overrides)
        with torch.no_grad():
            measure(Session.open(options.run, config), options)
    except InputError as error:
        raise SystemExit(str(error)) from error


def measure(session: Session, options: argparse.Namespace) -> None:
    """Compute the points that are missing."""
    attack = session.restored_attack(session.oracle, session.dimension)
    texts = Texts(session, options.targets, attack)
    settings = {"run": str(options.run), "targets": len(texts.rows), "overrides": sorted(options.overrides)}
    points = Points(options.output)
    for line in lines(attack, texts, options):
        for budget in line.budgets:
            if (options.lines and line.name not in options.lines) or points.has(line.name, budget, settings):
                continue
            oracle = CachedEmbedder(session.embedder.embedder, Path(session.config.cache_dir))
            began = time.process_time()
            found = [one for block in texts.blocks(session) for one in line.way(block, budget, oracle)]
            seconds = time.process_time() - began
            oracle.flush()
            asked = oracle.queries.asked["attack"] / len(found)
            points.add({"line": line.name, "budget": budget, "settings": settings, "queries": round(asked, 2),
                        "processor_seconds": round(seconds, 1), **texts.score(found)})  # fmt: skip
    print(json.dumps({"points": len(points.rows), "targets": len(texts.rows)}))


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
        held = iter(attack.in_lexicon([value for own in values for value in own]) or ())
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


class Points:
    """The file of results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []

    def has(self, line: str, budget: int, settings: dict[str, Any]) -> bool:
        return any((row["line"], row["budget"], row["settings"]) == (line, budget, settings) for row in self.rows)

    def save(self) -> None:
        write_json(self.path, self.rows)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.save()
        shares = "".join(f"{100 * row[key][0] / max(1, row[key][1]):>8.1f}" for key in SHOWN)
        print(f"{row['line']:<32}{row['budget']:>6}{row['queries']:>8.1f}{shares}{row['processor_seconds']:>8.1f} s")


SHOWN = ("exact", "exact_folded", "unseen_entities", "unseen_entities_in_lexicon")

if __name__ == "__main__":
    main()
