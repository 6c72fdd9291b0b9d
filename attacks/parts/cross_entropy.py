"""Cross-entropy over a vocabulary, in blocks of rows that stay in the processor's cache.

loss = cross_entropy(logits, labels, smoothing=0.1)     # (n, T, V), (n, T) -> scalar
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unembed.datamodules.token_ids import IGNORED

_BLOCK_BYTES = {"cpu": 2**21}  # float32 logits at a time: about a core's share of the cache
_BLOCK_BYTES_ELSEWHERE = 2**28


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Mean over the labels (n, T) that are not -100, for logits (n, T, V).

    The result is that of torch.nn.functional.cross_entropy. ``smoothing`` is the share of each target that is spread
    evenly over the vocabulary.
    """
    loss: Tensor = _CrossEntropy.apply(logits.flatten(0, -2), labels.flatten(), smoothing)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Computes gradient and loss together: the logits are read once, and never stored in float32."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        kept = labels != IGNORED
        weights = (kept / kept.sum())[:, None]
        targets = labels.clamp_min(0)[:, None]
        vocabulary = logits.shape[1]
        block = max(1, _BLOCK_BYTES.get(logits.device.type, _BLOCK_BYTES_ELSEWHERE) // (4 * vocabulary))
        wanted = ctx.needs_input_grad[0]
        # In float16, small gradients are 0 until the loss scale multiplies them.
        dtype = torch.float32 if logits.dtype is torch.float16 else logits.dtype
        gradient = torch.empty_like(logits, dtype=dtype) if wanted else None
        total = torch.zeros((), device=logits.device)
        for begin in range(0, len(logits), block):
            rows = slice(begin, begin + block)
            weight, target = weights[rows], targets[rows]
            log_p = torch.log_softmax(logits[rows], -1, dtype=torch.float32)
            losses = -(1 - smoothing) * log_p.gather(1, target)
            if smoothing:
                losses -= smoothing * log_p.mean(1, keepdim=True)
            # An ignored row of infinite loss must not make the sum NaN.
            total += torch.where(weight > 0, losses * weight, 0.0).sum()
            if gradient is not None:
                block_gradient = log_p.exp_().sub_(smoothing / vocabulary).mul_(weight)
                block_gradient.scatter_add_(1, target, (smoothing - 1) * weight)
                gradient[rows] = block_gradient
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        # Above the loss there is mostly nothing, and a pass over this much memory takes a tenth of the whole function.
        if above[0].device.type == "cpu" and above[0].item() == 1:
            return gradient.to(ctx.dtype), None, None
        return (gradient * above[0]).to(ctx.dtype), None, None
