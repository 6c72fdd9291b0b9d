"""denoiser=gaussian: the posterior mean under a Gaussian prior that is fitted to the noisy vectors of a store.

    unembed invert run=minilm vectors=noisy.npy denoiser=gaussian
    python evaluate.py run=<dir> defense=noise defense.level=0.03 denoiser=gaussian

With y = x + level * e, x ~ N(m, C) and e ~ N(0, I), the noisy vectors have the mean m and the covariance
C + level^2 I, whose spectrum can be estimated without a clean vector (spectrum.py). The posterior mean is

    E[x | y] = m + sum_k (1 - level^2 / v_k) <u_k, y - m> u_k,    v_k the variance of the noisy vectors along u_k

(Wiener 1949). It is shorter than x; an attack was trained on vectors of the embedder's length. So the result gets the
length that is estimated for x, or that of y in a store whose vectors are all of one length.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from unembed.core.errors import InputError
from unembed.defenses.denoisers.base import check_vectors
from unembed.defenses.denoisers.releases import averages
from unembed.defenses.denoisers.spectrum import FOLDS, Spectrum, noise_level

_ENOUGH = 2  # rows for each dimension, from which the level is estimated
_EQUAL = 1e-4  # relative spread of lengths that count as equal


class GaussianDenoiser:
    """The posterior mean under a Gaussian prior.

    Args:
        level: Standard deviation of the noise in each dimension; None: estimated from the store.
        rows: At most so many vectors of the store are fitted to.
        releases: Average rows that seem to be one vector with noise of its own each time (releases.py).
    """

    def __init__(
        self,
        level: PositiveFloat | None = None,
        rows: Annotated[int, Field(ge=2 * FOLDS)] = 20_000,
        releases: bool = False,
    ) -> None:
        self.given, self.rows, self.releases = level, rows, releases
        self.level = 0.0
        self._spectrum: Spectrum | None = None
        self._store = torch.empty(0)
        self._signal = torch.empty(0)  # variance of the clean vectors in each direction
        self._square, self._steadiness, self._length = 0.0, 0.0, 0.0

    def fit(self, vectors: Tensor) -> None:
        if self.given is None:
            enough = max(_ENOUGH * vectors.shape[1], 2 * FOLDS)
            check_vectors(vectors, enough, "to estimate the noise; give denoiser.level, or a larger store")
        check_vectors(vectors, 2 * FOLDS, "for a covariance")
        spectrum = Spectrum.of(vectors)
        self._spectrum, self.level = spectrum, noise_level(vectors) if self.given is None else self.given
        noise = self.level**2
        self._signal = (spectrum.variances - noise).clamp(min=0.0)
        self._store = vectors.double() if self.releases else self._store
        squares = vectors.double().square().sum(dim=1)
        lengths = squares.sqrt()
        equal = (lengths.max() - lengths.min()).item() <= _EQUAL * lengths.mean().item()
        self._length = lengths.mean().item() if equal else 0.0
        # Squared lengths of the clean vectors: a scalar posterior mean in the same way.
        dimension = vectors.shape[1]
        mean = squares.mean().item() - dimension * noise
        if mean <= 0:
            raise InputError(
                f"denoiser.level={self.level:.3g}: noise of this level alone would be longer than the store's vectors, "
                f"whose root mean square length is {math.sqrt(squares.mean().item()):.3g}"
            )
        spread = squares.var().item()
        of_noise = 2 * dimension * noise**2 + 4 * noise * mean
        self._square = mean
        self._steadiness = max(1 - of_noise / spread, 0.0) if spread > 0 else 0.0

    def __call__(self, vectors: Tensor) -> Tensor:
        if self._spectrum is None:
            raise RuntimeError("call GaussianDenoiser.fit before using it")
        spectrum, noisy = self._spectrum, vectors.cpu().double()
        noise = torch.full((len(noisy), 1), self.level**2, dtype=torch.float64)
        if self.releases:
            noisy, counts = averages(noisy, self._store, self.level)
            noise /= counts[:, None]
        gains = self._signal / (self._signal + noise)
        along = (noisy - spectrum.mean) @ spectrum.directions
        posterior = spectrum.mean + (along * gains.nan_to_num(0.0)) @ spectrum.directions.T
        if self._length:
            wanted = torch.full((len(noisy), 1), self._length, dtype=torch.float64)
        else:
            seen = noisy.square().sum(dim=1, keepdim=True) - noisy.shape[1] * noise
            square = self._square + self._steadiness * (seen - self._square)
            wanted = square.clamp(min=0.0).sqrt()
        lengths = posterior.norm(dim=1, keepdim=True)
        found: Tensor = posterior * (wanted / lengths.where(lengths > 0, 1.0))
        return found.to(vectors)

    def report(self) -> str:
        relative = self.level / (math.sqrt(self._square) or 1.0)
        found = "as given" if self.given is not None else "estimated from the store"
        return (
            f"denoiser=gaussian: noise of {self.level:.3g} in each dimension ({found}), {relative:.3g} relative to the "
            f"length of the vectors without it; {int((self._signal > self.level**2).sum())} of {len(self._signal)} "
            "directions hold more signal than noise"
        )
