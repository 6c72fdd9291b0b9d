"""Linear layers through oneDNN compute what PyTorch's own compute, gradients too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from unembed.core import matmul
from unembed.core.matmul import use_onednn

if not torch.backends.mkldnn.is_available():
    pytest.skip("this PyTorch has no oneDNN", allow_module_level=True)


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "is_faster", lambda: True)


@pytest.mark.parametrize("layer", [nn.Linear(5, 3), nn.Linear(5, 3, bias=False), Conv1D(3, 5)])
@pytest.mark.parametrize("shape", [(4, 5), (2, 7, 5), (0, 5)])
def test_results_and_gradients_are_those_of_the_layer(layer: nn.Module, shape: tuple[int, ...]) -> None:
    other = copy.deepcopy(layer)
    use_onednn(other)
    assert type(other) is not type(layer)
    gradients = []
    torch.manual_seed(0)
    inputs, upstream = torch.randn(shape), torch.randn(*shape[:-1], 3)
    for one in (layer, other):
        one.zero_grad()
        given = inputs.clone().requires_grad_()
        result = one(given)
        result.backward(upstream)
        gradients.append([result, given.grad, *(parameter.grad for parameter in one.parameters())])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.inference_mode():
        torch.testing.assert_close(other(inputs), layer(inputs))


def test_other_types_stay_as_they_are() -> None:
    class Quantised(nn.Linear):
        pass

    model = nn.Sequential(Quantised(4, 4), nn.Linear(4, 4))
    use_onednn(model)
    assert type(model[0]) is Quantised
    half = torch.ones(2, 4, dtype=torch.bfloat16)
    assert model.bfloat16()(half).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert model.float()(half.float()).dtype == torch.bfloat16


def test_weights_have_the_same_names_and_can_be_copied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Conv1D(2, 4))
    names = list(model.state_dict())
    use_onednn(model)
    assert list(copy.deepcopy(model).state_dict()) == names
