"""GCG's candidates: what may be sampled, how often, and that the package nanogcg samples the same."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest
import torch
from torch import Tensor

from unembed.attacks.lm_inversion.gcg import distinct, drawn_swaps, promising_tokens

LENGTH, VOCABULARY, K = 3, 20, 4
TIMES = 24_000


def generators(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in range(count)]


def swaps(ids: Tensor, candidates: Tensor) -> Counter[tuple[int, int]]:
    """How often each (place, token) was swapped in; ids hold no token that is promising, so every swap shows."""
    assert ((candidates != ids).sum(1) == 1).all()
    places = (candidates != ids).int().argmax(1)
    return Counter(zip(places.tolist(), candidates.gather(1, places[:, None])[:, 0].tolist(), strict=True))


def unlikeness(first: Counter[tuple[int, int]], second: Counter[tuple[int, int]]) -> float:
    """Chi square of two samples of one size over their cells."""
    cells = first.keys() | second.keys()
    return sum((first[cell] - second[cell]) ** 2 / (first[cell] + second[cell]) for cell in cells)


def problem() -> tuple[Tensor, Tensor]:
    """An input, and a gradient that favours none of its tokens."""
    gradient = torch.randn(LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(3))
    ids = gradient.argmax(1)
    return ids, gradient


def test_promising_tokens_and_distinct_candidates() -> None:
    gradient = torch.tensor([[0.5, -2.0, 0.0, -1.0], [1.0, 2.0, 3.0, 4.0]])
    assert promising_tokens(gradient, 2).tolist() == [[1, 3], [0, 1]]
    assert promising_tokens(gradient, 9).tolist() == [[1, 3, 2, 0], [0, 1, 2, 3]]
    candidates = torch.tensor([[[1, 2], [1, 2], [1, 3]], [[1, 2], [0, 2], [1, 2]]])
    rows, owners = distinct(candidates)
    assert rows.tolist() == [[1, 2], [1, 3], [0, 2], [1, 2]]
    assert owners.tolist() == [0, 0, 1, 1]


def test_every_pair_is_sampled_evenly_whatever_the_neighbours() -> None:
    ids, gradient = problem()
    tokens = promising_tokens(gradient, K)
    found = swaps(ids, drawn_swaps(ids[None], tokens[None], TIMES, generators(1))[0])
    assert set(found) == {(place, token) for place, row in enumerate(tokens.tolist()) for token in row}
    # Chi square with 11 degrees of freedom: 31.3 is passed once in a thousand.
    expected = TIMES / (LENGTH * K)
    assert sum((times - expected) ** 2 / expected for times in found.values()) < 31.3
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    tokens = torch.arange(24).view(2, 3, 4)
    together = drawn_swaps(ids, tokens, 50, generators(2))
    alone = drawn_swaps(ids[1:], tokens[1:], 50, generators(2)[1:])
    assert torch.equal(together[1:], alone)


@pytest.mark.slow  # the package imports half of transformers
def test_the_distribution_is_that_of_nanogcg() -> None:
    sampler = pytest.importorskip("nanogcg.gcg").sample_ids_from_grad
    ids, gradient = problem()
    torch.manual_seed(0)
    theirs = swaps(ids, cast(Tensor, sampler(ids, gradient.clone(), TIMES, topk=K, n_replace=1, not_allowed_ids=None)))
    tokens = promising_tokens(gradient, K)
    ours = swaps(ids, drawn_swaps(ids[None], tokens[None], TIMES, generators(1))[0])
    assert set(ours) == set(theirs)
    # 12 cells: 11 degrees of freedom, 31.3 once in a thousand.
    assert unlikeness(ours, theirs) < 31.3
    # The test can tell: candidates from one token fewer a place are another distribution.
    fewer = swaps(ids, drawn_swaps(ids[None], tokens[None, :, :-1], TIMES, generators(1))[0])
    assert unlikeness(fewer, theirs) > 1000
