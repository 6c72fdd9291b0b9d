"""Iterative correction as a search over texts: greedy correction, and sequence beam search (Morris et al. 2023, 3.2).

    search = CorrectionSearch(steps=20, beams=4)
    search(corrector, targets, start=["my name is ada"], embed=embed)[0][-1]      # Round(text="...", cosine=0.98, ...)

A round takes the texts of each target's frontier, has the corrector rewrite them, and embeds what is new. ``accept``
says which texts are the next frontier, and so when a target leaves. At a limit of the embedder the search asks no more:
every target has its best text until then, and those that were still searched say so.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner, comparable
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder

if TYPE_CHECKING:
    from unembed.attacks.vec2text.network import NetworkRewriter


@dataclass(frozen=True, slots=True)
class Proposal:
    """A text that a corrector proposes, and the ids that it was written with."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What stands for one target after so many correction steps.

    Attributes:
        text: The closest text so far; if the search accepts the newest, the closest of these.
        cosine: Of its vector with the target, -1..1; None where a limit of the embedder left it without a vector.
        queries: Distinct texts asked for on behalf of this target so far.
        seconds: Of all work so far, divided by the number of targets that were searched together.
        partial: A limit of the embedder ended this target's search before this step was done.
    """

    text: str
    cosine: float | None
    queries: int
    seconds: float
    partial: bool = False


class Rewriter(Protocol):
    """A corrector as the search sees it."""

    def project(self, targets: Tensor) -> Tensor:
        """What the corrector reads of targets (n, d) in every round, made once: (n, ...)."""
        ...

    def rewrite(
        self, projected: Tensor, targets: Tensor, hypotheses: Sequence[Proposal], vectors: Tensor, beams: int
    ) -> list[list[Proposal]]:
        """Up to ``beams`` proposals, best first, for each of m hypotheses with their vectors (m, d); ``projected`` and
        ``targets`` have a row for each hypothesis."""
        ...


Embed = Callable[[list[str]], Tensor]
Accept = Literal["best", "newest", "closer"]


@dataclass(slots=True)
class _Known:
    """A text that was embedded for a target."""

    proposal: Proposal
    row: int  # of the memo
    cosine: float
    rewritten: bool = False


@dataclass(slots=True)
class _Target:
    """One target's search."""

    first: Proposal
    known: dict[str, _Known] = field(default_factory=dict)
    frontier: list[_Known] = field(default_factory=list)
    best: _Known | None = None
    rounds: list[Round] = field(default_factory=list)
    partial: bool = False


@dataclass
class CorrectionSearch:
    """Greedy correction (one beam) or sequence beam search.

    A target is solved when the cosine reaches 1 - ``tolerance``: rounding leaves some 1e-6 between two vectors of a
    text. ``accept`` says what is rewritten next:

    - ``best``: the b closest texts that were not rewritten yet, older ones included; a target leaves when its text is
      found or none is left.
    - ``newest``, as in the authors' code: the b closest of the newest proposals, even where they are farther than the
      texts before them; no target leaves early, and the closest of the last round is returned.
    - ``closer``, as in the paper's text: a proposal replaces one of the b texts only where it is closer; a target
      leaves when none is replaced, since the corrector would write the same again.
    """

    steps: NonNegativeInt = 20
    beams: PositiveInt = 4
    tolerance: NonNegativeFloat = 1e-5
    accept: Accept = "best"
    rows: PositiveInt = 128

    def __call__(
        self,
        rewriter: Rewriter,
        targets: Tensor,
        start: Sequence[Proposal],
        embed: Embed,
        *,
        steps: int | None = None,
        beams: int | None = None,
        began: float | None = None,
    ) -> list[list[Round]]:
        """Search for all targets together.

        Args:
            rewriter: The corrector.
            targets: (n, d).
            start: The initial hypothesis of each target.
            embed: Texts -> (m, d); called with distinct texts that it was not called with before. Its QueryLimitError
                ends the search; the vectors in it are used.
            steps: In place of the search's own.
            beams: In place of the search's own.
            began: When the work on these targets began (``time.perf_counter``), for the seconds of a round; None: now.

        Returns:
            For each target, the rounds 0 (its initial hypothesis) to ``steps``.
        """
        beams = self.beams if beams is None else beams
        began = time.perf_counter() if began is None else began
        searched = [_Target(proposal) for _, proposal in zip(targets, start, strict=True)]
        search = _Search(self, rewriter, targets, embed, beams, began, searched)
        return search.run(self.steps if steps is None else steps)


@dataclass
class _Search:
    """The state of one call."""

    settings: CorrectionSearch
    rewriter: Rewriter
    targets: Tensor
    embed: Embed
    beams: int
    began: float
    searched: list[_Target]
    rows_of: dict[str, int] = field(default_factory=dict)  # a text's row of the memo, over all targets and rounds
    memo: list[Tensor] = field(default_factory=list)
    limited: bool = False

    def __post_init__(self) -> None:
        self.units = torch.nn.functional.normalize(self.targets.float(), dim=-1)

    def run(self, steps: int) -> list[list[Round]]:
        self._embed_new([[target.first] for target in self.searched])
        for target in self.searched:
            target.frontier = list(target.known.values())
            target.best = target.frontier[0] if target.frontier else None
            target.partial = target.best is None
        self._record()
        projected = self.rewriter.project(self.targets) if steps > 0 and len(self.targets) else None
        for _ in range(steps):
            active = [number for number, target in enumerate(self.searched) if target.frontier]
            if self.limited:
                for number in active:
                    self.searched[number].partial = True
            elif projected is not None and active:
                self._advance(active, projected)
            self._record()
        return [target.rounds for target in self.searched]

    def _advance(self, active: list[int], projected: Tensor) -> None:
        """One round of the targets that are still searched."""
        pairs = [(number, known) for number in active for known in self.searched[number].frontier]
        rewritten: list[list[Proposal]] = []
        for begin in range(0, len(pairs), self.settings.rows):
            rewritten += self._rewrite(pairs[begin : begin + self.settings.rows], projected)
        proposals: list[list[Proposal]] = [[] for _ in self.searched]
        for (number, known), found in zip(pairs, rewritten, strict=True):
            known.rewritten = True
            proposals[number] += found
        self._embed_new(proposals)
        for number in active:
            target = self.searched[number]
            assert target.best is not None
            unmet = any(proposal.text not in target.known for proposal in proposals[number])
            if self.settings.accept == "best":
                target.best = _closest([target.best, *target.known.values()], 1)[0]
                solved = target.best.cosine >= 1 - self.settings.tolerance
                left = [] if solved else [known for known in target.known.values() if not known.rewritten]
                target.frontier = _closest(left, self.beams)
                target.partial = unmet and not solved
            else:
                kept = target.frontier if self.settings.accept == "closer" else []
                pool = {known.proposal.text: known for known in kept}
                pool |= {p.text: target.known[p.text] for p in proposals[number] if p.text in target.known}
                after = _closest(list(pool.values()), self.beams)
                target.best = after[0] if after else target.best
                target.frontier = after if after != kept else []
                target.partial = unmet

    def _rewrite(self, pairs: list[tuple[int, _Known]], projected: Tensor) -> list[list[Proposal]]:
        numbers = torch.tensor([number for number, _ in pairs], device=self.targets.device)
        vectors = torch.stack([self.memo[known.row] for _, known in pairs])
        return self.rewriter.rewrite(
            projected[numbers], self.targets[numbers], [known.proposal for _, known in pairs], vectors, self.beams
        )

    def _embed_new(self, proposals: Sequence[Sequence[Proposal]]) -> None:
        """Embed what no target has met, and give each target its new texts with their cosines."""
        unseen = dict.fromkeys(p.text for found in proposals for p in found if p.text not in self.rows_of)
        if unseen:
            texts, vectors = self._embed(list(unseen))
            self.rows_of.update(zip(texts, range(len(self.memo), len(self.memo) + len(texts)), strict=True))
            self.memo += vectors.to(self.targets).unbind()
        new = [
            (number, proposal)
            for number, found in enumerate(proposals)
            for proposal in _first(found)
            if proposal.text not in self.searched[number].known and proposal.text in self.rows_of
        ]
        if not new:
            return
        rows = [self.rows_of[proposal.text] for _, proposal in new]
        vectors = torch.stack([self.memo[row] for row in rows]).float()
        units = self.units[[number for number, _ in new]]
        cosines = (torch.nn.functional.normalize(vectors, dim=-1) * units).sum(-1).clamp(-1, 1).tolist()
        for (number, proposal), row, cosine in zip(new, rows, cosines, strict=True):
            self.searched[number].known[proposal.text] = _Known(proposal, row, cosine)

    def _embed(self, texts: list[str]) -> tuple[list[str], Tensor]:
        """The texts that have a vector, and their vectors: all of them, unless a limit is reached."""
        try:
            return texts, self.embed(texts)
        except QueryLimitError as error:
            self.limited = True
            return [texts[position] for position in error.done], error.vectors

    def _record(self) -> None:
        seconds = (time.perf_counter() - self.began) / max(1, len(self.searched))
        for target in self.searched:
            text, cosine = target.first.text, None
            if target.best is not None:
                text, cosine = target.best.proposal.text, target.best.cosine
            target.rounds.append(Round(text, cosine, len(target.known), seconds, target.partial))


def _first(proposals: Sequence[Proposal]) -> list[Proposal]:
    first: dict[str, Proposal] = {}
    for proposal in proposals:
        first.setdefault(proposal.text, proposal)
    return list(first.values())


def _closest(known: Sequence[_Known], count: int) -> list[_Known]:
    # Stable: of equals, the one that was met first.
    return sorted(known, key=lambda one: -one.cosine)[:count]


Initial = Literal["inverter", "random", "constant"]


RANDOM_TOKENS = 32  # of a random initial hypothesis, as in table 5


class IterativeAttack(Attack):
    """An attack that guesses a text, embeds it, and corrects it; refiners come after the correction."""

    asks_embedder = True

    def __init__(
        self,
        search: CorrectionSearch,
        initial: Initial = "inverter",
        constant: str = "the",
        refine: Mapping[str, Refiner] | None = None,
    ) -> None:
        super().__init__(refine)
        self.search, self.initial, self.constant = search, initial, constant

    @property
    @abstractmethod
    def rewriter(self) -> NetworkRewriter:
        """The corrector."""

    @abstractmethod
    def guess(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Proposal]:
        """What the inverter makes of each target; ``oracle`` embeds texts that it reranks."""

    def start(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Proposal]:
        if self.initial == "inverter":
            return self.guess(targets, oracle)
        if self.initial == "constant":
            return self.rewriter.read([self.constant] * len(targets.vectors))
        size, generator = len(self.rewriter.tokenizer), torch.Generator().manual_seed(0)
        ids = torch.randint(size, (min(RANDOM_TOKENS, self.rewriter.max_new_tokens),), generator=generator).tolist()
        return [self.rewriter.proposal(ids)] * len(targets.vectors)

    def correct(
        self,
        targets: Targets,
        oracle: CachedEmbedder | None,
        *,
        start: list[Proposal] | None = None,
        steps: int | None = None,
        beams: int | None = None,
    ) -> list[list[Round]]:
        """The rounds 0 to ``steps`` of each target; None stands for the configuration's start, steps and beams."""
        comparable(targets.vectors.shape[-1], oracle)
        assert oracle is not None
        began = time.perf_counter()  # the first guess takes time, too
        return self.search(
            self.rewriter,
            targets.vectors,
            self.start(targets, oracle) if start is None else start,
            lambda texts: oracle.embed(texts, "attack"),
            steps=steps,
            beams=beams,
            began=began,
        )

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        last = [rounds[-1] for rounds in self.correct(targets, oracle)]
        return [Prediction(candidates=(one.text,), partial=one.partial) for one in last]
