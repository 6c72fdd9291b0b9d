"""defense=[...]: several defenses, one after another.

    'defense=[language_agnostic,noise]' defense.noise.level=0.01     # the mean is subtracted, then noise is added

Each defense is fitted to the output of the previous ones. A repeated defense is numbered: noise, noise_2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from torch import Tensor

from unembed.core.examples import Example
from unembed.defenses.base import Defense, Fitted, Role, Strength, perturbs, searched


class Chain:
    """Applies defenses in the given order.

    Raises:
        ValueError: No defenses are given.
    """

    def __init__(self, **steps: Defense) -> None:
        if not steps:
            raise ValueError("a chain of no defenses; name them in a list: 'defense=[masking,noise]'")
        self.steps = steps
        self.perturbs = all(map(perturbs, steps.values()))

    @property
    def strength(self) -> Strength | None:
        """That of the last defense that has one."""
        named = [(name, getattr(step, "strength", None)) for name, step in self.steps.items()]
        return next((one._replace(argument=f"{name}.{one.argument}") for name, one in named[::-1] if one), None)

    def output_dimension(self, dimension: int) -> int:
        return reduce(lambda d, step: step.output_dimension(d), self.steps.values(), dimension)

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Fit each defense to training vectors (n, d) transformed by the previous ones."""
        for step in self.steps.values():
            step.fit(embeddings, examples)
            embeddings = step(embeddings, examples, "train")

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Vectors (n, d) transformed by all defenses, (n, output_dimension(d))."""
        for step in self.steps.values():
            embeddings = step(embeddings, examples, role, epoch)
        return embeddings

    def searched(self, embeddings: Tensor, examples: Sequence[Example], role: Role) -> Tensor:
        """What the owner's search compares, who undoes what each key undoes."""
        for step in self.steps.values():
            embeddings = searched(step, embeddings, examples, role)
        return embeddings

    def state(self) -> dict[str, Tensor]:
        fitted = {name: step for name, step in self.steps.items() if isinstance(step, Fitted)}
        return {f"{name}/{key}": tensor for name, step in fitted.items() for key, tensor in step.state().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, step in self.steps.items():
            if isinstance(step, Fitted):
                own = {key.removeprefix(f"{name}/"): t for key, t in state.items() if key.startswith(f"{name}/")}
                step.restore(own)
