"""Retrieval collections: documents, queries, and relevance labels of query-document pairs.

    collection = BeirCollection("scifact").read()       # a directory or a data set of the hub
    collection.documents[4].text, collection.queries[0].text, collection.relevance[0]      # {"31715818": 1}

BEIR's layout (Thakur et al. 2021), of which each file may be gzipped or .parquet, and the labels .jsonl:

    corpus.jsonl           {"_id": "4983", "title": "Microstructural ...", "text": "Alterations of ..."}
    queries.jsonl          {"_id": "0", "text": "0-dimensional biomaterials lack inductive properties."}
    qrels/test.tsv         query-id <tab> corpus-id <tab> score, with this header; or qrels.tsv for all queries

CLIRMatrix's files (Sun and Duh 2020), with queries in one language and documents in another:

    de.tsv                 4983 <tab> the document's text, without a header
    en_de.jsonl            {"src_id": "7", "src_query": "anarchism", "tgt_results": [["4983", 6], ["12", 0]]}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lightning.pytorch.utilities import rank_zero_warn

from unembed.core.errors import InputError, did_you_mean, missing
from unembed.core.examples import Example
from unembed.datamodules.sources.file_rows import existing, plain_rows, rows
from unembed.datamodules.sources.hub import HubSet


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


ENDINGS = (".jsonl", ".jsonl.gz", ".parquet", "/*.parquet", "/*.jsonl", "/*.jsonl.gz")
LABELS = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", "*.parquet")
QRELS = ("query-id", "corpus-id", "score")
BLANK = {"": ""}  # a line of nothing


@dataclass(frozen=True)
class BeirCollection:
    """A collection in BEIR's layout.

    Attributes:
        path: A directory, or ``owner/name`` on the hub.
        qrels: Another directory or data set with the relevance labels; null: ``path`` itself.
        split: Split of the labels: reads ``qrels/<split>.tsv``, or ``qrels.tsv`` if that is the only file.
        title: Put a document's title before its text, unless the text begins with it.
        language: ISO 639-1 code of texts whose row has no field ``language``.
        skip_same_id: Never count a document with the id of the query as found (ArguAna, Quora: queries are documents).
        revision: Branch, tag or commit on the hub.
    """

    path: str | None
    qrels: str | None = None
    split: str = "test"
    title: bool = True
    language: str | None = "en"
    skip_same_id: bool = False
    revision: str = "main"

    def __post_init__(self) -> None:
        if not self.path:
            raise InputError(
                "collection: missing, give it as collection=<a directory in BEIR's layout, or owner/name of the hub>"
            )

    def read(self) -> Collection:
        """The whole collection.

        Raises:
            InputError: A file is missing or malformed (named with its line), or the parts do not belong together.
        """
        return assembled(str(self.path), self.documents(), self._queries(), self._labels(), self.skip_same_id)

    def documents(self) -> Iterator[tuple[str, Entry]]:
        """The documents, each with its place in a file; the other files need not be there."""
        for where, row in self._rows("corpus"):
            text = text_of(row, "text", where)
            title = text_of(row, "title", where) if self.title and row.get("title") is not None else ""
            begun = text.lstrip().startswith(title.strip())
            whole = text if begun else f"{title.strip()} {text}"
            yield where, Entry(name_of(row, "_id", where), whole, self._language(row))

    def _queries(self) -> Iterator[tuple[str, Entry]]:
        for where, row in self._rows("queries"):
            yield where, Entry(name_of(row, "_id", where), text_of(row, "text", where), self._language(row))

    def _labels(self) -> Iterator[tuple[str, RelevanceLabel]]:
        stems = (f"qrels/{self.split}", *([self.split] if self.qrels else []), "qrels", f"data/{self.split}")
        folder = _folder(
            self.qrels or str(self.path), self.revision, [f"{stem}{end}" for stem in stems for end in LABELS]
        )
        found = next(filter(None, (_present(folder, stem, LABELS) for stem in stems)), None)
        if found is None:
            splits = sorted({file.name.partition(".")[0] for file in folder.glob("qrels/*") if file.is_file()})
            hint = f"split={self.split}: {did_you_mean(self.split, splits)}" if splits else f"{' '.join(QRELS)} a line"
            raise InputError(f"{folder}: no relevance labels qrels/{self.split}.tsv or qrels.tsv ({hint})")
        for file in found:
            for number, row in rows(file, ""):
                where = f"{file}:{number}"
                if row != BLANK:
                    query, document = (name_of(row, name, where) for name in QRELS[:2])
                    yield where, RelevanceLabel(query, document, grade_of(row, where))

    def document_files(self) -> list[Path]:
        """The files of the documents, fetched where they are not here.

        Raises:
            InputError: There are none.
        """
        return self._files("corpus")

    def _files(self, stem: str) -> list[Path]:
        folder = _folder(str(self.path), self.revision, [f"{stem}{end}" for end in ENDINGS])
        files = _present(folder, stem, ENDINGS)
        if not files:
            wanted = folder / f"{stem}.jsonl"
            raise InputError(f"{wanted}: {missing(wanted)}")
        return files

    def _rows(self, stem: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for file in self._files(stem):
            for number, row in rows(file, ""):
                if row != BLANK:
                    yield f"{file}:{number}", row

    def _language(self, row: Mapping[str, Any]) -> str | None:
        return str(row["language"]) if row.get("language") else self.language


def _folder(path: str, revision: str, patterns: Sequence[str]) -> Path:
    """The directory, or the files of that data set of the hub."""
    if not Path(path).expanduser().is_dir() and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path):
        raise InputError(f"collection {path}: no owner/name of the hub, and {missing(Path(path), 'directory')}")
    return HubSet(path, {"test": patterns}, texts=(), sizes={}, licence="", revision=revision).folder


def _present(folder: Path, stem: str, endings: Sequence[str]) -> list[Path]:
    """The files of the first ending that there are, in the order of their names."""
    found = (sorted(file for file in folder.glob(f"{stem}{ending}") if file.is_file()) for ending in endings)
    return next(filter(None, found), [])


@dataclass(frozen=True)
class ClirMatrixCollection:
    """Queries in one language and documents in another, in CLIRMatrix's files; .gz of each can be read.

    Attributes:
        documents: File of documents, ``id <tab> text`` a line.
        queries: File of queries, each with the grades of its labelled documents.
        query_language: ISO 639-1 code of the queries.
        document_language: ISO 639-1 code of the documents.
        judged_only: Search only the documents with a relevance label for some query, rather than a whole Wikipedia of
            millions of documents.
    """

    documents: str
    queries: str
    query_language: str
    document_language: str
    judged_only: bool = True

    def read(self) -> Collection:
        """The whole collection.

        Raises:
            InputError: A file is missing or malformed (named with its line), or the parts do not belong together.
        """
        queries: list[tuple[str, Entry]] = []
        relevance: list[tuple[str, RelevanceLabel]] = []
        file = existing(self.queries, "collection.queries")
        for number, row in _json_lines(file):
            where = f"{file}:{number}"
            query = Entry(name_of(row, "src_id", where), text_of(row, "src_query", where), self.query_language)
            queries.append((where, query))
            relevance += [(where, one) for one in self._results(query.name, row, where)]
        labelled = {one.document for _, one in relevance}
        found = (pair for pair in self._documents() if not self.judged_only or pair[1].name in labelled)
        return assembled(f"{self.queries} and {self.documents}", found, queries, relevance)

    def _documents(self) -> Iterator[tuple[str, Entry]]:
        file = existing(self.documents, "collection.documents")
        for number, row in plain_rows(file, "line"):
            name, tab, text = str(row["line"]).partition("\t")
            if not tab and name.strip():
                raise InputError(f"{file}:{number}: expected an id, a tab and a text, found {name!r:.60}")
            if tab:
                yield f"{file}:{number}", Entry(name.strip(), text, self.document_language)

    def _results(self, query: str, row: Mapping[str, Any], where: str) -> Iterator[RelevanceLabel]:
        results = row.get("tgt_results")
        if not isinstance(results, Sequence) or isinstance(results, str):
            raise InputError(f"{where}: tgt_results should be a list of [document, grade], not {results!r:.60}")
        for result in results:
            match result:
                case [str() | int() as document, int() | float() | str() as grade]:
                    yield RelevanceLabel(query, str(document), grade_of({"score": grade}, where))
                case _:
                    raise InputError(f"{where}: {result!r:.60} in tgt_results is not [document, grade]")


def _json_lines(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a file of JSON lines whatever it is called: the collection's own ending is .jl."""
    for number, row in plain_rows(file, "line"):
        line = str(row["line"])
        if line.strip():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{file}:{number}: not JSON ({error})") from error
            if not isinstance(content, dict):
                raise InputError(f"{file}:{number}: a line should be a JSON object, not {type(content).__name__}")
            yield number, content
