"""Retrieval metrics: NDCG, recall and reciprocal rank of rankings, given graded relevance labels.

    Ndcg(10).of_example(Ranked(["d3", "d1"], {"d1": 2, "d7": 1}))          # 0.479...: d7 was not found, d1 came second

All three follow trec_eval, which BEIR and MTEB use, so that values are comparable with published ones. The gain of a
document is its grade (*linear* gain; a common variant uses 2^grade - 1), discounted by 1 / log2(r + 1) at rank r;
grades of 0 or less give no gain. Every labelled document counts in the ideal ranking, even if the collection lacks it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from unembed.metrics.base import Description, Mean
from unembed.metrics.statistics import Floats


class Ranked(NamedTuple):
    """The ranking of one query, best first and without repeats, and the grades of the labelled documents."""

    ranking: Sequence[str]
    grades: Mapping[str, int]

    @property
    def relevant(self) -> set[str]:
        """Documents of grade 1 or more, of which there must be one."""
        found = {name for name, grade in self.grades.items() if grade > 0}
        if not found:
            raise ValueError("no document is relevant: there is nothing to be found")
        return found


class _AtRank(Mean[Ranked]):
    """A mean over queries of a value of the first ``k`` documents, 0 to 1."""

    def __init__(self, k: int, key: str, title: str, explanation: str) -> None:
        super().__init__()
        self.k, self.description = k, Description(key, title, explanation, kind="cosine")

    @staticmethod
    def known(values: Sequence[float]) -> Floats:
        """The statistics of queries with stored values: (n,) -> (n, 2)."""
        return np.column_stack([values, np.ones(len(values))])


class Ndcg(_AtRank):
    """Discounted cumulative gain of the first ``k`` documents, divided by that of the ideal ranking."""

    def __init__(self, k: int = 10) -> None:
        explanation = f"How well a search ranks the relevant documents, among the first {k}."
        super().__init__(k, f"ndcg_at_{k}", f"NDCG@{k}", explanation)

    def of_example(self, row: Ranked) -> float:
        best = sorted((row.grades[name] for name in row.relevant), reverse=True)[: self.k]
        return _discounted([max(0, row.grades.get(name, 0)) for name in row.ranking[: self.k]]) / _discounted(best)


class ReciprocalRank(_AtRank):
    """1 / the rank of the first relevant document, 0 if it is not among the first ``k``."""

    def __init__(self, k: int = 10) -> None:
        super().__init__(k, f"mrr_at_{k}", f"MRR@{k}", f"1 / the rank of the first relevant document of {k}.")

    def of_example(self, row: Ranked) -> float:
        relevant = row.relevant
        return next((1 / rank for rank, name in enumerate(row.ranking[: self.k], start=1) if name in relevant), 0.0)


class Recall(_AtRank):
    """Share of the relevant documents among the first ``k``."""

    def __init__(self, k: int) -> None:
        super().__init__(k, f"recall_at_{k}", f"Recall@{k}", f"Share of the relevant documents among the first {k}.")

    def of_example(self, row: Ranked) -> float:
        relevant = row.relevant
        return len(relevant.intersection(row.ranking[: self.k])) / len(relevant)


def score_rankings(
    rankings: Sequence[Sequence[str]],
    relevance: Sequence[Mapping[str, int]],
    recall_at: Sequence[int] = (10, 100),
) -> dict[str, Floats]:
    """Values of each query, (n,) in 0 to 1: ``ndcg_at_10``, ``mrr_at_10``, ``recall_at_<k>``.

    Args:
        rankings: Documents of each query, best first.
        relevance: Relevance labels of each query, in the same order.
    """
    rows = [Ranked(ranking, grades) for ranking, grades in zip(rankings, relevance, strict=True)]
    metrics: list[_AtRank] = [Ndcg(), ReciprocalRank(), *map(Recall, recall_at)]
    return {metric.description.key: metric.statistics(rows)[:, 0] for metric in metrics}


def _discounted(gains: Sequence[int]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
