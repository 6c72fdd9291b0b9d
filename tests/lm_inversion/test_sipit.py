"""SIPIT against prompts that are known, with prompts it must refuse, in noisy precisions, counted, and as a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.tiny_models import VOCABULARY, pretrained_model
from unembed import launch
from unembed.attacks.lm_inversion.sipit import Sipit, sigma
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.core.errors import InputError
from unembed.core.examples import written_ids
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.train import train

INPUTS = [(5, 17, 3, 40), (8,), (59, 0, 1, 2, 3, 4, 5, 6), (5, 17, 4), (33, 33, 33, 33, 33)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pretrained_model(tmp_path_factory.mktemp("llama"), "llama")


def embedder(folder: Path | str, **keys: Any) -> LanguageModelEmbedder:
    return LanguageModelEmbedder(str(folder), **{"observe": "hidden_state", "max_tokens": 8, "device": "cpu"} | keys)


def run(model: LanguageModelEmbedder, tmp_path: Path, rows: Tensor | None = None, **settings: Any) -> list[Prediction]:
    oracle = CachedEmbedder(model, tmp_path)
    attack = Sipit(**{"reader_texts": 16, "reader_steps": 20} | settings)
    attack.connect(Path("unused"), oracle)
    if rows is None:
        rows = model.embed([written_ids(ids) for ids in INPUTS])
    with torch.inference_mode():  # as Lightning's test loop
        return attack.invert(Targets(rows, torch.arange(len(rows))), oracle)


@pytest.mark.parametrize(
    "keys",
    [*({"layer": n} for n in (0, 1, 2)), *({"observe": "kv", "layer": 2, "cached": c} for c in ("k", "v", "both"))],
    ids=str,
)
def test_every_prompt_is_recovered(language_model: Path, llama: str, tmp_path: Path, keys: dict[str, Any]) -> None:
    for folder in (language_model, llama):
        model = embedder(folder, **keys)
        found = run(model, tmp_path, active_targets=3)
        assert [prediction.tokens for prediction in found] == INPUTS
        assert all(prediction.search.verified for prediction in found)
        assert [prediction.candidates[0] for prediction in found] == [model.decode(ids) for ids in INPUTS]


def test_candidates_are_counted_and_ordered(language_model: Path, tmp_path: Path) -> None:
    """Exhaustively, all 60 tokens of each later position and its own pass; with an order at most as many."""
    model = embedder(language_model, layer=2)
    everything = run(model, tmp_path, order="exhaustive")
    assert [prediction.tokens for prediction in everything] == INPUTS
    later = [len(ids) - 1 for ids in INPUTS]
    assert [p.search.passes for p in everything] == [
        VOCABULARY * more + max(0, len(ids) - (len(ids) == 8)) for more, ids in zip(later, INPUTS, strict=True)
    ]
    ordered = run(model, tmp_path, candidates=4)
    assert sum(p.search.passes for p in ordered) < sum(p.search.passes for p in everything)
    assert [p.search.iterations for p in ordered] == [len(ids) for ids in INPUTS]


def test_states_of_no_prompt_are_not_verified(language_model: Path, tmp_path: Path) -> None:
    """Of a changed position the prediction ends there, with the closest token as its last, and others go on."""
    model = embedder(language_model, layer=2)
    rows = model.embed([written_ids(ids) for ids in INPUTS])
    states, _ = model.layout.parse(rows.clone())
    states[0, 2] += 0.05 * torch.randn(32, generator=torch.Generator().manual_seed(0))
    states[1, 0] *= 1.5
    found = run(model, tmp_path, states.flatten(1))
    assert [p.search.verified for p in found] == [False, False, True, True, True]
    assert found[0].tokens == (5, 17, 3)  # still the closest
    assert found[0].search.iterations == 3
    assert len(found[1].tokens or ()) == 1
    noise = 0.05
    assert run(model, tmp_path, states.flatten(1), noise=noise)[0].tokens == INPUTS[0]
    few = run(model, tmp_path, candidates=1, most=1, reader_steps=1)
    assert all(p.search.verified == (p.tokens == ids) for p, ids in zip(few, INPUTS, strict=True))
    assert not all(p.search.verified for p in few)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8"])
def test_stored_precisions(language_model: Path, tmp_path: Path, precision: str) -> None:
    found = run(embedder(language_model, layer=2, precision=precision), tmp_path)
    assert [prediction.tokens for prediction in found] == INPUTS
    assert all(prediction.search.loss < 1.5 for prediction in found)


def test_what_collides_is_not_verified(language_model: Path, tmp_path: Path) -> None:
    """Of two tokens whose states agree within the tolerance the closer is taken, and none is certain."""
    model = embedder(language_model, layer=0)
    rows = model.embed([written_ids(ids) for ids in INPUTS])
    assert all(p.search.verified for p in run(model, tmp_path, rows))
    found = run(model, tmp_path, rows, tolerance=1e9)  # of float32 states: anything is within it
    assert [prediction.tokens for prediction in found] == INPUTS
    assert not any(prediction.search.verified for prediction in found)


def test_the_error_of_a_stored_number_by_hand() -> None:
    states = torch.tensor([127.0, 1.0])
    size = (127.0**2 / 2 + 0.5) ** 0.5
    computed = (2.0**-16 * size) ** 2
    assert sigma(states, "int8")[1] == pytest.approx((computed + 1 / 12) ** 0.5)
    assert sigma(states, "bf16")[0] == pytest.approx((computed + (127 / 256) ** 2 / 3) ** 0.5)
    assert sigma(states, "float32", noise=0.5)[1] == pytest.approx((computed + 2.0**-32 / 3 + 0.25) ** 0.5)


@pytest.mark.parametrize("preset", ["kv", "permuted"])
def test_a_preset_from_texts_to_metrics(
    language_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.setenv("UNEMBED_PERMUTATION_KEY", "f" * 32)
    texts = [" ".join(f"w{(7 * text + 3 * place) % 59}" for place in range(3 + text)) for text in range(4)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = {
        "embedder.model": language_model, "embedder.layer": 2, "datamodule.source.min_length": 3,
        "datamodule.source.max_length": 6, "datamodule.source.source.test": tmp_path / "texts.jsonl",
        "attack.reader_texts": 16, "attack.reader_steps": 20, "run_dir": tmp_path / "run", "cache_dir": tmp_path / "c",
        "trainer.accelerator": "cpu",
    }  # fmt: skip
    train(
        launch.compose("train", [f"experiment=inside/{preset}", *(f"{key}={value}" for key, value in settings.items())])
    )
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert (metrics["token_exact"], metrics["claims"], metrics["false_discovery_rate"]) == (100, 4, 0)


def test_other_observations_are_refused(language_model: Path, tmp_path: Path) -> None:
    rows = torch.zeros(1, 32)
    with pytest.raises(InputError, match=r"embedder\.positions=last: .* take embedder\.positions=all"):
        run(embedder(language_model, positions="last"), tmp_path, rows)
    with pytest.raises(InputError, match=r"embedder\.observe=logits: .* take embedder\.observe=hidden_state"):
        run(embedder(language_model, observe="logits"), tmp_path, rows)
    with pytest.raises(InputError, match="NaN or infinity"):
        run(embedder(language_model), tmp_path, torch.full((1, 8 * 32), torch.nan))
