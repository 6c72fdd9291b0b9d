"""States of a layer and of the cache against transformers' own, candidates beside each other, precisions, bad keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from support.tiny_models import POSITIONS, pretrained_model
from unembed.core.errors import InputError
from unembed.core.examples import written_ids
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.hidden_states import StateLayout, reduced
from unembed.embedders.language_model import LanguageModelEmbedder

INPUTS = [[5, 17, 3], [8], [5, 17, 4], [59, 0, 1, 2, 3, 4]]


@pytest.fixture(scope="module", params=["gpt2", "llama", "opt"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return pretrained_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def reference(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def rows_of(folder: str, **keys: Any) -> tuple[Tensor, Tensor]:
    model = LanguageModelEmbedder(folder, max_tokens=8, device="cpu", **keys)
    rows = model.embed([written_ids(ids) for ids in INPUTS])
    assert rows.shape == (4, model.dimension)
    states, lengths = model.layout.parse(rows)
    return states, lengths


@pytest.mark.parametrize("layer", [0, 1])
def test_states_are_those_of_transformers(folder: str, reference: Any, layer: int) -> None:
    states, lengths = rows_of(folder, observe="hidden_state", layer=layer)
    assert lengths.tolist() == [3, 1, 3, 6]
    last, _ = rows_of(folder, observe="hidden_state", layer=layer, positions="last")
    for place, ids in enumerate(INPUTS):
        with torch.no_grad():
            expected = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0]
        torch.testing.assert_close(states[place, : len(ids)], expected)
        torch.testing.assert_close(last[place], expected[-1:])
        assert not states[place, len(ids) :].any()


def test_the_last_layer_is_before_the_final_norm(language_model: Path) -> None:
    states, _ = rows_of(str(language_model), observe="hidden_state")  # null: the last
    model = AutoModelForCausalLM.from_pretrained(language_model, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([INPUTS[3]])).logits[0]
        torch.testing.assert_close(model.lm_head(model.transformer.ln_f(states[3, :6])), logits)


def test_keys_and_values_are_those_of_the_cache(folder: str, reference: Any) -> None:
    both, lengths = rows_of(folder, observe="kv", layer=2)
    assert lengths.tolist() == [3, 1, 3, 6]
    with torch.no_grad():
        cache = reference(torch.tensor([INPUTS[3]]), use_cache=True).past_key_values.layers[1]
    keys, values = (part[0].transpose(0, 1).flatten(1) for part in (cache.keys, cache.values))
    torch.testing.assert_close(both[3, :6], torch.cat([keys, values], dim=1))
    for cached, expected in (("k", keys), ("v", values)):
        torch.testing.assert_close(rows_of(folder, observe="kv", layer=2, cached=cached)[0][3, :6], expected)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_candidates_see_the_prefix_and_themselves(folder: str, layer: int) -> None:
    """A batch of candidates after a prefix, against each text run as a whole."""
    blocks = LanguageModelEmbedder(folder, observe="hidden_state", layer=layer, device="cpu").blocks
    prefixes, candidates = torch.tensor([[5, 17], [8, 3]]), torch.tensor([[9, 4, 30], [1, 1, 2]])
    cache = blocks.run(prefixes).cache
    found = blocks.run(candidates, cache)
    for row in range(2):
        for place in range(3):
            whole = torch.cat([prefixes[row], candidates[row, place : place + 1]])[None]
            torch.testing.assert_close(found.states[row, place], blocks.run(whole).states[0, -1], atol=1e-5, rtol=1e-5)
    cache = cache.extended(found.cache, torch.tensor([2, 0]))
    assert cache.length == 3
    after = blocks.run(torch.tensor([[7, 6], [7, 6]]), cache).states
    whole = torch.cat([prefixes, torch.tensor([[30, 6], [1, 6]])], dim=1)
    torch.testing.assert_close(after[:, 1], blocks.run(whole).states[:, -1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(blocks.run(whole[1:, 3:], cache[torch.tensor([1])]).states[0], after[1, 1:])


def test_precisions_by_hand() -> None:
    states = torch.tensor([[1.0, -127.0, 0.4], [0.0, 2.54, 1.0]])
    torch.testing.assert_close(reduced(states, "int8"), torch.tensor([[1.0, -127.0, 0.0], [0.0, 2.54, 1.0]]))
    torch.testing.assert_close(reduced(torch.tensor([7.0, -2.4]), "int4"), torch.tensor([7.0, -2.0]))
    assert reduced(torch.tensor([1.00390625, 1.01171875]), "bf16").tolist() == [1.0, 1.015625]  # ties to even
    assert reduced(torch.tensor([1e6, -1e6, 0.5]), "fp16").tolist() == [65504.0, -65504.0, 0.5]
    assert torch.equal(reduced(states, "float32"), states)
    halves = torch.tensor([[[127.0, 50.4, 1.27, 0.5]]])  # keys and values have a scale each
    rows = StateLayout(1, 4, 1, "int8", "both").pack(halves)
    torch.testing.assert_close(rows, torch.tensor([[127.0, 50.0, 1.27, 0.5]]))
    rows = StateLayout(1, 4, 1, "int8", "k").pack(halves)
    torch.testing.assert_close(rows, torch.tensor([[127.0, 50.0, 1.0, 0.0]]))  # .5 of a code: to even


def test_through_the_cache_with_fingerprints_of_their_own(language_model: Path, tmp_path: Path) -> None:
    keys = [
        {"observe": "hidden_state", "layer": layer, "precision": precision, "positions": positions}
        for layer in (0, 2) for precision in ("float32", "bf16") for positions in ("all", "last")
    ] + [{"observe": "kv", "cached": cached} for cached in ("both", "k", "v")] + [{"observe": "words"}]  # fmt: skip
    models = [LanguageModelEmbedder(str(language_model), **each, device="cpu") for each in keys]  # type: ignore[arg-type]
    assert len({model.fingerprint for model in models}) == len(models)
    assert [model.max_tokens for model in models[:2]] == [POSITIONS, POSITIONS]
    cached = CachedEmbedder(models[0], tmp_path)
    texts = [written_ids(ids) for ids in INPUTS]
    assert torch.equal(cached.embed(texts), models[0].embed(texts))
    cached.flush()
    assert CachedEmbedder(models[0], tmp_path).missing(texts) == []


def test_bad_keys_are_named_before_the_model_loads(language_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unembed.embedders.language_model._load", None)
    for keys, message in (
        ({"observe": "hidden_state", "layer": 3}, r"embedder\.layer=3: .* has 0 to 2"),
        ({"observe": "kv", "layer": 0}, r"embedder\.layer=0: .* has 1 to 2"),
    ):
        with pytest.raises(InputError, match=message):
            _ = LanguageModelEmbedder(str(language_model), **keys).dimension  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"take embedder\.observe=logits"):
        _ = LanguageModelEmbedder(str(language_model), observe="kv").observation
    with pytest.raises(InputError, match=r"take embedder\.observe=hidden_state"):
        _ = LanguageModelEmbedder(str(language_model)).layout
