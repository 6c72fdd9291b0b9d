"""What an answer of the OpenAI embeddings protocol must be, and what a refusal says.

rows = [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]
vectors_of({"data": rows}, texts=2)   # [[1, 0], [0, 1]]
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import numpy as np

from embedders.shards import Vectors

if TYPE_CHECKING:
    import httpx


def vectors_of(answer: object, texts: int) -> Vectors:
    """The vectors of an answer in the order of its index fields, (texts, d) float32.

    Raises:
        ValueError: The answer is no list of as many finite vectors of one width, each with an index of its own.
    """
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "embedding" in row for row in rows):
        raise ValueError(f"the answer holds no list of vectors: {json.dumps(answer)}")
    if len(rows) != texts:
        raise ValueError(f"gave {len(rows)} vectors for {texts} texts")
    # The field decides, not the order of the list: the protocol promises nothing about that.
    indices = [row.get("index") for row in rows]
    if {index for index in indices if type(index) is int} != set(range(texts)):
        raise ValueError(
            f"the index fields are not 0 to {texts - 1}, each once, so it is unknown whose the vectors are: "
            f"{json.dumps(indices)}"
        )
    ordered = [row["embedding"] for row in sorted(rows, key=lambda row: row["index"])]
    if not all(isinstance(vector, list) for vector in ordered):
        raise ValueError("gave an embedding that is no list of numbers")
    widths = sorted({len(vector) for vector in ordered})
    if len(widths) > 1 or widths[0] == 0:
        raise ValueError(f"gave vectors of the widths {', '.join(map(str, widths))} in one answer")
    try:
        with np.errstate(over="ignore"):
            vectors = np.array(ordered, dtype=np.float32)  # null becomes NaN
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError("gave an embedding that is no list of numbers") from error
    if vectors.ndim != 2:
        raise ValueError("gave an embedding that is no list of numbers")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(f"gave NaN, null or infinity for text {int(finite.argmin())} of a request")
    return vectors


def words_of(response: httpx.Response) -> str:
    """The message in a refusal's body, in one of the forms in use, or the body."""
    try:
        found = response.json()
    except ValueError:
        return response.text
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


def retry_after(response: httpx.Response) -> float | None:
    """Seconds that the Retry-After header asks to wait, in numbers or as a date; None without a sensible one."""
    value = response.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return None if math.isnan(seconds) else max(seconds, 0.0)
