"""SODA (soda_skapars2025, algorithm 1): gradient search over relaxed inputs, for many targets in one tensor.

    state Z (B, n, V), one row a target's input; the input read is softmax(Z / temperature) @ embedding matrix
    step  Adam without bias correction, then Z shrinks (decay); argmax Z is the candidate
    every reset_moments steps Adam's moments are reset, every reset_state steps Z is resampled

Without decay the search almost always fails, because large weights never shrink.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from unembed.attacks.lm_inversion.base import LanguageModelAttack, Loss
from unembed.attacks.lm_inversion.search import Rows, State

EPSILON = 1e-8
# The paper's standard deviations of sampled token weights (algorithm 1) and input vectors (algorithm 2).
WEIGHTS_STD, VECTORS_STD = 0.1, 1.0
Beta = Annotated[float, Field(ge=0, lt=1)]


class SODA(LanguageModelAttack):
    """Sparse one-hot discrete Adam; the defaults are the paper's for TinyStories-33M (appendix A).

    ``reset_moments`` and ``reset_state`` are t1 and t2. Without ``reparametrize`` it is the paper's embedding search:
    input vectors begin at random and are read as the nearest token; a model's may be far smaller than those that are
    sampled (about 0.14 per coordinate for GPT-2). ``fluency`` weights the input's negative log-likelihood (equation
    13), a mean over its tokens, against the mean loss of an observed value, as in the authors' code.
    """

    def __init__(
        self,
        loss: Loss,
        lr: PositiveFloat = 0.065,
        betas: tuple[Beta, Beta] = (0.9, 0.995),
        temperature: PositiveFloat = 0.05,
        decay: Annotated[float, Field(gt=0, le=1)] = 0.9,
        reset_moments: PositiveInt | None = 50,
        reset_state: PositiveInt | None = 1500,
        bias_correction: bool = False,
        reparametrize: bool = True,
        fluency: NonNegativeFloat = 0.0,
        draw_std: PositiveFloat | None = None,
        **search: Any,
    ) -> None:
        super().__init__(loss, **search)
        self.lr, self.betas, self.temperature, self.decay = lr, betas, temperature, decay
        self.reset_moments, self.reset_state = reset_moments, reset_state
        self.bias_correction, self.reparametrize, self.fluency = bias_correction, reparametrize, fluency
        self.draw_std = draw_std or (WEIGHTS_STD if reparametrize else VECTORS_STD)

    def passes(self, state: State) -> int | Tensor:
        return 3  # a forward and a backward pass

    def begin(self, rows: Rows) -> State:
        """Z = 0 for the first restart, sampled for the others; input vectors are always sampled."""
        vectors = rows.model.input_vectors
        shape = (len(rows), rows.length, len(vectors) if self.reparametrize else vectors.shape[1])
        z = torch.zeros(shape, device=rows.model.device)
        for row in range(len(rows)):
            if rows.restarts[row] or not self.reparametrize:
                self._draw(z, rows, row, purpose=0)
        return {"z": z, "m": torch.zeros_like(z), "v": torch.zeros_like(z)}

    def step(self, state: State, rows: Rows) -> Tensor:
        z, m, v = state["z"], state["m"], state["v"]
        gradient = self._gradient(z, rows)
        first, second = self.betas
        m.mul_(first).add_(gradient, alpha=1 - first)
        v.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        if self.bias_correction:
            taken = rows.iteration if self.reset_moments is None else (rows.iteration - 1) % self.reset_moments + 1
            taken = taken.to(z.dtype)[:, None, None]
            root = (v / (1 - second**taken)).sqrt_().add_(EPSILON)
            z.addcdiv_(m / (1 - first**taken), root, value=-self.lr)
        else:
            z.addcdiv_(m, v.sqrt().add_(EPSILON), value=-self.lr)
        if self.decay != 1:
            z.mul_(self.decay)
        candidates = self._candidates(z, rows)
        self._reset(state, rows)
        return candidates

    def _gradient(self, z: Tensor, rows: Rows) -> Tensor:
        """Of the loss of all inputs; each one's depends on its own row alone."""
        z = z.detach().requires_grad_(True)
        weights = (z / self.temperature).softmax(dim=-1) if self.reparametrize else None
        vectors = z if weights is None else weights @ rows.model.input_vectors
        m = rows.seen.ids.shape[1]
        keep = rows.length + m - 1 if self.fluency else m
        logits = rows.model.relaxed(vectors, rows.seen.continuation, keep)
        loss = self.objective(rows.model.observation, rows.seen, logits[:, -m:]).sum()
        if self.fluency and rows.length > 1:
            said = logits[:, : rows.length - 1]
            tokens = self._candidates(vectors.detach() if weights is None else z.detach(), rows)[:, 1:, None]
            surprise = (said.logsumexp(dim=-1, keepdim=True) - said.gather(-1, tokens)).mean(dim=(1, 2))
            # The loss is a sum, so its mean's counterpart is as many times as large.
            loss = loss + self.fluency * self.objective.values(rows.seen) * surprise.sum()
        (gradient,) = torch.autograd.grad(loss, z)
        return gradient

    def _candidates(self, z: Tensor, rows: Rows) -> Tensor:
        """The candidate that a state stands for, (B, n) ids; of input vectors the nearest tokens."""
        if self.reparametrize:
            return z.argmax(dim=-1)
        table = rows.model.input_vectors
        return (z @ table.T - table.square().sum(dim=1) / 2).argmax(dim=-1)  # half the squared distance, negated

    def _reset(self, state: State, rows: Rows) -> None:
        iteration = rows.iteration
        again = _every(iteration, self.reset_state)
        forget = (again | _every(iteration, self.reset_moments)).nonzero().squeeze(1)
        if len(forget):
            state["m"][forget] = 0
            state["v"][forget] = 0
        for row in again.nonzero().squeeze(1).tolist():
            self._draw(state["z"], rows, row, purpose=int(iteration[row]))

    def _draw(self, z: Tensor, rows: Rows, row: int, purpose: int) -> None:
        sampled = torch.randn(z.shape[1:], generator=rows.generator(row, purpose))
        z[row] = (sampled * self.draw_std).to(z.device)


def _every(iteration: Tensor, steps: int | None) -> Tensor:
    return torch.zeros_like(iteration, dtype=torch.bool) if steps is None else iteration % steps == 0
