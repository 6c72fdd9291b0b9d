"""The interface of text sources, rows of files, the conversion of a row to an example, and the cut into splits.

A row of a data set, and the example that ``Fields(text="utterance", spans="entities")`` makes of it:

    {"utterance": "I am Ada.", "entities": [{"start": 5, "end": 8, "label": "first_name"}]}
    Example(index=0, text="I am Ada.", spans=(Span(5, 8, "first_name"),))

Files are .jsonl, .csv, .tsv, .txt and .parquet, and .gz of each but the last.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import re
import string
import unicodedata
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Annotated, Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from unembed.core import limits
from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Example, Span, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
EXTENSIONS = (".jsonl", ".csv", ".tsv", ".parquet", ".txt")
Fraction = Annotated[float, Field(ge=0, lt=1)]
_ROWS_AT_ONCE = 256  # of a parquet file: a row may be a whole book


@runtime_checkable
class Source(Protocol):
    """Gives the texts of a data set, not truncated; missing splits are left out."""

    def load(self) -> Mapping[Split, Sequence[Example]]: ...


@runtime_checkable
class Downloaded(Protocol):
    """A source that is downloaded."""

    def download(self) -> str | None:
        """Download missing files; returns their commit, if known."""
        ...


@runtime_checkable
class ReadsFiles(Protocol):
    """A source that reads files of this machine."""

    def data_files(self) -> Iterable[Path]:
        """All files that ``load`` reads, downloaded first if necessary; one may be missing."""
        ...


@runtime_checkable
class InLanguages(Protocol):
    """A source that can read selected languages only."""

    def only(self, languages: Sequence[str]) -> Source:
        """The same source with these languages alone; an InputError if it does not have one of them."""
        ...


# -- files -------------------------------------------------------------------------------------------------------------


def rows(file: Path, text_field: str, columns: Collection[str] = ()) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a file with their line numbers (row numbers in parquet), 1-based.

    Of a parquet file, only ``columns`` are read if it has them all.
    """
    extension = file.with_suffix("").suffix if file.suffix.lower() == ".gz" else file.suffix
    match extension.lower():
        case ".jsonl":
            yield from json_rows(file, text_field)
        case ".csv":
            yield from _table_rows(file, text_field, ",", csv.QUOTE_MINIMAL)
        case ".tsv":
            yield from _table_rows(file, text_field, "\t", csv.QUOTE_NONE)
        case ".txt":
            yield from plain_rows(file, text_field)
        case ".parquet" if file.suffix.lower() != ".gz":
            yield from _parquet_rows(file, columns)
        case _:
            raise InputError(f"{file}: unknown extension {extension!r}; {did_you_mean(extension, EXTENSIONS)}")


def plain_rows(file: Path, text_field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a file with a text a line, whatever its extension; .gz is unpacked."""
    return ((number, {text_field: line.rstrip("\r\n")}) for number, line in _lines(file))


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Decoded lines with their ends and numbers; a byte order mark at the start is left out."""
    number = 0
    packed = file.suffix.lower() == ".gz"
    try:
        with cast(IO[bytes], gzip.open(file) if packed else file.open("rb")) as stream:
            while line := stream.readline(limits.LONGEST_LINE + 1):
                number += 1
                limits.check_line(file, number, len(line))
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}:{number}: not UTF-8 ({error.reason} at byte {error.start + 1} of the line)"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: damaged or not gzip, after line {number} ({error})") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error


def json_rows(file: Path, text_field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a file with a JSON object a line, whatever its extension; .gz is unpacked."""
    for number, line in _lines(file):
        if not line.strip():
            yield number, {text_field: ""}
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}:{number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"{file}:{number}: a line should be a JSON object, not {type(row).__name__}")
        yield number, row


def _table_rows(file: Path, text_field: str, delimiter: str, quoting: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(limits.LONGEST_LINE)  # else 128 KiB
    reader = csv.reader((line for _, line in _lines(file)), delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] | None = None
    try:
        for values in reader:
            if not values:
                yield reader.line_num, {text_field: ""}
            elif header is None:
                header = [name.strip() for name in values]
            elif len(values) != len(header):
                raise InputError(f"{file}:{reader.line_num}: {len(values)} fields, but the header has {len(header)}")
            else:
                yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num}: not valid {file.name} ({error})") from error


def _parquet_rows(file: Path, columns: Collection[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            chosen = list(columns) if columns and set(columns) <= set(opened.schema_arrow.names) else None
            for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=chosen):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # a date of no calendar, too
        raise InputError(f"{file}: damaged or not parquet, after row {number} ({error})") from error


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fields:
    """The fields of a row.

    Attributes:
        text: The text.
        spans: Entities of the text: a list (or its JSON) of ``{"start", "end", "label"}``, ``[start, end, label]`` or
            ``[label, text, start, end]``; if the entity's text is given, it must match the span.
        language: ISO 639-1 code.
        attributes: Labels of the text; fields of the row, or of a field ``attributes`` that holds an object.
        group: The text's subject, such as a person; optional in a row.
        context: Preceding text, or a list of preceding texts, the latest last; optional in a row.
        original: The text that this one was made from; spans refer to it.
    """

    text: str = "text"
    spans: str | None = None
    language: str | None = None
    attributes: tuple[str, ...] = ()
    group: str | None = None
    context: str | None = None
    original: str | None = None

    def example(self, row: Mapping[str, Any], where: str) -> Example | None:
        """The example of a row, with index 0; None if the text or its original is blank."""
        text = _text(row, self.text, "text_field", where)
        original = None if self.original is None else _text(row, self.original, "original_field", where)
        reference = text if original is None else original
        if not text.strip() or not reference.strip():
            return None
        spans = None if self.spans is None else field_of(row, self.spans, "spans_field", where)
        language = None if self.language is None else field_of(row, self.language, "language_field", where)
        group = None if self.group is None or row.get(self.group) in (None, "") else str(row[self.group])
        context = None if self.context is None else _context(row.get(self.context), where)
        language = language if language is None else str(language)
        entities = entity_spans(spans, reference, where)
        return Example(0, text, entities, language, self._attributes(row), group, context, original)

    def _attributes(self, row: Mapping[str, Any]) -> Mapping[str, str]:
        if not self.attributes:
            return {}
        nested = row.get("attributes")
        known = {**nested, **row} if isinstance(nested, Mapping) else row
        return {name: str(known[name]) for name in self.attributes if known.get(name) not in (None, "")}


def _context(value: Any, where: str) -> str | None:
    """Earlier texts, a line each; None where there are none."""
    turns = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(turns, Sequence) or not all(isinstance(turn, str) for turn in turns):
        raise InputError(f"{where}: the context should be a text or a list of texts, not {_kind(value)}")
    return "\n".join(turn for turn in turns if turn.strip()) or None


def _kind(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.40}"


def field_of(row: Mapping[str, Any], name: str, key: str, where: str) -> Any:
    if name not in row:
        raise InputError(f"{where}: no field {name!r} (datamodule.{key}={name}); {did_you_mean(name, map(str, row))}")
    return row[name]


def _text(row: Mapping[str, Any], name: str, key: str, where: str) -> str:
    text = field_of(row, name, key, where)
    if not isinstance(text, str):
        raise InputError(f"{where}: field {name!r} holds {_kind(text)}, not a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, as JSON may carry: no tokenizer takes it
        raise InputError(f"{where}: field {name!r} is not valid Unicode ({error.reason})") from error
    return text


def entity_spans(value: Any, text: str, where: str) -> tuple[Span, ...]:
    """Entities of ``text`` as a row has them (see Fields.spans), in order of their start."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: the spans are not JSON ({error})") from error
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        raise InputError(f"{where}: the spans should be a list, not {_kind(value)}")
    return tuple(sorted((_span(entry, text, where) for entry in value), key=lambda span: (span.start, span.end)))


def _span(entry: Any, text: str, where: str) -> Span:
    match entry:
        case {"start": int(start), "end": int(end), "label": str(label), **rest}:
            words = rest.get("text")
        case [int(start), int(end), str(label)]:
            words = None
        case [str(label), str(words), int(start), int(end)]:
            pass
        case _:
            raise InputError(
                f"{where}: span {entry!r:.80} is none of {{start, end, label}}, [start, end, label], "
                "[label, text, start, end]"
            )
    if not 0 <= start < end <= len(text):
        raise InputError(
            f"{where}: span {start}-{end} ({label}) does not lie in the text, which has {len(text)} characters"
        )
    if words is not None and text[start:end] != words:
        raise InputError(
            f"{where}: span {start}-{end} ({label}) should be {words!r:.60}, but there is {text[start:end]!r:.60}"
        )
    return Span(start, end, label)


# -- texts and splits --------------------------------------------------------------------------------------------------


class _WithoutPunctuation(dict[int, int | None]):
    """A table for str.translate that decides on each character once."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        punctuation = character in string.punctuation or unicodedata.category(character).startswith("P")
        self[code] = None if punctuation else code
        return self[code]


_TABLE = _WithoutPunctuation()


def folded(text: str) -> str:
    """The text lower-cased, without punctuation and with single spaces; texts with equal folded forms are repeats.

    A text of punctuation only is returned unchanged.
    """
    return " ".join(text.lower().translate(_TABLE).split()) or text


def cut_apart(examples: Sequence[Example], counts: Sequence[int], seed: int) -> list[ArrowExamples]:
    """Split off parts of about ``counts`` examples: [the rest, the first part, ...], all in order.

    Examples are chosen by a hash of the reference's folded form, so the choice is independent of the file's order and
    other texts, and repeats stay together.
    """
    stored = to_arrow(examples)
    salt = seed.to_bytes(8, "little")
    digests = (hashlib.blake2b(folded(e.reference).encode(), digest_size=8, salt=salt).digest() for e in stored)
    hashes = np.fromiter((int.from_bytes(digest) for digest in digests), np.uint64, len(stored))
    ends = list(accumulate(counts))
    last = np.array([min(end, len(stored)) - 1 for end in ends if end], np.intp)
    bounds = np.partition(hashes, last)[last] if len(last) else hashes[:0]
    parts = np.searchsorted(bounds, hashes).astype(np.int8)
    parts += ends.count(0) + 1  # parts before the first that takes anything
    return parted(stored, parts % (len(counts) + 1), len(counts) + 1)


def parted(examples: ArrowExamples, parts: NDArray[np.integer[Any]], count: int) -> list[ArrowExamples]:
    """The examples of each of ``count`` parts, of which ``parts`` (n,) gives every example's number."""
    return [examples.select(np.flatnonzero(parts == part)) for part in range(count)]


Cut = Callable[[Sequence[Example], Sequence[int], int], list[ArrowExamples]]


def completed(
    splits: Mapping[Split, Sequence[Example]], counts: Mapping[Split, int], seed: int, cut_off: Cut = cut_apart
) -> dict[Split, ArrowExamples]:
    """All splits, with examples numbered; missing splits of ``counts`` are split off the training texts, if any."""
    everything = {split: to_arrow(examples) for split, examples in splits.items()}
    absent: list[Split] = [split for split in counts if split not in splits] if everything.get("train") else []
    if absent:
        rest, *cut = cut_off(everything["train"], [counts[split] for split in absent], seed)
        everything |= {"train": rest, **dict(zip(absent, cut, strict=True))}
    return everything


class SeparateSources:
    """The training split of ``own`` beside the other splits of ``target``.

    A training text that is also held out is dropped by the data module, as for any source.
    """

    def __init__(self, own: Source, target: Source) -> None:
        self.own, self.target = own, target

    def load(self) -> Mapping[Split, Sequence[Example]]:
        own, target = self.own.load(), self.target.load()
        chosen: dict[Split, Mapping[Split, Sequence[Example]]] = {"train": own, "valid": target, "test": target}
        return {split: texts[split] for split, texts in chosen.items() if split in texts}


END = re.compile(r"(?<=[.!?])\s+")


def split_sentences(text: str, least: int, most: int) -> list[str]:
    """The sentences of ``text`` that have ``least`` to ``most`` words, cut at white space."""
    return [part.strip() for part in END.split(text) if least <= len(part.split()) <= most]
