"""Inversion without a trainer: what a reader reports of its batches."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from unembed.attacks.parts.batch_cache import BatchResult
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.reports.reading import Reader


class Stored:
    """An attack all of whose batches an interrupted run has stored; each took two and a half seconds there."""

    device = torch.device("cpu")
    at_once = 1000

    def invert_once(self, targets: Targets, oracle: object, work: str) -> tuple[list[Prediction], BatchResult]:
        return [Prediction(("a",))] * len(targets.vectors), BatchResult([], np.empty(0, np.uint64), 2.5)


def test_the_seconds_of_an_interrupted_run_count() -> None:
    reader = Reader(cast("Any", Stored()), cast("Any", None), batch_size=2)
    assert len(reader.read(torch.zeros(5, 3))) == 5
    assert reader.seconds == 7.5
