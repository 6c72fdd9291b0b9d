"""Passages of the built-in corpus: several of its sentences about one person or case.

    "Ms. Novak is a nurse from Oslo with dizziness. She takes lisinopril in the morning for hypertension. ..."

The sentences of a passage are of one genre and share a record: the names, place, employer and the like of the person,
one row of each table of synthetic_words.yaml (a diagnosis with its medication, an appliance with its fault), and in
clinical notes the form of address. They stand in the order of the shapes, with whom it is about first.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from pydantic import NonNegativeInt, PositiveInt

from unembed.core.errors import InputError
from unembed.core.examples import Example, Span, Split
from unembed.datamodules.sources.synthetic import (
    Grammar,
    Row,
    entity_values,
    holes_of,
    normalised,
    rarest_values,
    training_size,
)

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

    def passages(self, banned: Values = frozenset()) -> Iterator[Example]:
        """Endless passages without the ``banned`` entities."""
        while True:
            yield self._passage(banned)

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
            if (key := normalised(sentence.text)) not in self.seen:
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
        holes = holes_of(shape)
        values = self.grammar.fill([hole[2] for hole in holes], self.rng, case.rows)
        used: set[str] = set()
        for number, hole in enumerate(holes):
            slot = hole[2]
            if slot in case.values and slot not in used and not shape[: hole.start()].endswith(_SOMEBODY_ELSE):
                values[number] = case.values[slot]
                used.add(slot)
        return self.grammar.written(place, values) if len(set(values)) == len(values) else None


def _joined(sentences: list[Example]) -> Example:
    """The sentences as one text with all their spans."""
    text, spans = "", []
    for one in sentences:
        text += " " if text else ""
        spans += [Span(span.start + len(text), span.end + len(text), span.label) for span in one.spans]
        text += one.text
    return replace(sentences[0], text=text, spans=tuple(spans))


class SyntheticPassages:
    """Passages of the built-in grammar, generated in seconds and never stored.

    Args:
        passages: Passages in all three splits together.
        valid: Passages for validation.
        test: Passages for the test.
        least: Words of a passage, at least.
        most: Words of a passage, at most.
        seed: Chooses the passages; the grammar is the same for all seeds.

    Raises:
        InputError: The splits leave fewer than two passages for training, more is asked than the grammar gives, or
            the lengths leave no room for a sentence.
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
        test, valid = (list(itertools.islice(composer.passages(), self.sizes[split])) for split in ("test", "valid"))
        held_out = rarest_values(test, [*test, *valid])
        train = list(itertools.islice(composer.passages(held_out), self.sizes["train"]))
        splits: dict[Split, list[Example]] = {"train": train, "valid": valid, "test": test}
        return {
            split: [replace(example, index=index) for index, example in enumerate(examples)]
            for split, examples in splits.items()
        }
