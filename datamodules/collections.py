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

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from lightning.pytorch.utilities import rank_zero_warn
from pydantic import NonNegativeInt, PositiveInt

from unembed.core import limits
from unembed.core.errors import InputError, did_you_mean, missing
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow
from unembed.datamodules.sources.base import END, Fraction, completed, json_rows, plain_rows, rows
from unembed.datamodules.sources.hub import HubSet


class Entry(NamedTuple):
    """A document or a query; ``where`` is its file and line."""

    where: str
    name: str
    text: str
    language: str | None


class RelevanceLabel(NamedTuple):
    """The relevance label of a document for a query; grades of 0 or less mean irrelevant."""

    where: str
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
    documents: Iterable[Entry],
    queries: Iterable[Entry],
    relevance: Iterable[RelevanceLabel],
    skip_same_id: bool = False,
) -> Collection:
    """Assemble a collection; inconsistent entries are left out, counted and reported in one warning.

    Left out are blank documents and queries, labels of unknown queries, and queries without a relevant document, for
    which metrics are undefined. Labels of unknown documents are counted, but stay in ``relevance``.

    Raises:
        InputError: An id is repeated, labels contradict each other, or no query is left.
    """
    left_out: Counter[str] = Counter()
    all_documents, all_queries = _by_name("documents", documents), _by_name("queries", queries)
    known = {one: entry for one, entry in all_documents.items() if entry.text.strip()}
    asked = {one: entry for one, entry in all_queries.items() if entry.text.strip()}
    left_out["blank documents"] = len(all_documents) - len(known)
    grades: dict[str, dict[str, int]] = {}
    overlap = False
    for where, query, document, grade in relevance:
        of_query = grades.setdefault(query, {})
        if of_query.setdefault(document, grade) != grade:
            raise InputError(
                f"{where}: query {query!r} and document {document!r} were labelled {of_query[document]} before"
            )
        left_out["relevance labels of unknown documents"] += document not in all_documents
        left_out["relevance labels of unknown queries"] += query not in all_queries
        overlap = overlap or (document in known and query in asked)
    if not grades:
        raise InputError(f"collection {name}: there are no relevance labels")
    if not overlap:
        query, labels = next(iter(grades.items()))
        raise InputError(
            f"collection {name}: no relevance label joins a known query to a known document "
            f"({_samples('documents', all_documents, next(iter(labels)))}; {_samples('queries', all_queries, query)})"
        )
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


def _samples(kind: str, entries: Mapping[str, Entry], labelled: str) -> str:
    return f"{len(entries):,} {kind} such as {next(iter(entries), 'none')!r}, labelled such as {labelled!r}"


def _by_name(kind: str, entries: Iterable[Entry]) -> dict[str, Entry]:
    by_name: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in by_name:
            raise InputError(f"{entry.where}: two {kind} have the id {entry.name!r}")
        by_name[entry.name] = entry
    return by_name


def _name(row: Mapping[str, Any], field_name: str, where: str) -> str:
    if row.get(field_name) in (None, ""):
        hint = did_you_mean(field_name, map(str, row))
        raise InputError(
            f"{where}: no {field_name!r}; {hint}" if field_name not in row else f"{where}: {field_name} is empty"
        )
    return str(row[field_name]).strip()


def _text(row: Mapping[str, Any], field_name: str, where: str) -> str:
    if field_name not in row:
        raise InputError(f"{where}: no field {field_name!r}; {did_you_mean(field_name, map(str, row))}")
    text = row[field_name]
    if not isinstance(text, str):
        raise InputError(f"{where}: {field_name} should be a text, not {type(text).__name__}")
    return text


def _grade(value: Any, where: str) -> int:
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
    """A collection in BEIR's layout; the attributes are those of configs/tradeoff/collection/beir.yaml."""

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
        """The whole collection; an InputError names the line of a malformed file, or what does not fit together."""
        return assembled(str(self.path), self.documents(), self._queries(), self._labels(), self.skip_same_id)

    def documents(self) -> Iterator[Entry]:
        """The documents; the other files need not be there."""
        for where, row in self._rows("corpus"):
            text = _text(row, "text", where)
            title = _text(row, "title", where) if self.title and row.get("title") is not None else ""
            begun = text.lstrip().startswith(title.strip())
            whole = text if begun else f"{title.strip()} {text}"
            yield Entry(where, _name(row, "_id", where), whole, self._language(row))

    def _queries(self) -> Iterator[Entry]:
        for where, row in self._rows("queries"):
            yield Entry(where, _name(row, "_id", where), _text(row, "text", where), self._language(row))

    def _labels(self) -> Iterator[RelevanceLabel]:
        stems = (f"qrels/{self.split}", *([self.split] if self.qrels else []), "qrels", f"data/{self.split}")
        folder = _folder(
            self.qrels or str(self.path), self.revision, [f"{stem}{end}" for stem in stems for end in LABELS]
        )
        files = next(filter(None, (_present(folder, stem, LABELS) for stem in stems)), None)
        if files is None:
            splits = sorted({file.name.partition(".")[0] for file in folder.glob("qrels/*") if file.is_file()})
            hint = f"split={self.split}: {did_you_mean(self.split, splits)}" if splits else f"{' '.join(QRELS)} a line"
            raise InputError(f"{folder}: no relevance labels qrels/{self.split}.tsv or qrels.tsv ({hint})")
        for where, row in _rows(files):
            query, document = (_name(row, name, where) for name in QRELS[:2])
            yield RelevanceLabel(where, query, document, _grade(row.get("score"), where))

    def document_files(self) -> list[Path]:
        """The files of the documents, downloaded if necessary; an InputError if there are none."""
        return self._files("corpus")

    def _files(self, stem: str) -> list[Path]:
        folder = _folder(str(self.path), self.revision, [f"{stem}{end}" for end in ENDINGS])
        files = _present(folder, stem, ENDINGS)
        if not files:
            wanted = folder / f"{stem}.jsonl"
            raise InputError(f"{wanted}: {missing(wanted)}")
        return files

    def _rows(self, stem: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return _rows(self._files(stem))

    def _language(self, row: Mapping[str, Any]) -> str | None:
        return str(row["language"]) if row.get("language") else self.language


def _rows(files: Iterable[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in files:
        for number, row in rows(file, ""):
            if row != BLANK:
                yield f"{file}:{number}", row


def _folder(path: str, revision: str, patterns: Sequence[str]) -> Path:
    """The directory, or the files of that data set of the hub."""
    if not Path(path).expanduser().is_dir() and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path):
        raise InputError(f"collection {path}: no owner/name of the hub, and {missing(Path(path), 'directory')}")
    return HubSet(path, {"test": patterns}, texts=(), sizes={}, licence="", revision=revision).folder


def _present(folder: Path, stem: str, endings: Sequence[str]) -> list[Path]:
    """The files of the first ending that there are, in the order of their names."""
    matches = (sorted(file for file in folder.glob(f"{stem}{ending}") if file.is_file()) for ending in endings)
    return next(filter(None, matches), [])


@dataclass(frozen=True)
class ClirMatrixCollection:
    """Queries in one language and documents in another, in CLIRMatrix's files.

    The attributes are those of configs/tradeoff/collection/clirmatrix.yaml.
    """

    documents: str
    queries: str
    query_language: str
    document_language: str
    judged_only: bool = True

    def read(self) -> Collection:
        """The whole collection; errors as of BeirCollection."""
        queries: list[Entry] = []
        relevance: list[RelevanceLabel] = []
        file = limits.existing(self.queries, "collection.queries")
        for number, row in json_rows(file, ""):  # whatever it is called: the collection's own ending is .jl
            if row != BLANK:
                where = f"{file}:{number}"
                name, text = _name(row, "src_id", where), _text(row, "src_query", where)
                queries.append(Entry(where, name, text, self.query_language))
                relevance += self._results(name, row.get("tgt_results"), where)
        labelled = {one.document for one in relevance}
        documents = (one for one in self._documents() if not self.judged_only or one.name in labelled)
        return assembled(f"{self.queries} and {self.documents}", documents, queries, relevance)

    def _documents(self) -> Iterator[Entry]:
        file = limits.existing(self.documents, "collection.documents")
        for number, row in plain_rows(file, "line"):
            name, tab, text = str(row["line"]).partition("\t")
            if not tab and name.strip():
                raise InputError(f"{file}:{number}: expected an id, a tab and a text, found {name!r:.60}")
            if tab:
                yield Entry(f"{file}:{number}", name.strip(), text, self.document_language)

    def _results(self, query: str, results: Any, where: str) -> Iterator[RelevanceLabel]:
        if not isinstance(results, Sequence) or isinstance(results, str):
            raise InputError(f"{where}: tgt_results should be a list of [document, grade], not {results!r:.60}")
        for result in results:
            match result:
                case [str() | int() as document, int() | float() | str() as grade]:
                    yield RelevanceLabel(where, query, str(document), _grade(grade, where))
                case _:
                    raise InputError(f"{where}: {result!r:.60} in tgt_results is not [document, grade]")


# -- documents as texts to attack --------------------------------------------------------------------------------------

WORD = re.compile(r"\S+")
LEAST = 4  # words of a text that does not start at the beginning of a document


class CollectionTexts:
    """datamodule=collection: the documents of a BEIR directory or data set, so that an attacker knows their kind.

    Validation and test texts are documents as a vector store holds them: from their beginning to the cut. They are
    chosen by a hash of the document, and nothing of them is trained on. From a training document a text is taken at its
    beginning and at every further sentence, each running on to the cut, since one text a document would be few.
    The arguments are those of configs/datamodule/collection.yaml.
    """

    def __init__(
        self,
        path: str,
        title: bool = True,
        language: str | None = "en",
        begin: Literal["sentence", "document"] = "sentence",
        words: PositiveInt = 48,
        valid_fraction: Fraction = 0.05,
        test_fraction: Fraction = 0.2,
        split_seed: NonNegativeInt = 0,
        revision: str = "main",
    ) -> None:
        if valid_fraction + test_fraction >= 1:
            raise InputError(
                f"datamodule.source.valid_fraction={valid_fraction} and .test_fraction={test_fraction} leave no "
                "training text"
            )
        self.collection = BeirCollection(path, title=title, language=language, revision=revision)
        self.begin, self.words = begin, words
        self.fractions: Mapping[Split, float] = {"valid": valid_fraction, "test": test_fraction}
        self.split_seed = split_seed

    def data_files(self) -> list[Path]:
        return self.collection.document_files()

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """Texts of each split, uncut; ``group`` is the id of their document."""
        entries = (entry for entry in self.collection.documents() if entry.text.strip())
        documents = to_arrow(Example(0, entry.text, language=entry.language, group=entry.name) for entry in entries)
        splits = by_document(documents, self.fractions, self.split_seed)
        if self.begin == "sentence":
            splits["train"] = to_arrow(
                replace(document, text=document.text[start:end])
                for document in splits["train"]
                for start, end in begun(document.text, self.words)
            )
        return splits


@dataclass(frozen=True)
class HeldOut:
    """The test documents that ``CollectionTexts`` would hold out of a collection that has been read; no other split.

    Attributes:
        collection: Any, also one that is not in BEIR's layout.
        valid_fraction: As the attack was trained with; so are those that follow.
        test_fraction: Share of the documents.
        split_seed: Chooses which.
        names: Of the documents that are used; None: all that are held out.
    """

    collection: Collection
    valid_fraction: Fraction = 0.05
    test_fraction: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    names: Container[str] | None = None

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """The test documents, uncut; ``group`` is the id of each."""
        named = zip(self.collection.documents, self.collection.document_ids, strict=True)
        documents = to_arrow(replace(example, group=name) for example, name in named)
        fractions: Mapping[Split, float] = {"valid": self.valid_fraction, "test": self.test_fraction}
        test = by_document(documents, fractions, self.split_seed)["test"]
        return {"test": to_arrow(one for one in test if self.names is None or one.group in self.names)}

    def only(self, names: Container[str]) -> HeldOut:
        """Those of them that have these ids."""
        return replace(self, names=names)


def by_document(
    documents: Sequence[Example], fractions: Mapping[Split, float], seed: int
) -> dict[Split, ArrowExamples]:
    """The documents in their splits, chosen by a hash of their text."""
    counts = {split: math.ceil(len(documents) * fraction) for split, fraction in fractions.items()}
    return completed({"train": documents}, counts, seed)


def begun(text: str, words: int) -> Iterator[tuple[int, int]]:
    """Places of the texts that begin at each sentence of ``text`` and run on, across sentences, for ``words`` words.

    The first is the beginning of ``text``; in a longer sentence another begins after every ``words / 2`` words. Further
    ones of fewer than four words are left out.
    """
    spans = [match.span() for match in WORD.finditer(text)]
    starts = {0, *(match.end() for match in END.finditer(text))}
    since = 0
    for number, (start, _) in enumerate(spans):
        since = 0 if start in starts or number == 0 else since + 1
        if since % max(1, words // 2) == 0 and (number == 0 or number + LEAST <= len(spans)):
            yield start, spans[min(number + words, len(spans)) - 1][1]
