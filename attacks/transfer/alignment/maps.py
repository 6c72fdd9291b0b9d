"""Maps between vector spaces, in double precision, and their files.

found = pseudo_inverse(x, y)          # (n, d), (n, k)
found(targets)                        # (m, d) -> (m, k)
write_maps(path, {"start": found})
read_maps(path, {"start"})["start"]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError


@dataclass(frozen=True, slots=True)
class AffineMap:
    """x -> x weight + offset.

    Attributes:
        weight: (d, k).
        offset: (k,).
    """

    weight: Tensor
    offset: Tensor

    @property
    def dimensions(self) -> tuple[int, int]:
        """d and k."""
        return self.weight.shape[0], self.weight.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        return {part.name: getattr(self, part.name) for part in dataclasses.fields(self)}

    def __call__(self, vectors: Tensor) -> Tensor:
        """(m, d) -> (m, k), float64 on the CPU."""
        return vectors.cpu().double() @ self.weight + self.offset


@dataclass(frozen=True, slots=True)
class KernelMap:
    """x -> kernel((x - center) whitener, anchors) weight + offset, with a Gaussian kernel of width 1.

    Attributes:
        center: (d,).
        whitener: (d, r).
        anchors: (a, r).
        weight: (a, k).
        offset: (k,).
    """

    center: Tensor
    whitener: Tensor
    anchors: Tensor
    weight: Tensor
    offset: Tensor

    @property
    def dimensions(self) -> tuple[int, int]:
        """d and k."""
        return self.center.shape[0], self.offset.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        return {part.name: getattr(self, part.name) for part in dataclasses.fields(self)}

    def __call__(self, vectors: Tensor) -> Tensor:
        """(m, d) -> (m, k), float64 on the CPU."""
        whitened = (vectors.cpu().double() - self.center) @ self.whitener
        return gaussian(whitened, self.anchors) @ self.weight + self.offset


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x_i - y_j|^2): (m, r), (a, r) -> (m, a)."""
    squares = x.square().sum(1)[:, None] - 2 * x @ y.T + y.square().sum(1)
    return torch.exp(-squares.clamp(min=0))


def pseudo_inverse(x: Tensor, y: Tensor) -> AffineMap:
    """The map of Chen, Xu and Bjerva (2025): least squares through the origin, (X'X)^+ X'Y.

    Their code inverts X'X in single precision, where torch sets eigenvalues below d * 2^-23 of the largest to zero. The
    same limit is applied here in double precision, so that the result does not depend on rounding.
    """
    gram = x.T @ x
    limit = torch.finfo(torch.float32).eps * len(gram)
    return AffineMap(torch.linalg.pinv(gram, rtol=limit, hermitian=True) @ (x.T @ y), y.new_zeros(y.shape[1]))


Map = AffineMap | KernelMap
_SHAPES: dict[type[Map], dict[str, str]] = {  # of the tensors, by letters that stand for the same number
    AffineMap: {"weight": "dk", "offset": "k"},
    KernelMap: {"center": "d", "whitener": "dr", "anchors": "ar", "weight": "ak", "offset": "k"},
}


def write_maps(path: Path, maps: Mapping[str, Map]) -> None:
    """Write named maps as safetensors: ``start.weight`` and so on; two maps may share tensors."""
    from safetensors.torch import save

    tensors = {f"{name}.{part}": t.clone() for name, one in maps.items() for part, t in one.tensors().items()}
    content = save(tensors)
    write_file(path, lambda file: file.write(content))


def read_maps(path: Path, names: Collection[str]) -> dict[str, Map]:
    """Read the maps of these names.

    Raises:
        InputError: The file is damaged, or holds other tensors, shapes that do not fit, NaN or infinite numbers.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path}: the alignment cannot be read: {error}") from error
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float64 or not tensor.isfinite().all():
            raise InputError(
                f"{path}: {name} is of {tensor.dtype}, or holds NaN or infinite numbers; float64 is wanted"
            )
    return {name: _read(path, name, tensors) for name in names}


def _read(path: Path, name: str, tensors: Mapping[str, Tensor]) -> Map:
    parts = {key.partition(".")[2]: tensor for key, tensor in tensors.items() if key.partition(".")[0] == name}
    kind = next((kind for kind, shapes in _SHAPES.items() if shapes.keys() == parts.keys()), None)
    if kind is None:
        raise InputError(f"{path}: {name} is no map: it has {', '.join(sorted(parts)) or 'no tensors'}")
    sizes: dict[str, int] = {}
    for part, letters in _SHAPES[kind].items():
        shape = tuple(parts[part].shape)
        if len(shape) != len(letters) or any(sizes.setdefault(a, b) != b for a, b in zip(letters, shape, strict=True)):
            raise InputError(f"{path}: {name}.{part} has shape {shape}, which does not fit the rest of the map")
    return kind(**parts)
