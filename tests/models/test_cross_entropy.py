"""The blockwise cross-entropy against PyTorch's."""

from __future__ import annotations

import pytest
import torch

from unembed.attacks.parts import decoders as module
from unembed.attacks.parts.decoders import cross_entropy
from unembed.datamodules.arrow_examples import IGNORED


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows_of_a_block", [1, 5, 1000])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_value_and_gradient_are_torchs(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, rows_of_a_block: int, scale: float, dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "_BLOCK_BYTES", {"cpu": 4 * 50 * rows_of_a_block})
    generator = torch.Generator().manual_seed(0)
    values = (3 * torch.randn(4, 7, 50, generator=generator)).to(dtype)
    labels = torch.randint(0, 50, (4, 7), generator=generator)
    labels[1, 3:] = IGNORED
    ours, theirs = (values.clone().requires_grad_() for _ in range(2))
    loss = cross_entropy(ours, labels, smoothing)
    expected = torch.nn.functional.cross_entropy(
        theirs.flatten(0, 1).float(), labels.flatten(), label_smoothing=smoothing
    )
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, expected)
    (scale * loss).backward()
    (scale * expected).backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert (ours.grad - theirs.grad).abs().max() <= tolerance * theirs.grad.abs().max()
    assert not ours.grad[1, 3:].any()


def test_a_loss_scale_keeps_small_gradients_in_float16() -> None:
    generator = torch.Generator().manual_seed(0)
    values = (torch.randn(300, 400, generator=generator)).half()
    labels = torch.randint(0, 400, (300,), generator=generator)
    ours, theirs = values.clone().requires_grad_(), values.float().requires_grad_()
    (65536 * cross_entropy(ours, labels, 0.0)).backward()
    (65536 * torch.nn.functional.cross_entropy(theirs, labels)).backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.dtype is torch.float16
    torch.testing.assert_close(ours.grad.float(), theirs.grad, rtol=2e-3, atol=1e-3)


def test_the_value_alone_needs_no_gradient() -> None:
    logits, labels = torch.randn(3, 5), torch.tensor([0, IGNORED, 4])
    expected = torch.nn.functional.cross_entropy(logits, labels)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy(logits, labels, 0.0), expected)
