"""Models that a benchmark trains itself: how long, the loop, and a folder like those of the hub."""

from __future__ import annotations

import argparse
import itertools
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import measuring  # noqa: F401  the packages are found
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.attacks.parts.optimizers import MuonAdamW, schedule
from unembed.attacks.parts.precision import training_precision


def add_training(parser: argparse.ArgumentParser, steps: int, batch_size: int) -> None:
    """The file of texts, the folder of the model, and how long it is trained."""
    parser.add_argument("texts", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps, help=f"of training (default {steps:,})")


def fit(
    model: nn.Module, optimizer: Optimizer, factor: Callable[[float, int], float], batches: Iterable[Any],
    loss_of: Callable[[Any], Tensor], steps: int,
    report: Callable[[int, float], str | None] = lambda step, loss: None,
) -> list[float]:  # fmt: skip
    """Train on the CPU; gives the loss of each step.

    Args:
        model: Its gradients are clipped to a norm of 1.
        optimizer: Over the model's weights.
        factor: Of the learning rates, by the share and the number of the steps that were made.
        batches: Without end.
        loss_of: The loss of a batch, computed in the precision that the processor is fast in.
        report: What to print after a step, if anything, by the number of steps made and the loss.
    """
    model.train()
    rates = [group["lr"] for group in optimizer.param_groups]
    low = training_precision("cpu") == "bf16-mixed"
    losses: list[float] = []
    for done, batch in enumerate(itertools.islice(batches, steps)):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor(done / steps, done)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = loss_of(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (line := report(len(losses), losses[-1])) is not None:
            print(f"  {100 * (done + 1) / steps:3.0f} %  step {len(losses):,}  {line}", flush=True)
    return losses


def fit_muon(
    model: nn.Module, settings: MuonAdamW, batches: Iterable[Any], loss_of: Callable[[Any], Tensor], steps: int,
    report: Callable[[int, float], str | None] = lambda step, loss: None,
) -> list[float]:  # fmt: skip
    """``fit`` with the optimiser and the learning rates of the attacks."""

    def factor(share: float, step: int) -> float:
        return schedule(share, step, settings.warmup_steps)

    return fit(model, settings.build(model), factor, batches, loss_of, steps, report)


def save(model: Any, tokenizer: Any, output: Path) -> None:
    """Write a folder with model and tokenizer, whole or not at all."""
    part = output.with_name(f".{output.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    shutil.rmtree(output, ignore_errors=True)
    part.rename(output)
