"""The data type in which a device multiplies matrices fastest, measured once per process.

    measured("cpu")              # Rates(float32=428.0, bfloat16=1486.0), in GFLOP/s
    training_precision("auto")   # "bf16-mixed", or "32-true" where bfloat16 is not clearly faster
    fast_dtype("cpu")            # torch.bfloat16, or torch.float32

The rates are measured, not read from processor flags: not every system lists them, they mean nothing on ARM, and they
do not say whether the installed PyTorch uses the instructions. Without native support, PyTorch multiplies bfloat16
matrices a hundred times slower than float32 ones.
"""

from __future__ import annotations

import functools
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from unembed.core.ranks import local_rank

Precision = Literal["bf16-mixed", "32-true"]

_SMALL, _LARGE = 64, 512  # rows and columns of the matrices that are multiplied
_HOPELESS = 1 / 6  # below this share of float32's rate in small products, the large bfloat16 product is not timed
_WORTHWHILE = 1.3  # bfloat16 has to be this much faster: mixed precision casts weights and activations all the time


@dataclass(frozen=True, slots=True)
class Rates:
    """Throughput of square matrix products, in GFLOP/s (10^9 operations a second; a multiply-add counts two)."""

    float32: float
    bfloat16: float


@functools.cache
def measured(device: str) -> Rates:
    """Time matrix products of both types on ``device`` with the threads that are set; takes a few milliseconds."""
    small = {dtype: _rate(device, dtype, _SMALL, repeats=10) for dtype in (torch.float32, torch.bfloat16)}
    float32 = _rate(device, torch.float32, _LARGE, repeats=4)
    if small[torch.bfloat16] < _HOPELESS * small[torch.float32]:
        return Rates(float32, small[torch.bfloat16])
    return Rates(float32, _rate(device, torch.bfloat16, _LARGE, repeats=4))


def fast_dtype(device: str) -> torch.dtype:
    rates = measured(device)
    return torch.bfloat16 if rates.bfloat16 >= _WORTHWHILE * rates.float32 else torch.float32


def training_precision(accelerator: str) -> Precision:
    """Lightning's ``precision`` for training on ``accelerator`` (``cpu``, ``gpu``, ``cuda``, ``mps`` or ``auto``)."""
    device = _device(accelerator)
    return "bf16-mixed" if device is not None and fast_dtype(device) is torch.bfloat16 else "32-true"


def processor_name() -> str:
    """The name of the processor, or its architecture if the system does not give a name."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines() if table.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (named[0] if named else "") or platform.processor() or platform.machine()


def _device(accelerator: str) -> str | None:
    """The device of this process; None for an accelerator that is not here, which Lightning reports by name."""
    if accelerator == "cpu":
        return "cpu"
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return "cpu" if accelerator == "auto" else None
    if accelerator not in ("auto", "gpu", found.type):
        return None
    # Under torchrun or srun each rank has its own device: not all of them should use the first one's memory.
    return f"{found.type}:{min(local_rank(), torch.accelerator.device_count() - 1)}"


def _rate(device: str, dtype: torch.dtype, size: int, repeats: int) -> float:
    """GFLOP/s of the fastest of ``repeats`` products: other work on the machine can only slow them down."""
    left = torch.ones(size, size, device=device, dtype=dtype)
    product = left @ left  # the first one compiles or loads a kernel
    best = float("inf")
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        torch.mm(left, left, out=product)
        _wait(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / max(best, 1e-9) / 1e9


def _wait(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize(device)
