"""A search over texts of any length for one whose vector is the target's.

    ["i like dog"]  ->  deletions, replacements, insertions and orders of the closest texts  ->  "i like my dog ."

All candidates are run, and the closest texts so far are changed again, those first that were changed seldom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacks.lm_inversion.edits import Edits, Ids
from attacks.lm_inversion.encoder import Encoder
from attacks.lm_inversion.token_language import TokenLanguage

FOUND = 1 - 2e-5  # cosine of a text with its own vector, less the last bits of float32 and of another batch
_EQUAL = 6  # decimals of a cosine that count


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a search is.

    Attributes:
        steps: Rounds of each target.
        candidates: Changes that are run in a round.
        beam: Texts that are changed in a round.
        patience: Share by which each round in which a text was changed adds to its distance.
    """

    steps: int
    candidates: int
    beam: int
    patience: float = 0.5


@dataclass(slots=True, eq=False)
class Text:
    """A text whose vector is known."""

    ids: Ids
    vector: Tensor
    cosine: float
    changed: int = 0  # rounds
    edits: Iterator[Ids] | None = None  # None: not yet known


@dataclass(slots=True, eq=False)
class TextSearch:
    """The search for one target.

    Attributes:
        target: Unit vector, (d,).
        starts: Texts to begin with.
        budget: See Budget.
        pending: Texts to be run next.
        texts: Those that were run, the closest first.
        seen: Those that were run or are pending.
        steps: Rounds until now.
        passes: Texts run until now.
    """

    target: Tensor
    starts: Sequence[Ids]
    budget: Budget
    pending: list[Ids] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    known: dict[Ids, Text] = field(default_factory=dict)
    steps: int = 0
    passes: int = 0
    log: list = field(default_factory=list)

    def finished(self) -> bool:
        return self.steps >= self.budget.steps or self.texts[0].cosine > FOUND

    def receive(self, inputs: Sequence[Ids], vectors: Tensor) -> None:
        """Take the vectors of texts that were run."""
        cosines = (vectors @ self.target).tolist()
        for ids, vector, cosine in zip(inputs, vectors, cosines, strict=True):
            text = Text(ids, vector, round(cosine, _EQUAL))
            self.known[ids] = text
            self.texts.append(text)
        self.passes += len(inputs)
        self.texts.sort(key=lambda text: (-text.cosine, text.ids))

    def beam(self) -> list[Text]:
        """The texts that are changed in this round."""
        ranked = sorted(self.texts[:500], key=lambda text: ((1 - text.cosine) * (1 + self.budget.patience * text.changed)))
        return ranked[: self.budget.beam]


def shorter(ids: Ids) -> list[Ids]:
    return [ids[:place] + ids[place + 1 :] for place in range(len(ids)) if len(ids) > 1]


def search(searches: Sequence[TextSearch], encoder: Encoder, language: TokenLanguage, active: int) -> None:
    """Run searches until all are finished."""
    def run(wanted: Sequence[tuple[TextSearch, Sequence[Ids]]]) -> None:
        inputs = [ids for _, own in wanted for ids in own]
        vectors = encoder.vectors(inputs)
        for (one, own), block in zip(wanted, vectors.split([len(own) for _, own in wanted]), strict=True):
            one.receive(own, block)

    run([(one, list(dict.fromkeys(one.starts))) for one in searches])
    for begin in range(0, len(searches), active):
        block = searches[begin : begin + active]
        while left := [one for one in block if not one.finished()]:
            beams = [(one, one.beam()) for one in left]
            new = [(one, list(dict.fromkeys(ids for text in beam if text.edits is None for ids in shorter(text.ids) if ids not in one.known))) for one, beam in beams]
            run(new)
            inputs = []
            for one, beam in beams:
                own: dict[Ids, None] = {}
                for text in beam:
                    if text.edits is None:
                        less = shorter(text.ids)
                        rows = torch.stack([one.known[ids].vector for ids in less]) if less else text.vector[None]
                        text.edits = iter(Edits(text.ids, text.vector, rows, one.target, encoder, language))
                    text.changed += 1
                    fresh = []
                    wanted = one.budget.candidates // len(beam)
                    while len(fresh) < wanted:
                        some = [ids for _, ids in zip(range(wanted), text.edits)]
                        if not some:
                            text.changed = 1000
                            break
                        for ids in encoder.canonical(some):
                            if ids and ids not in one.known and ids not in own and len(ids) <= encoder.model.max_tokens:
                                own[ids] = None
                                fresh.append(ids)
                inputs.append((one, list(own)))
                one.steps += 1
            run(inputs)
