"""Muon and AdamW as one optimiser against torch's own; the schedule; the share of the training budget."""

from __future__ import annotations

import copy
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule
from lightning.pytorch.callbacks import Timer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from support.assembled import quiet_trainer
from unembed.attacks.parts import precision
from unembed.attacks.parts.optimizers import (
    MINIMAX,
    STANDARD,
    AdamW,
    Iterations,
    Muon,
    MuonAdamW,
    cut_short,
    orthogonalized,
    planned_steps,
    schedule,
    scheduled,
    training_progress,
)
from unembed.attacks.parts.precision import Rates


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    return nn.ModuleDict({"model": GPT2LMHeadModel(config), "prefix": nn.Linear(5, 8)})


def t5() -> nn.Module:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=11, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, decoder_start_token_id=0,
    )  # fmt: skip
    return nn.ModuleDict({"model": T5ForConditionalGeneration(config), "prefix": nn.Linear(5, 8)})


def set_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("make", [gpt2, t5])
def test_every_parameter_is_in_exactly_one_group(make: Any) -> None:
    module = make()
    optimizer = MuonAdamW().build(module)
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in module.parameters())
    muon, adamw = ({id(parameter) for parameter in group["params"]} for group in optimizer.param_groups)
    on_adamw = {name for name, parameter in module.named_parameters() if id(parameter) in adamw}
    on_muon = {name for name, parameter in module.named_parameters() if id(parameter) in muon}
    embedding = ("wte", "wpe", "shared", "lm_head", "relative_attention_bias")
    assert on_adamw == {
        name
        for name, parameter in module.named_parameters()
        if parameter.ndim == 1 or any(e in name for e in embedding)
    }
    assert "prefix.weight" in on_muon


@pytest.mark.parametrize("make", [gpt2, t5])
def test_steps_equal_those_of_the_two_optimizers_alone(make: Any) -> None:
    ours, theirs = make(), make()
    optimizer = MuonAdamW(
        muon_lr=0.02, adamw_lr=0.004, momentum=0.9, betas=(0.8, 0.99), weight_decay=0.1, newton_schulz="standard"
    ).build(ours)
    assert isinstance(optimizer, torch.optim.Optimizer)
    where = {id(parameter): name for name, parameter in ours.named_parameters()}
    named = dict(theirs.named_parameters())
    muon, adamw = ([named[where[id(parameter)]] for parameter in group["params"]] for group in optimizer.param_groups)
    by_hand = [
        Muon(muon, lr=0.02, momentum=0.9, weight_decay=0.1, iterations=STANDARD),
        torch.optim.AdamW(adamw, lr=0.004, betas=(0.8, 0.99), weight_decay=0.0, fused=True),
    ]
    before = weights(ours)
    for seed in range(5):
        set_gradients(ours, seed)
        set_gradients(theirs, seed)
        optimizer.step()
        for part in by_hand:
            part.step()
    assert equal(weights(ours), weights(theirs))
    assert not any(torch.equal(a, b) for a, b in zip(before, weights(ours), strict=True))


@pytest.mark.parametrize("settings", [MuonAdamW(), AdamW()])
def test_a_restored_optimizer_resumes_identically(settings: MuonAdamW | AdamW, tmp_path: Any) -> None:
    first = gpt2()
    optimizer = settings.build(first)
    for seed in range(3):
        set_gradients(first, seed)
        optimizer.step()
    second = copy.deepcopy(first)
    torch.save(optimizer.state_dict(), tmp_path / "state")
    restored = settings.build(second)
    restored.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    for seed in range(3, 6):
        for module, one in ((first, optimizer), (second, restored)):
            set_gradients(module, seed)
            one.step()
    assert equal(weights(first), weights(second))
    fresh, other = copy.deepcopy(second), settings.build(second)
    for module, one in ((second, other), (fresh, settings.build(fresh))):
        set_gradients(module, 9)
        one.step()
    assert equal(weights(second), weights(fresh))  # and a fresh one does not share any state with the others


def test_state_gradients_and_frozen_parameters() -> None:
    module = gpt2()
    optimizer = MuonAdamW().build(module)
    assert len(optimizer.state) == 0
    set_gradients(module, 0)
    optimizer.step()
    assert len(optimizer.state) == len(list(module.parameters()))
    assert "exp_avg" in optimizer.state[module["prefix"].bias]
    assert "momentum_buffer" in optimizer.state[module["prefix"].weight]
    assert {id(key) for key, _ in optimizer.state.items()} == {id(parameter) for parameter in module.parameters()}
    module = gpt2()
    optimizer = MuonAdamW().build(module)
    set_gradients(module, 0)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in module.parameters())
    module = gpt2()
    module["model"].requires_grad_(False)  # type: ignore[operator]
    for settings in (MuonAdamW(), AdamW()):
        held = [parameter for group in settings.build(module).param_groups for parameter in group["params"]]
        assert sorted(map(id, held)) == sorted(map(id, module["prefix"].parameters()))


@pytest.mark.parametrize("restore", [False, True])
def test_a_scheduler_changes_the_rate_that_is_used(restore: bool) -> None:
    module = gpt2()
    optimizer = MuonAdamW(muon_lr=0.02, adamw_lr=0.004).build(module)
    if restore:
        set_gradients(module, 0)
        optimizer.step()
        state = optimizer.state_dict()
        optimizer = MuonAdamW(muon_lr=0.02, adamw_lr=0.004).build(module)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 2 else 0.0)
    if restore:
        optimizer.load_state_dict({**copy.deepcopy(state)})
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.004]
    moved = []
    for seed in range(4):
        before = weights(module)
        set_gradients(module, seed)
        optimizer.step()
        scheduler.step()
        moved.append(not equal(before, weights(module)))
    assert moved == [True, True, False, False]  # at a rate of 0 nothing moves, neither by Muon nor by AdamW


def test_decay_schedule_and_closure() -> None:
    module = nn.Linear(3, 2)
    torch.nn.init.ones_(module.weight)
    torch.nn.init.ones_(module.bias)
    optimizer = AdamW(lr=0.1, weight_decay=0.5).build(module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert module.weight.flatten().tolist() == pytest.approx([0.95] * 6)
    assert module.bias.tolist() == [1.0, 1.0]
    factors = [schedule(step / 10, step, 3, "constant") for step in range(11)]
    assert factors == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 8)
    module = gpt2()
    set_gradients(module, 0)
    calls = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        return 3.5

    with torch.no_grad():
        assert MuonAdamW().build(module).step(closure) == 3.5
    assert calls == [True]


@pytest.mark.parametrize(
    ("progress", "step", "warmup", "expected"),
    [
        (0.0, 0, 0, 1.0),
        (0.25, 100, 0, 0.75),
        (1.0, 400, 0, 0.0),
        (1.5, 400, 0, 0.0),
        (0.0, 0, 3, 0.25),  # the first step is not lost to a rate of 0
        (0.0, 1, 3, 0.5),
        (0.0, 3, 3, 1.0),
        (0.5, 1, 3, 0.25),
        (0.5, 30, 3, 0.5),
    ],
)
def test_schedule(progress: float, step: int, warmup: int, expected: float) -> None:
    assert schedule(progress, step, warmup) == pytest.approx(expected)


class Linear(LightningModule):
    """Notes the share of the budget before every batch, and after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.shares: list[float] = []

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        self.shares.append(training_progress(self.trainer))
        return self.layer(batch).sum()  # type: ignore[no-any-return]

    def on_train_end(self) -> None:
        self.shares.append(training_progress(self.trainer))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("decay", "last"), [("linear", 0.02), ("constant", 0.1)])
@pytest.mark.parametrize("settings", [AdamW, MuonAdamW])
def test_the_last_step_of_a_training_has_the_rate_of_its_schedule(settings: Any, decay: Any, last: float) -> None:
    rates = {"lr": 0.1} if settings is AdamW else {"muon_lr": 0.1, "adamw_lr": 0.1}
    module = Linear()
    used: list[float] = []
    module.configure_optimizers = lambda: scheduled(  # type: ignore[method-assign]
        settings(warmup_steps=0, decay=decay, **rates), module
    )
    module.on_before_optimizer_step = lambda optimizer: used.append(  # type: ignore[method-assign]
        optimizer.param_groups[0]["lr"]
    )
    quiet_trainer(max_steps=5, max_epochs=-1, use_distributed_sampler=True).fit(
        module, torch.utils.data.DataLoader(torch.randn(8, 2), batch_size=2)
    )
    assert used[0] == pytest.approx(0.1)
    assert used[-1] == pytest.approx(last)


def shares(*callbacks: Callback, **options: Any) -> list[float]:
    module = Linear()
    trainer = quiet_trainer(callbacks=list(callbacks), use_distributed_sampler=True, **options)
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(8, 2), batch_size=2))
    return module.shares


def test_progress_over_steps_and_epochs() -> None:
    assert shares(max_steps=5, max_epochs=-1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert shares(max_epochs=2) == pytest.approx([n / 8 for n in range(9)])
    expected = [0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0]
    assert shares(max_epochs=2, accumulate_grad_batches=2) == pytest.approx(expected)
    trainer: Any = SimpleNamespace(max_steps=-1, global_step=5, max_epochs=-1, callbacks=[], world_size=1)
    assert training_progress(trainer) == 0


class Scheduled(Linear):
    """With the optimiser of the attacks."""

    def configure_optimizers(self) -> Any:
        return scheduled(AdamW(), self)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_training_weights_of_16_bits_is_warned_of(precision: str, recwarn: pytest.WarningsRecorder) -> None:
    trainer = quiet_trainer(max_steps=1, precision=precision)
    trainer.fit(Scheduled(), torch.utils.data.DataLoader(torch.randn(8, 2), batch_size=2))
    said = [str(warning.message) for warning in recwarn if "second moment" in str(warning.message)]
    assert [message.partition(":")[0] for message in said] == ["trainer.precision=bf16-true"] * (
        precision == "bf16-true"
    )


def timer(elapsed: float, limit: float | None) -> Timer:
    timer = Timer(timedelta(seconds=limit) if limit is not None else None)
    timer.time_elapsed = lambda stage="train": elapsed  # type: ignore[method-assign]
    return timer


@pytest.mark.parametrize(
    ("steps", "elapsed", "limit", "expected"),
    [(-1, 30, 120, 0.25), (-1, 130, 120, 1.0), (-1, 30, None, 0.0), (100, 30, 120, 0.05), (10, 30, 120, 0.5)],
)
def test_time_counts_where_no_steps_are_planned(
    steps: int, elapsed: float, limit: float | None, expected: float
) -> None:
    trainer: Any = SimpleNamespace(
        max_steps=steps, global_step=5, max_epochs=-1, callbacks=[timer(elapsed, limit)], world_size=1
    )
    assert training_progress(trainer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("steps", "epochs", "planned"), [(-1, -1, None), (100, -1, 100), (-1, 3, 60), (100, 3, 60), (30, 3, 30)]
)
def test_planned_steps(steps: int, epochs: int, planned: int | None) -> None:
    trainer: Any = SimpleNamespace(
        max_steps=steps, max_epochs=epochs, num_training_batches=40, accumulate_grad_batches=2
    )
    assert planned_steps(trainer) == planned
    if epochs > 0 and steps < 0:
        trainer.num_training_batches, trainer.accumulate_grad_batches = 10, 4
        assert planned_steps(trainer) == epochs * 3  # the last two batches of an epoch make a step
    trainer.num_training_batches = float("inf")  # before the data module is set up
    assert planned_steps(trainer) == (steps if steps > 0 else None)


@pytest.mark.parametrize(
    ("steps", "elapsed", "limit", "expected"),
    [(10, 120, 120, True), (10, 30, 120, False), (5, 120, 120, False), (10, 120, None, False), (-1, 120, 120, False)],
)
def test_a_training_is_cut_short_by_its_time_limit(
    steps: int, elapsed: float, limit: float | None, expected: bool
) -> None:
    trainer: Any = SimpleNamespace(
        max_steps=steps, global_step=5, max_epochs=-1, callbacks=[timer(elapsed, limit)], world_size=1
    )
    assert cut_short(trainer) is expected


def matrices(rows: int, columns: int, count: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """U (k, m, m), s (m,) from 1 to 1e-3, V^T (k, m, n) of random matrices, in float64."""
    generator = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(count, rows, rows, generator=generator, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(count, columns, rows, generator=generator, dtype=torch.float64))[0]
    return left, torch.logspace(0, -3, rows, dtype=torch.float64), right.mT


def applied(values: Tensor, iterations: Iterations) -> Tensor:
    """The polynomials on singular values, which is what the matrix products come to."""
    order = {"frobenius": 2, "schatten4": 4}[iterations.norm]
    values = values / values.pow(order).sum() ** (1 / order)
    for a, b, c in iterations.coefficients:
        values = a * values + b * values**3 + c * values**5
    return values


@pytest.mark.parametrize("iterations", [STANDARD, MINIMAX], ids=["standard", "minimax"])
@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (24, 40), (24, 96)])  # the last one by its Gram matrix
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.15)])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e3])
def test_the_polynomials_are_applied_to_the_singular_values(
    iterations: Iterations, rows: int, columns: int, dtype: torch.dtype, tolerance: float, size: float
) -> None:
    left, values, right = matrices(rows, columns)
    expected = left * applied(values, iterations) @ right
    found = orthogonalized((size * (left * values @ right)).to(dtype), iterations)
    assert found.dtype is dtype
    error = (found.double() - expected).norm() / expected.norm()
    assert error < tolerance


def test_singular_values_end_near_one_and_what_is_zero_stays() -> None:
    values = torch.linspace(MINIMAX_FROM, 1, 5000, dtype=torch.float64)
    for a, b, c in MINIMAX.coefficients:
        values = a * values + b * values**3 + c * values**5
    assert values.min() > 0.5
    assert values.max() < 1.5
    assert torch.equal(orthogonalized(torch.zeros(2, 4, 8)), torch.zeros(2, 4, 8))
    still, moving = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    moving.grad = torch.eye(4)
    Muon([still, moving], lr=0.1).step()
    assert torch.equal(still, torch.ones(4, 4))
    assert not torch.equal(moving, torch.ones(4, 4))


MINIMAX_FROM = 0.005


@pytest.mark.parametrize(
    ("rates", "tolerance"), [(Rates(100.0, 1.0), 0.03), (Rates(100.0, 400.0), 0.03)], ids=["float32", "bfloat16"]
)
def test_steps_are_those_of_torchs_muon_within_its_rounding(
    monkeypatch: pytest.MonkeyPatch, rates: Rates, tolerance: float
) -> None:
    monkeypatch.setattr(precision, "measured", lambda device: rates)
    shapes = [(16, 16), (16, 48), (48, 16), (16, 48), (10, 16)]
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    ours, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    mine = Muon(ours, lr=0.02, momentum=0.9, weight_decay=0.1, iterations=STANDARD)
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=0.1)
    for _ in range(4):
        for left, right in zip(ours, theirs, strict=True):
            left.grad = torch.randn(left.shape, generator=generator)
            right.grad = left.grad.clone()
        mine.step()
        reference.step()
    for before, left, right in zip(start, ours, theirs, strict=True):
        moved = (right.detach() - before).norm()
        assert (left.detach() - right.detach()).norm() < tolerance * moved
        assert torch.equal(mine.state[left]["momentum_buffer"], reference.state[right]["momentum_buffer"])
