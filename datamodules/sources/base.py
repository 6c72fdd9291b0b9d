"""The interface of text sources, the conversion of a row of a file or table to an example, and the cut into splits.

A row of a data set, and the example that ``Fields(text="utterance", spans="entities")`` makes of it:

    {"utterance": "I am Ada.", "entities": [{"start": 5, "end": 8, "label": "first_name"}]}
    Example(index=0, text="I am Ada.", spans=(Span(5, 8, "first_name"),))
"""

from __future__ import annotations

import hashlib
import json
import re
import string
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Example, Span, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow

SPLITS: tuple[Split, ...] = ("train", "valid", "test")


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
        """The example of a row, with index 0; None if the text or its original is blank.

        Raises:
            InputError: A field is missing, the text is not a string, or a span lies outside it; names ``where``.
        """
        text = _text(row, self.text, "text_field", where)
        original = None if self.original is None else _text(row, self.original, "original_field", where)
        reference = text if original is None else original
        if not text.strip() or not reference.strip():
            return None
        spans = (
            () if self.spans is None else entity_spans(_field(row, self.spans, "spans_field", where), reference, where)
        )
        language = None if self.language is None else _field(row, self.language, "language_field", where)
        group = None if self.group is None or row.get(self.group) in (None, "") else str(row[self.group])
        context = None if self.context is None else _context(row.get(self.context), where)
        language = language if language is None else str(language)
        return Example(0, text, spans, language, self._attributes(row), group, context, original)

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


def _field(row: Mapping[str, Any], name: str, key: str, where: str) -> Any:
    if name not in row:
        raise InputError(f"{where}: no field {name!r} (datamodule.{key}={name}); {did_you_mean(name, map(str, row))}")
    return row[name]


def _text(row: Mapping[str, Any], name: str, key: str, where: str) -> str:
    text = _field(row, name, key, where)
    if not isinstance(text, str):
        raise InputError(f"{where}: field {name!r} holds {_kind(text)}, not a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, as JSON may carry: no tokenizer takes it
        raise InputError(f"{where}: field {name!r} is not valid Unicode ({error.reason})") from error
    return text


def entity_spans(value: Any, text: str, where: str) -> tuple[Span, ...]:
    """Entities of ``text`` as a row has them (see Fields.spans), in order of their start.

    Raises:
        InputError: They have another form, or lie outside the text; names ``where``.
    """
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
    found = to_arrow(examples)
    salt = seed.to_bytes(8, "little")
    digests = (hashlib.blake2b(folded(e.reference).encode(), digest_size=8, salt=salt).digest() for e in found)
    hashes = np.fromiter((int.from_bytes(digest) for digest in digests), np.uint64, len(found))
    ends = list(accumulate(counts))
    last = np.array([min(end, len(found)) - 1 for end in ends if end], np.intp)
    bounds = np.partition(hashes, last)[last] if len(last) else hashes[:0]
    parts = np.searchsorted(bounds, hashes).astype(np.int8)
    parts += ends.count(0) + 1  # parts before the first that takes anything
    return parted(found, parts % (len(counts) + 1), len(counts) + 1)


def parted(examples: ArrowExamples, parts: NDArray[np.integer[Any]], count: int) -> list[ArrowExamples]:
    """The examples of each of ``count`` parts, of which ``parts`` (n,) gives every example's number."""
    return [examples.select(np.flatnonzero(parts == part)) for part in range(count)]


Cut = Callable[[Sequence[Example], Sequence[int], int], list[ArrowExamples]]


def completed(
    found: Mapping[Split, Sequence[Example]], counts: Mapping[Split, int], seed: int, cut_off: Cut = cut_apart
) -> dict[Split, ArrowExamples]:
    """All splits, with examples numbered; missing splits of ``counts`` are split off the training texts, if any."""
    everything = {split: to_arrow(examples) for split, examples in found.items()}
    absent: list[Split] = [split for split in counts if split not in found] if everything.get("train") else []
    if absent:
        rest, *cut = cut_off(everything["train"], [counts[split] for split in absent], seed)
        everything |= {"train": rest, **dict(zip(absent, cut, strict=True))}
    return everything


VALUES = 10  # distinct values of each attribute in the test split, if available: fewer are too easy to guess


@dataclass
class _Group:
    texts: int = 0
    values: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # of each attribute


def cut_by_group(examples: Sequence[Example], counts: Sequence[int], seed: int) -> list[ArrowExamples]:
    """Split off parts of whole groups with about ``counts`` texts: [the rest, the first part, ...], all in order.

    Groups are chosen by a hash of their name. The last part (the test) is chosen first, preferring groups with new
    attribute values until it has ``VALUES`` of each attribute, even if it then exceeds its count. Texts without a group
    stay in the rest, and so does at least one group.
    """
    found = to_arrow(examples)
    groups: dict[str, _Group] = defaultdict(_Group)
    for example in found:
        if example.group is not None:
            group = groups[example.group]
            group.texts += 1
            for attribute, value in example.attributes.items():
                group.values[attribute].add(value)
    salt = seed.to_bytes(8, "little")
    left = {
        name: groups[name]
        for name in sorted(groups, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8, salt=salt).digest())
    }
    part_of: dict[str | None, int] = {}
    for part in reversed(range(len(counts))):
        for name in _choose(left, counts[part], VALUES if part == len(counts) - 1 else 0):
            part_of[name] = part + 1
            del left[name]
    parts = np.fromiter((part_of.get(group, 0) for group in found.column("group")), np.int8, len(found))
    sizes = [len(groups) - len(part_of), *(list(part_of.values()).count(part + 1) for part in range(len(counts)))]
    rank_zero_info(f"{len(groups)} groups: {sizes[0]} for training, {', '.join(map(str, sizes[1:]))} held out")
    return parted(found, parts, len(counts) + 1)


def _choose(groups: Mapping[str, _Group], count: int, values: int) -> list[str]:
    """Names of groups with about ``count`` texts, and with ``values`` values of each attribute."""
    chosen: list[str] = []
    seen: dict[str, set[str]] = defaultdict(set)
    size = 0

    def brings(name: str) -> bool:
        new = groups[name].values.items()
        return any(len(seen[attribute]) < values and found - seen[attribute] for attribute, found in new)

    def take(names: Iterable[str], most: int, *, only_new: bool) -> None:
        nonlocal size
        for name in names:
            room = size + groups[name].texts <= most and len(chosen) + 1 < len(groups)
            if name not in chosen and room and (not only_new or brings(name)):
                chosen.append(name)
                size += groups[name].texts
                for attribute, found in groups[name].values.items():
                    seen[attribute] |= found

    if count == 0:
        return []
    everything = sum(group.texts for group in groups.values())
    smallest_first = sorted(groups, key=lambda name: groups[name].texts)  # of equals, the first by hash
    take(groups, count, only_new=True)
    take(groups, count, only_new=False)
    take(smallest_first, everything, only_new=True)
    if not chosen:  # each group alone is larger
        take(smallest_first[:1], everything, only_new=False)
    return chosen


def check_disjoint(found: Mapping[Split, Sequence[Example]], group_field: str) -> None:
    """Check that the splits given in a file share no group.

    Raises:
        InputError: They share a group; names it.
    """
    where: dict[str, Split] = {}
    for split, examples in found.items():
        for group in sorted({e for e in to_arrow(examples).column("group") if e is not None}):
            if group in where:
                raise InputError(
                    f"datamodule.group_field={group_field}: {group!r} stands in {where[group]} and in {split}; leave "
                    "out datamodule.split_field to have the texts split anew, no group in two splits"
                )
            where[group] = split


class SeparateSources:
    """The training split of ``own`` beside the other splits of ``target``.

    A training text that is also held out is dropped by the data module, as for any source.

    Args:
        own: The attacker's own text.
        target: The text that is attacked.
    """

    def __init__(self, own: Source, target: Source) -> None:
        self.own, self.target = own, target

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """The splits; a missing one is left out."""
        own, target = self.own.load(), self.target.load()
        chosen: dict[Split, Mapping[Split, Sequence[Example]]] = {"train": own, "valid": target, "test": target}
        return {split: texts[split] for split, texts in chosen.items() if split in texts}


END = re.compile(r"(?<=[.!?])\s+")


def split_sentences(text: str, least: int, most: int) -> list[str]:
    """The sentences of ``text`` that have ``least`` to ``most`` words, cut at white space."""
    return [part.strip() for part in END.split(text) if least <= len(part.split()) <= most]
