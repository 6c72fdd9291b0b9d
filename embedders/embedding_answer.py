"""Parse and check responses of the OpenAI embeddings protocol, including error responses.

body = b'{"data": [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]}'
vectors_of(body, texts=2, most_dimensions=16)   # [[1, 0], [0, 1]]

An answer is untrusted: its values are counted before it is parsed, it is read as UTF-8 whatever its headers say, and
messages quote only its beginning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import numpy as np

from unembed.embedders.cache.shards import Vectors

_QUOTED_BYTES = 2**13
_OTHER_VALUES, _SPARE_VALUES = 64, 4096  # allowed besides the vectors: per text, and per answer
_NUMBERS = {int, float, type(None)}


class NoJSONError(ValueError):
    """An answer that cannot be parsed; the message is its beginning."""


def vectors_of(body: bytes | bytearray, texts: int, most_dimensions: int) -> Vectors:
    """The vectors of an answer in the order of its index fields, (texts, d) float32.

    null becomes NaN, and numbers that overflow float32 become infinity.

    Args:
        most_dimensions: Largest accepted dimension. An answer with far more values is not parsed, since parsed JSON
            can take thirty times its size in memory.

    Raises:
        NoJSONError: The answer cannot be parsed.
        ValueError: The answer is not a list of ``texts`` vectors of one dimension with the indices 0 to ``texts`` - 1.
            The message quotes at most the beginning of the answer.
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
    # Sort by the index field: the protocol does not guarantee the order of the list.
    indices = [row.get("index") for row in rows]
    if {index for index in indices if type(index) is int} != set(range(texts)):
        shown = [index if isinstance(index, str | int | float | None) else "..." for index in indices]
        raise ValueError(
            f"the index fields are not 0 to {texts - 1}, each once, so it is unknown whose the vectors are: "
            f"{json.dumps(shown)}"
        )
    ordered = [row["embedding"] for row in sorted(rows, key=lambda row: row["index"])]
    # NumPy would also convert strings such as "0.5" and booleans.
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
    """The error message in the body of an error response, or the beginning of the body."""
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
    """Seconds until the time given by the Retry-After header (a number or a date); None without a valid header."""
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
