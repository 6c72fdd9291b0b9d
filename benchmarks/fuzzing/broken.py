"""Strategies of broken content: bytes changed, values within a tree replaced, files that are larger than they look.

Nothing hostile leads out of the folder of one input (fuzzing/child.py): what would remove ``..`` removes that folder.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from .child import Read

Inputs = st.SearchStrategy[bytes]

GROWN = b"\n#grown-to:"  # at the end of an input, with a size: the file gets as long, of zeros that take no disk
GROWN_SIZES = (50_000_000, 3_000_000_000)
PATHS = ["..", "../outside", "../outside/keep", "local://../outside", "file://../outside", "../outside/made", "../made"]
NUMBERS = [0, 1, -1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1]
WORDS = [b"1e999", b"NaN", b"-1", b"9" * 400, b"9" * 5000, b"[" * 99, b"[" * 100_000, b"null", b"\xff"]
VALUES: list[Any] = [
    None, True, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"),
    "", "a", "1", "\ud800", "\x1b[31m", "\u202e", "a" * 5000, [], {}, [[]], [None], {"a": {}}, *PATHS,
]  # fmt: skip


def written(path: Path, content: bytes) -> Path:
    """Write an input, in its true length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    grown = re.search(re.escape(GROWN) + rb"(\d{1,12})\Z", content[-40:])
    path.write_bytes(content[: -len(grown[0])] if grown else content)
    if grown:
        os.truncate(path, int(grown[1]))
    return path


def weighted(*choices: tuple[int, Inputs]) -> Inputs:
    """Each strategy as often as its weight says."""
    numbers = [number for number, (weight, _) in enumerate(choices) for _ in range(weight)]
    return st.sampled_from(numbers).flatmap(lambda number: choices[number][1])


@st.composite
def changed(draw: st.DrawFn, whole: bytes) -> bytes:
    """A good file with something done to it, up to four times."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        end = min(len(content), place + draw(st.integers(0, 16)))
        kind = draw(st.sampled_from(["flip", "cut", "remove", "double", "insert", "word", "number"]))
        if kind == "flip" and place < len(content):
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[place:]
        elif kind == "remove":
            del content[place:end]
        elif kind == "double":
            content[place:place] = content[place:end] * draw(st.sampled_from([1, 2, 50]))
        elif kind == "insert":
            content[place:place] = draw(st.binary(max_size=8))
        elif kind == "number":  # over what stands there: lengths and counts of binary files
            size = draw(st.sampled_from([2, 4, 8]))
            packed = struct.pack("<q", draw(st.sampled_from(NUMBERS)))[:size]
            place -= draw(st.sampled_from([0, place % size]))
            content[place : place + size] = packed
        else:
            content[place:place] = draw(st.sampled_from(WORDS))
    return bytes(content)


@st.composite
def replaced(draw: st.DrawFn, tree: Any, values: st.SearchStrategy[Any]) -> Any:
    """A tree of lists and mappings in which up to three parts are replaced, removed, or exchanged with others."""
    root = [copy.deepcopy(tree)]
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(root))
        parent, key = draw(st.sampled_from(places))
        kind = draw(st.sampled_from(["replace", "replace", "remove", "exchange", "wrap", "key"]))
        if kind == "exchange":
            other, its_key = draw(st.sampled_from(places))
            parent[key] = copy.deepcopy(other[its_key])
        elif kind == "wrap":
            parent[key] = [parent[key]]
        elif kind == "remove" and parent is not root:
            del parent[key]
        elif kind == "key" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["", "a", "\x1b[31m", "0", *PATHS]))] = draw(values)
        else:
            parent[key] = draw(values)
    return root[0]


def json_values() -> st.SearchStrategy[Any]:
    """Values as JSON has them, mostly those that somebody stumbled over once."""
    names = st.sampled_from(["text", "split", "spans", "vector", "index", "kind", "_target_", "a"])
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    deep = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner), max_leaves=6)
    return st.sampled_from(VALUES) | st.sampled_from(VALUES) | deep


def json_lines() -> Inputs:
    """Lines of JSON of nothing in particular."""
    return st.lists(json_values(), max_size=4).map(lines_of)


def lines_of(rows: Any) -> bytes:
    """A value a line."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in (rows if isinstance(rows, list) else [rows]))


def json_of(value: Any) -> bytes:
    """One value."""
    return json.dumps(value).encode()


def grown(whole: bytes) -> Inputs:
    """A good file that is much larger than what stands in it; it takes no place on the disk."""
    return st.sampled_from([whole + GROWN + str(size).encode() for size in GROWN_SIZES])


def inputs(whole: bytes, *more: tuple[int, Inputs]) -> Inputs:
    """All kinds of files for a reader of files like ``whole``; a hundred is the weight of what every reader gets."""
    return weighted((69, changed(whole)), (20, json_lines()), (10, st.binary(max_size=200)), (1, grown(whole)), *more)


def trees(whole: bytes, dump: Callable[[Any], bytes] = json_of, *more: tuple[int, Inputs]) -> Inputs:
    """As ``inputs``, of JSON (objects, or lines of them), half of it sound JSON of other values."""
    tree = [json.loads(line) for line in whole.splitlines()] if dump is lines_of else json.loads(whole)
    return inputs(whole, (100, replaced(tree, json_values()).map(dump)), *more)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """All lists and mappings within a tree, with each of their keys."""
    for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(child)


@dataclass(frozen=True, slots=True)
class Reader:
    """Something of ours that reads what others wrote.

    Attributes:
        read: Reads bytes, given a directory to put them into.
        good: Makes sound bytes; in a process of its own, since it may start threads.
        inputs: Strategy of broken ones, given the sound ones.
        share: Of the inputs that the others get, since some take long.
    """

    read: Read
    good: Callable[[], bytes]
    inputs: Callable[[bytes], Inputs] = inputs
    share: float = 1.0


# -- pickles that should not be loaded --------------------------------------------------------------------------------

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
