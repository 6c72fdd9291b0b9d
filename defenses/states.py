"""Defenses of hidden states: a row holds the states of a text's positions, and each is defended as a vector is.

    defended = of_states(Noise(0.1), tokens=64)      # for rows (n, 64 * d)

A defense of positions, such as permutation with ``axis=positions``, is given all states of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unembed.core.examples import Example
from unembed.defenses.base import BaseDefense, Defense, Fitted, Role, perturbs
from unembed.defenses.chain import Chain
from unembed.embedders.hidden_states import present


def of_states(defense: Defense, tokens: int) -> Defense:
    """``defense`` for rows of ``tokens`` positions; of a chain, each of its defenses."""
    if isinstance(defense, Chain):
        return Chain(**{name: of_states(step, tokens) for name, step in defense.steps.items()})
    estimated = isinstance(defense, Fitted) and type(defense).fit is not BaseDefense.fit
    return EstimatedOfStates(defense, tokens) if estimated else OfStates(defense, tokens)


class OfStates(BaseDefense):
    """Applies a defense to the states in rows (n, tokens * d); positions that a text does not have stay zero."""

    def __init__(self, defense: Defense, tokens: int) -> None:
        self.defense, self.tokens = defense, tokens
        self.perturbs, self._of_texts = perturbs(defense), getattr(defense, "of_positions", False)

    def output_dimension(self, dimension: int) -> int:
        if self._of_texts:
            return dimension
        return self.tokens * self.defense.output_dimension(dimension // self.tokens)

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Defended rows, (n, tokens * d) -> (n, output_dimension)."""
        states, here, owners = self._states(embeddings, examples)
        if self._of_texts:
            defended = torch.cat(
                [self.defense(row[own], [example], role, epoch)
                 for row, own, example in zip(states, here, examples, strict=True)]
            )  # fmt: skip
        else:
            defended = self.defense(states[here], owners, role, epoch)
        rows = defended.new_zeros(*here.shape, defended.shape[1])
        rows[here] = defended
        return rows.flatten(1)

    def _states(self, rows: Tensor, examples: Sequence[Example]) -> tuple[Tensor, Tensor, list[Example]]:
        """States (n, T, d), which of them a text has (n, T), and an example for each, with noise of its own."""
        states = rows.view(len(rows), self.tokens, -1)
        here = present(states)
        owners = [
            replace(example, text=f"{example.text} {position}")
            for example, count in zip(examples, here.sum(dim=1).tolist(), strict=True)
            for position in range(count)
        ]
        return states, here, owners


class EstimatedOfStates(OfStates):
    """The same for a defense that is fitted: to all states of the training texts."""

    defense: Fitted

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        states, here, owners = self._states(embeddings, examples)
        self.defense.fit(states[here], owners)

    def state(self) -> dict[str, Tensor]:
        return self.defense.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.defense.restore(state)
