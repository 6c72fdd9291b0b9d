"""Validation of the snapshot of an interrupted search, which may be untrusted.

    {"stage": 0, "found": [{"ids": [3, 7], "loss": 0.1, ...}, ...], "waiting": [5, 6], "book": {...}, "state": {...}}

Its numbers are target positions, token ids and tensor shapes, so each is checked against this search.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from unembed.attacks.lm_inversion.method import State
from unembed.core.tensor_files import is_dense


class _Found(BaseModel):
    """Of a target so far; see active_targets.Found."""

    model_config = ConfigDict(strict=True)

    ids: list[NonNegativeInt] | None
    loss: Annotated[float, AllowInfNan(True)]
    verified: bool
    iterations: NonNegativeInt
    passes: NonNegativeInt


class _Saved(BaseModel):
    """All of it but for the tensors."""

    model_config = ConfigDict(strict=True)

    stage: NonNegativeInt
    found: list[_Found]
    waiting: list[NonNegativeInt]
    book: Annotated[dict[str, Any], Field(min_length=1)]
    state: dict[str, Any]


def fits(saved: Mapping[str, Any], *, stages: int, targets: int, vocabulary: int) -> bool:
    """Whether the plain values are those of a search of so many stages, targets and tokens."""
    try:
        found = _Saved.model_validate(dict(saved))
    except ValidationError:
        return False
    ids = [number for one in found.found for number in one.ids or ()]
    return (
        found.stage < stages
        and len(found.found) == targets
        and all(place < targets for place in found.waiting)
        and all(number < vocabulary for number in ids)
    )


def book_fits(book: State, fresh: State, *, targets: int, vocabulary: int) -> bool:
    """Whether a book is like a fresh one (of one target), and names targets and tokens that exist."""
    if book.keys() != fresh.keys() or not all(is_dense(tensor) and tensor.ndim for tensor in book.values()):
        return False
    rows = len(book["target"])
    alike = all(
        book[name].dtype == own.dtype and book[name].shape == (rows, *own.shape[1:]) for name, own in fresh.items()
    )
    return (
        alike
        and bool(((book["target"] >= 0) & (book["target"] < targets)).all())
        and bool((book["iteration"] >= 0).all())
        and all(bool(((book[name] >= -1) & (book[name] < vocabulary)).all()) for name in ("ids", "before"))
    )


def state_fits(state: State, fresh: State, *, vocabulary: int) -> bool:
    """Whether the method's state has the tensors, shapes and kinds of numbers of a fresh one for the same rows."""
    return state.keys() == fresh.keys() and all(
        is_dense(state[name])
        and state[name].is_floating_point() == own.is_floating_point()
        and state[name].shape == own.shape
        and (name != "ids" or bool(((state[name] >= 0) & (state[name] < vocabulary)).all()))
        for name, own in fresh.items()
    )
