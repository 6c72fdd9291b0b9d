"""Collections in the layout of BEIR (Thakur et al. 2021): a directory, or a data set of the hub.

    corpus.jsonl           {"_id": "4983", "title": "Microstructural ...", "text": "Alterations of ..."}
    queries.jsonl          {"_id": "0", "text": "0-dimensional biomaterials lack inductive properties."}
    qrels/test.tsv         query-id <tab> corpus-id <tab> score, with this header; or qrels.tsv for all queries

Each file may be gzipped or .parquet, and the relevance labels .jsonl with the same fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unembed.core.errors import InputError, did_you_mean, missing
from unembed.datamodules.collections.base import (
    Collection,
    Entry,
    RelevanceLabel,
    assembled,
    grade_of,
    name_of,
    text_of,
)
from unembed.datamodules.sources.file_rows import rows
from unembed.datamodules.sources.hub import HubSet

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
        """The documents, each with its place in a file; the other files need not be there.

        Raises:
            InputError: As ``read``.
        """
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
