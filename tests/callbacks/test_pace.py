"""What a long run says of its pace, with a clock that the test turns."""

from __future__ import annotations

import io
import logging
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import Timer

from support.files import read_lines
from unembed.callbacks import pace
from unembed.callbacks.pace import History, Pace, TerminalBar

BATCH = {"index": torch.arange(16)}


class Clock:
    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace.time, "monotonic", lambda: clock.now)
    return clock


def trainer(**values: Any) -> Any:
    usual = {"global_step": 0, "current_epoch": 2, "world_size": 2, "is_global_zero": True, "max_steps": -1,
             "max_epochs": -1, "num_training_batches": 40, "accumulate_grad_batches": 2, "callbacks": [],
             "num_test_batches": [10], "progress_bar_callback": None,
             "callback_metrics": {"train/loss": torch.tensor(2.3456)}}  # fmt: skip
    return SimpleNamespace(**{**usual, **values})


MODULE: Any = SimpleNamespace(device=torch.device("cpu"))


def trained(callback: Pace, clock: Clock, trainer: Any, steps: int, seconds: float) -> None:
    callback.on_train_start(trainer, MODULE)
    for number in range(steps):
        clock.now += seconds
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, MODULE, None, BATCH, number)


@pytest.mark.parametrize(
    ("limits", "done", "left"),
    [
        ({"max_steps": 400}, "42 %, step 170 of 400", "about 11 min 30 s left"),  # (400 - 170) steps of 3 s
        ({"max_epochs": 10}, "85 %, step 170 of 200", "about 1 min 30 s left"),  # 10 x 40 / 2 = 200 steps
        ({"max_steps": 400, "max_epochs": 10}, "85 %, step 170 of 200", "about 1 min 30 s left"),
        (
            {"max_steps": 400, "callbacks": [Timer(timedelta(seconds=75))]},
            "42 %, step 170 of 400",
            "about 1 min 15 s left",
        ),
        ({}, "step 170", None),
    ],
)
def test_a_line_a_minute_of_training(
    clock: Clock, caplog: pytest.LogCaptureFixture, limits: dict[str, Any], done: str, left: str | None
) -> None:
    caplog.set_level(logging.INFO)
    trained(Pace(60, first_seconds=60), clock, trainer(global_step=150, **limits), steps=21, seconds=3)
    expected = f"training: {done} (epoch 2), 11 texts a second, loss 2.346"  # 20 x 16 x 2 texts in 60 s
    assert caplog.messages == [expected + (f", {left}" if left else "")]


def test_no_other_process_is_asked_for_a_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Each has its own clock, so they do not come to their lines together."""
    caplog.set_level(logging.INFO)
    limited = trainer(callbacks=[Timer(timedelta(seconds=75))], strategy=None)  # anything that is asked of it fails
    trained(Pace(60, first_seconds=60), clock, limited, steps=21, seconds=3)
    assert len(caplog.messages) == 1


def test_only_the_first_process_speaks_early_and_then_ever_less_often(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trained(Pace(60, first_seconds=60), clock, trainer(is_global_zero=False), steps=50, seconds=3)
    assert caplog.messages == []
    caplog.set_level(logging.INFO)
    trained(Pace(every_seconds=60, first_seconds=5), clock, trainer(max_steps=400), steps=400, seconds=1)
    steps = [int(message.partition("step ")[2].partition(" ")[0]) for message in caplog.messages]
    assert steps == [5, 15, 35, 75, 135, 195, 255, 315, 375]


def test_batches_of_an_earlier_session_do_not_hasten_the_end(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    callback, running = Pace(60, first_seconds=60), trainer(world_size=1)
    callback.on_test_start(running, MODULE)
    for number in range(6):
        callback.on_test_batch_start(running, MODULE, BATCH, number)
        clock.now += 0.01 if number < 3 else 32.0  # three had been finished before a kill
        callback.on_test_batch_end(running, MODULE, {"seconds": 32.0}, BATCH, number)
    # Of 10 batches 5 are done; 2 took 32 s each.
    (line,) = caplog.messages
    assert all(part in line for part in ("50 %", "5 of 10 batches", "0.5 texts a second", "2 min 40 s left"))


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        assert TerminalBar().is_enabled is terminal


def test_the_bar_counts_all_steps_and_the_log_alone_has_the_lines(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A resumed training: the bar begins at its step, and continues over the epochs."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", screen)
    caplog.set_level(logging.INFO)
    bar = TerminalBar(seconds=1)
    running = trainer(max_steps=400, global_step=100, progress_bar_callback=bar, progress_bar_metrics={},
                      lightning_module=MODULE, loggers=[])  # fmt: skip
    running.state = SimpleNamespace(fn="fit")
    bar.setup(running, MODULE, "fit")
    bar.on_train_start(running)
    assert screen.getvalue().rstrip().rpartition("\r")[2].startswith("training:  25%|")
    lines = Pace(every_seconds=60, first_seconds=60)
    lines.on_train_start(running, MODULE)
    for number in range(300):
        if number % 40 == 0:
            bar.on_train_epoch_start(running)
        clock.now += 0.4
        running.global_step += 1
        bar.on_train_batch_end(running, MODULE, None, BATCH, number)
        lines.on_train_batch_end(running, MODULE, None, BATCH, number)
    bar.on_train_end(running)
    drawn = [part for part in re.split(r"[\r\n]", screen.getvalue()) if part.strip()]
    assert 100 < len(drawn) < 110  # every third step
    assert drawn[-1].startswith("trained: 100%|")
    assert "400/400" in drawn[-1]
    assert screen.getvalue().count("\n") == 1
    assert [record.__dict__["for_log_alone"] for record in caplog.records] == [True] * len(caplog.records) != []


def test_a_resumed_training_continues_its_curve(tmp_path: Path) -> None:
    lines = ['{"step": 1, "train_loss": null}', '{"step": 2, "train_loss": 0.5}', '{"step": 3, "train_loss": 0.4}',
             '{"step": 2, "val_lo']  # fmt: skip
    (tmp_path / "history.jsonl").write_text("\n".join(lines))
    History(str(tmp_path)).on_train_start(trainer(global_step=2), LightningModule())
    kept = read_lines(tmp_path / "history.jsonl")
    assert [(row["step"], row["train_loss"]) for row in kept] == [(1, None), (2, 0.5)]
