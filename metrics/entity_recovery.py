"""Share of the references' entities and names that predictions recover (``metrics.entities``, ``metrics.names``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from unembed.metrics.base import Description, Ratio
from unembed.metrics.entities import recovered_entities, span_text
from unembed.metrics.names import names
from unembed.metrics.scored import Scored


class EntityRecovery(Ratio[Scored]):
    """Share of labelled spans that are recovered.

    Args:
        label: Only spans with this label; None for all.
    """

    needs = "labels"

    def __init__(self, label: str | None = None) -> None:
        super().__init__()
        self.description, self.label = _described(label), label

    def of_example(self, row: Scored) -> tuple[int, int]:
        """Recovered spans, and all spans."""
        return recovered_spans(row, [self.label in (None, span.label) for span in row.spans])


def _described(label: str | None) -> Description:
    if label is None:
        explanation = "Share of labelled names, places, dates and the like that came back."
        return Description("entity_recovery", "Entities", explanation)
    title, explanation = f"Entities: {label.replace('_', ' ')}", "Share of the entities of this kind that came back."
    return Description(f"entity_recovery/{label}", title, explanation, secondary=True)


class UnseenEntityRecovery(Ratio[Scored]):
    """Share of recovered spans among those that no training text contains with the same label (``Scored.unseen``)."""

    description = Description(
        "entity_recovery_unseen", "Entities, unseen", "The same, for values that no training text contains."
    )
    needs = "labels"

    def of_example(self, row: Scored) -> tuple[int, int]:
        """Recovered unseen spans, and all unseen spans."""
        return (0, 0) if row.unseen is None else recovered_spans(row, row.unseen)


class EntityWordRecovery(Ratio[Scored]):
    """GEIA's NERR as the script of its authors counts it; without a tagger None (``Scored.entity_words``)."""

    description = Description(
        "entity_word_recovery",
        "Entities, words",
        "Share of the words of entities that a tagger marks in both texts; of a set, share of their tokens.",
        reference="GEIA, section 4.2",
    )
    needs = "models"

    def of_example(self, row: Scored) -> tuple[int, int]:
        """Recovered words or tokens, and all."""
        return row.entity_words or (0, 0)


def recovered_spans(row: Scored, chosen: Iterable[bool]) -> tuple[int, int]:
    """Of the ``chosen`` spans of a row: how many are recovered, and how many there are."""
    values = [span_text(row.reference, span) for span, wanted in zip(row.spans, chosen, strict=True) if wanted]
    return recovered_entities(values, row.prediction, ordered=row.kind == "sequence"), len(values)


class NameRecovery(Ratio[Scored]):
    """Share of the first, last or full names of people that are recovered."""

    needs = "labels"

    def __init__(self, part: Literal["first", "last", "full"]) -> None:
        super().__init__()
        explanation = {
            "first": "Share of the people's first names that came back.",
            "last": "Share of the people's last names that came back.",
            "full": "Share of the first names with the last name after.",
        }[part]
        title = f"{part.capitalize()} names"
        self.description, self.part = Description(f"name_{part}_recovery", title, explanation, secondary=True), part

    def of_example(self, row: Scored) -> tuple[int, int]:
        """Recovered names, and all names."""
        values = getattr(names(row.reference, row.spans), self.part)
        return recovered_entities(values, row.prediction, ordered=row.kind == "sequence"), len(values)
