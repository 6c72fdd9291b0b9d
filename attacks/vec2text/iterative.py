"""Base of attacks that iteratively correct an initial hypothesis.

attack.correct(targets, oracle, steps=20, beams=4)[0][5]       # Round(text="...", cosine=0.97, queries=31, ...)
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal

import torch

from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Refiner, comparable
from unembed.attacks.vec2text.network import NetworkRewriter
from unembed.attacks.vec2text.search import CorrectionSearch, Proposal, Round
from unembed.embedders.cache.cached import CachedEmbedder

Initial = Literal["inverter", "random", "constant"]
RANDOM_TOKENS = 32  # of a random initial hypothesis, as in table 5


class IterativeAttack(Attack):
    """An attack that guesses a text, embeds it, and corrects it.

    Args:
        search: How corrections are searched.
        initial: The first hypothesis: the inverter's prediction, random tokens, the same for all targets, or a constant
            text (table 5).
        constant: That text.
        refine: See Attack; after the correction.
    """

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
        """The initial hypothesis of each target."""
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
        """The rounds 0 to ``steps`` of each target.

        Args:
            targets: What was received.
            oracle: Embeds hypotheses; the distinct texts that it is asked for are the attack's queries.
            start: The initial hypotheses; None: the configuration's.
            steps: Correction steps; None: the configuration's.
            beams: Size of the sequence beam; None: the configuration's.

        Raises:
            InputError: See comparable.
        """
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
        """The last round of each target."""
        last = [rounds[-1] for rounds in self.correct(targets, oracle)]
        return [Prediction(candidates=(one.text,), partial=one.partial) for one in last]
