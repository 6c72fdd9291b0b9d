"""Cross-lingual collections in CLIRMatrix's files (Sun and Duh 2020): queries in one language, documents in another.

de.tsv                 4983 <tab> the document's text, without a header
en_de.jsonl            {"src_id": "7", "src_query": "anarchism", "tgt_results": [["4983", 6], ["12", 0]]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unembed.core.errors import InputError
from unembed.datamodules.collections.base import (
    Collection,
    Entry,
    RelevanceLabel,
    assembled,
    grade_of,
    name_of,
    text_of,
)
from unembed.datamodules.sources.file_rows import existing, plain_rows


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
