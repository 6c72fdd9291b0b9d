"""Split a text into its sentences, at white space after ``.``, ``!`` or ``?``.

    split_sentences("Ada lives here. Yes. She is a nurse.", 2, 50)  ->  ["Ada lives here.", "She is a nurse."]

Abbreviations are split as well ("Dr. Smith"); most of what that leaves is too short to be kept.
"""

from __future__ import annotations

import re

END = re.compile(r"(?<=[.!?])\s+")


def split_sentences(text: str, least: int, most: int) -> list[str]:
    """The sentences of ``text`` that have ``least`` to ``most`` words, cut at white space."""
    return [part.strip() for part in END.split(text) if least <= len(part.split()) <= most]
