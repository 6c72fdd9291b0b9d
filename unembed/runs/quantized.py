"""Weights in eight bits, as an exported attacker is stored: a quarter of the size, and nearly the same predictions.

weights, scales = quantized(state_dict)     # int8 matrices, and what each row is multiplied by
restored(weights, scales)                   # the matrices in float32 again

A row of a matrix is divided by its largest absolute value and rounded to 1/127 of it. Small tensors stay in float16:
norms, biases and the like need the digits and take no space.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

LARGE = 2**16  # elements of a matrix that is stored in eight bits
_STEPS = 127


def quantized(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Large matrices (n, m) as int8 with scales (n, 1) float32, all else in float16; shared memory stays shared."""
    stored: dict[tuple[object, ...], tuple[Tensor, Tensor | None]] = {}
    for tensor in weights.values():
        stored.setdefault(_memory(tensor), _stored(tensor))
    found = {name: stored[_memory(tensor)] for name, tensor in weights.items()}
    scales = {name: scale for name, (_, scale) in found.items() if scale is not None}
    return {name: tensor for name, (tensor, _) in found.items()}, scales


def restored(weights: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with int8 matrices in float32 again; shared memory stays shared."""
    whole = {_memory(weights[name]): weights[name] * scale for name, scale in scales.items()}
    return {name: whole[_memory(tensor)] if name in scales else tensor for name, tensor in weights.items()}


def _stored(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    if not tensor.is_floating_point():
        return tensor.clone(), None
    if tensor.ndim != 2 or tensor.numel() < LARGE:
        return tensor.half().contiguous(), None
    scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _STEPS
    return (tensor.float() / scale).round().to(torch.int8), scale


def _memory(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
