"""Batches: similar lengths, every example, the same on one rank and many; a killed epoch resumes where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from support.assembled import quiet_trainer
from unembed.datamodules.batching import (
    Batch,
    BatchLoader,
    EvaluationBatchSampler,
    Indices,
    LengthBucketBatchSampler,
    ResumableLoader,
)


def lengths(count: int) -> Indices:
    return np.random.default_rng(7).integers(1, 40, count)


def read(indices: Indices) -> Batch:
    return {"index": torch.from_numpy(indices)}


def test_an_epoch_holds_every_example_once_in_batches_of_similar_length():
    sizes = lengths(5000)
    batches = list(LengthBucketBatchSampler(sizes, 32, pool=20))
    assert len(batches) == len(LengthBucketBatchSampler(sizes, 32)) == 157
    assert sorted(np.concatenate(batches)) == list(range(5000))
    padding = sum(sizes[b].max() * len(b) for b in batches) / sizes.sum()
    shuffled = np.random.default_rng(0).permutation(5000)
    naive = sum(sizes[shuffled[i : i + 32]].max() * len(shuffled[i : i + 32]) for i in range(0, 5000, 32)) / sizes.sum()
    assert padding < 1.08 < 1.5 < naive
    first_lengths = [sizes[b].mean() for b in batches[:40]]
    assert first_lengths != sorted(first_lengths)  # short and long batches in turn, not a curriculum


def test_the_order_changes_with_epoch_and_seed_and_few_examples_suffice():
    def order(seed: int, epoch: int) -> list[int]:
        sampler = LengthBucketBatchSampler(lengths(300), 8, seed=seed)
        sampler.set_epoch(epoch)
        return list(np.concatenate(list(sampler)))

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    sampler = LengthBucketBatchSampler(lengths(300), 8)
    assert list(map(list, sampler)) == list(map(list, sampler))  # iterated twice in one epoch
    for rank in range(3):
        assert len(list(LengthBucketBatchSampler(lengths(4), 64, rank=rank, world_size=3))) >= 1


@pytest.mark.parametrize("world_size", [2, 3])
def test_training_ranks_get_equally_many_batches_and_share_no_example(world_size: int):
    ranks = [list(LengthBucketBatchSampler(lengths(101), 10, rank=r, world_size=world_size)) for r in range(world_size)]
    assert {len(batches) for batches in ranks} == {11 // world_size}
    everything = np.concatenate([batch for batches in ranks for batch in batches])
    assert len(set(everything)) == len(everything)
    alone = {tuple(b) for b in LengthBucketBatchSampler(lengths(101), 10)}
    assert {tuple(b) for batches in ranks for b in batches} <= alone


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize(("count", "world_size"), [(5, 2), (17, 4), (3, 8), (64, 2), (0, 2)])
def test_evaluation_deals_the_batches_of_one_rank(count: int, world_size: int, sort: bool):
    sizes = lengths(count) if sort else None
    alone = [list(b) for b in EvaluationBatchSampler(count, 4, lengths=sizes)]
    dealt = [[list(b) for b in EvaluationBatchSampler(count, 4, r, world_size, sizes)] for r in range(world_size)]
    assert sorted(i for b in alone for i in b) == list(range(count))
    assert sorted(b for batches in dealt for b in batches if b) == sorted(alone)
    assert {len(batches) for batches in dealt} == {-(-len(alone) // world_size)}
    assert all(len(batches[:-1]) == len([b for b in batches[:-1] if b]) for batches in dealt)
    if sizes is not None:
        assert [sizes[i] for b in alone for i in b] == sorted(sizes)


class Recorder(lightning.LightningModule):
    """Writes down the examples of every training step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.steps: list[tuple[int, list[int]]] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.steps.append((self.current_epoch, batch["index"].tolist()))
        return self.weight.sum()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        assert len(batch["index"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Kill(Callback):
    """Ends the process's training at once, as kill -9 would: no hook of the end runs."""

    class KilledError(Exception):
        pass

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise self.KilledError


def fit(directory: Path, *callbacks: Callback, resume: Path | None = None, count: int = 90, **options: Any) -> Recorder:
    model = Recorder()
    trainer = quiet_trainer(
        max_epochs=options.pop("max_epochs", 3),
        default_root_dir=directory,
        callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        num_sanity_val_steps=0,
        use_distributed_sampler=True,
        **options,
    )
    train = ResumableLoader(LengthBucketBatchSampler(lengths(count), 8, seed=3), read)
    valid = BatchLoader(EvaluationBatchSampler(10, 4), read)
    try:
        trainer.fit(model, train, valid, ckpt_path=resume, weights_only=True)
    except Kill.KilledError:
        model.steps.append((-1, []))
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("killed_at", "every"),
    [(5, 1), (7, 3), (11, 11), (12, 1), (13, 1), (23, 1), (24, 12), (30, 4), (35, 5)],
)
@pytest.mark.parametrize("validate_every", [None, 5])
def test_a_killed_run_resumes_at_the_next_batch(tmp_path: Path, killed_at: int, every: int, validate_every: int | None):
    """12 batches an epoch; a checkpoint every so many steps, then death, then the rest."""
    options: dict[str, Any] = {"val_check_interval": validate_every} if validate_every else {}
    undisturbed = fit(tmp_path / "whole", **options).steps
    assert len(undisturbed) == 36
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=every, save_top_k=1, save_last=True)
    killed = fit(tmp_path / "killed", saving, Kill(killed_at), **options).steps
    assert killed.pop() == (-1, [])
    resumed = fit(tmp_path / "killed", resume=tmp_path / "saved" / "last.ckpt", **options).steps
    saved_at = killed_at // every * every
    assert killed[:saved_at] + resumed == undisturbed


@pytest.mark.filterwarnings("ignore")
def test_epochs_that_were_saved_at_their_end_or_limited(tmp_path: Path):
    undisturbed = fit(tmp_path / "whole").steps
    saving = ModelCheckpoint(tmp_path / "saved", save_on_train_epoch_end=True, save_last=True)
    first = fit(tmp_path / "first", saving, max_epochs=1).steps
    resumed = fit(tmp_path / "second", resume=tmp_path / "saved" / "last.ckpt").steps
    assert first + resumed == undisturbed
    steps = fit(tmp_path, limit_train_batches=4).steps
    assert [epoch for epoch, _ in steps] == [0] * 4 + [1] * 4 + [2] * 4
    assert steps[:4] == fit(tmp_path).steps[:4]


def test_other_data_than_the_checkpoints_starts_the_epoch_anew():
    sampler = LengthBucketBatchSampler(lengths(50), 8)
    iterator = iter(sampler)
    next(iterator), next(iterator)
    state = sampler.state_dict()
    same, other = LengthBucketBatchSampler(lengths(50), 8), LengthBucketBatchSampler(lengths(60), 8)
    same.load_state_dict(state)
    assert len(list(same)) == len(same) - 2
    with pytest.warns(UserWarning, match="examples, lengths"):
        other.load_state_dict(state)
    assert len(list(other)) == len(other)
