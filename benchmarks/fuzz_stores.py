"""Broken files of vectors and vector stores: each must be read or refused with one message, soon and in little memory.

    python benchmarks/fuzz_stores.py --inputs 3000                      # of each reader; slow readers get a share
    python benchmarks/fuzz_stores.py --readers vectors.npy "FAISS Flat"

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
    saved: Path
    count: int = 0
    readers: set[str] = field(default_factory=set)


class Faults:
    """All faults, each kind once.

    Args:
        folder: Where the first input of each is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, dict[tuple[str, str], Fault]()

    def add(self, name: str, content: bytes, outcome: Outcome) -> None:
        key = (outcome.kind, name if outcome.place == UNKNOWN else outcome.place)
        if key not in self.found:
            self.folder.mkdir(parents=True, exist_ok=True)
            digest = hashlib.blake2b(content, digest_size=6).hexdigest()
            path = self.folder / f"{re.sub('[^a-zA-Z0-9]+', '-', name)}--{digest}.input"
            path.write_bytes(content)
            self.found[key] = Fault(outcome, path)
        self.found[key].count += 1
        self.found[key].readers.add(name)


def readers() -> dict[str, Reader]:
    """All readers by name."""
    return vectors.readers() | stores.readers()


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


def fuzz(name: str, count: int, faults: Faults, number: int = 0) -> list[Outcome]:
    """What came of ``count`` inputs of a reader; ``number`` is the seed.

    Raises:
        RuntimeError: The reader does not read its good input.
    """
    reader, outcomes = readers()[name], []
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="unembed-fuzz-") as directory:
        folder = Path(directory) / "a" / "b"
        good = apart(reader.good, folder / "good")
        if (outcome := attempt(reader.read, good, folder)).kind != "read":
            raise RuntimeError(f"the sound input of {name}: {described(outcome)}\n{outcome.details}")
        for content in itertools.islice(distinct(reader.inputs(good), count, 1000 * number), count):
            outcomes.append(attempt(reader.read, content, folder))
            if outcomes[-1].fault:
                faults.add(name, content, outcomes[-1])
    return outcomes


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--inputs", type=int, default=3000, help="for each reader, times its share (default 3000)")
    parser.add_argument("--readers", nargs="*", default=list(readers()), help="only these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unembed-fuzz", help="for faults")
    options = parser.parse_args(argv)
    every, faults = readers(), Faults(options.folder)
    seen: list[Outcome] = []
    titles = f"{'inputs':>8}{'refused':>9}{'faults':>8}{'starved':>9}{'slowest s':>11}{'most MB':>9}"
    print(f"{'reader':<34}{titles}")
    for name in options.readers:
        outcomes = fuzz(name, max(1, round(options.inputs * every[name].share)), faults, options.seed)
        seen += outcomes
        refused, wrong, starved = (
            sum(part) for part in zip(*((o.kind == "refused", o.fault, o.starved) for o in outcomes), strict=True)
        )
        print(
            f"{name:<34}{len(outcomes):>8,}{refused:>9,}{wrong:>8,}{starved:>9,}"
            f"{max(o.seconds for o in outcomes):>11.3f}{max(o.megabytes for o in outcomes):>9.1f}",
            flush=True,
        )
    for fault in sorted(faults.found.values(), key=lambda fault: -fault.count):
        print(f"\n{fault.count} times: {described(fault.outcome)}\n{fault.outcome.details}")
        print(f"  {', '.join(sorted(fault.readers))}\n  {fault.saved}")
    slowest, largest = max(o.seconds for o in seen), max(o.megabytes for o in seen)
    result = {"inputs": len(seen), "readers": len(options.readers), "faults": len(faults.found)}
    print(json.dumps({**result, "slowest_seconds": round(slowest, 3), "largest_megabytes": round(largest, 1)}))
    if faults.found:
        raise SystemExit(1)


def described(outcome: Outcome) -> str:
    """An outcome in a line."""
    said = " ".join(outcome.message.split())
    used = f"({outcome.seconds:.2f} s, {outcome.megabytes:.0f} MB)"
    return " ".join(part for part in (outcome.kind, outcome.place and f"in {outcome.place}", used, said) if part)


if __name__ == "__main__":
    main()
