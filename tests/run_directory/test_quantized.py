"""The weights of an exported attacker: large matrices in eight bits, the rest in half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unembed.commands.export import copy_weights
from unembed.core.errors import InputError
from unembed.runs.checkpoints import SCALES, load_checkpoint


def stored(folder: Path, weights: dict[str, Tensor], **more: Any) -> Path:
    torch.save({"state_dict": weights, **more}, folder / "whole.ckpt")
    copy_weights(folder / "whole.ckpt", folder / "small.ckpt")
    return folder / "small.ckpt"


def test_a_large_matrix_takes_a_quarter_and_comes_back_within_half_a_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(512, 256) * torch.logspace(-3, 3, 512)[:, None]
    matrix[7] = 0
    small = stored(tmp_path, {"matrix": matrix})
    assert small.stat().st_size < 0.3 * (tmp_path / "whole.ckpt").stat().st_size
    found = load_checkpoint(small)
    assert SCALES not in found
    steps = matrix.abs().amax(1, keepdim=True) / 127  # by hand: the largest of a row becomes 127
    assert found["state_dict"]["matrix"].dtype == torch.float32
    assert bool(((found["state_dict"]["matrix"] - matrix).abs() <= 0.5001 * steps).all())
    assert bool((found["state_dict"]["matrix"][7] == 0).all())


def test_small_and_whole_numbered_tensors_keep_their_digits(tmp_path: Path) -> None:
    weights = {"norm": torch.linspace(-2, 2, 300), "small": torch.randn(16, 16), "count": torch.arange(9)}
    found = load_checkpoint(stored(tmp_path, weights))["state_dict"]
    assert torch.equal(found["norm"], weights["norm"].half())
    assert torch.equal(found["small"], weights["small"].half())
    assert torch.equal(found["count"], weights["count"])


def test_matrices_that_share_memory_are_stored_once(tmp_path: Path) -> None:
    matrix = torch.randn(300, 300)
    shared = stored(tmp_path, {"embeddings": matrix, "head": matrix}).stat().st_size
    single = stored(tmp_path, {"embeddings": matrix}).stat().st_size
    assert shared < 1.1 * single
    found = load_checkpoint(stored(tmp_path, {"embeddings": matrix, "head": matrix}))["state_dict"]
    assert found["embeddings"].data_ptr() == found["head"].data_ptr()
    copy_weights(tmp_path / "small.ckpt", tmp_path / "again.ckpt")
    assert (tmp_path / "again.ckpt").stat().st_size < 1.1 * single
    torch.testing.assert_close(load_checkpoint(tmp_path / "again.ckpt")["state_dict"]["head"], found["head"])


@pytest.mark.parametrize(
    ("scales", "told"),
    [([1.0], "'scales'"), ({"matrix": torch.ones(3, 1)}, "'matrix'"), ({"other": torch.ones(512, 1)}, "'other'")],
)
def test_scales_that_do_not_fit_are_refused(tmp_path: Path, scales: Any, told: str) -> None:
    path = tmp_path / "damaged.ckpt"
    torch.save({"state_dict": {"matrix": torch.ones(512, 256, dtype=torch.int8)}, SCALES: scales}, path)
    with pytest.raises(InputError, match=told):
        load_checkpoint(path)


def test_a_weight_too_large_for_half_precision_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"bias holds 1e\+06"):
        stored(tmp_path, {"bias": torch.full((3,), 1e6)})
