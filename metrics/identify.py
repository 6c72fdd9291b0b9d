"""Which embedder made these vectors? Model, layer, pooling and prefix, from the vectors alone.

    identity = identify(vectors)          # (n, d), one vector is enough
    identity.space.embedder               # "minilm", an option of configs/embedder; identity.space is None if unknown
    print(identity)                       # vectors of all-MiniLM-L6-v2, mean pooling (embedder=minilm), of length 1

Each known space is described by mean and covariance of its unit vectors of some 8,000 texts of many sources, in
known_spaces.safetensors (made by benchmarks/identify.py; it holds no text). An embedder leaves some directions almost
empty, whatever the text is. So the Gaussian density of a single vector tells spaces apart, even the layers of a model.

A vector is *typical* of a space if its density, and its energy in the main and in the other directions, lie between the
values that all but 1 in 500 other texts have on either side. A vector that is typical of no space is of an unknown one.
After a secret rotation only the angles between vectors are left: from 100 vectors on, the mean and spread of their
cosines and the spectrum of their Gram matrix are compared with those of the known spaces.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from unembed.core.errors import InputError

FILE = Path(__file__).with_name("known_spaces.safetensors")
MAIN = 256  # directions whose variances are stored one by one, at most
TAIL = 0.002  # share of a space's own vectors that lie beyond each bound
TYPICAL = 0.5  # share of the vectors that have to be typical
ROTATED_FROM = 100  # vectors from which a rotated space is told
CLOSE = 30.0  # squared Mahalanobis distance of a rotated space's invariants, at most
_LOOKED_AT = 2000  # vectors, evenly
_EIGENVALUES = 10


@dataclass(frozen=True, slots=True)
class Name:
    """What a space is called.

    Attributes:
        embedder: The option of configs/embedder.
        title: Of the model.
        details: Pooling, layer and prefix.
        overrides: Those of the command line that make this space; None where there are none, as for an inner layer.
    """

    embedder: str
    title: str
    details: str
    overrides: str | None = ""

    def __str__(self) -> str:
        how = None if self.overrides is None else " ".join([f"embedder={self.embedder}", self.overrides]).strip()
        return f"{self.title}, {self.details}" + (f" ({how})" if how else "")


@dataclass(frozen=True, slots=True)
class KnownSpace:
    """A known space of unit vectors.

    Attributes:
        name: What it is called.
        mean: (d,).
        main: Directions of the largest variance, (d, k).
        variance: Along each of them, (k,).
        rest: Variance along every other direction, ().
        bounds: Lowest and highest typical value of the statistics of ``compare``, (2, 3).
        center: Mean of the invariants of samples of ``ROTATED_FROM`` vectors of few sources, (q,).
        precision: Inverse of their covariance, (q, q).
    """

    name: Name
    mean: Tensor
    main: Tensor
    variance: Tensor
    rest: Tensor
    bounds: Tensor
    center: Tensor
    precision: Tensor

    @classmethod
    def of(cls, name: Name, units: Tensor, sources: Sequence[str]) -> KnownSpace:
        """The space of unit vectors (n, d) of texts of ``sources``; each half sets the other's bounds."""
        seeds = torch.Generator().manual_seed(0)
        samples = torch.stack([invariants(units[_sample(sources, seeds)]) for _ in range(150)])
        precision = torch.linalg.inv(torch.cov(samples.T) + 1e-3 * torch.eye(samples.shape[1]))
        halves = units[::2], units[1::2]
        crossed = [_gaussian(name, half).compare(other)[1] for half, other in (halves, halves[::-1])]
        bounds = torch.quantile(torch.cat(crossed), torch.tensor([TAIL, 1 - TAIL]), dim=0)
        return replace(_gaussian(name, units), bounds=bounds, center=samples.mean(dim=0), precision=precision)

    def compare(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Of unit vectors (n, d): log density a dimension (n,); density and two log energies, (n, 3)."""
        centred = units.float() - self.mean
        along = centred @ self.main
        others = len(self.mean) - len(self.variance)
        main = along.square() / self.variance
        rest = (centred.square().sum(dim=1) - along.square().sum(dim=1)).clamp_min(1e-9) / self.rest
        volume = self.variance.log().sum() + others * self.rest.log()
        density = -(main.sum(dim=1) + rest + volume) / (2 * len(self.mean))
        return density, torch.stack([density, main.mean(dim=1).log(), (rest / others).log()], dim=1)

    def share_typical(self, units: Tensor) -> float:
        """Share of unit vectors (n, d) that are typical of this space."""
        statistics = self.compare(units)[1]
        return ((statistics >= self.bounds[0]) & (statistics <= self.bounds[1])).all(dim=1).float().mean().item()

    def distance(self, values: Tensor) -> float:
        """Squared Mahalanobis distance of invariants (q,)."""
        difference = values - self.center
        return (difference @ self.precision @ difference).item()


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known of vectors.

    Attributes:
        count: Number of vectors.
        dimension: Of each.
        length: Their length, None if they have different ones.
        space: None if it is unknown.
        share: Share of the vectors that are typical of the space.
        rotated: Whether only the angles between them are those of the space.
        nearest: Of the known spaces that in which they have the highest density, typical or not; None if none has
            this dimension.
    """

    count: int
    dimension: int
    length: float | None
    space: Name | None
    share: float = 0.0
    rotated: bool = False
    nearest: Name | None = None

    def __str__(self) -> str:
        many = f"{self.count:,} vector{'s' * (self.count != 1)} of {self.dimension} dimensions"
        long = "of different lengths" if self.length is None else f"of length {self.length:.3g}"
        if self.space is None:
            told = any(one.name.overrides is not None and len(one.mean) == self.dimension for one in known_spaces())
            told &= self.count < ROTATED_FROM
            few = f"; a secret rotation could be told from {ROTATED_FROM} vectors on" if told else ""
            return f"{many}, {long}: of an unknown embedder ({len(known_spaces())} spaces are known{few})"
        if self.rotated:
            return f"{many}, {long}: their angles are like those of {self.space.title}, rotated in secret"
        part = "" if self.share > 0.9 else f"; {self.share:.0%} of them are typical"
        return f"{many}, {long}: {self.space}{part}"


def identify(vectors: Tensor) -> Identity:
    """The known space of ``vectors`` (n, d), n >= 1.

    Raises:
        InputError: There is none, or one is zero, or has NaN or infinity.
    """
    count, dimension = vectors.shape
    if not count:
        raise InputError("vectors: there are none")
    vectors = vectors[:: -(-count // _LOOKED_AT)].float()
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    if not (lengths.isfinite() & (lengths > 0)).all():
        raise InputError("vectors: one of them is zero, or has NaN or infinity")
    units = vectors / lengths[:, None]
    same = (lengths - lengths.mean()).abs().max() < 0.01 * lengths.mean()
    known = [space for space in known_spaces() if len(space.mean) == dimension]
    unknown = Identity(count, dimension, lengths.mean().item() if same else None, None)
    if not known:
        return unknown
    best = best_of(known, units)
    unknown = replace(unknown, nearest=best.name)
    share = best.share_typical(units)
    if share >= TYPICAL:
        return replace(unknown, space=best.name, share=share)
    if len(units) >= ROTATED_FROM:
        whole = len(units) // ROTATED_FROM * ROTATED_FROM
        values = torch.stack([invariants(part) for part in units[:whole].split(ROTATED_FROM)]).mean(dim=0)
        if (rotated := nearest_rotated(known, values)) is not None:
            return replace(unknown, space=rotated.name, rotated=True)
    return unknown


def best_of(spaces: Sequence[KnownSpace], units: Tensor) -> KnownSpace:
    """The space in which unit vectors (n, d) have the highest density; they may be typical of none."""
    return max(spaces, key=lambda space: space.compare(units)[0].mean().item())


def nearest_rotated(spaces: Sequence[KnownSpace], values: Tensor) -> KnownSpace | None:
    """The space of an embedder's own output whose invariants are most like ``values`` (q,); None if none is close."""
    published = [space for space in spaces if space.name.overrides is not None]
    best = min(published, key=lambda one: one.distance(values) - torch.logdet(one.precision).item(), default=None)
    return best if best is not None and best.distance(values) <= CLOSE else None


def invariants(units: Tensor) -> Tensor:
    """What a rotation of unit vectors (n, d) leaves: cosines and spectrum of their Gram matrix, (q,)."""
    units = units.double()
    cosines = (units @ units.T)[~torch.eye(len(units), dtype=torch.bool)]
    centred = units - units.mean(dim=0)
    values = torch.linalg.eigvalsh(centred @ centred.T).flip(0)[:_EIGENVALUES].clamp_min(1e-12)
    whole = centred.square().sum()
    first = torch.stack([cosines.mean().clamp(max=1 - 1e-6).atanh(), cosines.std().log(), whole.log()])
    return torch.cat([first, (values / whole).log()]).float()


def _gaussian(name: Name, units: Tensor) -> KnownSpace:
    """Mean and covariance of unit vectors, without bounds and invariants."""
    count = min(MAIN, units.shape[1] * 2 // 3)
    values, directions = torch.linalg.eigh(torch.cov(units.double().T))
    values, none = values.flip(0).clamp_min(1e-9).float(), torch.empty(0)
    main = directions.flip(1)[:, :count].half().float()
    return KnownSpace(name, units.mean(dim=0), main, values[:count], values[count:].mean(), none, none, none)


def _sample(sources: Sequence[str], generator: torch.Generator) -> Tensor:
    """Positions of ``ROTATED_FROM`` texts of one to five sources."""
    names = sorted(set(sources))
    while True:
        order = torch.randperm(len(names), generator=generator).tolist()
        chosen = {names[i] for i in order[: int(torch.randint(1, 6, (), generator=generator))]}
        places = torch.tensor([place for place, source in enumerate(sources) if source in chosen])
        if len(places) >= ROTATED_FROM:
            return places[torch.randperm(len(places), generator=generator)[:ROTATED_FROM]]


@functools.cache
def known_spaces() -> tuple[KnownSpace, ...]:
    """The spaces of known_spaces.safetensors."""
    from safetensors import safe_open

    with safe_open(FILE, framework="pt") as file:
        names = [Name(**values) for values in json.loads(file.metadata()["names"])]
        return tuple(
            KnownSpace(name, *(file.get_tensor(f"{number}.{field}").float() for field in KnownSpace.__slots__[1:]))
            for number, name in enumerate(names)
        )


def write_spaces(spaces: Sequence[KnownSpace], path: Path) -> None:
    """Write spaces as ``known_spaces`` reads them; directions in half precision."""
    from safetensors.torch import save_file

    tensors: Mapping[str, Tensor] = {
        f"{number}.{field}": getattr(space, field).half() if field == "main" else getattr(space, field)
        for number, space in enumerate(spaces)
        for field in KnownSpace.__slots__[1:]
    }
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path, {"names": json.dumps([asdict(space.name) for space in spaces])})
