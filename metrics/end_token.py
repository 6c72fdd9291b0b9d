"""Micro precision, recall and F1 over tokens as GEIA counts them: the end of a text is a token, too.

GEIA (Li et al. 2023, section 4.2) is scored over sets of tokens. Its authors' script appends the end token to every
reference and every prediction, so each text has one hit more: a prediction with no right token scores above 0. The sets
of the two baselines have no end token (their recall of 3.9 % in table 1 is below what one hit a text would be), so they
are counted as ``micro_token_*`` does.
"""

from __future__ import annotations

from unembed.metrics.base import Description
from unembed.metrics.scored import Scored
from unembed.metrics.word_overlap import MicroOverlap, Part


class MicroTokensAndEnd(MicroOverlap):
    """``micro_token_*`` with the end token of text and prediction counted as a shared item.

    Args:
        part: Precision, recall or F1.
    """

    def __init__(self, part: Part) -> None:
        super().__init__(part, "tokens")
        self.description = Description(
            f"micro_token_end_{part}",
            f"Micro {'F1' if part == 'f1' else part}, tokens and end",
            "Over the attack's tokens, the end of the text counted as one of them (GEIA's way).",
            secondary=part != "f1",
            reference="GEIA, section 4.2",
        )

    def _sizes(self, row: Scored) -> tuple[int, int, int]:
        shared, offered, wanted = super()._sizes(row)
        ends = int(row.tokens is not None and row.kind == "sequence")
        return shared + ends, offered + ends, wanted + ends
