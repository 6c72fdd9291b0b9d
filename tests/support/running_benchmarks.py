"""Benchmarks as functions: for tests that run them at their smallest size."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from support.processes import ROOT

FOLDER = ROOT / "benchmarks"


class Benchmarks:
    """Imports the scripts, runs them with a command line, and reads the last line that they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.printed = ""

    def load(self, name: str) -> ModuleType:
        return importlib.import_module(name)

    def run(self, name: str, *arguments: str) -> None:
        self.capsys.readouterr()
        self.load(name).main(list(arguments))
        self.printed = self.capsys.readouterr().out

    def result(self, name: str, *arguments: str) -> dict[str, Any]:
        """The JSON line at the end; every number in it is finite and none is below zero."""
        self.run(name, *arguments)
        found: dict[str, Any] = json.loads(self.printed.splitlines()[-1])
        for number in numbers(found):
            assert math.isfinite(number), found
            assert number >= 0, found
        return found


def numbers(value: Any) -> Iterator[float]:
    """All numbers in what JSON gives."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, int | float):
        yield value
