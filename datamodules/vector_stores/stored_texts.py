"""Texts that a store holds beside its vectors: Chroma's documents, fields of a payload, columns of a table.

    stored_texts(store, [0, 7], "body")       # {0: "I am Ada.", 7: "See you at noon."}

Without a field the first of ``FIELDS`` that the rows have is taken, or the only text of each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from unembed.core.errors import InputError, did_you_mean, listed
from unembed.datamodules.vector_stores.sampling import FETCHED_TOGETHER, VectorStore

STORE = "store"  # texts=store, texts=store:<field>
# What client libraries and frameworks call the text of a row.
FIELDS = ("document", "text", "page_content", "content", "chunk_text", "chunk", "passage", "body")
LOOKED_AT = 20  # rows whose fields are known before one is chosen


@runtime_checkable
class TextStore(VectorStore, Protocol):
    """A store that holds texts, too."""

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """Text fields of ``ids[position]`` for each position, by name; only ``field``, where one is given."""
        ...


def held_by_store(texts: str | None) -> bool:
    """Whether ``texts`` is ``store`` or ``store:<field>``: the true texts are those beside the vectors."""
    return texts is not None and texts.partition(":")[0] == STORE and not Path(texts).exists()


def stored_texts(store: VectorStore, positions: Sequence[int], field: str | None) -> tuple[str, dict[int, str]]:
    """The field that was read, and the texts by position, without blank ones.

    Raises:
        InputError: The store holds vectors alone; no such field, none that can be chosen, or no text in it.
    """
    if not isinstance(store, TextStore):
        raise InputError(f"texts=store: {store.name} holds vectors alone; give a file with the texts")
    if field is None:
        field = _chosen(store, positions)
    found: dict[int, str] = {}
    for start in range(0, len(positions), FETCHED_TOGETHER):
        part = positions[start : start + FETCHED_TOGETHER]
        for place, texts in zip(part, store.texts(part, field), strict=True):
            if (text := str(texts.get(field, ""))).strip():
                found[place] = text
    if not found:
        known = {name for texts in store.texts(positions[:LOOKED_AT]) for name in texts}
        hint = f"no text in any of {len(positions)} rows" if field in known else f"no such text; {_hint(field, known)}"
        raise InputError(f"texts=store:{field}: {store.name} has {hint}")
    return field, found


def _chosen(store: TextStore, positions: Sequence[int]) -> str:
    """The field of the texts: the first of the usual ones, or the only one."""
    known = {name for texts in store.texts(positions[:LOOKED_AT]) for name in texts}
    usual = [name for name in FIELDS if name in known]
    if not usual and len(known) != 1:
        raise InputError(
            f"texts=store: {store.name} has " + ("no texts beside its vectors" if not known else "several texts; ")
            + (f"give texts=store:<one of {listed(sorted(known))}>" if known else "; give a file with the texts")
        )  # fmt: skip
    return usual[0] if usual else next(iter(known))


def _hint(field: str, known: set[str]) -> str:
    return did_you_mean(field, known) if known else "it holds no texts beside its vectors"
