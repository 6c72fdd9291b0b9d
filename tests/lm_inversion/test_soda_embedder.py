"""SODA against a sentence embedder: the relaxed encoder against the ordinary one, a search with and without a start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unembed.attacks.base import Attack
from unembed.attacks.lm_inversion.base import CosineLoss
from unembed.attacks.lm_inversion.search import Rows
from unembed.attacks.lm_inversion.soda_embedder import SodaEmbedder
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.embedders.outputs import Observation
from unembed.embedders.transformer import RelaxedEncoder

TEXTS = ["dogs bark", "i live in paris now"]


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    return MiniLM(device="cpu")


def test_the_relaxed_encoder_gives_vectors_and_gradients(minilm: MiniLM) -> None:
    box = RelaxedEncoder(minilm)
    for text in TEXTS:
        ids = torch.tensor([box.ids(text)])
        vector = box.logits(ids, torch.empty(1, 0, dtype=torch.long))
        torch.testing.assert_close(vector[:, 0], minilm.embed([text]), atol=1e-6, rtol=1e-5)
        assert box.decode(ids[0].tolist()) == text
    assert box.max_tokens == 254
    box = RelaxedEncoder(minilm)
    vectors = box.input_vectors[torch.tensor([box.ids(TEXTS[1])])].clone().requires_grad_(True)
    vector = box.relaxed(vectors, torch.empty(1, 0, dtype=torch.long), 1)
    (gradient,) = torch.autograd.grad(vector[0, 0, 7], vectors)
    bump = torch.zeros_like(vectors)
    bump[0, 2, 5] = 1e-2
    with torch.no_grad():
        nothing = torch.empty(1, 0, dtype=torch.long)
        slope = (box.relaxed(vectors + bump, nothing, 1) - box.relaxed(vectors - bump, nothing, 1))[0, 0, 7] / 2e-2
    assert float(gradient[0, 2, 5]) == pytest.approx(float(slope), rel=0.05, abs=1e-5)


def test_cosine_loss_by_hand_and_only_encoders_have_gradients(tmp_path: Path) -> None:
    observation = Observation(2)
    seen = observation.parse(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    found = CosineLoss(scale=10)(observation, seen, torch.tensor([[[4.0, 3.0]], [[2.0, 0.0]]]))
    assert found.tolist() == pytest.approx([10 * (1 - 24 / 25), 0.0], abs=1e-5)

    class Remote:
        dimension, max_tokens, fingerprint = 3, 5, "ab"

        def embed(self, texts: object) -> torch.Tensor:
            return torch.zeros(1, 3)

    with pytest.raises(InputError, match="Remote gives none"):
        SodaEmbedder(CosineLoss()).white_box(CachedEmbedder(Remote(), tmp_path))


class Reads(Attack):
    """Says a text that it was given, whatever the vector."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self.texts = texts

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        return [Prediction((self.texts[place],)) for place in targets.index.tolist()]


def test_a_start_is_what_the_search_begins_with(minilm: MiniLM, tmp_path: Path) -> None:
    """Half of the weight is the start's; a start that is right is found at once, and verified."""
    attack = SodaEmbedder(CosineLoss(), iterations=1, length="known", start_weight=0.5)
    attack.connect(tmp_path, None)
    attack.frozen = {"start": Reads(["dogs", "I live in Paris now"])}
    box = RelaxedEncoder(minilm)
    vectors = minilm.embed(TEXTS)
    oracle = CachedEmbedder(minilm, tmp_path)
    found = attack.invert(Targets(vectors, torch.arange(2), lengths=(2, 5)), oracle)
    assert found[1].candidates == ("I live in Paris now",)  # as the start writes the same wordpieces
    assert (found[1].search.verified, found[1].search.iterations) == (True, 1)
    seen, none = box.observation.parse(vectors[:1]), torch.full((1, 2), -1)
    rows = Rows(box, seen, 2, torch.ones(1).long(), (0,), (0,), 0, none)
    weights = (attack.begin(rows)["z"] / attack.temperature).softmax(-1)
    assert float(weights[0, 0, box.ids("dogs")[0]]) == pytest.approx(0.5, abs=1e-4)
    assert float(weights[0, 1].max()) == pytest.approx(1 / 30522, rel=1e-3)  # the start ends before the text


def test_exact_steps_repair_a_text_that_is_nearly_right(minilm: MiniLM, tmp_path: Path) -> None:
    """Two places exchanged, and a wrong wordpiece."""
    attack = SodaEmbedder(CosineLoss(), iterations=5, exact_steps=5, candidates=32)
    attack.connect(tmp_path, None)
    attack.frozen = {"start": Reads(["bark dogs", "we live in paris now"])}
    targets = Targets(minilm.embed(TEXTS), torch.arange(2), lengths=(2, 5))
    found = attack.invert(targets, CachedEmbedder(minilm, tmp_path))
    assert [one.candidates[0] for one in found] == TEXTS
    records = [one.search for one in found if one.search is not None]
    assert [record.verified for record in records] == [True, True]
    assert [record.iterations for record in records] == [1, 1]  # the first place is the first step's
    assert 32 < records[1].passes <= 32 + 2 * 5 + 3 * 5 + 1


def test_relaxed_steps_come_before_exact_ones(minilm: MiniLM, tmp_path: Path) -> None:
    attack = SodaEmbedder(CosineLoss(), iterations=3, exact_steps=1, candidates=4)
    attack.connect(tmp_path, None)
    box = RelaxedEncoder(minilm)
    seen = box.observation.parse(minilm.embed(["dogs bark", "cats run"]))
    best = torch.tensor([box.ids("bark dogs"), box.ids("run cats")])
    rows = Rows(box, seen, 2, torch.tensor([2, 3]), (0, 1), (0, 0), 0, best)
    state = attack.begin(rows)
    found = attack.step(state, rows)
    assert box.decode(found[1].tolist()) == "cats run"  # an exact step from the best so far
    assert attack.passes(state)[0] == 3
    assert state["z"][0].any()  # and a relaxed one
    assert not state["z"][1].any()
    with pytest.raises(ValueError, match="exact_steps=4"):
        SodaEmbedder(CosineLoss(), iterations=3, exact_steps=4)
