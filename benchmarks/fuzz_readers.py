"""Broken files for every reader: each must be read, or refused with one message, and soon.

    python benchmarks/fuzz_readers.py --inputs 2000      # a reader; 14 readers

hypothesis makes the inputs: bytes of nothing in particular, lines of odd JSON, and good files with bytes changed, cut
off, doubled or put in. What is not an InputError is a fault, and so is an input that takes the processor longer than
ten seconds. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import save

sys.path.insert(0, str(Path(__file__).parent.parent))

import runs
from attacks.run_checks import check_embedder
from attacks.trust import check_trusted
from callbacks.comparison_entries import read_entries
from callbacks.report import print_summary, write_report
from datamodules.beir import BeirCollection
from datamodules.files import TextFiles
from datamodules.vector_files import read_vectors
from errors import InputError

LIMIT_SECONDS = 10
WIDTH = 4
VECTORS = np.arange(1, 13, dtype=np.float32).reshape(3, WIDTH)
QRELS = b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t2\n"
CORPUS = b'{"_id": "d1", "title": "", "text": "one"}\n{"_id": "d2", "title": "two", "text": "three"}\n'
QUERIES = b'{"_id": "q1", "text": "what"}\n{"_id": "q2", "text": "who"}\n'
CONFIG = b"choices: {attack: geia}\nattack: {_target_: attacks.geia.GEIA, beams: 2}\nseed: 0\n"
METRICS = b'{"bleu": 1.0, "cosine": null, "entity_recovery/NAME": 2.5, "examples": 1, "seconds": 2.0}'
PREDICTION = {"index": 0, "reference": "a b", "prediction": "a", "kind": "sequence", "cosine": 0.5, "candidates": ["a"]}


def good() -> dict[str, bytes]:
    """A sound file for each reader, by its name."""
    array, table, checkpoint, rows = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.StringIO()
    np.save(array, VECTORS)
    columns = {"vector": VECTORS.tolist(), "text": ["a", "b", "c"], "split": ["train", "valid", "test"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), table)
    torch.save({"state_dict": {"a": torch.ones(3)}, "global_step": 1}, checkpoint)
    csv.writer(rows).writerows([["text", "split"], ["a, b", "train"], ["c", "test"]])
    lines = [{"text": "a", "split": "train", "spans": [[0, 1, "NAME"]]}, {"text": "b", "split": "test", "spans": []}]
    return {
        "texts.jsonl": "".join(json.dumps(line) + "\n" for line in lines).encode(),
        "texts.csv": rows.getvalue().encode(),
        "texts.parquet": table.getvalue(),
        "vectors.npy": array.getvalue(),
        "vectors.safetensors": save({"vectors": torch.from_numpy(VECTORS.copy())}),
        "vectors.parquet": table.getvalue(),
        "vectors.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in VECTORS.tolist()),
        "qrels.tsv": QRELS,
        "config.yaml": CONFIG,
        "last.ckpt": checkpoint.getvalue(),
        "predictions.jsonl": json.dumps(PREDICTION).encode() + b"\n",
        "metrics.json": METRICS,
        "record.json": json.dumps({"embedder": {"fingerprint": "0" * 64, "dimension": WIDTH}}).encode(),
        "config.yaml, reported": CONFIG,
    }


def readers() -> dict[str, Callable[[Path, bytes], object]]:
    """Of each name: what reads the bytes, given a folder to put them into."""

    def texts(name: str) -> Callable[[Path, bytes], object]:
        def read(folder: Path, content: bytes) -> object:
            path = written(folder / name, content)
            options = {"spans_field": "spans"} if name == "texts.jsonl" else {}
            return TextFiles(path=str(path), split_field="split", valid_fraction=0.0, **options).load()  # type: ignore[arg-type]

        return read

    def vectors(name: str) -> Callable[[Path, bytes], object]:
        return lambda folder, content: read_vectors(written(folder / name, content), WIDTH)

    def qrels(folder: Path, content: bytes) -> object:
        written(folder / "corpus.jsonl", CORPUS)
        written(folder / "queries.jsonl", QUERIES)
        written(folder / "qrels" / "test.tsv", content)
        return BeirCollection(path=str(folder)).read()

    def config(folder: Path, content: bytes) -> None:
        written(folder / runs.CONFIG, content)
        check_trusted(runs.read_config(folder), folder)

    def checkpoint(folder: Path, content: bytes) -> object:
        path = written(folder / runs.CHECKPOINT, content)
        (folder / runs.PREVIOUS).unlink(missing_ok=True)
        runs.resume_from(folder, "last")
        return runs.load_checkpoint(path)

    def predictions(folder: Path, content: bytes) -> object:
        written(folder / runs.METRICS, METRICS)
        return results(folder, runs.PREDICTIONS, content)

    def metrics(folder: Path, content: bytes) -> object:
        written(folder / runs.PREDICTIONS, json.dumps(PREDICTION).encode() + b"\n")
        return results(folder, runs.METRICS, content)

    def reported(folder: Path, content: bytes) -> object:
        written(folder / runs.METRICS, METRICS)
        written(folder / runs.PREDICTIONS, json.dumps(PREDICTION).encode() + b"\n")
        return results(folder, runs.CONFIG, content)

    def results(folder: Path, name: str, content: bytes) -> object:
        written(folder / runs.CONFIG, CONFIG)
        written(folder / name, content)
        write_report(folder)
        print_summary(folder, Console(file=io.StringIO()))
        return read_entries([folder])

    def record(folder: Path, content: bytes) -> None:
        written(folder / runs.CONFIG, CONFIG)
        written(folder / runs.CHECKPOINT, good()["last.ckpt"])
        written(folder / runs.RECORD, content)
        check_embedder(folder, "init_from", "0" * 64, WIDTH)

    return {
        **{name: texts(name) for name in ("texts.jsonl", "texts.csv", "texts.parquet")},
        **{f"vectors.{kind}": vectors(f"vectors.{kind}") for kind in ("npy", "safetensors", "parquet", "jsonl")},
        "qrels.tsv": qrels,
        "config.yaml": config,
        "last.ckpt": checkpoint,
        "predictions.jsonl": predictions,
        "metrics.json": metrics,
        "record.json": record,
        "config.yaml, reported": reported,
    }


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@st.composite
def changed(draw: st.DrawFn, whole: bytes) -> bytes:
    """A good file with something done to it, up to four times."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(content)))
        end = min(len(content), place + draw(st.integers(0, 16)))
        kind = draw(st.sampled_from(["flip", "cut", "remove", "double", "insert", "number"]))
        if kind == "flip" and place < len(content):
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[place:]
        elif kind == "remove":
            del content[place:end]
        elif kind == "double":
            content[place:place] = content[place:end] * draw(st.sampled_from([1, 2, 50]))
        elif kind == "insert":
            content[place:place] = draw(st.binary(max_size=8))
        else:
            content[place:place] = draw(
                st.sampled_from(
                    [b"1e999", b"NaN", b"-1", b"9" * 400, b"9" * 5000, b"[" * 99, b"[" * 100_000, b"null", b"\xff"]
                )
            )
    return bytes(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "split", "spans", "vector", "index", "kind", "_target_", "a"]), inner
        )
    ),
    max_leaves=6,
)


def inputs(whole: bytes) -> st.SearchStrategy[bytes]:
    """All kinds of files for a reader of files like ``whole``."""
    lines = st.lists(JSON, max_size=4).map(lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode())
    return changed(whole) | changed(whole) | changed(whole) | lines | st.binary(max_size=200)


class OverdueError(Exception):
    """An input took too long."""


def fuzz(name: str, count: int) -> dict[str, Any]:
    """Try ``count`` inputs on a reader.

    Raises:
        Exception: What a reader raises besides InputError; hypothesis prints the smallest such input.
    """
    read, seen = readers()[name], {"inputs": 0, "refused": 0, "slowest": 0.0}

    def alarm(*_: object) -> None:
        raise OverdueError(f"{name}: an input took more than {LIMIT_SECONDS} seconds")

    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(inputs(good()[name]))
        def attempt(content: bytes) -> None:
            began = time.process_time()
            signal.signal(signal.SIGPROF, alarm)
            signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
            try:
                read(Path(directory), content)
            except InputError:
                seen["refused"] += 1
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                seen["inputs"] += 1
                seen["slowest"] = max(seen["slowest"], time.process_time() - began)

        attempt()
    return seen


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2000, help="for each reader (default 2000)")
    parser.add_argument("--readers", nargs="*", default=list(readers()), help="only these")
    options = parser.parse_args(argv)
    total = 0
    print(f"{'reader':<24}{'inputs':>10}{'refused':>10}{'slowest s':>12}")
    for name in options.readers:
        seen = fuzz(name, options.inputs)
        total += int(seen["inputs"])
        print(f"{name:<24}{seen['inputs']:>10,}{seen['refused']:>10,}{seen['slowest']:>12.3f}", flush=True)
    print(json.dumps({"inputs": total, "readers": len(options.readers), "faults": 0}))


if __name__ == "__main__":
    main()
