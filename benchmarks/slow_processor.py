"""A processor without bfloat16 trains at a fair rate: steps a second of the default attack, against native float32.

    python benchmarks/slow_processor.py --least 0.25

Two processes train one after the other on the same vectors: one natively with trainer.precision=32-true, one that may
use no instruction beyond AVX2 and chooses its precision itself. Without the instructions for it, a product of bfloat16
matrices takes a hundred times as long as one of float32, and one code path that multiplies in bfloat16 makes training
useless. Where the processor has no such instructions, or is none of x86, both do the same. Prints the rates and one
JSON line; the exit code is 1 where the second rate is below ``--least`` times the first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import command_line

EMULATION = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
WARM_UP = 4  # steps: the first compile kernels and allocate
LONGEST_SECONDS = 10.0  # of the measured steps: a rate that is far too low is known by then


def emulated() -> bool:
    """Whether this process is kept from the newer instructions."""
    return all(os.environ.get(name) == value for name, value in EMULATION.items())


def measured(folder: Path, slow: bool, options: argparse.Namespace) -> dict[str, Any]:
    """The rate of a process of its own: libraries choose their kernels when they are loaded."""
    environment = {name: value for name, value in os.environ.items() if name not in EMULATION}
    environment.setdefault("GOMP_SPINCOUNT", "30000")  # as in our commands: beside other processes, threads spin less
    command = [sys.executable, __file__, "--child", str(folder), f"--steps={options.steps}"]
    command += [f"--sentences={options.sentences}"]
    done = subprocess.run(
        [*command, *([] if slow else ["--precision=32-true"]), *options.overrides],
        env=environment | EMULATION if slow else environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nfailed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(options: argparse.Namespace) -> dict[str, Any]:
    """Train, with all texts embedded before, and give the median rate of a step."""
    from lightning import Callback
    from measuring import job, quiet, texts_of

    ends: list[float] = []

    class Clock(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            ends.append(time.perf_counter())
            trainer.should_stop = len(ends) > WARM_UP + 1 and ends[-1] - ends[WARM_UP] > LONGEST_SECONDS

    quiet()
    options.device, options.path = "cpu", None
    given = texts_of(options, options.sentences, 10)
    work = job(options, given, options.child, options.child / "cache")
    # A step more than is measured: a time of a step is the one between two ends.
    work.trainer(work.run, [Clock()], max_steps=WARM_UP + 1 + options.steps).fit(work.attack, work.datamodule)
    times = [after - before for before, after in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]
    return {
        "steps_per_second": round(1 / statistics.median(times), 3),
        "steps": len(times),
        "precision": str(work.config.trainer.precision),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--least", type=float, default=0.25, help="ratio below which the exit code is 1 (default 0.25)")
    parser.add_argument("--steps", type=int, default=30, help="measured, after a few that warm up (default 30)")
    parser.add_argument("--sentences", type=int, default=512, help="training texts (default 512)")
    parser.add_argument("overrides", nargs="*", help="of the configuration, as for train.py")
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        print(json.dumps(child(options)))
        return
    with tempfile.TemporaryDirectory() as directory:
        native, slow = (measured(Path(directory), slow, options) for slow in (False, True))
    ratio = slow["steps_per_second"] / native["steps_per_second"]
    for name, found in (("native, float32", native), ("without bfloat16", slow)):
        print(f"{name:<20}{found['steps_per_second']:>8.2f} steps/s in {found['precision']}, {found['steps']} steps")
    print(json.dumps({"ratio": round(ratio, 3), "least": options.least, "native": native, "slow": slow}))
    if ratio < options.least:
        raise SystemExit(
            f"Without bfloat16 instructions, only {slow['steps_per_second']:.2f} steps/s, {ratio:.2f} of "
            f"the {native['steps_per_second']:.2f} of native float32 and less than --least {options.least:g}: some "
            "code path multiplies bfloat16 matrices."
        )


if __name__ == "__main__":
    main()
