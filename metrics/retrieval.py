"""How well a search ranks: NDCG, recall and reciprocal rank of rankings against graded judgements.

    ndcg(["d3", "d1"], {"d1": 2, "d7": 1}, k=10)          # 0.479...: d7 was not found, d1 came second

All three are those of trec_eval, so that figures can be laid beside published ones (BEIR and MTEB use it): the gain of
a document is its grade itself (*linear*; 2^grade - 1 is another figure of the same name), the document at rank r counts
1 / log2(r + 1) of it, and a grade of 0 or less is worth nothing. What was judged counts in the ideal ranking whether
the collection has that document or not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from metrics.base import Description, Mean
from metrics.statistics import Floats

Name = TypeVar("Name", bound=Hashable)


def ndcg(ranking: Sequence[Name], grades: Mapping[Name, int], k: int = 10) -> float:
    """Discounted gain of the first ``k`` documents over that of the best possible ranking, 0 to 1.

    Args:
        ranking: Documents, best first, none twice.
        grades: Of the judged documents; all others have none.

    Raises:
        ValueError: No document is relevant, so there is no best ranking.
    """
    ideal = _discounted(sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:k])
    if ideal == 0:
        raise ValueError("no document is relevant: the gain has nothing to be divided by")
    return _discounted([max(0, grades.get(name, 0)) for name in ranking[:k]]) / ideal


def recall(ranking: Sequence[Name], grades: Mapping[Name, int], k: int) -> float:
    """Share of the relevant documents (grade 1 or more) among the first ``k``, 0 to 1.

    Raises:
        ValueError: No document is relevant.
    """
    relevant = _relevant(grades)
    return len(relevant.intersection(ranking[:k])) / len(relevant)


def reciprocal_rank(ranking: Sequence[Name], grades: Mapping[Name, int]) -> float:
    """1 / the rank of the first relevant document, 0 where the ranking holds none; the mean over queries is MRR.

    Raises:
        ValueError: No document is relevant.
    """
    relevant = _relevant(grades)
    return next((1 / rank for rank, name in enumerate(ranking, start=1) if name in relevant), 0.0)


def score_rankings(
    rankings: Sequence[Sequence[Name]], judgements: Sequence[Mapping[Name, int]], recall_at: Sequence[int] = (10, 100)
) -> dict[str, Floats]:
    """Figures of each query, (n,) in 0 to 1: ``ndcg_at_10``, ``mrr_at_10``, ``recall_at_<k>``; means are a test's.

    Args:
        rankings: Of each query, best first.
        judgements: Of each query, in the same order; each with a relevant document.
    """
    pairs = list(zip(rankings, judgements, strict=True))
    figures = {
        "ndcg_at_10": [ndcg(ranking, grades, 10) for ranking, grades in pairs],
        "mrr_at_10": [reciprocal_rank(ranking[:10], grades) for ranking, grades in pairs],
        **{f"recall_at_{k}": [recall(ranking, grades, k) for ranking, grades in pairs] for k in recall_at},
    }
    return {name: np.array(values, np.float64) for name, values in figures.items()}


def _relevant(grades: Mapping[Name, int]) -> set[Name]:
    relevant = {name for name, grade in grades.items() if grade > 0}
    if not relevant:
        raise ValueError("no document is relevant: there is nothing to be found")
    return relevant


def _discounted(gains: Sequence[int]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


class MeanNdcg(Mean[float]):
    """NDCG@10, the mean over queries; its examples are the NDCG of each."""

    def __init__(self, **settings: Any) -> None:
        explanation = "How well a search ranks the relevant documents, among the first ten."
        super().__init__(Description("ndcg_at_10", "NDCG@10", explanation, kind="cosine"), **settings)

    def of_example(self, row: float) -> float:
        """0 to 1."""
        return row
