"""Retrieval collections: documents, queries, and relevance labels of query-document pairs.

    collection = BeirCollection("scifact").read()       # a directory or a data set of the hub
    collection.documents[4].text, collection.queries[0].text, collection.relevance[0]      # {"31715818": 1}

``beir`` and ``clirmatrix`` beside this file read files; what does not fit together is
found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lightning.pytorch.utilities import rank_zero_warn

from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Example


class Entry(NamedTuple):
    """A document or a query of a file."""

    name: str
    text: str
    language: str | None


class RelevanceLabel(NamedTuple):
    """The relevance label of a document for a query; grades of 0 or less mean irrelevant."""

    query: str
    document: str
    grade: int


@dataclass(frozen=True)
class Collection:
    """A retrieval collection.

    Attributes:
        documents: Full texts without blank ones; ``index`` is the position.
        document_ids: Id of each document.
        queries: Full texts of the queries with a relevant document; ``index`` is the position.
        query_ids: Id of each query.
        relevance: Relevance labels of each query: grades by document id. Missing documents are included, as in
            trec_eval, so that metrics are comparable.
        left_out: Counts of the entries that were left out; see ``assembled``.
        skip_same_id: Whether a document with the same id as a query is skipped in its ranking.
    """

    documents: Sequence[Example]
    document_ids: Sequence[str]
    queries: Sequence[Example]
    query_ids: Sequence[str]
    relevance: Sequence[Mapping[str, int]]
    left_out: Mapping[str, int] = field(default_factory=dict)
    skip_same_id: bool = False


@runtime_checkable
class CollectionSource(Protocol):
    """Reads a collection."""

    def read(self) -> Collection: ...


def assembled(
    name: str,
    documents: Iterable[tuple[str, Entry]],
    queries: Iterable[tuple[str, Entry]],
    relevance: Iterable[tuple[str, RelevanceLabel]],
    skip_same_id: bool = False,
) -> Collection:
    """Assemble a collection; inconsistent entries are left out, counted and reported in one warning.

    Left out are blank documents and queries, labels of unknown queries, and queries without a relevant document, for
    which metrics are undefined. Labels of unknown documents are counted, but stay in ``relevance``.

    Args:
        name: For messages.
        documents: Each with its position in a file, in search order.
        queries: Each with its position in a file; queries without labels are not used.
        relevance: Relevance labels, each with its position in a file.
        skip_same_id: See Collection.

    Raises:
        InputError: An id is repeated, labels contradict each other, or no query is left.
    """
    left_out: Counter[str] = Counter()
    all_documents, all_queries = _distinct("documents", documents), _distinct("queries", queries)
    known = {one: entry for one, entry in all_documents.items() if entry.text.strip()}
    asked = {one: entry for one, entry in all_queries.items() if entry.text.strip()}
    left_out["blank documents"] = len(all_documents) - len(known)
    grades: dict[str, dict[str, int]] = {}
    overlap = False
    for where, (query, document, grade) in relevance:
        of_query = grades.setdefault(query, {})
        if of_query.setdefault(document, grade) != grade:
            raise InputError(
                f"{where}: query {query!r} and document {document!r} were labelled {of_query[document]} before"
            )
        left_out["relevance labels of unknown documents"] += document not in all_documents
        left_out["relevance labels of unknown queries"] += query not in all_queries
        overlap = overlap or (document in known and query in asked)
    if not overlap:
        raise InputError(_apart(name, all_documents, all_queries, grades))
    left_out["blank queries"] = sum(one in grades and one not in asked for one in all_queries)
    labelled = [one for one in asked if one in grades]
    chosen = [one for one in labelled if any(grade > 0 for grade in grades[one].values())]
    left_out["queries without a relevant document"] = len(labelled) - len(chosen)
    counted = {what: count for what, count in left_out.items() if count}
    if counted:
        rank_zero_warn(f"collection {name}: {', '.join(f'{count:,} {what}' for what, count in counted.items())}")
    if not chosen:
        raise InputError(f"collection {name}: no document is relevant to any of {len(labelled)} labelled queries")
    return Collection(
        documents=[Example(place, entry.text, language=entry.language) for place, entry in enumerate(known.values())],
        document_ids=list(known),
        queries=[Example(place, asked[one].text, language=asked[one].language) for place, one in enumerate(chosen)],
        query_ids=chosen,
        relevance=[grades[one] for one in chosen],
        left_out=counted,
        skip_same_id=skip_same_id,
    )


def _apart(
    name: str, documents: Mapping[str, Entry], queries: Mapping[str, Entry], grades: Mapping[str, Mapping[str, int]]
) -> str:
    """Explain why no relevance label has a known query and document, with one id of each kind."""
    if not grades:
        return f"collection {name}: there are no relevance labels"
    labelled = next(iter(grades.items()))
    samples = {
        "documents": (len(documents), next(iter(documents), "none"), next(iter(labelled[1]))),
        "queries": (len(queries), next(iter(queries), "none"), labelled[0]),
    }
    said = (
        f"{count:,} {kind} such as {one!r}, labelled such as {other!r}" for kind, (count, one, other) in samples.items()
    )
    return f"collection {name}: no relevance label joins a known query to a known document ({'; '.join(said)})"


def _distinct(kind: str, entries: Iterable[tuple[str, Entry]]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for where, entry in entries:
        if entry.name in found:
            raise InputError(f"{where}: two {kind} have the id {entry.name!r}")
        found[entry.name] = entry
    return found


def name_of(row: Mapping[str, Any], field_name: str, where: str) -> str:
    if row.get(field_name) in (None, ""):
        hint = did_you_mean(field_name, map(str, row))
        raise InputError(
            f"{where}: no {field_name!r}; {hint}" if field_name not in row else f"{where}: {field_name} is empty"
        )
    return str(row[field_name]).strip()


def text_of(row: Mapping[str, Any], field_name: str, where: str) -> str:
    if field_name not in row:
        raise InputError(f"{where}: no field {field_name!r}; {did_you_mean(field_name, map(str, row))}")
    text = row[field_name]
    if not isinstance(text, str):
        raise InputError(f"{where}: {field_name} should be a text, not {type(text).__name__}")
    return text


def grade_of(row: Mapping[str, Any], where: str) -> int:
    value = row.get("score")
    try:
        grade = float(str(value))
        if grade != int(grade):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise InputError(f"{where}: the score should be a whole number, not {value!r:.40}") from error
    return int(grade)
