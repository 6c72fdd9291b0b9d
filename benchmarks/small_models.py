"""Models that a benchmark trains itself: how long, the loop, and a folder like those of the hub."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import measuring  # noqa: F401  the packages are found
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.attacks.parts.optimizers import MuonAdamW, schedule
from unembed.attacks.parts.precision import training_precision


class Budget:
    """Steps decide what comes out; a cap on the time is optional, and a training that it cuts short says so.

    Args:
        steps: After so many the training ends, and the learning rate has fallen to 0.
        minutes: After so many it ends in any case; None: there is no cap.
    """

    def __init__(self, steps: int, minutes: float | None = None) -> None:
        self.steps, self.minutes = steps, minutes
        self._began = time.monotonic()

    def share(self, step: int) -> float:
        """Part of the steps that are done, 0 to 1."""
        return min(1.0, step / max(1, self.steps))

    def over(self, step: int) -> bool:
        """Whether the training ends after ``step`` steps."""
        if step >= self.steps:
            return True
        if self.minutes is None or time.monotonic() - self._began < 60 * self.minutes:
            return False
        print(f"stopped by --minutes {self.minutes:g} at {step:,} of {self.steps:,} steps: the model is undertrained")
        return True


def add_budget(parser: argparse.ArgumentParser, steps: int) -> None:
    """The options ``--steps`` and ``--minutes``."""
    parser.add_argument("--steps", type=int, default=steps, help=f"of training (default {steps:,})")
    parser.add_argument("--minutes", type=float, default=None, help="end the training after so many in any case")


def fit(
    model: nn.Module, optimizer: Optimizer, factor: Callable[[float, int], float], batches: Iterable[Any],
    loss_of: Callable[[Any], Tensor], budget: Budget,
    report: Callable[[int, float], str | None] = lambda step, loss: None,
) -> list[float]:  # fmt: skip
    """Train on the CPU until the budget is used; gives the loss of each step.

    Args:
        model: Its gradients are clipped to a norm of 1.
        optimizer: Over the model's weights.
        factor: Of the learning rates, by the share of the budget that is used and the number of steps made.
        batches: Without end.
        loss_of: The loss of a batch, computed in the precision that the processor is fast in.
        budget: Steps and minutes.
        report: What to print after a step, if anything, by the number of steps made and the loss.
    """
    model.train()
    rates = [group["lr"] for group in optimizer.param_groups]
    low = training_precision("cpu") == "bf16-mixed"
    losses: list[float] = []
    for batch in batches:
        done = len(losses)
        if budget.over(done):
            break
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor(budget.share(done), done)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = loss_of(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (line := report(len(losses), losses[-1])) is not None:
            print(f"  {100 * budget.share(len(losses)):3.0f} %  step {len(losses):,}  {line}", flush=True)
    return losses


def fit_muon(
    model: nn.Module, settings: MuonAdamW, batches: Iterable[Any], loss_of: Callable[[Any], Tensor], budget: Budget,
    report: Callable[[int, float], str | None] = lambda step, loss: None,
) -> list[float]:  # fmt: skip
    """``fit`` with the optimiser and the learning rates of the attacks."""

    def factor(share: float, step: int) -> float:
        return schedule(share, step, settings.warmup_steps)

    return fit(model, settings.build(model), factor, batches, loss_of, budget, report)


def save(model: Any, tokenizer: Any, output: Path) -> None:
    """Write a folder with model and tokenizer, whole or not at all."""
    part = output.with_name(f".{output.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    shutil.rmtree(output, ignore_errors=True)
    part.rename(output)
