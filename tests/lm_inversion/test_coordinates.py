"""Exact steps against brute force over what they try."""

from __future__ import annotations

import itertools

import torch

from support.tiny_models import VOCABULARY
from unembed.attacks.lm_inversion.base import LogitLoss
from unembed.attacks.lm_inversion.search import Rows
from unembed.attacks.lm_inversion.soda_embedder import Coordinates, neighbours
from unembed.embedders.language_model import LanguageModelEmbedder

TRUE = torch.tensor([[5, 17, 3], [12, 30, 8]])


def rows_of(tiny_lm: LanguageModelEmbedder) -> Rows:
    seen = tiny_lm.observation.parse(tiny_lm.observe(TRUE))
    return Rows(tiny_lm, seen, 3, torch.ones(2).long(), (0, 1), (0, 0), 0, torch.tensor([[5, 17, 4], [12, 9, 8]]))


def test_what_is_tried() -> None:
    tried = neighbours(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([0, 2]), torch.tensor([[7, 8], [9, 1]]))
    first = {(7, 2, 3), (8, 2, 3), (1, 2, 3), (2, 1, 3), (3, 2, 1), (2, 3, 1)}
    second = {(4, 5, 9), (4, 5, 1), (4, 5, 6), (6, 5, 4), (4, 6, 5), (6, 4, 5)}
    assert [{tuple(row) for row in some} for some in tried.tolist()] == [first, second]
    assert tried.shape == (2, 2 + 6, 3)


def test_a_step_finds_the_best_there_is(tiny_lm: LanguageModelEmbedder) -> None:
    rows, loss, places = rows_of(tiny_lm), LogitLoss(), torch.tensor([1, 0])
    coordinates = Coordinates(loss, VOCABULARY)
    ids = torch.tensor([[9, 9, 3], [30, 40, 8]])
    state = coordinates.begin(ids.clone())
    found = coordinates.step(state, rows, places)
    for row, place in enumerate(places.tolist()):
        tried = [[*ids[row, :place].tolist(), token, *ids[row, place + 1 :].tolist()] for token in range(VOCABULARY)]
        here = ids[row].tolist()
        for other in itertools.permutations(range(3)):
            moved = [here[at] for at in other]
            one_moved = [at for at in other if at != place] == [at for at in range(3) if at != place]
            one_exchanged = sum(at != to for at, to in enumerate(other)) == 2 and other[place] != place
            tried += [moved] if one_moved or one_exchanged else []
        inputs = torch.tensor(tried)
        seen = rows.seen[torch.full((len(inputs),), row)]
        losses = loss(tiny_lm.observation, seen, tiny_lm.logits(inputs, seen.continuation))
        assert found[row].tolist() == tried[int(losses.argmin())]
    assert torch.equal(state["ids"], found)
    assert state["spent"].min() > VOCABULARY + 3 * 3 - 2
    assert state["spent"].max() <= VOCABULARY + 2 * 3 + 3 * 3


def test_a_round_without_a_change_leads_elsewhere(tiny_lm: LanguageModelEmbedder) -> None:
    rows = rows_of(tiny_lm)
    coordinates = Coordinates(LogitLoss(), 8)
    state = coordinates.begin(TRUE.clone())
    for step in (0, 1):
        assert torch.equal(coordinates.step(state, rows, torch.full((2,), step)), TRUE)
        assert state["unchanged"].tolist() == [step + 1] * 2
    assert torch.equal(coordinates.step(state, rows, torch.full((2,), 2)), TRUE)
    differences = (state["ids"] != rows.best).sum(1)  # from the best so far, whatever is at work
    assert differences.min() >= 1
    assert differences.max() <= 2
    assert state["unchanged"].tolist() == [0, 0]
    again = coordinates.begin(TRUE.clone())
    again["unchanged"] += 2
    coordinates.step(again, rows, torch.full((2,), 2))
    assert torch.equal(again["ids"], state["ids"])  # sampled from the seed, the example and the iteration
