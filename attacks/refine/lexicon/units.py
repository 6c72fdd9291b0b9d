"""A text as words and punctuation marks, and the moves that change one of them.

Units.of("Ada went to Rome.")                       # Ada| went| to| Rome|.
Units.of("Ada went to Rome.").replaced(3, "Oslo")   # "Ada went to Oslo."
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

UNIT = re.compile(r"\w+|[^\w\s]")
_ATTACHED = frozenset(".,;:!?%)]}'")  # no space before these where they are inserted


@dataclass(frozen=True)
class Units:
    """Words and punctuation marks of a text.

    Attributes:
        surfaces: As they are written.
        gaps: What stands before each of them: white space, or nothing.
        tail: What stands behind the last.
    """

    surfaces: tuple[str, ...]
    gaps: tuple[str, ...]
    tail: str = ""

    @classmethod
    def of(cls, text: str) -> Units:
        """The units of a text; ``str`` gives the text back."""
        surfaces, gaps, end = [], [], 0
        for match in UNIT.finditer(text):
            surfaces.append(match.group())
            gaps.append(text[end : match.start()])
            end = match.end()
        return cls(tuple(surfaces), tuple(gaps), text[end:])

    def __str__(self) -> str:
        return "".join(part for pair in zip(self.gaps, self.surfaces, strict=True) for part in pair) + self.tail

    def __len__(self) -> int:
        return len(self.surfaces)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The surfaces in lower case."""
        return tuple(surface.lower() for surface in self.surfaces)

    def initial(self, place: int) -> bool:
        """Whether a sentence begins at ``place``."""
        return place == 0 or self.surfaces[place - 1] in (".", "!", "?")

    def replaced(self, place: int, entry: str) -> Units:
        """With ``entry``, one or several units, instead of the unit at ``place``."""
        own = Units.of(entry)
        gaps = (self.gaps[place], *own.gaps[1:])
        return Units(
            self.surfaces[:place] + own.surfaces + self.surfaces[place + 1 :],
            self.gaps[:place] + gaps + self.gaps[place + 1 :],
            self.tail,
        )

    def inserted(self, place: int, entry: str) -> Units:
        """With ``entry`` before the unit at ``place``, or at the end."""
        own = Units.of(entry)
        first = "" if place == 0 or own.surfaces[0] in _ATTACHED else " "
        gaps = list(self.gaps)
        if place == 0 and gaps and self.surfaces[0] not in _ATTACHED:
            gaps[0] = " "
        return Units(
            self.surfaces[:place] + own.surfaces + self.surfaces[place:],
            (*gaps[:place], first, *own.gaps[1:], *gaps[place:]),
            self.tail,
        )

    def removed(self, place: int) -> Units:
        """Without the unit at ``place``."""
        gaps = list(self.gaps)
        gap = gaps.pop(place)
        if place == 0 and gaps:
            gaps[0] = gap
        return Units(self.surfaces[:place] + self.surfaces[place + 1 :], tuple(gaps), self.tail)

    def ordered(self, places: Sequence[int]) -> Units:
        """With the units at ``places``, in this order; units that stay together keep the space between them."""
        surfaces = tuple(self.surfaces[place] for place in places)
        gaps = [
            self.gaps[place] if place == before + 1 else "" if surface in _ATTACHED else " "
            for before, place, surface in zip((-1, *places), places, surfaces, strict=False)
        ]
        if gaps:
            gaps[0] = self.gaps[0]
        return Units(surfaces, tuple(gaps), self.tail)
