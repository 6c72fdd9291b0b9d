"""Safe reading of files written by torch.save: only tensors and plain values, no larger in memory than on disk.

    content = load(Path("runs/x/checkpoints/last.ckpt"), "a checkpoint")    # {"state_dict": {...}, ...}

torch.load(weights_only=True) creates no object of an arbitrary class, but it may create objects far larger than the
file, such as a bytearray of a given length or a view of one number as six billion. So the pickle is inspected before
it is loaded, and the shape of every tensor is compared with its storage before any computation.
"""

from __future__ import annotations

import pickletools
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_PICKLE = 8_000_000  # bytes of the pickle; that of a model with a thousand tensors has 200,000
_REPEATED = 4  # a weight may have several names: T5 has four for its embeddings
# Names allowed in a pickle besides storages and dtypes. Sparse and meta tensors are refused by name.
_NAMED = {
    "collections OrderedDict",
    "torch Size",
    "torch._utils _rebuild_meta_tensor_no_storage",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_sparse_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch.serialization _get_layout",
    "torch.storage UntypedStorage",
}
# Other opcodes that name or call a class. torch writes none of them, and its own unpickler rejects them; that of
# Lightning's FSDP strategy is Python's, which would run them. torch writes no sets either, of which a byte each
# would take 216 bytes of memory.
_OTHER_WAYS = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "EMPTY_SET", "FROZENSET"}
_END, _END_64, _PLACE_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")


def check(path: Path, what: str) -> None:
    """Check that a file holds only tensors and plain values as torch.save writes them, without creating any object.

    Args:
        path: The file.
        what: The expected content, for messages.

    Raises:
        InputError: It is damaged, compressed (it could expand to any size), or names anything else.
    """
    import torch

    _check_parts(path, what)
    damaged = f"{path}: not {what}, or one that is damaged or not of plain tensors"
    try:
        # torch's own reader, so that the inspected pickle is the one that is loaded.
        pickled: bytes = torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")
        asked = _asked_for(pickled) if len(pickled) <= _LARGEST_PICKLE else f"a pickle of {len(pickled):,} bytes"
    except (RuntimeError, ValueError, LookupError, OverflowError, MemoryError, struct.error) as error:
        raise InputError(f"{damaged}: {_first_line(error)}") from error
    if asked is not None:
        raise InputError(f"{damaged}: it asks for {asked}; nothing of it is read")


def load(path: Path, what: str) -> Any:
    """The content of a file that torch.save wrote, on the CPU.

    Args:
        path: The file.
        what: The expected content, for messages.

    Raises:
        InputError: See ``check`` and ``check_sizes``.
    """
    content = read(path, what)
    check_sizes(path, content)
    return content


def read(path: Path, what: str) -> Any:
    """Like ``load``, but the caller must call ``check_sizes`` before computing with the content.

    Raises:
        InputError: See ``check``.
    """
    from pickle import UnpicklingError

    import torch

    check(path, what)
    # torch's unpickler raises all of these on damaged files.
    tripped = (UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (*tripped, AssertionError, OverflowError, MemoryError, struct.error) as error:
        raise InputError(
            f"{path}: not {what}, or one that is damaged or not of plain tensors: {_first_line(error)}"
        ) from error


def is_dense(value: Any) -> bool:
    """Whether ``value`` is a dense tensor of real numbers: not sparse, nested, quantized or on the meta device."""
    import torch

    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_quantized or value.is_nested or value.is_complex())
    )


def _check_parts(path: Path, what: str) -> None:
    """Check that the parts of the archive are uncompressed, unique, and together no larger than the file.

    Raises:
        InputError: They are not; names the part.
    """
    try:
        if not zipfile.is_zipfile(path):  # the directory of a zip archive is at its end, so a truncated file has none
            raise InputError(f"{path}: not {what}, or a damaged one")
        if not _is_one_archive(path):
            raise InputError(
                f"{path}: not {what}: a zip archive that can be read as another file; nothing of it is read"
            )
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
        size = path.stat().st_size
    except (zipfile.BadZipFile, OSError, ValueError, LookupError, NotImplementedError, struct.error) as error:
        raise InputError(f"{path}: not {what}, or a damaged one: {error}") from error
    packed = [part for part in parts if part.compress_type != zipfile.ZIP_STORED]
    if packed:
        most = max(packed, key=lambda part: part.file_size)
        raise InputError(
            f"{path}: {most.filename} is packed, {most.file_size:,} bytes into {most.compress_size:,}, and torch "
            f"writes {what} unpacked; nothing of it is read"
        )
    if len({part.filename.casefold() for part in parts}) < len(parts) or sum(part.file_size for part in parts) > size:
        raise InputError(f"{path}: not {what}, or a damaged one: parts of it are duplicated or overlap")


def _is_one_archive(path: Path) -> bool:
    """Whether every reader finds the same parts: one directory, and no bytes before or after the archive.

    torch reads a file that does not start as a zip archive in its format of before 2020. It finds the directory at the
    offset given at the end of the file, Python's reader finds it immediately before that end.
    """
    with path.open("rb") as file:
        begins = file.read(4) == b"PK\3\4"
        size = path.stat().st_size
        file.seek(max(0, size - _END.size - _PLACE_64.size - _END_64.size))
        tail = file.read()
    if not begins or len(tail) < _END.size + _PLACE_64.size + _END_64.size:
        return False
    signature, *_, length, start, comment = _END.unpack(tail[-_END.size :])
    at = size - _END.size
    place = _PLACE_64.unpack(tail[_END_64.size : -_END.size])
    if place[0] == b"PK\6\7":
        at -= _PLACE_64.size + _END_64.size
        end = _END_64.unpack(tail[: _END_64.size])
        if (
            end[0] != b"PK\6\6"
            or place[2] != at
            or min(end[-2], 2**32 - 1) != length
            or min(end[-1], 2**32 - 1) != start
        ):
            return False
        length, start = end[-2:]
    return bool(signature == b"PK\5\6" and comment == 0 and start + length == at)


def check_sizes(path: Path, content: Any) -> None:
    """Compare the shape of every tensor with its stored size.

    Raises:
        InputError: A tensor is larger than its storage, all are larger together than the file, or one is not dense.
    """
    import torch

    most, total = _REPEATED * path.stat().st_size, 0
    for name, tensor in _tensors(content):
        if tensor.layout != torch.strided or tensor.is_meta:  # it has no storage to measure
            raise InputError(f"{path}: {name} is not a plain tensor: sparse, or without data")
        size, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
        total += size
        if size > stored or total > most:
            raise InputError(
                f"{path}: {name} has the shape {tuple(tensor.shape)}, {size:,} bytes, of which the file stores "
                f"{min(stored, size):,}: it would unfold to more than the file holds, so nothing of it is used"
            )


def _tensors(content: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested dictionaries, lists, tuples and sets, each once, with their keys."""
    import torch

    seen = set[int]()  # a pickle may repeat a nested list, or contain a list in itself
    waiting: list[tuple[str, Any]] = [("", content)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        inner = f"{name}." if name else ""
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, dict):
            waiting += [(f"{inner}{key!s:.100}", child) for key, child in value.items()]
            waiting += [(f"a key of {name}", key) for key in value if not isinstance(key, str)]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += [(f"{inner}{number}", child) for number, child in enumerate(value)]


def _asked_for(pickled: bytes) -> str | None:
    """The first name in a pickle that tensors and plain values do not need; None if there is none."""
    keys = _Keys()
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name == "GLOBAL" and not _is_plain(str(argument)):
            return str(argument).replace(" ", ".")
        if operation.name in _OTHER_WAYS:
            return f"the operation {operation.name}"
        keys.step(operation, argument)
        if keys.unfolded > _LARGEST_PICKLE:
            return "tuples in tuples"
    return None


class _Keys:
    """Follows a pickle's stack by sizes alone, to find keys of nested tuples, which take exponential time to hash.

    Attributes:
        unfolded: Values in all dictionary keys and values so far, counted as often as they would be visited.
    """

    def __init__(self) -> None:
        self.unfolded = 0
        self._stack: list[int | None] = []  # number of values in each item, 1 if it is no tuple; None is a mark
        self._kept: dict[int, int | None] = {}

    def step(self, operation: pickletools.OpcodeInfo, argument: Any) -> None:
        """Apply ``operation`` to the sizes as it would be applied to the values."""
        name, stack = operation.name, self._stack
        if name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self._kept[len(self._kept) if name == "MEMOIZE" else argument] = stack[-1]
            return
        if name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._kept[argument])
            return
        taken = 0
        for kind in reversed(operation.stack_before):
            size = stack.pop()
            while kind is pickletools.stackslice and size is not None:
                taken, size = taken + size, stack.pop()
            if kind is not pickletools.stackslice and kind is not pickletools.markobject:
                taken += size or 0
            elif kind is pickletools.stackslice:
                stack.append(size)  # the mark, popped next
        is_tuple = name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
        for kind in operation.stack_after:
            stack.append(None if kind is pickletools.markobject else min(taken + 1, 2**40) if is_tuple else 1)
        if name in ("SETITEM", "SETITEMS"):
            self.unfolded += taken


def _is_plain(named: str) -> bool:
    """Whether a name in a pickle ("module name") belongs to a tensor or a plain value."""
    import torch

    module, _, name = named.partition(" ")
    found = vars(torch).get(name) if module == "torch" else None
    return named in _NAMED or isinstance(found, torch.dtype) or (found is not None and name.endswith("Storage"))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
