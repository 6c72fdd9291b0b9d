"""Reading of files written by torch.save: tensors and plain values only, no code in them is run.

content = load(Path("runs/x/checkpoints/last.ckpt"), "a checkpoint")    # {"state_dict": {...}, ...}
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from unembed.core.errors import InputError


def check(path: Path, what: str) -> None:
    """Check that ``load`` can read a file, without reading its tensors into memory.

    Args:
        path: The file.
        what: The expected content, for messages.

    Raises:
        InputError: It is damaged, or holds anything but tensors and plain values.
    """
    load(path, what, mmap=True)


def load(path: Path, what: str, *, mmap: bool = False) -> Any:
    """The content of a file that torch.save wrote, on the CPU; with ``mmap`` tensors stay on the disk until used.

    Raises:
        InputError: As ``check``.
    """
    from pickle import UnpicklingError

    import torch

    wrong = f"{path}: not {what}, or a damaged one"
    # torch raises all of these on damaged files.
    damaged = (RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, OSError, AssertionError)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except UnpicklingError as error:  # its message advises to load the file with weights_only=False
        named = re.search(r"GLOBAL (\S+)", str(error))
        more = "more than tensors and plain values" + (f" ({named[1]})" if named else "")
        raise InputError(f"{wrong}: it holds {more}; nothing of it is run") from error
    except (*damaged, OverflowError, MemoryError, struct.error) as error:
        raise InputError(f"{wrong}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


def is_dense(value: Any) -> bool:
    """Whether ``value`` is a dense tensor of real numbers: not sparse, nested, quantized or on the meta device."""
    import torch

    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_quantized or value.is_nested or value.is_complex())
    )
