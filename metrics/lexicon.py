"""Recovery of entities inside and outside the lexicon of an attack that chooses words from one.

    reference   "Ada moved to Paris"    spans: Ada (first_name), Paris (city); in the lexicon: Paris
    prediction  "Bob moved to Paris"    -> coverage 1 of 2, recovered inside 1 of 1, outside 0 of 1

What a lexicon lacks, a search in it cannot write, so one value over both mixes the search with its lexicon.
"""

from __future__ import annotations

from unembed.metrics.base import Description, Ratio
from unembed.metrics.entity_recovery import recovered_spans
from unembed.metrics.scored import Scored


class LexiconCoverage(Ratio[Scored]):
    """Share of the labelled spans that the lexicon has.

    Args:
        unseen: Only spans that no training text has.
    """

    needs = "labels"

    def __init__(self, *, unseen: bool = False) -> None:
        super().__init__()
        self.unseen = unseen
        self.description = (
            Description(
                "entity_coverage_unseen",
                "Entities, unseen, that the lexicon has",
                "Share of the values that no training text contains.",
                None,
            )
            if unseen
            else Description(
                "entity_coverage", "Entities that the lexicon has", "Share of the entities whose words it has.", None
            )
        )

    def of_example(self, row: Scored) -> tuple[int, int]:
        """Spans in the lexicon, and all spans."""
        if row.in_lexicon is None or (self.unseen and row.unseen is None):
            return 0, 0
        found = [one for one, new in zip(row.in_lexicon, _unseen(row), strict=True) if new or not self.unseen]
        return sum(found), len(found)


class LexiconEntityRecovery(Ratio[Scored]):
    """Share of recovered spans among those that the lexicon has, or lacks.

    Args:
        inside: Only spans that the lexicon has; otherwise only those that it lacks.
        unseen: Only spans that no training text has, or only spans that one has; None for both.
    """

    needs = "labels"

    def __init__(self, *, inside: bool, unseen: bool | None = None) -> None:
        super().__init__()
        self.inside, self.unseen = inside, unseen
        kind = {None: "", True: "unseen_", False: "seen_"}[unseen]
        self.description = Description(
            f"entity_recovery_{kind}{'in' if inside else 'outside'}_lexicon",
            f"Entities, {kind.replace('_', ', ')}{'in' if inside else 'outside'} the lexicon",
            f"Share that came back of those that the lexicon {'has' if inside else 'lacks'}.",
        )

    def of_example(self, row: Scored) -> tuple[int, int]:
        """Recovered spans of this kind, and all of them."""
        if row.in_lexicon is None or (self.unseen is not None and row.unseen is None):
            return 0, 0
        kinds = zip(row.in_lexicon, _unseen(row), strict=True)
        return recovered_spans(row, [one == self.inside and self.unseen in (None, new) for one, new in kinds])


def lexicon_metrics() -> list[LexiconCoverage | LexiconEntityRecovery]:
    """All metrics of an attack with a lexicon."""
    return [
        LexiconCoverage(),
        LexiconCoverage(unseen=True),
        *(LexiconEntityRecovery(inside=inside, unseen=unseen) for unseen in (None, True) for inside in (True, False)),
    ]


def _unseen(row: Scored) -> tuple[bool, ...]:
    return (False,) * len(row.spans) if row.unseen is None else row.unseen
