"""Examples in memory-mapped files: the same as in a list, whatever they hold and however they are read."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from unembed.core.examples import Example, Span
from unembed.datamodules.arrow_examples import IGNORED, ROWS, TokenIds, to_arrow

COUNT = 2 * ROWS + 10


def example(index: int) -> Example:
    """Of every kind one: with entities, with labels, with ids, and with nothing but a text."""
    kinds: list[dict[str, Any]] = [
        {},
        {"spans": (Span(0, 4, "word"), Span(5, 6, "number")), "language": "de", "group": "Ada"},
        {"attributes": {"city": "Paris", "year": "1815"}, "context": "hello\nthere", "original": f"{index}"},
        {"tokens": (index, 5), "token_labels": (None, "city")},
    ]
    return Example(index, f"text {index} é", **kinds[index % 4 if index < ROWS else 0])


EXAMPLES = [example(index) for index in range(COUNT)]


def test_what_is_read_is_what_was_stored() -> None:
    stored = to_arrow(iter(EXAMPLES))
    assert list(stored) == EXAMPLES
    assert stored == EXAMPLES
    assert [stored[index] for index in (0, 1, 2, 3, -1, ROWS)] == [EXAMPLES[index] for index in (0, 1, 2, 3, -1, ROWS)]
    assert stored[ROWS - 5 : ROWS + 5] == EXAMPLES[ROWS - 5 : ROWS + 5]
    assert stored[np.array([7, 2])] == [EXAMPLES[7], EXAMPLES[2]]
    assert stored[10:0:-3] == EXAMPLES[10:0:-3]
    assert list(stored.column("language"))[:3] == [None, "de", None]
    assert to_arrow(stored) is stored
    with pytest.raises(IndexError):
        stored[COUNT]
    labels = TokenIds(["a bb", "", "ccc"], lambda texts: [[len(word) for word in text.split()] for text in texts])
    assert labels.lengths.tolist() == [2, 0, 1]
    assert labels.padded(np.array([2, 0, 1])).tolist() == [[3, IGNORED], [1, 2], [IGNORED, IGNORED]]


def test_selections_and_several_lists() -> None:
    even = to_arrow(EXAMPLES).select(np.arange(0, COUNT, 2))
    assert [one.index for one in even] == list(range(COUNT // 2))
    assert [one.text for one in even] == [one.text for one in EXAMPLES[::2]]
    assert even.select(np.array([1, ROWS]))[1].text == EXAMPLES[2 * ROWS].text
    assert len(even.select(np.array([], np.int64))) == 0
    first, second = to_arrow(EXAMPLES[:ROWS]), to_arrow(EXAMPLES[ROWS:])
    texts = first.queries + second.queries
    expected = [one.query for one in EXAMPLES]
    assert list(texts) == expected
    assert texts[ROWS - 3 : ROWS + 3] == expected[ROWS - 3 : ROWS + 3]
    assert [texts[index] for index in (3, ROWS, -1)] == [expected[index] for index in (3, ROWS, -1)]
    assert list(first.texts) == [one.text for one in EXAMPLES[:ROWS]]
    assert not to_arrow(()).texts


def test_nothing_is_left_in_the_temporary_directory_or_the_cache_of_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home)
    stored = to_arrow(EXAMPLES).select(np.arange(5))
    assert list(tmp_path.iterdir()) == []
    assert list(stored) == EXAMPLES[:5]
