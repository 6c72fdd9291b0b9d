"""The plain data in a pickle, without unpickling it: a pickle is a program, of which only what makes data is followed.

    pickled_data(pickle.dumps(PointStruct(id=1, vector=[0.5])), allowed)
    # Stored("qdrant_client.http.models.models.PointStruct", {"__dict__": {"id": 1, "vector": [0.5]}, ...})

Numbers, texts, lists, tuples, dicts and sets are made. A class becomes its name, and an object of it a ``Stored`` with
that name and its state: nothing is imported, and nothing is called, whatever a pickle asks for.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class PickledDataError(Exception):
    """No pickle, a damaged one, or one that names what it should not."""


@dataclass(frozen=True, slots=True)
class _Class:
    name: str


@dataclass(slots=True)
class Stored:
    """What stands for an object.

    Attributes:
        name: Of its class, with the module.
        state: What its class would be given to restore it; None where that is nothing.
    """

    name: str
    state: Any = None


# Opcodes whose argument, as pickletools decodes it, is the value.
_VALUES = frozenset((
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
))  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set,
}  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
# What damaged bytes do to pickletools and to the steps below.
_BROKEN = (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError)


def pickled_data(content: bytes, allowed: Callable[[str, str], bool]) -> Any:
    """The data of a pickle of protocol 2 or later.

    Args:
        content: The pickle.
        allowed: Whether a class may be named, by its module and name.

    Raises:
        PickledDataError: It is damaged, is no such pickle, or names a class that is not allowed.
    """
    try:
        return _Machine(allowed).run(content)
    except _BROKEN as error:
        raise PickledDataError(f"damaged: {error}") from error


class _Machine:
    """The stack that a pickle works on; ``marks`` are places in it."""

    def __init__(self, allowed: Callable[[str, str], bool]) -> None:
        self.allowed = allowed
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        stack = self.stack
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name in _VALUES:  # nearly all of a vector
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            elif name == "STOP":
                return stack.pop()
            elif name not in ("PROTO", "FRAME"):
                self._step(name, argument)
        raise ValueError("no end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "MARK":
                self.marks.append(len(stack))
            case "APPEND":
                last = stack.pop()
                self._top(list).append(last)
            case "APPENDS":
                items = self._to_mark()
                self._top(list).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._top(dict)[key] = value
            case "SETITEMS":
                items = self._to_mark()
                self._top(dict).update(zip(items[::2], items[1::2], strict=True))
            case "ADDITEMS":
                items = self._to_mark()
                self._top(set).update(items)
            case "FROZENSET":
                stack.append(frozenset(self._to_mark()))
            case "TUPLE":
                stack.append(tuple(self._to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
            case "GLOBAL":
                stack.append(self._class(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                last, module = stack.pop(), stack.pop()
                stack.append(self._class(module, last))
            case "NEWOBJ" | "REDUCE":
                stack.pop()  # arguments
                stack.append(Stored(self._pop(_Class).name))
            case "NEWOBJ_EX":
                del stack[-2:]
                stack.append(Stored(self._pop(_Class).name))
            case "BUILD":
                state = stack.pop()
                self._top(Stored).state = state
            case _:
                raise ValueError(f"{name}, which makes no plain data")

    def _class(self, module: Any, name: Any) -> _Class:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise ValueError("a class without a name")
        if not self.allowed(module, name):
            raise PickledDataError(f"it names {module}.{name}; nothing of it was run")
        return _Class(f"{module}.{name}")

    def _to_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"no {kind.__name__} where one is changed")
        return self.stack[-1]

    def _pop(self, kind: type) -> Any:
        top = self._top(kind)
        self.stack.pop()
        return top
