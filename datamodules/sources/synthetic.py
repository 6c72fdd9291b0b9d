"""The built-in corpus: privacy-flavoured English from a small grammar, the same on every machine for the same seed.

Example:

    Example(index=0, text="My aunt Rosa was diagnosed with lupus in May.", language="en",
            spans=(Span(8, 12, "first_name"), Span(32, 37, "diagnosis"), Span(41, 44, "date")),
            attributes={"genre": "chat"})

Sentence patterns are in synthetic_shapes.yaml, the values of their slots in synthetic_words.yaml. The corpus has
several hundred distinct patterns, values with Zipf-like frequencies, and no repeated sentences over all splits (up to
case and punctuation). A fifth of the entity values of the test split, the rarest of every label, occur in no training
sentence.
"""

from __future__ import annotations

import itertools
import random
import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import NonNegativeInt, PositiveInt

from unembed.core.errors import InputError
from unembed.core.examples import Example, Span, Split
from unembed.datamodules.sources.base import SPLITS, folded

# The grammar could form billions of sentences, but beyond this they differ in little but a name or a number.
MOST_SENTENCES = 100_000
FEWEST_TRAINING = 2
UNSEEN_SHARE = 0.2
# A shape with fewer possible sentences than this is sampled less often, so that they are not soon used up.
ROOMY = 100_000

_SLOT = re.compile(r"\{(a )?(\w+)\}")  # group 2 is the name of a slot
_VOWEL_SOUND = re.compile(r"(?!uk|uni|ur|us|one)[aeiou]|hour|8|11\b|18\b|(MRI|HIV|X-ray)\b", re.IGNORECASE)


def article(noun: str) -> str:
    """The indefinite article that ``noun`` takes: "a" or "an", by its first sound."""
    return "an" if _VOWEL_SOUND.match(noun) else "a"


@cache
def _data(name: str) -> dict[str, Any]:
    """A data file that lies beside this one, read once."""
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return data


def _words(text: str) -> list[str]:
    # A comma without a space after it belongs to a number: $1,000.
    return [" ".join(value.split()) for value in re.split(r",\s+", text.strip())]


class Skewed:
    """Values, common ones first, sampled with weights 1 / (rank + 3): rank 1 about forty times as often as rank 150."""

    def __init__(self, values: Sequence[str]) -> None:
        self.values = values
        self.cumulative = list(itertools.accumulate(1 / (rank + 3) for rank in range(1, len(values) + 1)))

    def sample(self, rng: random.Random) -> str:
        return self.values[bisect(self.cumulative, rng.random() * self.cumulative[-1])]


Row = Mapping[str, Skewed]  # of a table: the values of each column


class Grammar:
    """Samples single sentences with their entity spans."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}  # slot -> the rows of the table that it belongs to
        self.columns: dict[str, Skewed] = {}  # slot -> all its values
        words = _data("synthetic_words.yaml")
        self.labels = {slot: label for label, slots in words["labels"].items() for slot in slots}
        for slot, text in words["lists"].items():
            self.columns[slot] = Skewed(_words(text))
        for table in words["tables"]:
            names: list[str] = table["columns"]
            cells = [[_words(cell) for cell in line.split(" | ")] for line in table["rows"]]
            rows: list[Row] = [dict(zip(names, map(Skewed, row), strict=True)) for row in cells]
            for column, slot in enumerate(names):
                self.rows[slot] = rows
                self.columns[slot] = Skewed(list(dict.fromkeys(v for row in cells for v in row[column])))
        self.shapes = [
            (genre, shape)
            for genre, text in _data("synthetic_shapes.yaml").items()
            for shape in text.strip().splitlines()
        ]
        room = [self._room(shape) for _, shape in self.shapes]
        self.weights = list(itertools.accumulate(min(1.0, (n / ROOMY) ** 0.3) for n in room))

    def _room(self, shape: str) -> float:
        """About how many sentences the shape can form."""
        room = 1.0
        for _, slot in _SLOT.findall(shape):
            room *= len(self.columns[slot].values)
        return room

    def fill(self, slots: Sequence[str], rng: random.Random, rows: Mapping[int, Row] | None = None) -> list[str]:
        """One value a slot; slots of one table from one row, chosen by the value of its first slot.

        Args:
            slots: Names of slots.
            rng: The source of randomness.
            rows: Rows that are chosen already, by the ``id`` of their table.
        """
        chosen = dict(rows or {})
        values = []
        for slot in slots:
            table = self.rows.get(slot)
            if table is None:
                values.append(self.columns[slot].sample(rng))
            elif id(table) in chosen:
                values.append(chosen[id(table)][slot].sample(rng))
            else:
                values.append(self.columns[slot].sample(rng))
                chosen[id(table)] = rng.choice([row for row in table if values[-1] in row[slot].values])
        return values

    def sentence(self, rng: random.Random) -> Example:
        place = self.choose(rng)
        slots = [slot for _, slot in _SLOT.findall(self.shapes[place][1])]
        values = self.fill(slots, rng)
        while len(set(values)) < len(values):
            values = self.fill(slots, rng)
        return self.written(place, values)

    def choose(self, rng: random.Random) -> int:
        """The place of a shape in ``shapes``."""
        return bisect(self.weights, rng.random() * self.weights[-1])

    def written(self, place: int, values: Sequence[str]) -> Example:
        """The sentence of the shape at ``place`` with these values of its slots."""
        genre, shape = self.shapes[place]
        text, end = "", 0
        spans = []
        for hole, value in zip(_SLOT.finditer(shape), values, strict=True):
            text += shape[end : hole.start()] + (f"{article(value)} " if hole[1] else "")
            if hole[2] in self.labels:
                spans.append(Span(len(text), len(text) + len(value), self.labels[hole[2]]))
            text += value
            end = hole.end()
        text += shape[end:]
        return Example(0, text[0].upper() + text[1:], tuple(spans), language="en", attributes={"genre": genre})

    def distinct(self, seed: int) -> Iterator[Example]:
        """Endless sentences, none twice."""
        rng = random.Random(seed)
        seen: set[str] = set()
        while True:
            example = self.sentence(rng)
            key = folded(example.text)
            if key not in seen:
                seen.add(key)
                yield example


def entity_values(example: Example) -> list[tuple[str, str]]:
    """The entities of an example as (label, text in lower case)."""
    return [(span.label, example.text[span.start : span.end].lower()) for span in example.spans]


def rarest_values(test: Iterable[Example], pool: Iterable[Example]) -> set[tuple[str, str]]:
    """A fifth of the entity values of ``test``, for each label those that are rarest in ``pool``."""
    frequency = Counter(itertools.chain.from_iterable(map(entity_values, pool)))
    by_label: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for value in itertools.chain.from_iterable(map(entity_values, test)):
        by_label[value[0]].add(value)
    held_out: set[tuple[str, str]] = set()
    for values in by_label.values():
        # The value itself breaks ties, so that the order does not hang on the hash of a string.
        rarest = sorted(values, key=lambda value: (frequency[value], value))
        held_out.update(rarest[: round(UNSEEN_SHARE * len(values))])
    return held_out


def training_size(key: str, total: int, most: int, valid: int, test: int) -> int:
    """What ``valid`` and ``test`` of ``total`` texts leave for training; ``most`` is what the grammar gives."""
    if total > most:
        raise InputError(
            f"{key}={total}: the built-in grammar gives {most} {key} at the most; for more text use your own files"
        )
    train = total - valid - test
    if train < FEWEST_TRAINING:
        raise InputError(
            f"{key}={total}: valid={valid} and test={test} leave {max(train, 0)} {key} for training; ask for at least "
            f"{valid + test + FEWEST_TRAINING}"
        )
    return train


class SyntheticCorpus:
    """The built-in corpus, generated in about a second and never stored.

    ``sentences`` counts those of all splits together. Sentences for validation may hold entity values that training
    lacks, as those of the test do.
    """

    def __init__(
        self,
        sentences: PositiveInt = 20_000,
        valid: PositiveInt = 1_000,
        test: PositiveInt = 2_000,
        seed: NonNegativeInt = 0,
    ) -> None:
        train = training_size("sentences", sentences, MOST_SENTENCES, valid, test)
        self.sizes: dict[Split, int] = {"train": train, "valid": valid, "test": test}
        self.seed = seed

    def load(self) -> dict[Split, list[Example]]:
        """The splits "train", "valid" and "test": no sentence in common, indices counted from 0 in each.

        A fifth of the distinct entity values of the test split occur nowhere in the training split.
        """
        train, valid, test = (self.sizes[split] for split in SPLITS)
        stream = Grammar().distinct(self.seed)
        pool = list(itertools.islice(stream, train + valid + test))
        held_out = rarest_values(pool[:test], pool)
        candidates = itertools.chain(pool[test + valid :], stream)
        allowed = (example for example in candidates if held_out.isdisjoint(entity_values(example)))
        return _numbered(itertools.islice(allowed, train), pool[test : test + valid], pool[:test])


def _numbered(
    train: Iterable[Example], valid: Iterable[Example], test: Iterable[Example]
) -> dict[Split, list[Example]]:
    return {
        split: [replace(example, index=index) for index, example in enumerate(examples)]
        for split, examples in zip(SPLITS, (train, valid, test), strict=True)
    }


MOST_PASSAGES = 10_000  # beyond this their sentences would differ in little but a name or a number
LONGEST = 28  # words of a sentence, at most
MOST_WORDS = 200  # a genre has no more sentences of different shapes about one person
# The slots that are filled alike in a passage.
_SHARED = {
    "chat": ("woman", "man", "surname", "city", "company", "school", "college"),
    "clinical": ("woman", "man", "surname", "work_age", "profession", "city", "hospital", "company", "school"),
    "support": ("woman", "man", "surname", "city", "company", "bank", "college", "hospital", "order"),
}
# The shapes of clinical notes that do not suit a form of address.
_UNSUITED = {
    "Mr": re.compile(r"\b(Mrs|Ms|[Ss]he|[Hh]er)\b|\{woman\} \{surname\}|-old woman\b"),
    "Mrs": re.compile(r"\b(Mr|Ms|[Hh]e|[Hh]is|him)\b|\{man\} \{surname\}|-old man\b"),
    "Ms": re.compile(r"\b(Mr|Mrs|[Hh]e|[Hh]is|him)\b|\{man\} \{surname\}|-old man\b"),
}
_INTRODUCES = re.compile(r"\{(wo)?man\} \{surname\}|^(Patient is|M(r|s|rs)\.)")
_SOMEBODY_ELSE = ("Dr. ", "Nurse ")  # before a surname

Values = Set[tuple[str, str]]  # labels and texts of entities, in lower case


@dataclass(frozen=True, slots=True)
class _Case:
    """What the sentences of a passage have in common."""

    genre: str
    address: str
    values: Mapping[str, str]
    rows: Mapping[int, Row]


class _Composer:
    """Composes passages of which no two have a sentence in common."""

    def __init__(self, least: int, most: int, seed: int) -> None:
        self.grammar, self.rng = Grammar(), random.Random(seed)
        self.least, self.most = least, most
        self.seen: set[str] = set()

    def passages(self, count: int, banned: Values = frozenset()) -> list[Example]:
        """Passages without the ``banned`` entities."""
        return [self._passage(banned) for _ in range(count)]

    def _passage(self, banned: Values) -> Example:
        case = self._case(banned)
        enough = self.rng.randint(self.least, self.most - LONGEST + 1)
        chosen: dict[int, Example] = {}
        words = 0
        while words < enough:
            place = self.grammar.choose(self.rng)
            sentence = None if place in chosen else self._sentence(place, case)
            if sentence is None or not banned.isdisjoint(entity_values(sentence)):
                continue
            if (key := folded(sentence.text)) not in self.seen:
                self.seen.add(key)
                chosen[place] = sentence
                words += len(sentence.text.split())
        shapes = self.grammar.shapes
        order = sorted(chosen, key=lambda place: (_INTRODUCES.search(shapes[place][1]) is None, place))
        return _joined([chosen[place] for place in order])

    def _case(self, banned: Values) -> _Case:
        grammar, rng = self.grammar, self.rng
        genre = rng.choice(list(_SHARED))
        values = {}
        for slot in _SHARED[genre]:
            values[slot] = grammar.columns[slot].sample(rng)
            while (grammar.labels.get(slot, ""), values[slot].lower()) in banned:
                values[slot] = grammar.columns[slot].sample(rng)
        if "work_age" in values:
            values["age"] = values["work_age"]
        tables = {id(table): table for table in grammar.rows.values()}
        rows = {name: rng.choice(table) for name, table in tables.items()}
        return _Case(genre, rng.choice(list(_UNSUITED)), values, rows)

    def _sentence(self, place: int, case: _Case) -> Example | None:
        """A sentence of the shape at ``place``; None if the shape does not suit the case, or two slots are alike."""
        genre, shape = self.grammar.shapes[place]
        if genre != case.genre or (genre == "clinical" and _UNSUITED[case.address].search(shape)):
            return None
        values = self.grammar.fill([slot for _, slot in _SLOT.findall(shape)], self.rng, case.rows)
        used: set[str] = set()
        for number, hole in enumerate(_SLOT.finditer(shape)):
            slot = hole[2]
            if slot in case.values and slot not in used and not shape[: hole.start()].endswith(_SOMEBODY_ELSE):
                values[number] = case.values[slot]
                used.add(slot)
        return self.grammar.written(place, values) if len(set(values)) == len(values) else None


def _joined(sentences: list[Example]) -> Example:
    """The sentences as one text with all their spans."""
    text, spans = "", list[Span]()
    for one in sentences:
        text += " " if text else ""
        spans += [Span(span.start + len(text), span.end + len(text), span.label) for span in one.spans]
        text += one.text
    return replace(sentences[0], text=text, spans=tuple(spans))


class SyntheticPassages:
    """Passages of the built-in grammar, generated in seconds and never stored.

    Args:
        passages: Passages in all three splits together.
        least: Words of a passage, at least.
        most: Words of a passage, at most.
    """

    def __init__(
        self,
        passages: PositiveInt = 6_000,
        valid: PositiveInt = 500,
        test: PositiveInt = 1_000,
        least: PositiveInt = 40,
        most: PositiveInt = 128,
        seed: NonNegativeInt = 0,
    ) -> None:
        train = training_size("passages", passages, MOST_PASSAGES, valid, test)
        if not least + LONGEST <= most <= MOST_WORDS:
            raise InputError(
                f"most={most}: with least={least}, from {least + LONGEST} to {MOST_WORDS} words are possible, since a "
                f"sentence has up to {LONGEST}"
            )
        self.sizes: dict[Split, int] = {"train": train, "valid": valid, "test": test}
        self.least, self.most, self.seed = least, most, seed

    def load(self) -> dict[Split, list[Example]]:
        """The splits "train", "valid" and "test": no sentence in common, indices counted from 0 in each.

        A fifth of the distinct entity values of the test split occur nowhere in the training split.
        """
        composer = _Composer(self.least, self.most, self.seed)
        test, valid = (composer.passages(self.sizes[split]) for split in ("test", "valid"))
        held_out = rarest_values(test, [*test, *valid])
        return _numbered(composer.passages(self.sizes["train"], held_out), valid, test)
