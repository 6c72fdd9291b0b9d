"""Pickles that should not be loaded, and how to make them: calls, endless sizes, changed ones."""

from __future__ import annotations

import pickle
import struct

from hypothesis import strategies as st

from .broken import Inputs, changed, weighted

MADE = "../outside/made"
# What a pickle could call: each makes a directory or a file outside, where the child looks for one.
_CALLS = [
    ("os", "mkdir", (MADE,)), ("posix", "mkdir", (MADE,)), ("os", "makedirs", (MADE,)),
    ("os", "system", (f"mkdir {MADE}",)),
    ("builtins", "eval", (f"__import__('os').mkdir('{MADE}')",)), ("builtins", "exec", (f"open('{MADE}', 'w')",)),
    ("builtins", "open", (MADE, "w")), ("__builtin__", "open", (MADE, "w")), ("io", "open", (MADE, "w")),
    ("pathlib", "os.mkdir", (MADE,)), ("qdrant_client.http.models.models", "os.mkdir", (MADE,)),
    ("qdrant_client.http.models", "models.open", (MADE, "w")),
    ("qdrant_client.local.persistence", "sqlite3.connect", (MADE,)),
    ("torch", "save", ([], MADE)), ("torch.serialization", "os.mkdir", (MADE,)), ("torch", "load", (MADE,)),
    ("numpy", "save", (MADE, [1])), ("logging", "FileHandler", (MADE,)), ("shutil", "rmtree", ("../outside",)),
    ("os", "unlink", ("../outside/keep",)), ("collections", "OrderedDict", ()), ("datetime", "timedelta", (10**9,)),
    ("uuid", "UUID", ("1",)), ("qdrant_client.http.models.models", "PointStruct", ()),
]  # fmt: skip


def calling(module: str, name: str, arguments: tuple[object, ...]) -> bytes:
    """A pickle that calls something."""
    given = pickle.dumps(arguments, 2)[2:-1]
    return b"\x80\x04" + _text(module) + _text(name) + b"\x93" + given + b"R."


CALLS = st.sampled_from(_CALLS).map(lambda call: calling(*call))


def hostile(sound: bytes) -> Inputs:
    """Pickles: calls, sizes without end, and ``sound`` with bytes changed."""
    sizes = st.sampled_from([2**20, 2**27 - 1, 2**31 - 1, 2**31, 2**32 - 1])
    long = st.sampled_from([2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1])
    wide = st.builds(lambda code, size: b"\x80\x05" + code + struct.pack("<I", size) + b"N.", st.sampled_from(
        [b"B", b"X", b"T", b"\x8b", b"Nr", b"Nj", b"r", b"\x84"]), sizes)  # fmt: skip
    wider = st.builds(lambda code, size: b"\x80\x05" + code + struct.pack("<Q", size) + b"N.", st.sampled_from(
        [b"\x8e", b"\x8d", b"\x96", b"\x95"]), long)  # fmt: skip
    doubling = b"\x80\x04]" + b"2\x862" * 40 + b"."  # a tuple of two of itself, forty times
    deep = st.sampled_from([b"(" * 10**5 + b"t" * 10**5 + b".", b"]" * 10**5 + b"a" * (10**5 - 1) + b".", doubling])
    return weighted((3, changed(sound)), (2, CALLS), (1, wide), (1, wider), (1, deep), (1, st.binary(max_size=60)))


def _text(word: str) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word.encode()
