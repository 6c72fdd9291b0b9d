"""Invert a file of vectors with a finished run and write the recovered texts.

    unembed invert run=<dir> vectors=mine.npy            # writes mine.npy.texts.jsonl: index, text, cosine
    unembed invert run=minilm vectors=mine.npy experiment=strongest   # the run's search, with 300 queries a vector
    torchrun --nproc-per-node 2 -m unembed invert run=<dir> vectors=mine.npy cosines=false

The cosine compares the re-embedded text with the given vector: close to 1, the text is probably right.
Vectors whose lengths or directions do not match the run's embedder are refused, since the attack would turn them into
fluent but meaningless text.

Each rank reads every so many of the parts into which the vectors are cut. Finished parts are in <output>.parts until
all are joined, so the same command, with as many ranks or another number, goes on where a killed one ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed import launch
from unembed.core.errors import printable

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from unembed.api import Attacker

BATCHES = 4  # of a part: what a kill loses


def invert(settings: DictConfig, config: DictConfig) -> None:
    """Open the run -> invert the vectors, part by part -> embed the texts again -> write."""
    from unembed.api import Attacker
    from unembed.core.progress import Progress
    from unembed.core.ranks import ranks_of_torchrun
    from unembed.reports.parts import Parts
    from unembed.runs import layout

    rank, size, meet = ranks_of_torchrun()
    output, vectors = Path(settings.output), Path(settings.vectors)
    attacker = Attacker(settings, config)
    rows = attacker.rows(vectors, settings.limit)
    read = attacker.reading(rows, settings.max_queries, cosines=settings.cosines, trusted=settings.trust_vectors)

    def lines(part: range) -> Iterator[dict[str, Any]]:
        for index, (one, cosine) in zip(part, read(part.start, part.stop), strict=True):
            partial = {"partial": True} if one.partial else {}
            yield {"index": index, "text": one.candidates[0], "cosine": cosine, **partial}

    parts = Parts(output, len(rows), BATCHES * attacker.reader(settings.max_queries).batch_size)
    with layout.locked(parts.folder, "output") if rank == 0 else nullcontext():
        mine = parts.begin(_key(attacker, vectors, len(rows)), rank, size)
        meet()  # all have looked before the first one ends and removes the folder
        with Progress(sum(map(len, mine)), "inverting", shown=rank == 0) as progress:
            for part in mine:
                with attacker.session.oracle.source.forgetting():
                    parts.write(part, lines(part))
                progress.advance(len(part))
        if rank == 0:
            parts.join()
            _print(output, len(rows), attacker.session.embedder.queries.limit)


def _key(attacker: Attacker, vectors: Path, count: int) -> str:
    """Hash of what the texts depend on."""
    from unembed.runs.stored_attack import file_key, settings_key

    session, settings, file = attacker.session, attacker.settings, vectors.stat()
    checkpoint = session.checkpoint(settings.ckpt_path)
    made_with = [
        settings_key(session.values, session.embedder.fingerprint),
        checkpoint and file_key(checkpoint),
        file.st_size, file.st_mtime_ns, count, settings.batch_size, settings.cosines, settings.max_queries,
    ]  # fmt: skip
    return sha256(repr(made_with).encode()).hexdigest()


def _print(output: Path, count: int, limit: str | None) -> None:
    with output.open(encoding="utf-8") as file:
        for row in map(json.loads, islice(file, 10)):
            text = printable(" ".join(row["text"].split("\n")))
            cosine = "" if row["cosine"] is None else f"{row['cosine']:.3f}"
            print(f"{row['index']:>6}  {cosine}  {text}")
    print(printable(f"{count} texts written to {output}"))
    if limit is not None:
        with output.open("rb") as file:
            cut = sum(line.endswith(b'"partial": true}\n') for line in file)
        print(f"CUT SHORT: the search for {cut} of them ended early. {limit}")


def main() -> None:
    """``unembed invert``."""
    launch.main(invert, "invert")
