"""What an answer of the OpenAI embeddings protocol must be, and what a refusal says.

body = b'{"data": [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]}'
vectors_of(body, texts=2, most_dimensions=16)   # [[1, 0], [0, 1]]

An answer is untrusted: it is counted before it is parsed, read as UTF-8 whatever its headers say, and quoted by its
beginning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import numpy as np

from embedders.cache.shards import Vectors

_QUOTED_BYTES = 2**13
_OTHER_VALUES, _SPARE_VALUES = 64, 4096  # beside the numbers: of each text, of the whole answer
_NUMBERS = {int, float, type(None)}


class NoJSONError(ValueError):
    """An answer that cannot be parsed; the message is its beginning."""


def vectors_of(body: bytes | bytearray, texts: int, most_dimensions: int) -> Vectors:
    """The vectors of an answer in the order of its index fields, (texts, d) float32; null and what overflows as such.

    Args:
        most_dimensions: Of a vector. An answer of far more values than that makes is not parsed: a list of small ones
            takes thirty times as much memory as it has bytes.

    Raises:
        NoJSONError: It cannot be parsed.
        ValueError: The answer is no list of as many lists of numbers, all of one length, each with an index
            of its own. The message quotes at most the beginning of the answer.
    """
    values = body.count(b",") + body.count(b"[") + body.count(b"{")
    if values > texts * (most_dimensions + _OTHER_VALUES) + _SPARE_VALUES:
        raise ValueError(f"the answer holds {values:,} values, too many for {texts} vectors: {beginning(body)}")
    answer = _parsed(body)
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "embedding" in row for row in rows):
        raise ValueError(f"the answer holds no list of vectors: {beginning(body)}")
    if len(rows) != texts:
        raise ValueError(f"gave {len(rows)} vectors for {texts} texts")
    # The field decides, not the order of the list: the protocol promises nothing about that.
    indices = [row.get("index") for row in rows]
    if {index for index in indices if type(index) is int} != set(range(texts)):
        shown = [index if isinstance(index, str | int | float | None) else "..." for index in indices]
        raise ValueError(
            f"the index fields are not 0 to {texts - 1}, each once, so it is unknown whose the vectors are: "
            f"{json.dumps(shown)}"
        )
    ordered = [row["embedding"] for row in sorted(rows, key=lambda row: row["index"])]
    # NumPy would also take texts such as "0.5", and true.
    if not all(isinstance(vector, list) and set(map(type, vector)) <= _NUMBERS for vector in ordered):
        raise ValueError("gave an embedding that is no list of numbers")
    found = sorted({len(vector) for vector in ordered})
    if len(found) > 1 or found[0] == 0:
        raise ValueError(f"gave vectors of the dimensions {', '.join(map(str, found))} in one answer")
    try:
        with np.errstate(over="ignore"):
            return np.array(ordered, dtype=np.float32)  # null becomes NaN
    except OverflowError as error:
        raise ValueError("gave an embedding that is no list of numbers") from error


def words_of(body: bytes | bytearray) -> str:
    """The message in a refusal's body, in one of the forms in use, or the body."""
    try:
        found = _parsed(body)
    except NoJSONError as error:
        return str(error)
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else beginning(body)


def beginning(body: bytes | bytearray) -> str:
    """The first characters of an answer, as UTF-8."""
    return body[:_QUOTED_BYTES].decode("utf-8", errors="replace")


def _parsed(body: bytes | bytearray) -> object:
    try:
        return json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise NoJSONError(beginning(body)) from None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the Retry-After header asks to wait, in numbers or as a date; None without a sensible one."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
            seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
