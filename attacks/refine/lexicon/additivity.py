"""Whether an embedder adds up what words contribute, measured on the texts that a search embeds.

    "Ada went to Rome."  ->  "Ada went to Oslo."    cosine of phi(Oslo) - phi(Rome) with the observed change

Lexicon search predicts a change from vectors of single words. The mean of these cosines is 0.60 for all-MiniLM-L6-v2
(mean pooling), 0.65 for the first token's vectors of the same model, and about 0 if the prediction says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, cosine_similarity

from unembed.attacks.refine.lexicon.entries import Lexicon
from unembed.attacks.refine.lexicon.units import Units

_LEAST, _ENOUGH = 0.2, 50  # mean cosine, over so many replacements


class Additivity:
    """Collects replacements of one word, and warns once if they do not do what the vectors of words predict."""

    def __init__(self) -> None:
        self._cosines: list[float] = []

    @property
    def known(self) -> bool:
        """Whether enough replacements were seen."""
        return len(self._cosines) >= _ENOUGH

    def see(self, text: str, vectors: Mapping[str, Tensor], lexicon: Lexicon) -> None:
        """Add the texts of one target, with their vectors (d,), that differ from ``text`` in one word."""
        for old, new, change in _replacements(text, vectors):
            if lexicon.knows(old) and lexicon.knows(new):  # no further queries for a warning
                before, after = lexicon.vectors_of([old, new])
                self._cosines.append(float(cosine_similarity(after - before, change, dim=0)))
        mean = sum(self._cosines) / max(1, len(self._cosines))
        if self.known and mean < _LEAST:
            rank_zero_warn(
                "attack/refine=[lexicon]: this embedder does not add up its words, so the search cannot tell which "
                "words are missing: replacing one moves a vector in another direction than the vectors of the two "
                f"words say (mean cosine {mean:.2f} over {len(self._cosines)} replacements; all-MiniLM-L6-v2: 0.60)"
            )


def _replacements(text: str, vectors: Mapping[str, Tensor]) -> Iterator[tuple[str, str, Tensor]]:
    """Old word, new word, and change of the vector."""
    before = Units.of(text).words
    for other, vector in vectors.items():
        after = Units.of(other).words
        places = [place for place, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]]
        if text in vectors and len(before) == len(after) and len(places) == 1:
            yield before[places[0]], after[places[0]], vector - vectors[text]
