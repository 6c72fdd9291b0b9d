"""A training that its time limit ends before its planned steps, from the log to the report."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from support import tiny_settings
from support.files import read_lines
from support.places import Place
from unembed.runs import layout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    names, things = ("Ada", "Bob", "Cy"), ("cats", "dogs")
    texts = [f"{name} has {number} {thing}" for name in names for number in "23456" for thing in things]
    common = ["datamodule=files", "trainer.accelerator=cpu", "logger=none", "~callbacks.progress", *tiny_settings.GEIA]
    return Place(tmp_path_factory.mktemp("budget"), texts, common)


def test_a_training_that_is_cut_short_says_so_everywhere(
    place: Place, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    run = place.train("cut", "trainer.max_time=00:00:00:01", "callbacks.pace.first_seconds=0.2", steps=100_000)
    training = json.loads((run / layout.RECORD).read_text())["training"]
    assert training["planned_steps"] == 100_000
    assert training["steps"] < 100_000
    assert training["cut_short"] is True
    said = f"stopped at {training['steps']:,} of 100,000 steps"
    assert any(said in message for message in caplog.messages)
    assert any("of 100,000 (epoch" in message and "left" in message for message in caplog.messages)
    assert said in (run / "report.html").read_text()
    assert said in " ".join(capsys.readouterr().out.split())
    evaluation = place.evaluate(run, "again")
    assert said in (evaluation / "report.html").read_text()
    # The learning rate follows the planned steps, not the time: it is still near its height.
    rows = read_lines(run / layout.HISTORY)
    rates = [row["learning_rate"] for row in rows]
    assert rates[-1] > 0.9 * max(rates)


def test_a_training_of_all_its_steps_says_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    run = place.train("whole", "trainer.max_time=00:01:00:00", steps=3)
    assert json.loads((run / layout.RECORD).read_text())["training"]["cut_short"] is False
    assert "CUT SHORT" not in capsys.readouterr().out
    assert "CUT SHORT" not in Path(run / "report.html").read_text()
