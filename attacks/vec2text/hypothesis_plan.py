"""The hypotheses that a corrector is trained on, and how an inverter generates them.

The published corrector sees one greedy hypothesis per training text. But an inverter trained on the same texts
generates better hypotheses for them than for unseen texts. Noise on the inverter's input vector, and sampling, remove
this mismatch; texts that the corrector has rewritten itself prepare it for later rounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.decoding import BeamSearch, Decoding, NucleusSampling
from unembed.attacks.parts.predictions import Targets

ROWS = 256  # vectors that are decoded together
NOISE_STEP = 0.02


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one set of hypotheses.

    Attributes:
        noise: Norm of Gaussian noise on the vector, as a share of the vector's norm.
        temperature: Of sampling; None writes greedily.
        seed: Of noise and sampling.
    """

    noise: float = 0.0
    temperature: float | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        parts = ["greedy" if self.temperature is None else f"sampled at {self.temperature:g}"]
        return ", ".join(parts + ([f"noise {self.noise:g}"] if self.noise else []))

    def decoding(self, max_new_tokens: int) -> Decoding:
        if self.temperature is None:
            return BeamSearch(beams=1, max_new_tokens=max_new_tokens)
        return NucleusSampling(p=1.0, temperature=self.temperature, max_new_tokens=max_new_tokens, seed=self.seed)

    def noised(self, vectors: Tensor, index: Sequence[int]) -> Tensor:
        """Vectors (n, d) of the examples ``index``, whose noise depends on seed and example alone."""
        if self.noise == 0:
            return vectors
        rows = []
        for example in index:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + example)
            rows.append(torch.randn(vectors.shape[-1], generator=generator))
        size: Tensor = self.noise * vectors.norm(dim=-1, keepdim=True) / math.sqrt(vectors.shape[-1])
        return vectors + size * torch.stack(rows)


class HypothesisPlan:
    """The sets of hypotheses; each training example samples one of its hypotheses in every epoch."""

    def __init__(
        self,
        directory: str,
        noise: Annotated[list[NonNegativeFloat | Literal["matched"]], Field(min_length=1)],
        sampled: NonNegativeInt = 0,
        temperature: PositiveFloat = 1.0,
        later_rounds: NonNegativeInt = 0,
        seed: NonNegativeInt = 0,
    ) -> None:
        self.directory, self.later_rounds = Path(directory), later_rounds
        self.noise, self.sampled, self.temperature, self.seed = noise, sampled, temperature, seed

    def recipes(self, matched: Callable[[], float]) -> list[Recipe]:
        """One a set; ``matched`` finds the noise of that name, where it is asked for."""
        found = matched() if "matched" in self.noise else 0.0
        sizes = [found if size == "matched" else float(size) for size in self.noise]
        recipes = [Recipe(noise=size, seed=self.seed + number) for number, size in enumerate(sizes)]
        return recipes + [Recipe(temperature=self.temperature, seed=self.seed + n) for n in range(self.sampled)]

    def folder(self, *parts: object) -> Path:
        """The folder of one set: a hash of everything that determines its content."""
        return self.directory / blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def is_folder_name(name: str) -> bool:
    """Whether ``name`` is one that ``HypothesisPlan.folder`` gives, and so leads nowhere else."""
    return re.fullmatch(r"[0-9a-f]{24}", name) is not None


def matched_noise(closeness: Callable[[float], float], wanted: float) -> float:
    """The noise, to a hundredth, with which the mean cosine of hypotheses falls to ``wanted``; 0 where it is no higher
    without noise."""
    if closeness(0.0) <= wanted:
        return 0.0
    low, high = 0.0, 2.0
    while high - low > NOISE_STEP:
        middle = (low + high) / 2
        if closeness(middle) > wanted:
            low = middle
        else:
            high = middle
    return round(high, 2)


def write_hypotheses(
    inverter: GenerativeAttack, recipe: Recipe, vectors: Tensor, index: Sequence[int], device: torch.device
) -> list[str]:
    """What ``inverter`` says of vectors (n, d), the vectors of the examples ``index``, by ``recipe``."""
    own = inverter.decoding
    inverter.decoding = recipe.decoding(own.max_new_tokens)
    texts: list[str] = []
    try:
        for begin in range(0, len(index), ROWS):
            chosen = list(index[begin : begin + ROWS])
            block = recipe.noised(vectors[begin : begin + ROWS], chosen).to(device)
            found = inverter.propose(Targets(block, torch.tensor(chosen)), None)
            texts += [prediction.candidates[0] for prediction in found]
    finally:
        inverter.decoding = own
    return texts
