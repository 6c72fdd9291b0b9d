"""Statistics of the vectors of one embedder, by which vectors of unknown origin are compared with it.

    space = Space.of(known)                # (n, d) vectors of known texts
    space.likeness(store)                  # near 1: the same kind of text; near 0: unrelated directions
    space.foreign(store)                   # near 0: same embedder, whatever the text; 1 and more: another space
    space.noise(store)                     # standard deviation of noise in each dimension

An embedder's vectors are anisotropic. A few *main* directions hold most of their energy, and they hold most of that of
other texts, too, less so of very different ones. A few *quiet* directions hold almost none, whatever the text is: a
layer norm with small weights leaves some of them empty. After a rotation, or in the vectors of another model, they hold
as much as expected by chance, so they tell an embedder from others where the texts are unlike all known ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

FEWEST = 4  # known vectors
_WIDEST = 2048  # dimension up to which all directions are computed
_QUIET = 24  # one of so many directions counts as quiet
_LAST = 128  # and one of so many, at least two, for the level of noise


@dataclass(frozen=True, slots=True)
class Space:
    """Statistics of an embedder's vectors; of directions, so all but ``norm`` are those of vectors divided by length.

    Attributes:
        norm: Median length of the vectors, ().
        mean: Mean direction, (d,).
        profile: Mean square of each coordinate, (d,).
        main: Main directions, (k, d).
        energy: Share of the energy in each main direction, of vectors that they were not computed from, (k,).
        quiet: Quiet directions, the quietest last, (r, d); none if there were too few vectors to find them.
        rest: Share of the energy in each quiet direction, (r,).
    """

    norm: Tensor
    mean: Tensor
    profile: Tensor
    main: Tensor
    energy: Tensor
    quiet: Tensor
    rest: Tensor

    @classmethod
    def of(cls, vectors: Tensor) -> Space:
        """The statistics of at least ``FEWEST`` (n, d) vectors, none of them zero."""
        if len(vectors) < FEWEST:
            raise ValueError(f"cannot describe a space by {len(vectors)} vectors")
        lengths, units = _units(vectors)
        # Every second vector, so that a file sorted by topic is halved evenly.
        made, held_out = units[::2], units[1::2]
        dimension = units.shape[1]
        count = max(1, min(len(made), dimension) // 4)
        quiet = units[:0]
        if len(made) >= 2 * dimension and dimension <= _WIDEST:
            directions = torch.linalg.eigh(made.T @ made).eigenvectors.T.flip(0)  # from the largest
            quiet = directions[-max(2, dimension // _QUIET) :]
        else:
            directions = torch.linalg.svd(made[:: -(-len(made) // _WIDEST)], full_matrices=False).Vh
        main = directions[:count]
        return cls(
            lengths.median(),
            units.mean(dim=0),
            units.square().mean(dim=0),
            main,
            _energy(held_out, main),
            quiet,
            _energy(held_out, quiet),
        )

    @property
    def dimension(self) -> int:
        return len(self.mean)

    def likeness(self, vectors: Tensor) -> float:
        """Share of the energy of ``vectors``, (m, d), in the main directions beyond chance, relative to known ones."""
        self._check(vectors)
        chance = len(self.main) / self.dimension
        theirs, own = _energy(_units(vectors)[1], self.main).sum() - chance, self.energy.sum() - chance
        # Where the held-out known vectors do not share the directions either, nothing is said.
        return (theirs / own).item() if own > 1e-9 else 1.0

    def foreign(self, vectors: Tensor) -> float | None:
        """Share of the energy of ``vectors``, (m, d), that is spread as no vector of the embedder is.

        0 for vectors of the embedder, 1 for random ones, more if the quiet directions are loud; None where the quiet
        directions are unknown.
        """
        return self._beyond(vectors, len(self.quiet))

    def noise(self, vectors: Tensor) -> float | None:
        """Standard deviation of noise in each dimension of ``vectors``, (m, d), relative to their length without it."""
        share = self._beyond(vectors, max(2, self.dimension // _LAST))
        if share is None:
            return None
        share = min(max(share, 0.0), 1.0) / self.dimension
        return math.sqrt(share / (1 - self.dimension * share)) if share * self.dimension < 1 else math.inf

    def first(self, vectors: Tensor) -> float:
        """Likeness of ``vectors``, (m, k) with k < d, to the first k dimensions of the embedder's vectors."""
        cut = vectors.shape[1]
        if not cut < self.dimension or not len(vectors):
            raise ValueError(f"no part of dimension {self.dimension}: vectors of shape {tuple(vectors.shape)}")
        part = torch.linalg.svd(self.main[:, :cut] * self.energy[:, None].sqrt(), full_matrices=False)
        count = max(1, min(len(self.main), cut) // 4)
        own = part.S[:count].square().sum() / self.profile[:cut].sum() - count / cut
        theirs = _energy(_units(vectors)[1], part.Vh[:count]).sum() - count / cut
        return (theirs / own).item() if own > 1e-9 else 0.0

    def _beyond(self, vectors: Tensor, count: int) -> float | None:
        self._check(vectors)
        if not len(self.quiet):
            return None
        theirs = _energy(_units(vectors)[1], self.quiet[-count:]).mean()
        own = self.rest[-count:].mean()
        return (self.dimension * (theirs - own) / (1 - self.dimension * own)).item()

    def _check(self, vectors: Tensor) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension or not len(vectors):
            raise ValueError(f"cannot compare vectors of shape {tuple(vectors.shape)} with dimension {self.dimension}")

    def tensors(self) -> dict[str, Tensor]:
        """The statistics as tensors of half the memory; those that need the range of float32 keep it."""
        return {
            field.name: getattr(self, field.name).to(
                torch.float16 if field.name in ("main", "quiet") else torch.float32
            )
            for field in fields(self)
        }

    @classmethod
    def restored(cls, tensors: dict[str, Tensor]) -> Space:
        """The space that ``tensors`` returned.

        Raises:
            KeyError: A tensor is missing.
            ValueError: Their shapes do not fit together.
        """
        found = cls(**{field.name: tensors[field.name].double() for field in fields(cls)})
        shapes = [tuple(getattr(found, field.name).shape) for field in fields(cls)]
        d, k, r = found.mean.numel(), len(found.main), len(found.quiet)
        if shapes != [(), (d,), (d,), (k, d), (k,), (r, d), (r,)] or not d or not k:
            raise ValueError(f"no space has tensors of the shapes {shapes}")
        return found


def _units(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths and directions in double precision."""
    lengths = torch.linalg.vector_norm(vectors.double(), dim=1)
    return lengths, vectors.double() / lengths[:, None]


def _energy(units: Tensor, directions: Tensor) -> Tensor:
    """Mean share of the energy of unit vectors, (n, d), in each of ``directions``, (k, d)."""
    return (units @ directions.T).square().mean(dim=0)
