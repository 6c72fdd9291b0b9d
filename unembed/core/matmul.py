"""Linear layers through oneDNN on AMD processors with AVX-512, where PyTorch's MKL takes AVX2 and half the speed.

use_onednn(model)    # its linear layers; does nothing on other processors
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@functools.cache
def is_faster() -> bool:
    """Whether this processor is one of those."""
    information = Path("/proc/cpuinfo")
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    capable = torch.backends.cpu.get_cpu_capability() == "AVX512" and has_onednn
    return capable and information.exists() and "AuthenticAMD" in information.read_text(encoding="utf-8")


def use_onednn(model: nn.Module) -> None:
    """Let the linear layers of ``model`` (GPT-2's Conv1D among them) compute through oneDNN; weights are unchanged.

    Results differ in the last bits. Layers of other types, such as quantised ones, stay as they are.
    """
    if not is_faster():
        return
    from transformers.pytorch_utils import Conv1D

    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = _Linear
        elif type(module) is Conv1D:
            module.__class__ = _conv1d()


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _product(input, self.weight, self.bias) if _fits(input, self.weight) else super().forward(input)


@functools.cache
def _conv1d() -> type[nn.Module]:
    """A class, made once transformers is imported."""
    from transformers.pytorch_utils import Conv1D

    class OneDnnConv1D(Conv1D):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            fits = _fits(x, self.weight)
            result: Tensor = _product(x, self.weight.t(), self.bias) if fits else super().forward(x)
            return result

    return OneDnnConv1D


def _fits(inputs: Tensor, weight: Tensor) -> bool:
    single = inputs.dtype == weight.dtype == torch.float32 and inputs.device.type == weight.device.type == "cpu"
    return single and inputs.numel() > 0 and not torch.is_autocast_enabled("cpu")


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad):
        result: Tensor = _Product.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return _onednn(inputs, weight, bias)


def _onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``linear`` of (..., k), (n, k) and (n,)."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(inputs, weight)
        return _onednn(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = context.saved_tensors
        of_inputs, of_weight, of_bias = context.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            _onednn(gradient, weight.t(), None) if of_inputs else None,
            _onednn(rows.t(), inputs.reshape(-1, inputs.shape[-1]).t(), None) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )
