"""What an attack is given, and what it returns.

Targets(vectors, index)                                  # vectors (n, d), positions of their examples (n,)
Prediction(candidates=("my name is ada", "i am ada"))    # of one target, best first
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from errors import InputError


@dataclass(frozen=True, slots=True)
class Hint:
    """What a baseline that reads no vector is given instead: a text's first word, and what was said before it."""

    first: str
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """What the attacker holds: vectors (n, d) and the positions of their examples, (n,), which seed any sampling.

    ``hints`` is None but for a baseline that asks for them (``Attack.hints``): they are parts of the texts themselves.
    ``lengths`` are the tokens of each input, for an attack on a language model that knows them (``Attack.lengths``).
    """

    vectors: Tensor
    index: Tensor
    hints: tuple[Hint, ...] | None = None
    lengths: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """What a search for the input of one target came to.

    Attributes:
        verified: Whether the best candidate gives all that was seen of the target.
        iterations: Of the search, in all the lengths that it tried: up to the candidate that was verified, or all.
        passes: Forward passes of a single input; a backward pass counts two. Of all restarts together.
        loss: Of the best candidate's own tokens; None where none was computed.
    """

    verified: bool
    iterations: int
    passes: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The texts that an attack proposes for one target, best first.

    Attributes:
        candidates: At least one text.
        kind: ``sequence``, or ``set`` where the order of the words means nothing.
        tokens: The ids that the attack predicted, as ``Attack.tokens`` numbers them, where its text would not be cut
            into these again (a set of tokens, say); None where it would.
        given: What a baseline without vectors was given instead of the vector; None for every attack.
        search: What the search came to, of an attack that searches for the input of a language model.
        partial: A limit of the embedder ended the search for it early: these are the best texts until then.

    Raises:
        InputError: There is no text: no beam survives where weights are so large that scores overflow.
    """

    candidates: tuple[str, ...]
    kind: Literal["sequence", "set"] = "sequence"
    tokens: tuple[int, ...] | None = None
    given: str | None = None
    search: SearchRecord | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InputError("the attack writes no text: its weights give scores that are not finite; train it again")

    def refined(self, candidates: tuple[str, ...], partial: bool = False) -> Prediction:
        """This prediction with other candidates; ids and search record belong to a best candidate that is the same."""
        same = candidates[:1] == self.candidates[:1]
        tokens, search = (self.tokens, self.search) if same else (None, None)
        return replace(self, candidates=candidates, tokens=tokens, search=search, partial=self.partial or partial)
