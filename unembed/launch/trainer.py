"""Checks of the trainer's settings that type hints cannot express.

trainer.max_time=10m: write days:hours:minutes:seconds, here 00:00:10:00
trainer.accelerator=gpu: torch 2.13.0+cpu finds no GPU on this machine; give trainer.accelerator=auto or cpu
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from unembed.core.errors import did_you_mean

CHECKED = "trainer.max_time"  # its type is checked here, too
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"\d+:\d\d:\d\d:\d\d")


def limit_errors(trainer: Any) -> Iterator[str]:
    """Check that ``max_time`` is a duration, and that some limit ends training, for the learning rate schedule."""
    if not isinstance(trainer, Mapping):
        return
    limit = trainer.get("max_time")
    if limit is not None and limit != "???" and not _is_duration(limit):
        yield f"{CHECKED}={limit}: write days:hours:minutes:seconds, {_meant(limit)}"
    if "_target_" in trainer and all(
        trainer.get(name, -1) in (-1, None) for name in ("max_steps", "max_epochs", "max_time")
    ):
        yield "trainer.max_steps=-1: nothing ends the training; give trainer.max_steps, max_epochs or max_time"
    for name in ("max_steps", "max_epochs"):
        if type(trainer.get(name)) is int and trainer[name] < -1:
            yield f"trainer.{name}={trainer[name]}: must be -1 for no limit, or at least 0"


def device_errors(trainer: Mapping[str, Any]) -> Iterator[str]:
    """Check that this machine has the requested devices; imports Lightning."""
    from lightning.pytorch.accelerators import AcceleratorRegistry, CUDAAccelerator, MPSAccelerator

    asked, devices = trainer.get("accelerator", "auto"), trainer.get("devices", "auto")
    if not isinstance(asked, str):
        return
    valid = ("auto", "gpu", *AcceleratorRegistry)
    if asked not in valid:
        yield f"trainer.accelerator={asked}: {did_you_mean(asked, valid)}"
        return
    gpu = MPSAccelerator if MPSAccelerator.is_available() else CUDAAccelerator
    found = {"auto": gpu, "gpu": gpu}.get(asked) or AcceleratorRegistry[asked]["accelerator"]
    if not found.is_available():
        if asked != "auto":
            yield f"trainer.accelerator={asked}: {_missing(asked)}; give trainer.accelerator=auto or cpu"
    elif found in (CUDAAccelerator, MPSAccelerator):
        count = found.auto_device_count()
        numbers = devices if isinstance(devices, list) else []
        if (isinstance(devices, int) and devices > count) or any(number >= count for number in numbers):
            has = "1 GPU, number 0" if count == 1 else f"{count} GPUs, numbers 0 to {count - 1}"
            yield f"trainer.devices={devices}: torch finds {has} on this machine; give trainer.devices={count} or fewer"


def _missing(accelerator: str) -> str:
    import torch

    what = "GPU" if accelerator in ("gpu", "cuda", "mps") else accelerator
    return f"torch {torch.__version__} finds no {what} on this machine"


def _is_duration(limit: Any) -> bool:
    """Whether Lightning accepts it: a text, or the arguments of ``datetime.timedelta``."""
    if isinstance(limit, Mapping):
        try:
            return timedelta(**{str(name): value for name, value in limit.items()}) > timedelta()
        except (TypeError, OverflowError):
            return False
    return isinstance(limit, str) and _FORM.fullmatch(limit.strip()) is not None


def _meant(limit: Any) -> str:
    """The probable meaning of 10m or 1h30m, or else an example."""
    parts = re.findall(r"(\d+)\s*([dhms])[a-z]*", str(limit).lower())
    if not parts or re.sub(r"[\da-z\s]", "", str(limit).lower()):
        return "such as 00:00:10:00 for ten minutes, or null for no limit"
    seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
    minutes, rest = divmod(seconds, 60)
    return f"here {minutes // 1440:02}:{minutes // 60 % 24:02}:{minutes % 60:02}:{rest:02}"
