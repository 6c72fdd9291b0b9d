"""attack=gcg: greedy coordinate gradient (Zou et al. 2023; Skapars et al. 2025, appendix C).

    an input -> the gradient of the loss in its one-hot tokens -> 700 inputs with one token swapped (swaps.py)
             -> run them all -> the best is the next input, even if it is worse than the last

A step takes hundreds of forward passes; SODA's takes four. Candidates of all targets run together, without duplicates.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.lm_inversion.base import LanguageModelAttack
from unembed.attacks.lm_inversion.losses import Loss
from unembed.attacks.lm_inversion.method import Rows, State
from unembed.attacks.lm_inversion.swaps import best_of, distinct, drawn_swaps, losses_of, promising_tokens

_LOGITS_AT_ONCE = 2**22  # of one forward pass
_START = 0  # purpose of the random numbers of the first input; a step's are those of its number


class GCG(LanguageModelAttack):
    """Swaps one token a step. Starts from random tokens.

    Args:
        loss: How far a candidate's output is from the target's.
        candidates: Inputs sampled in a step.
        k: Tokens that may be swapped in at a place.
        search: See LanguageModelAttack; an iteration is a swap.
    """

    def __init__(
        self,
        loss: Loss,
        candidates: PositiveInt = 700,
        k: PositiveInt = 128,
        **search: Any,
    ) -> None:
        super().__init__(loss, **search)
        self.candidates, self.k = candidates, k

    def passes(self, state: State) -> Tensor:
        """Of the last step: the gradient's three, and one for each different candidate."""
        return state["spent"]

    def begin(self, rows: Rows) -> State:
        """Random tokens."""
        size = (rows.length,)
        sampled = [
            torch.randint(rows.model.inputs, size, generator=rows.generator(i, _START)) for i in range(len(rows))
        ]
        ids = torch.stack(sampled).to(rows.model.device)
        return {"ids": ids, "spent": torch.zeros_like(ids[:, 0])}

    def step(self, state: State, rows: Rows) -> Tensor:
        """The best of the sampled candidates."""
        tokens = promising_tokens(self._gradient(state["ids"], rows), self.k)
        generators = [rows.generator(i, number) for i, number in enumerate(rows.iteration.tolist())]
        candidates, owners = distinct(drawn_swaps(state["ids"], tokens, self.candidates, generators))
        together = max(1, _LOGITS_AT_ONCE // (rows.model.observation.vocabulary * rows.seen.ids.shape[1]))
        state["ids"] = best_of(candidates, owners, losses_of(candidates, owners, rows, self.objective, together))
        state["spent"] = owners.bincount(minlength=len(rows)) + 3
        return state["ids"]

    def _gradient(self, ids: Tensor, rows: Rows) -> Tensor:
        """Of each input's loss in its one-hot tokens, (B, n, inputs)."""
        relaxed = torch.nn.functional.one_hot(ids, rows.model.inputs).float().requires_grad_()
        seen = rows.seen
        logits = rows.model.relaxed(relaxed @ rows.model.input_vectors, seen.continuation, seen.ids.shape[1])
        (gradient,) = torch.autograd.grad(self.distance(rows.model, seen, logits).sum(), relaxed)
        return gradient
