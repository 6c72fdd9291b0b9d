"""Share of Newton-Schulz in a training step of the default attack: torch.optim.Muon as it is, and ours.

    python benchmarks/newton_schulz.py --threads 2
    ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 python benchmarks/newton_schulz.py

Both train attack=geia on the same batches of the built-in corpus. Three things are timed: the Newton-Schulz iterations;
the whole of Muon's ``step``, with the momentum and the addition to the weights; and the training step, from the end of
a batch to the end of the next. The first steps are left out; medians over the others are given. With the three
variables a newer processor works like one without bfloat16. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.optim._muon
from lightning import Callback
from measuring import Clock, arguments, job, quiet, texts_of
from slow_processor import WARM_UP, emulated
from torch import nn
from torch.optim import Optimizer

from unembed.attacks.parts import optimizers
from unembed.attacks.parts.optimizers import JointOptimizer, MuonAdamW
from unembed.attacks.parts.precision import processor_name


class Timed:
    """Settings of an optimiser whose Muon is timed, or replaced by torch's and timed.

    Args:
        settings: Those of the attack.
        clock: Seconds.
        theirs: Put torch.optim.Muon in the place of ours.
    """

    def __init__(self, settings: MuonAdamW, clock: Clock, theirs: bool) -> None:
        self.settings, self.clock, self.theirs = settings, clock, theirs
        self.warmup_steps, self.decay = settings.warmup_steps, settings.decay
        self.seconds: list[float] = []  # of Muon, in each step
        self.iterations: list[float] = []  # of Newton-Schulz, in each step

    def build(self, module: nn.Module) -> Optimizer:
        """Muon is the first of the two parts."""
        matrices, *others = self.settings.build(module).parts  # type: ignore[attr-defined]
        if self.theirs:
            group = matrices.param_groups[0]
            chosen = {name: group[name] for name in ("lr", "momentum", "weight_decay")}
            matrices = torch.optim.Muon(group["params"], **chosen)
        matrices.step = self._timed(matrices.step)
        return JointOptimizer([matrices, *others])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it, the time of each call of the Newton-Schulz function is added to that of its step."""
        module, name = (
            (torch.optim._muon, "_zeropower_via_newtonschulz") if self.theirs else (optimizers, "orthogonalized")
        )
        original = getattr(module, name)

        def timed(*values: Any) -> Any:
            began = self.clock()
            result = original(*values)
            self.iterations[-1] += self.clock() - began
            return result

        setattr(module, name, timed)
        try:
            yield
        finally:
            setattr(module, name, original)

    def _timed(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def timed() -> Any:
            self.iterations.append(0.0)
            began = self.clock()
            result = step()
            self.seconds.append(self.clock() - began)
            return result

        return timed


class Ends(Callback):
    """The clock at the end of every batch."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.times: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.times.append(self.clock())


def measured(options: argparse.Namespace, theirs: bool, clock: Clock, folder: Path) -> dict[str, Any]:
    """Milliseconds of a step and of Muon in it, and its share of the step."""
    work = job(options, texts_of(options, options.sentences, 100), folder / f"run{theirs}", folder / "cache")
    if not isinstance(work.attack.optimizer_settings, MuonAdamW):
        raise SystemExit("attack/optimizer: nothing to measure, only muon has Newton-Schulz iterations")
    timed = Timed(work.attack.optimizer_settings, clock, theirs)
    work.attack.optimizer_settings = timed
    ends = Ends(clock)
    with timed.watching():
        work.trainer(work.run, [ends], max_steps=WARM_UP + 1 + options.steps).fit(work.attack, work.datamodule)
    steps = [after - before for before, after in zip(ends.times[WARM_UP:], ends.times[WARM_UP + 1 :], strict=False)]
    in_muon, iterations = timed.seconds[WARM_UP + 1 :], timed.iterations[WARM_UP + 1 :]

    def share(parts: Sequence[float]) -> float:
        return round(statistics.median(part / step for part, step in zip(parts, steps, strict=True)), 4)

    return {
        "ms_step": round(1000 * statistics.median(steps), 2),
        "ms_newton_schulz": round(1000 * statistics.median(iterations), 2),
        "ms_muon": round(1000 * statistics.median(in_muon), 2),
        "share": share(iterations),
        "share_of_muon": share(in_muon),
        "precision": str(work.config.trainer.precision),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sentences", type=int, default=1500, help="training texts (default 1500)")
    parser.add_argument("--steps", type=int, default=60, help="measured, after a few that warm up (default 60)")
    options = parser.parse_args(argv)
    quiet()
    torch.set_num_threads(options.threads)
    clock = Clock(options.device, options.own_time)
    with tempfile.TemporaryDirectory() as directory:
        ways = {
            name: measured(options, theirs, clock, Path(directory))
            for name, theirs in (("torch.optim.Muon", True), ("ours", False))
        }
    mode = "emulated: nothing beyond AVX2" if emulated() else "native"
    print(f"{processor_name()} ({mode}), {options.threads} threads, {options.steps} steps\n")
    titles = f"{'Newton-Schulz, ms':>20}{'share':>9}{'all of Muon, ms':>18}{'share':>9}"
    print(f"{'':<20}{'precision':>12}{'step, ms':>12}{titles}")
    for name, row in ways.items():
        print(
            f"{name:<20}{row['precision']:>12}{row['ms_step']:>12.1f}{row['ms_newton_schulz']:>20.1f}{row['share']:>9.1%}"
            f"{row['ms_muon']:>18.1f}{row['share_of_muon']:>9.1%}"
        )
    shared = {"processor": processor_name(), "mode": mode, "threads": options.threads, "steps": options.steps}
    print(json.dumps({**shared, **ways}))


if __name__ == "__main__":
    main()
