"""Read a pickle as plain data: every class becomes a placeholder, so nothing is imported or executed.

    point = pickled_data(pickle.dumps(PointStruct(id=1, vector=[0.5])), allowed)
    point.name, point.state     # "qdrant_client.http.models.models.PointStruct", {"__dict__": {"id": 1, ...}, ...}

This is Python's own unpickler, restricted as its documentation says ("Restricting Globals").
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

# What damaged bytes make of the unpickler and of the stand-ins.
_BROKEN = (pickle.UnpicklingError, ValueError, LookupError, TypeError, AttributeError, EOFError, OverflowError,
           MemoryError)  # fmt: skip


class PickledDataError(Exception):
    """A damaged pickle, or one that names a class which is not allowed."""


class Stored:
    """Placeholder of an object of any class.

    Attributes:
        name: Name of its class, with the module.
        state: The pickled state of the object; None if there is none.
    """

    name = ""
    state: Any = None

    def __new__(cls, *arguments: object, **named: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *arguments: object, **named: object) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes, allowed: Callable[[str, str], bool]) -> None:
        super().__init__(io.BytesIO(content))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> type[Stored]:
        if not self._allowed(module, name):
            raise PickledDataError(f"it names {module}.{name}; nothing of it was run")
        return _stand_in(f"{module}.{name}")


@lru_cache(maxsize=256)
def _stand_in(name: str) -> type[Stored]:
    return type("Stored", (Stored,), {"name": name})


def pickled_data(content: bytes, allowed: Callable[[str, str], bool]) -> Any:
    """The data of a pickle.

    Args:
        content: The pickle.
        allowed: Whether a class may be named, by its module and name.

    Raises:
        PickledDataError: It is damaged, or names a class that is not allowed.
    """
    try:
        return _Reader(content, allowed).load()
    except _BROKEN as error:
        raise PickledDataError(f"damaged: {' '.join(str(error).split())}") from error
