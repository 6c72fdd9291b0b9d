"""Metrics of rankings by hand and against trec_eval, and exact search against a plain sort."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import pytrec_eval
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unembed.datamodules import retrieval as exact_search
from unembed.datamodules.retrieval import Similarity, search
from unembed.metrics.retrieval import Ndcg, Ranked, Recall, ReciprocalRank, score_rankings


def ndcg(ranking: list[str], grades: dict[str, int], k: int = 10) -> float:
    return Ndcg(k).of_example(Ranked(ranking, grades))


def recall(ranking: list[str], grades: dict[str, int], k: int) -> float:
    return Recall(k).of_example(Ranked(ranking, grades))


def reciprocal_rank(ranking: list[str], grades: dict[str, int]) -> float:
    return ReciprocalRank(1000).of_example(Ranked(ranking, grades))


def test_metrics_by_hand() -> None:
    grades = {"a": 3, "b": 1, "c": 2, "d": 0}
    gained = 2 / math.log2(2) + 3 / math.log2(4)  # c first, an unjudged one, a third
    best = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert ndcg(["c", "x", "a"], grades) == pytest.approx(gained / best)
    assert ndcg(["c", "x", "a"], grades, k=1) == pytest.approx(2 / 3)
    assert ndcg(["a", "c", "b", "d"], grades) == 1.0
    assert ndcg(["d", "x"], grades) == 0.0
    assert ndcg(["d3", "d1"], {"d1": 2, "d7": 1}) == pytest.approx(2 / math.log2(3) / (2 + 1 / math.log2(3)))
    assert ndcg(["bad", "good"], {"bad": -2, "good": 1}) == pytest.approx(1 / math.log2(3))
    grades = {"a": 1, "b": 2, "c": 0, "far": 1, "absent": 1}
    ranking = ["c", "b", "x", "a", "far"]
    assert recall(ranking, grades, 4) == 2 / 4
    assert recall(ranking, grades, 5) == 3 / 4
    assert reciprocal_rank(ranking, grades) == 1 / 2
    assert reciprocal_rank(["c", "x"], grades) == 0.0
    for metric in (
        lambda: ndcg(["a"], {"a": 0}),
        lambda: recall(["a"], {}, 5),
        lambda: reciprocal_rank(["a"], {"b": -1}),
    ):
        with pytest.raises(ValueError, match="no document is relevant"):
            metric()


def test_metrics_agree_with_trec_eval() -> None:
    """On random graded relevance labels, some of documents that no ranking holds."""
    generator = np.random.default_rng(0)
    names = [f"d{number}" for number in range(150)]
    rankings, relevance = [], []
    for _ in range(60):
        rankings.append([str(name) for name in generator.permutation(names)[: generator.integers(1, 130)]])
        labelled = [*generator.permutation(names)[:20], "gone"]
        relevance.append(
            {str(name): int(grade) for name, grade in zip(labelled, generator.integers(-1, 4, 21), strict=True)}
        )
        relevance[-1]["always"] = 1
    measures = {"ndcg_cut.10", "recall.10,100", "recip_rank"}
    oracle = pytrec_eval.RelevanceEvaluator({str(n): grades for n, grades in enumerate(relevance)}, measures)
    # It sorts by score, so rankings are given falling ones.
    runs = {str(n): {name: -float(rank) for rank, name in enumerate(ranking)} for n, ranking in enumerate(rankings)}
    wanted = oracle.evaluate(runs)
    found = score_rankings(rankings, relevance)
    for n, ranking in enumerate(rankings):
        row = wanted[str(n)]
        assert found["ndcg_at_10"][n] == pytest.approx(row["ndcg_cut_10"], abs=1e-12)
        assert found["recall_at_10"][n] == pytest.approx(row["recall_10"], abs=1e-12)
        assert found["recall_at_100"][n] == pytest.approx(row["recall_100"], abs=1e-12)
        assert reciprocal_rank(ranking, relevance[n]) == pytest.approx(row["recip_rank"], abs=1e-12)
        if row["recip_rank"] >= 0.1:
            assert found["mrr_at_10"][n] == pytest.approx(row["recip_rank"], abs=1e-12)


def cut(documents: Tensor, size: int) -> Iterator[Tensor]:
    return (documents[start : start + size] for start in range(0, len(documents), size))


def sorted_plainly(
    queries: Tensor, documents: Tensor, k: int, similarity: Similarity
) -> tuple[list[list[int]], Tensor]:
    """The oracle: all products in float64, one row at a time, and a stable sort."""
    one, other = queries.double(), documents.double()
    if similarity == "cosine":
        one, other = (torch.nn.functional.normalize(vectors, dim=1) for vectors in (one, other))
    scores = torch.stack([(row * other).sum(dim=1) for row in one])
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return order[:, :k].tolist(), scores[:, :k]


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize(("documents", "block"), [(7, 3), (400, 400), (5000, 1700), (20_000, 20_000)])
def test_search_finds_what_a_plain_sort_finds(documents: int, block: int, similarity: Similarity) -> None:
    generator = torch.Generator().manual_seed(documents)
    queries = torch.randn(9, 24, generator=generator)
    vectors = torch.randn(documents, 24, generator=generator) * torch.rand(documents, 1, generator=generator)
    found = search(queries, cut(vectors, block), 10, similarity)
    order, scores = sorted_plainly(queries, vectors, 10, similarity)
    assert found.positions.tolist() == order
    torch.testing.assert_close(found.scores, scores, atol=1e-6, rtol=0)


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_of_equals_the_earlier_document_comes_first(size: int, block: int, k: int, seed: int) -> None:
    """Few distinct vectors, so that nearly all scores are tied, exactly in float32 and float64."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randint(-1, 2, (3, 2), generator=generator).float()
    vectors = torch.randint(-1, 2, (size, 2), generator=generator).float()
    assert search(queries, cut(vectors, block), k).positions.tolist() == sorted_plainly(queries, vectors, k, "dot")[0]


def test_ties() -> None:
    """More ties than candidates, of vectors whose float32 products differ in the last bits by their column."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(1, 300, generator=generator).repeat(700, 1)
    queries = torch.randn(40, 300, generator=generator)
    for block in (17, 64, 333, 700):
        found = search(queries, cut(vectors, block), 10, "cosine")
        assert found.positions.tolist() == [list(range(10))] * 40
    # The second half is better by less than float32 can tell, and there are more of them than spare candidates.
    vectors = torch.full((200, 2), 1.0)
    vectors[100:, 1] = 1 + 2**-22
    found = search(torch.tensor([[1.0, 2.0**-5]]), [vectors], 10)
    assert found.positions.tolist() == [list(range(100, 110))]


def test_blocks_are_asked_for_one_at_a_time() -> None:
    alive = 0

    class Block:
        def __init__(self) -> None:
            nonlocal alive
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    seen = []

    def blocks() -> Iterator[Tensor]:
        for number in range(5):
            marker = Block()
            seen.append(alive)
            yield torch.full((10, 3), float(number))
            del marker

    found = search(torch.ones(2, 3), blocks(), 3)
    assert found.positions.tolist() == [[40, 41, 42]] * 2
    assert seen == [1] * 5


def test_search_refuses_what_it_cannot_compare_and_zeros_are_like_nothing() -> None:
    with pytest.raises(ValueError, match="do not go with queries of 3"):
        search(torch.ones(1, 3), [torch.ones(4, 5)], 2)
    broken = torch.ones(5000, 3)
    broken[1234, 1] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        search(torch.ones(1, 3), [broken], 2)
    found = search(torch.tensor([[1.0, 0.0]]), [torch.tensor([[0.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])], 3, "cosine")
    assert found.positions.tolist() == [[1, 0, 2]]
    assert found.scores[0].tolist() == pytest.approx([math.sqrt(0.5), 0.0, -1.0])


def test_the_tiles_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(5)
    queries, vectors = torch.randn(30, 16, generator=generator), torch.randn(3000, 16, generator=generator)
    whole = search(queries, [vectors], 20)
    for name, value in (("QUERIES", 7), ("RESCORED", 1)):
        monkeypatch.setattr(exact_search, name, value)
    parts = search(queries, [vectors], 20)
    assert whole.positions.equal(parts.positions)
    assert whole.scores.equal(parts.scores)
