"""The metric interface: statistics of each example, and a function from their sums to the metric's value.

    bleu = CorpusBleu()
    bleu.update([Scored("Ada lives in Paris.", "Ada lives in Rome.")])
    bleu.compute()                                    # tensor(42.7288, dtype=torch.float64)
    parts = bleu.parts_so_far()                       # (1, 11): matches and n-grams of each order, lengths
    bleu.combine(resampled_sums(parts, 2000, seed=0)) # (2000,): the bootstrap uses the same definition

The value on a test set, on the texts of one language and in a bootstrap, and the titles in tables, come from this one
definition.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from unembed.metrics.scored import Description as Description  # of every metric: imported from here
from unembed.metrics.statistics import Floats, Interval, Share, interval

Needs = Literal["texts", "labels", "models"]


Row = TypeVar("Row")
Values = dict[str, float | int | None]


class ExampleMetric(Metric, ABC, Generic[Row]):
    """A metric of examples: of ``Scored`` texts with their predictions, or of other rows.

    State: the sufficient statistics of each example, (n, k) float64, which torchmetrics concatenates over ranks. Sums
    are exact (``math.fsum``), so a value depends neither on the order of the examples nor on the number of ranks.

    Attributes:
        description: Key, title, unit and direction.
        ordered: Whether it depends on word order; it is then undefined for predictions that are sets of words.
        needs: Which inputs it reads: texts and cosines; also entity labels or the language, which a tagger may have
            added and predictions.jsonl may lack; or outputs of models, which predictions.jsonl always lacks.
        summable: Whether ``combine`` computes the value from sums, so that examples can be resampled.
    """

    is_differentiable = False
    full_state_update = False
    description: Description
    ordered: bool = False
    needs: Needs = "texts"
    summable: bool = True
    parts: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("parts", default=[], dist_reduce_fx="cat")

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]  # torchmetrics has a class attribute
        """Whether a higher value means a more successful attack; None if neither direction does."""
        return None if self.description.more is None else self.description.more == "higher"

    @property
    def shares(self) -> object:
        """Equal for metrics with the same statistics, which are then computed once."""
        return self.description.key

    @abstractmethod
    def statistics(self, rows: Sequence[Row]) -> Floats:
        """Sufficient statistics of each example: (n, k) float64."""

    @abstractmethod
    def combine(self, sums: Floats) -> Floats:
        """Values from sums over examples: (..., k) -> (...,); NaN where the metric is undefined."""

    def update(self, rows: Sequence[Row]) -> None:
        self.parts.append(torch.from_numpy(self.statistics(rows)))

    def compute(self) -> Tensor:
        """The value of all examples so far, a float64 scalar; NaN if undefined."""
        return torch.tensor(self.value(self.parts_so_far()), dtype=torch.float64)

    def parts_so_far(self) -> Floats:
        # After a reduction over ranks, torchmetrics holds one tensor instead of the list.
        parts = self.parts if isinstance(self.parts, Tensor) else torch.cat(self.parts)
        return np.asarray(parts.cpu().numpy(), np.float64)

    def value(self, parts: Floats) -> float:
        """The value of examples with the statistics ``parts`` (n, k); NaN if undefined."""
        return float(self.combine(np.array([math.fsum(column) for column in parts.T], np.float64)))

    def of(self, rows: Sequence[Row]) -> float | int | None:
        """The value of these examples as in metrics.json: an integer for counts, None if undefined."""
        return self.written(self.statistics(rows))

    def written(self, parts: Floats) -> float | int | None:
        """``value`` as in metrics.json."""
        value = self.value(parts)
        if math.isnan(value):
            return None
        return round(value) if self.description.kind == "count" else value

    def interval(self, parts: Floats, resampled: Floats) -> Interval | None:
        """The 95 % interval: the percentiles of ``resampled`` values, (resamples,)."""
        return interval(resampled)


class OfAll(ExampleMetric[Row]):
    """A value of all examples together that is no function of sums, such as a median: there is no bootstrap."""

    summable = False

    @abstractmethod
    def value(self, parts: Floats) -> float: ...

    def combine(self, sums: Floats) -> Floats:
        return np.full(sums.shape[:-1], np.nan)


class Mean(ExampleMetric[Row]):
    """The mean over the examples with a value; examples without one (None) do not count."""

    def statistics(self, rows: Sequence[Row]) -> Floats:
        """(n, 2): the value, and 1 where there is one."""
        values = [self.of_example(row) for row in rows]
        return np.array([(0.0, 0.0) if value is None else (value, 1.0) for value in values], np.float64).reshape(-1, 2)

    @abstractmethod
    def of_example(self, row: Row) -> float | None:
        """The value of one example."""

    def combine(self, sums: Floats) -> Floats:
        return quotient(sums[..., 0], sums[..., 1])


class Ratio(ExampleMetric[Row]):
    """100 * found / total, each summed over the examples."""

    def statistics(self, rows: Sequence[Row]) -> Floats:
        """(n, 2): found and total."""
        return np.array([self.of_example(row) for row in rows], np.float64).reshape(-1, 2)

    @abstractmethod
    def of_example(self, row: Row) -> tuple[int, int]:
        """Found and total of one example."""

    def combine(self, sums: Floats) -> Floats:
        return quotient(100 * sums[..., 0], sums[..., 1])


class Successes(Ratio[Row]):
    """The percentage of examples that succeed."""

    def of_example(self, row: Row) -> tuple[int, int]:
        return int(self.succeeds(row)), 1

    @abstractmethod
    def succeeds(self, row: Row) -> bool:
        """Whether one example succeeds."""

    def interval(self, parts: Floats, resampled: Floats) -> Interval | None:
        """Wilson's 95 % interval: a bootstrap interval is empty if all examples succeed or none does."""
        return Share(round(parts[:, 0].sum()), round(parts[:, 1].sum())).interval


def quotient(above: Floats, below: Floats) -> Floats:
    """``above / below``; NaN where ``below`` is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(below > 0, above / below, np.nan), np.float64)


@dataclass(frozen=True, slots=True)
class Measured(Generic[Row]):
    """A metric of some examples with their statistics, (n, k), ready to be resampled."""

    metric: ExampleMetric[Row]
    parts: Floats

    @classmethod
    def of(cls, metric: ExampleMetric[Row], rows: Sequence[Row]) -> Measured[Row]:
        return cls(metric, metric.statistics(rows))

    @property
    def value(self) -> float:
        return self.metric.value(self.parts)

    def interval(self, resampled: Floats) -> Interval | None:
        return self.metric.interval(self.parts, resampled)
