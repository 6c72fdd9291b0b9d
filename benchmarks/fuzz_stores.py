"""Broken files of vectors and vector stores: each must be read or refused with one message, soon and in little memory.

    python benchmarks/fuzz_stores.py --inputs 3000                      # of each reader; slow readers get a share
    python benchmarks/fuzz_stores.py --readers vectors.npy "FAISS Flat"
    python benchmarks/fuzz_stores.py --replay /tmp/unembed-fuzz/vectors-npy--5f2c9a.input

hypothesis makes the inputs: bytes of nothing in particular, good files with bytes changed, good formats with odd
values in them, small files that unfold to large ones, and pickles that call something. Each is read
in a process under watch. A fault is: an exception that is no InputError, a traceback that is printed, a crash, more
than 2 seconds of the processor, 10 by the clock or 1 GB, or a file made or removed elsewhere. The faults, each type
and place once, are listed at the end with the first input that showed it, which is saved. Ends with one JSON line; the
exit code is 1 where there are faults.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before a library starts threads, which a fork would lose
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import pyarrow
import torch
from fuzzing import stores, vectors
from fuzzing.broken import Inputs, Reader
from fuzzing.child import UNKNOWN, Outcome, apart, attempt
from hypothesis import HealthCheck, Phase, given, seed, settings
from measuring import command_line

ROUND = 500  # inputs that hypothesis makes with one seed: it prefers what is near to what it made


@dataclass
class Fault:
    """One kind of fault at one place."""

    outcome: Outcome
    replay: Path
    count: int = 0
    readers: set[str] = field(default_factory=set)


@dataclass
class Seen:
    """What came of the inputs of a reader; ``seconds`` by the clock, ``starved`` for want of memory."""

    inputs: int = 0
    seconds: float = 0.0
    refused: int = 0
    starved: int = 0
    slowest: float = 0.0
    largest: float = 0.0
    faults: int = 0

    def count(self, outcome: Outcome) -> None:
        """Take note of an input."""
        self.inputs += 1
        self.refused += outcome.kind == "refused"
        self.starved += outcome.starved
        self.slowest = max(self.slowest, outcome.seconds)
        self.largest = max(self.largest, outcome.megabytes)
        self.faults += outcome.fault


class Faults:
    """All that was found, each kind once.

    Args:
        folder: Where the first input of each is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, dict[tuple[str, str], Fault]()

    def add(self, name: str, content: bytes, outcome: Outcome) -> None:
        key = (outcome.kind, name if outcome.place == UNKNOWN else outcome.place)
        if key not in self.found:
            self.found[key] = Fault(outcome, self._save(name, content))
        self.found[key].count += 1
        self.found[key].readers.add(name)

    def _save(self, name: str, content: bytes) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{slug(name)}--{hashlib.blake2b(content, digest_size=6).hexdigest()}.input"
        path.write_bytes(content)
        return path


def readers() -> dict[str, Reader]:
    """All readers by name."""
    parts = (vectors, stores)
    return {name: reader for part in parts for name, reader in part.readers().items()}


def slug(name: str) -> str:
    """A reader's name as a part of a file's."""
    return re.sub(r"\W+", "-", name)


def prepare(reader: Reader, folder: Path) -> bytes:
    """Import what a reader needs, and make its good input."""
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    torch.set_num_threads(1)
    return apart(reader.good, folder / "good")


def broken(inputs: Inputs, count: int, number: int) -> list[bytes]:
    """Inputs by hypothesis, whose seed is ``number``."""
    made: list[bytes] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seed(number)
    @given(inputs)
    def take(content: bytes) -> None:
        made.append(content)

    take()
    return made


def distinct(inputs: Inputs, count: int, number: int) -> Iterator[bytes]:
    """About ``count`` different inputs: fewer where there are hardly so many."""
    known = set[bytes]()
    for turn in range(4 + 2 * count // ROUND):
        for content in broken(inputs, min(ROUND, count), number + turn):
            digest = hashlib.blake2b(content, digest_size=8).digest()
            if digest not in known:
                known.add(digest)
                yield content


def fuzz(name: str, count: int, faults: Faults, number: int = 0) -> Seen:
    """Try ``count`` inputs on a reader; ``number`` is the seed.

    Raises:
        RuntimeError: The reader does not read its good input.
    """
    reader, seen = readers()[name], Seen()
    with tempfile.TemporaryDirectory(prefix="unembed-fuzz-") as directory:
        folder = Path(directory) / "a" / "b"
        good = prepare(reader, folder)
        began = time.monotonic()
        if (outcome := attempt(reader.read, good, folder)).kind != "read":
            raise RuntimeError(f"the sound input of {name}: {described(outcome)}\n{outcome.details}")
        for content in itertools.islice(distinct(reader.inputs(good), count, 1000 * number), count):
            outcome = attempt(reader.read, content, folder)
            seen.count(outcome)
            if outcome.fault:
                faults.add(name, content, outcome)
        seen.seconds = time.monotonic() - began
    return seen


def replay(path: Path) -> Outcome:
    """Read a saved input once more.

    Raises:
        SystemExit: Its name is that of no reader.
    """
    found = [reader for name, reader in readers().items() if slug(name) == path.name.partition("--")[0]]
    if not found:
        raise SystemExit(f"{path}: the name should begin with that of a reader and --")
    with tempfile.TemporaryDirectory(prefix="unembed-fuzz-") as directory:
        folder = Path(directory) / "a" / "b"
        prepare(found[0], folder)
        return attempt(found[0].read, path.read_bytes(), folder)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--inputs", type=int, default=3000, help="for each reader, times its share (default 3000)")
    parser.add_argument("--readers", nargs="*", default=list(readers()), help="only these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unembed-fuzz", help="for faults")
    parser.add_argument("--replay", type=Path, nargs="+", default=[], metavar="FILE", help="read saved inputs instead")
    options = parser.parse_args(argv)
    if options.replay:
        outcomes = [replay(path) for path in options.replay]
        for path, outcome in zip(options.replay, outcomes, strict=True):
            print(f"{path}: {described(outcome)}\n{outcome.details}")
        raise SystemExit(int(any(outcome.fault for outcome in outcomes)))

    every, faults = readers(), Faults(options.folder)
    seen = []
    titles = f"{'inputs':>8}{'refused':>9}{'faults':>8}{'starved':>9}{'slowest s':>11}{'most MB':>9}{'took s':>8}"
    print(f"{'reader':<34}{titles}")
    for name in options.readers:
        one = fuzz(name, max(1, round(options.inputs * every[name].share)), faults, options.seed)
        seen.append(one)
        counts = f"{one.inputs:>8,}{one.refused:>9,}{one.faults:>8,}{one.starved:>9,}"
        print(f"{name:<34}{counts}{one.slowest:>9.3f}{one.largest:>9.1f}{one.seconds:>8.1f}", flush=True)
    for fault in sorted(faults.found.values(), key=lambda fault: -fault.count):
        print(f"\n{fault.count} times: {described(fault.outcome)}")
        print(f"  {', '.join(sorted(fault.readers))}\n  {fault.replay}")
    print(
        json.dumps(
            {
                "inputs": sum(one.inputs for one in seen),
                "readers": len(seen),
                "faults": len(faults.found),
                "slowest_seconds": round(max(one.slowest for one in seen), 3),
                "largest_megabytes": round(max(one.largest for one in seen), 1),
            }
        )
    )
    if faults.found:
        raise SystemExit(1)


def described(outcome: Outcome) -> str:
    """An outcome in a line."""
    said = " ".join(outcome.message.split())
    used = f"({outcome.seconds:.2f} s, {outcome.megabytes:.0f} MB)"
    return " ".join(part for part in (outcome.kind, outcome.place and f"in {outcome.place}", used, said) if part)


if __name__ == "__main__":
    main()
