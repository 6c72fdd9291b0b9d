"""Inputs and outputs of attacks: targets and predictions.

Targets(vectors, index)                                  # vectors (n, d), positions of their examples (n,)
Prediction(candidates=("my name is ada", "i am ada"))    # of one target, best first
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from unembed.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Hint:
    """The input of a baseline that reads no vectors: a text's first word, and its context."""

    first: str
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """The attacker's input: vectors (n, d) and the positions of their examples, (n,), which seed any sampling.

    ``hints`` are parts of the texts, only for baselines that ask for them (``Attack.targets``), otherwise None.
    ``lengths`` are input lengths in tokens, for attacks on a language model that know them (``Attack.targets``).
    """

    vectors: Tensor
    index: Tensor
    hints: tuple[Hint, ...] | None = None
    lengths: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """The result of a search for the input of one target.

    Attributes:
        verified: Whether the best candidate reproduces the observation of the target.
        iterations: Iterations over all lengths, until a candidate was verified.
        passes: Forward passes per input, over all restarts; a backward pass counts two.
        loss: Loss of the best candidate's tokens; None if not computed.
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
        kind: ``sequence``, or ``set`` for unordered words.
        tokens: The predicted token ids (see ``Attack.tokens``) if tokenizing the text does not give them back, as for
            a set of tokens; otherwise None.
        given: The hint that a baseline without vectors was given; None for every attack.
        search: The result of a search for the input of a language model.
        partial: Whether a query limit ended the search early; the candidates are the best texts until then.
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
