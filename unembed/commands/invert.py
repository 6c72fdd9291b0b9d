"""Invert a file of vectors with a finished run and write the recovered texts.

    unembed invert run=<dir> vectors=mine.npy            # writes mine.npy.texts.jsonl: index, text, cosine
    torchrun --nproc-per-node 2 -m unembed invert run=<dir> vectors=mine.npy cosines=false

The cosine compares the re-embedded text with the given vector: close to 1, the text is probably right.
Vectors whose lengths or directions do not match the run's embedder are refused, since the attack would turn them into
fluent but meaningless text.

Each rank reads every so many of the parts into which the vectors are cut. Finished parts are in <output>.parts until
all are joined, so the same command, with as many ranks or another number, goes on where a killed one ended.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed import launch
from unembed.core.errors import InputError, printable

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from unembed.api import Attacker

BATCHES = 4  # of a part: what a kill loses
KEY = "key.json"  # what the parts were made with
PARTIAL = b'"partial": true}\n'  # the end of a line whose search a query limit cut short


def invert(settings: DictConfig, config: DictConfig) -> None:
    """Open the run -> invert the vectors, part by part -> embed the texts again -> write."""
    import torch

    from unembed.api import Attacker
    from unembed.core.atomic_files import write_json, write_json_lines
    from unembed.core.progress import Progress
    from unembed.core.ranks import local_rank, meet, rank_and_size
    from unembed.runs import layout

    rank, size = rank_and_size()
    if size > 1 and torch.cuda.is_available():
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    output, vectors = Path(settings.output), Path(settings.vectors)
    attacker = Attacker(settings, config)
    rows = attacker.rows(vectors, settings.limit)
    read = attacker.reading(rows, None, cosines=settings.cosines, trusted=settings.trust_vectors)
    folder, step = output.with_name(f"{output.name}.parts"), BATCHES * settings.batch_size
    begins = range(0, len(rows), step)
    parts = {folder / f"{begin:012d}.jsonl": range(begin, min(begin + step, len(rows))) for begin in begins}
    with layout.locked(folder, "output") if rank == 0 else nullcontext():
        key = {"key": _key(attacker, vectors, len(rows))}
        _check_same(folder, output, key)
        write_json(folder / KEY, key)
        mine = [part for part in islice(parts, rank, None, size) if not part.is_file()]
        meet()  # all have looked before the first one ends and removes the folder
        with Progress(sum(len(parts[part]) for part in mine), "inverting", shown=rank == 0) as progress:
            for part in mine:
                begin, end = parts[part].start, parts[part].stop
                with attacker.session.oracle.source.forgetting():
                    write_json_lines(part, _lines(begin, read(begin, end)))
                progress.advance(end - begin)
        if rank == 0:
            _wait_for(parts)
            cut = _join(parts, output)
            shutil.rmtree(folder)
            _print(output, len(rows), cut, attacker.session.embedder.queries.limit)


def _lines(begin: int, read: list[Any]) -> Iterator[dict[str, Any]]:
    for index, (one, cosine) in enumerate(read, begin):
        yield {
            "index": index,
            "text": one.candidates[0],
            "cosine": cosine,
            **({"partial": True} if one.partial else {}),
        }


def _key(attacker: Attacker, vectors: Path, count: int) -> str:
    """Hash of what the texts depend on."""
    from unembed.runs.stored_attack import file_key, settings_key

    session, settings, file = attacker.session, attacker.settings, vectors.stat()
    checkpoint = session.checkpoint(settings.ckpt_path)
    made_with = [
        settings_key(session.values, session.embedder.fingerprint),
        checkpoint and file_key(checkpoint),
        file.st_size, file.st_mtime_ns, count, settings.batch_size, settings.cosines,
    ]  # fmt: skip
    return sha256(repr(made_with).encode()).hexdigest()


def _check_same(folder: Path, output: Path, key: dict[str, str]) -> None:
    from unembed.core.atomic_files import read_json

    if (folder / KEY).is_file() and read_json(folder / KEY) != key:
        raise InputError(
            f"output={output}: {folder} holds parts of an inversion of other vectors or with other settings, which was "
            "interrupted; repeat that command, remove the folder, or choose another output"
        )


def _wait_for(parts: dict[Path, range]) -> None:
    """Wait until the other ranks have written theirs; if one dies, torchrun ends this one."""
    while not all(part.is_file() for part in parts):
        time.sleep(0.2)


def _join(parts: dict[Path, range], output: Path) -> int:
    """Write the lines of all parts to one file; return how many of them a query limit cut short."""
    from unembed.core.atomic_files import write_file

    cut = 0

    def lines() -> Iterator[bytes]:
        nonlocal cut
        for part in parts:
            with part.open("rb") as file:
                for line in file:
                    cut += line.endswith(PARTIAL)
                    yield line

    write_file(output, lambda file: file.writelines(lines()))
    return cut


def _print(output: Path, count: int, cut: int, limit: str | None) -> None:
    import json

    with output.open(encoding="utf-8") as file:
        for row in map(json.loads, islice(file, 10)):
            text = printable(" ".join(row["text"].split("\n")))
            cosine = "" if row["cosine"] is None else f"{row['cosine']:.3f}"
            print(f"{row['index']:>6}  {cosine}  {text}")
    print(printable(f"{count} texts written to {output}"))
    if limit is not None:
        print(f"CUT SHORT: the search for {cut} of them ended early. {limit}")


def main() -> None:
    """``unembed invert``."""
    launch.main(invert, "invert")
