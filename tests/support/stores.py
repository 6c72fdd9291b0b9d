"""What the tests of every vector store share: rows to write, and what a reader must give back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.sampling import open_store, sample_store, stored_texts

DIMENSION = 6
ROWS = 30
VECTORS = np.random.default_rng(0).normal(size=(ROWS, DIMENSION)).astype(np.float32)
TEXTS = [f"Ada wrote letter {row}" for row in range(ROWS)]
TITLES = [f"T{row}" for row in range(ROWS)]


def check_store(
    address: str, ids: Sequence[str], collection: str | None = None, field: str = "text", title: str = "meta.title"
) -> None:
    """The store holds ``VECTORS[row]``, ``TEXTS[row]`` and ``TITLES[row]`` under ``ids[row]``, and nothing else.

    Vectors of another dimension are refused.
    """
    store = open_store(address, DIMENSION, collection)
    whole = sample_store(store, DIMENSION)
    assert sorted(whole.ids) == sorted(ids)
    row_of = {one: row for row, one in enumerate(ids)}
    for one, vector in zip(whole.ids, whole.vectors.numpy(), strict=True):
        assert vector == pytest.approx(VECTORS[row_of[one]], abs=1e-6)
    sample = sample_store(store, DIMENSION, limit=4, seed=3)
    rows = [row_of[one] for one in sample.ids]
    assert sample.vectors.numpy() == pytest.approx(VECTORS[rows], abs=1e-6)
    places = sample.positions
    assert stored_texts(store, places, None) == (field, dict(zip(places, [TEXTS[row] for row in rows], strict=True)))
    assert stored_texts(store, places, title)[1] == dict(zip(places, [TITLES[row] for row in rows], strict=True))
    with pytest.raises(InputError, match=f"vectors of dimension {DIMENSION}, but"):
        sample_store(store, 384)


def refusal(address: str, collection: str | None = None, dimension: int = DIMENSION) -> str:
    """The message of one line with which a store is refused."""
    with pytest.raises(InputError) as raised:
        sample_store(open_store(address, dimension, collection), dimension)
    message = str(raised.value)
    assert "\n" not in message
    return message


def refused_field(address: str, field: str | None, collection: str | None = None) -> str:
    """The message with which texts in ``field`` are refused."""
    with pytest.raises(InputError) as raised:
        stored_texts(open_store(address, DIMENSION, collection), [0], field)
    return str(raised.value)
