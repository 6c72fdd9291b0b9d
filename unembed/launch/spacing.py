"""Overrides written with spaces around ``=``, which the shell splits into several words.

joined(["attack=geia", "seed", "=", "3"])     # ["attack=geia"], ["seed = 3: write seed=3, without spaces"]
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def joined(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The complete words, and a message for each override that was split."""
    kept: list[str] = []
    errors: list[str] = []
    place = 0
    while place < len(words):
        taken = _cut(words[place:])
        if taken:
            said = " ".join(words[place : place + taken])
            errors.append(f"{said}: write {re.sub(r' *= *', '=', said, count=1)}, without spaces")
        else:
            kept.append(words[place])
        place += taken or 1
    return kept, errors


def _cut(words: Sequence[str]) -> int:
    """How many of the first words form one override; 0 if the first word is complete."""
    first, second = words[0], words[1] if len(words) > 1 else ""
    if re.match(r"[+~]*[\w./@\[\]]+ +=", first):  # quoted: one word with a space in it
        return 1
    if "=" not in first and second.startswith("="):
        return 3 if second == "=" and len(words) > 2 and "=" not in words[2] else 2
    if first.endswith("=") and first.count("=") == 1 and second and "=" not in second:
        return 2
    return 0
