"""Time and memory of the exact search, against faiss's flat index on the same vectors in the same run.

    python benchmarks/retrieval.py --documents 200000 --queries 200

Documents are random unit vectors in a file, which both read block by block: ours as it searches, faiss as it fills its
index, which keeps them all in memory. Each way runs in a process of its own, so that the largest
memory is its own; times are the medians of rounds that take turns. Ends with one JSON line, whose ``ratio`` is faiss's
time of a search over ours: above 1, ours is faster. Ours includes reading the file; faiss searches what it holds in
memory, and that it had to be filled first stands beside it. Both must find the same documents.

``--documents 1000000`` writes a file of 3 GB. On a machine shared with other work: ``--own-time``, OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Clock, command_line, ratios
from torch import Tensor

from unembed.datamodules.retrieval import search

BLOCK = 16_384


def blocks(path: Path) -> Iterator[Tensor]:
    """Read, not mapped: mapped pages would count as memory."""
    rows, dimension = np.load(path, mmap_mode="r").shape
    with path.open("rb") as file:
        file.seek(-rows * dimension * 4, 2)
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start) * dimension
            yield torch.from_numpy(np.fromfile(file, np.float32, count).reshape(-1, dimension))


def write_vectors(path: Path, rows: int, dimension: int, seed: int) -> None:
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, dimension))
    generator = np.random.default_rng(seed)
    for start in range(0, rows, BLOCK):
        part = generator.standard_normal((min(BLOCK, rows - start), dimension), dtype=np.float32)
        file[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    file.flush()


def ours(folder: Path, k: int, clock: Clock) -> dict[str, Any]:
    queries = torch.from_numpy(np.load(folder / "queries.npy"))
    started = clock()
    found = search(queries, blocks(folder / "documents.npy"), k)
    return {"search": clock() - started, "filling": 0.0, "positions": found.positions.tolist()}


def faiss_flat(folder: Path, k: int, clock: Clock) -> dict[str, Any]:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    queries = np.load(folder / "queries.npy")
    started = clock()
    index = faiss.IndexFlatIP(queries.shape[1])
    for block in blocks(folder / "documents.npy"):
        index.add(block.numpy())
    filled = clock()
    _, positions = index.search(queries, k)
    return {"search": clock() - filled, "filling": filled - started, "positions": positions.tolist()}


WAYS = {"ours": ours, "faiss": faiss_flat}


def one(way: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What a process of its own measured: seconds, largest memory in MB, and what it found."""
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder), "--k", str(options.k)]
    command += ["--own-time"] if options.own_time else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__, own_time=True)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--dimension", type=int, default=768)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.way is not None:
        result = WAYS[options.way](options.folder, options.k, Clock(own_time=options.own_time))
        print(json.dumps({**result, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return

    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_vectors(folder / "documents.npy", options.documents, options.dimension, seed=0)
        write_vectors(folder / "queries.npy", options.queries, options.dimension, seed=1)
        results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for turn in range(options.rounds):
            for way in list(WAYS) if turn % 2 else list(WAYS)[::-1]:
                results[way].append(one(way, folder, options))
    agreed = np.mean([np.array(results["ours"][0]["positions"]) == np.array(results["faiss"][0]["positions"])])
    assert agreed > 0.999, f"only {agreed:.2%} of the places hold the same document"
    print(f"{options.documents:,} documents of {options.dimension}, {options.queries:,} queries, k={options.k}")
    print(f"{'':<12}{'search, s':>12}{'filling, s':>12}{'largest memory, MB':>22}")
    median = {
        way: {key: statistics.median(row[key] for row in rows) for key in ("search", "filling", "memory")}
        for way, rows in results.items()
    }
    for way, row in median.items():
        print(f"{way:<12}{row['search']:>12.2f}{row['filling']:>12.2f}{row['memory']:>22,.0f}")
    searches = {way: [row["search"] for row in rows] for way, rows in results.items()}
    with_filling = median["faiss"]["search"] + median["faiss"]["filling"]
    summary = {
        "ratio": round(statistics.median(ratios(searches["faiss"], searches["ours"])), 3),
        "ratio_with_filling": round(with_filling / median["ours"]["search"], 3),
        "memory_mb": round(median["ours"]["memory"]),
        "faiss_memory_mb": round(median["faiss"]["memory"]),
        "same_places": round(float(agreed), 6),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
