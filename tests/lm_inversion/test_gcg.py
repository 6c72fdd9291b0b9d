"""GCG against its own candidates run one by one, and embedding search against torch's Adam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate

from support.tiny_models import VOCABULARY
from unembed import launch
from unembed.attacks.lm_inversion.base import LogitLoss
from unembed.attacks.lm_inversion.gcg import GCG, drawn_swaps, promising_tokens
from unembed.attacks.lm_inversion.search import Rows
from unembed.attacks.lm_inversion.soda import SODA
from unembed.attacks.parts.predictions import Targets
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder

INPUTS = torch.tensor([[5, 17, 3], [12, 30, 8], [59, 3, 41]])


def rows_of(tiny_lm: LanguageModelEmbedder, iteration: int = 1) -> Rows:
    count, length = INPUTS.shape
    seen = tiny_lm.observation.parse(tiny_lm.observe(INPUTS))
    return Rows(
        tiny_lm,
        seen,
        length,
        torch.full((count,), iteration),
        tuple(range(count)),
        (0,) * count,
        4,
        torch.full((count, length), -1),
    )


def connected(attack: Any, tiny_lm: LanguageModelEmbedder, tmp_path: Path) -> Any:
    attack.connect(tmp_path, CachedEmbedder(tiny_lm, tmp_path / "cache"))
    return attack


def test_a_step_takes_the_best_of_the_candidates_and_counts_those_that_differ(
    tiny_lm: LanguageModelEmbedder, tmp_path: Path
) -> None:
    attack = connected(GCG(LogitLoss(), candidates=40, k=10), tiny_lm, tmp_path)
    rows = rows_of(tiny_lm)
    state = attack.begin(rows)
    before = state["ids"].clone()
    found = attack.step(state, rows)

    relaxed = torch.nn.functional.one_hot(before, VOCABULARY).float().requires_grad_()
    logits = tiny_lm.relaxed(relaxed @ tiny_lm.input_vectors, rows.seen.continuation, 1)
    difference = (logits[:, 0] - tiny_lm.observe(INPUTS)).abs()
    loss = torch.where(difference < 1, difference**2 / 2, difference - 0.5).sum()  # Huber
    (gradient,) = torch.autograd.grad(loss, relaxed)
    drawn = drawn_swaps(before, promising_tokens(gradient, 10), 40, [rows.generator(row, 1) for row in range(3)])
    for row in range(3):
        options = {tuple(ids) for ids in drawn[row].tolist()}
        target = tiny_lm.observe(INPUTS[row : row + 1])
        apart = {ids: float(attack.distance(tiny_lm, tiny_lm.observation.parse(target), tiny_lm.logits(torch.tensor([ids]), torch.empty(1, 0, dtype=torch.long)))) for ids in options}  # fmt: skip # noqa: E501
        assert apart[tuple(found[row].tolist())] == pytest.approx(min(apart.values()), rel=1e-5)
        assert int(attack.passes(state)[row]) == 3 + len(options)


def test_all_inputs_of_one_token_are_found_and_restarts_add_up_their_passes(
    tiny_lm: LanguageModelEmbedder, tmp_path: Path
) -> None:
    attack = connected(GCG(LogitLoss(), candidates=600, k=VOCABULARY, iterations=1), tiny_lm, tmp_path)
    ids = torch.arange(VOCABULARY)[:, None]
    found = attack.invert(Targets(tiny_lm.observe(ids), torch.arange(len(ids)), lengths=(1,) * len(ids)), attack.oracle)
    assert [one.tokens for one in found] == [tuple(row) for row in ids.tolist()]
    assert all(one.search.verified and one.search.iterations == 1 for one in found)
    attack = connected(GCG(LogitLoss(), candidates=20, k=5, iterations=2, restarts=3, length=3), tiny_lm, tmp_path)
    (found,) = attack.invert(Targets(tiny_lm.observe(INPUTS[:1]), torch.tensor([0])), attack.oracle)
    # Each of three restarts: two gradients of 3 passes, at most 20 candidates each, at most one check of each.
    assert 3 * 2 * (3 + 2) < found.search.passes <= 3 * 2 * (3 + 20 + 1)


def test_a_target_is_searched_the_same_alone_and_among_others(tiny_lm: LanguageModelEmbedder, tmp_path: Path) -> None:
    attack = connected(
        GCG(LogitLoss(), candidates=30, k=8, iterations=6, active_targets=2, length=3), tiny_lm, tmp_path
    )
    rows = tiny_lm.observe(INPUTS)
    together = attack.invert(Targets(rows, torch.arange(3)), attack.oracle)
    alone = attack.invert(Targets(rows[2:], torch.tensor([2])), attack.oracle)
    assert alone[0].tokens == together[2].tokens
    assert alone[0].search.passes == together[2].search.passes
    assert alone[0].search.loss == pytest.approx(together[2].search.loss, rel=1e-4)


def test_embedding_search_is_adam_on_the_vectors(
    language_model: Path, tiny_lm: LanguageModelEmbedder, tmp_path: Path
) -> None:
    overrides = ["attack=embedding_search", "embedder=language_model", f"embedder.model={language_model}"]
    config = launch.compose("train", [*overrides, "datamodule=random_tokens"])
    assert not launch.check(config)
    attack = connected(instantiate(config.attack, _convert_="all"), tiny_lm, tmp_path)
    assert isinstance(attack, SODA)
    rows = rows_of(tiny_lm, iteration=0)
    state = attack.begin(rows)
    assert float(state["z"].std()) == pytest.approx(1.0, abs=0.15)

    vectors = state["z"].clone().requires_grad_()
    adam = torch.optim.Adam([vectors], lr=0.065, betas=(0.9, 0.995))
    target = tiny_lm.observe(INPUTS)
    for _ in range(5):
        rows.iteration.add_(1)
        found = attack.step(state, rows)
        adam.zero_grad()
        logits = tiny_lm.relaxed(vectors, rows.seen.continuation, 1)[:, 0]
        apart = torch.nn.functional.huber_loss(logits, target, reduction="sum") / VOCABULARY  # each target's mean
        apart.backward()  # type: ignore[no-untyped-call]
        adam.step()
    assert torch.allclose(state["z"], vectors, atol=1e-5)
    assert torch.equal(found, torch.cdist(vectors.detach(), tiny_lm.input_vectors).argmin(2))


def test_embedding_search_begins_as_far_out_as_is_said(tiny_lm: LanguageModelEmbedder, tmp_path: Path) -> None:
    attack = connected(SODA(LogitLoss(), reparametrize=False, draw_std=0.25), tiny_lm, tmp_path)
    assert float(attack.begin(rows_of(tiny_lm, iteration=0))["z"].std()) == pytest.approx(0.25, abs=0.04)
