"""PILS: what the log-ratios of several steps hold, from all log-probabilities and from the highest; its inverter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.tiny_models import VOCABULARY
from unembed import launch
from unembed.attacks.lm_inversion.pils import WhitenedSteps
from unembed.core.errors import InputError
from unembed.embedders.log_ratios import LogRatioEmbedder, independent_rows, least_squares
from unembed.embedders.outputs import Seen
from unembed.train import train

TEXTS = ["w3 w1 w4", "w1", "w5 w9 w2", "w6 w5"]
WIDTH = 32


@pytest.fixture(scope="module")
def ratios(language_model: Path) -> LogRatioEmbedder:
    return LogRatioEmbedder(str(language_model), output_tokens=3, device="cpu")


def log_probabilities(folder: Path, ids: list[int], steps: int) -> torch.Tensor:
    """Of each greedy step, (steps, V), one run of the whole text at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for _ in range(steps):
        with torch.no_grad():
            rows.append(model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1))
        ids = [*ids, int(rows[-1].argmax())]
    return torch.stack(rows)


def test_a_row_holds_the_differences_of_log_probabilities(ratios: LogRatioEmbedder, language_model: Path) -> None:
    rows = ratios.embed(TEXTS)
    assert rows.shape == (4, 3 * WIDTH) == (4, ratios.dimension)
    tokens = ratios.tokens.tolist()
    assert tokens[0] == 0
    assert len(set(tokens)) == WIDTH + 1
    for text, row in zip(TEXTS, rows, strict=True):
        by_hand = log_probabilities(language_model, [int(word[1:]) + 1 for word in text.split()], 3)
        torch.testing.assert_close(
            row.view(3, WIDTH).double(), by_hand[:, tokens[1:]] - by_hand[:, [0]], atol=1e-4, rtol=1e-4
        )


def test_a_row_determines_every_log_probability(ratios: LogRatioEmbedder, language_model: Path) -> None:
    """By the output matrix alone: 33 log-probabilities say what all 60 do."""
    matrix = AutoModelForCausalLM.from_pretrained(language_model).get_output_embeddings().weight.detach().double()
    tokens = ratios.tokens
    hidden = torch.linalg.solve(matrix[tokens[1:]] - matrix[0], ratios.embed(TEXTS[:1]).view(3, WIDTH).double().T)
    by_hand = log_probabilities(language_model, [4, 2, 5], 3)
    torch.testing.assert_close((matrix @ hidden).T.log_softmax(-1), by_hand, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("top_k", "within"), [(WIDTH + 8, 1e-2), (VOCABULARY, 1e-3)])
def test_the_highest_determine_the_others_if_there_are_more_than_hidden_dimensions(
    ratios: LogRatioEmbedder, language_model: Path, top_k: int, within: float
) -> None:
    cut = LogRatioEmbedder(str(language_model), output_tokens=3, top_k=top_k, device="cpu")
    assert cut.fingerprint != ratios.fingerprint
    torch.testing.assert_close(cut.embed(TEXTS), ratios.embed(TEXTS), atol=within, rtol=within)


def test_fewer_are_explained_by_the_shortest_hidden_state(language_model: Path) -> None:
    """The least-squares solution of minimal norm, which LAPACK finds from a singular value decomposition."""
    cut = LogRatioEmbedder(str(language_model), output_tokens=1, top_k=12, device="cpu")
    probabilities = log_probabilities(language_model, [4, 2, 5], 1)
    values, places = probabilities.topk(12)
    matrix = AutoModelForCausalLM.from_pretrained(language_model).get_output_embeddings().weight.detach().double()
    known = matrix[places[0, 1:]] - matrix[places[0, 0]]
    shortest = torch.linalg.lstsq(known, (values[0, 1:] - values[0, 0])[:, None], driver="gelsd").solution[:, 0]
    expected = (matrix[cut.tokens[1:]] - matrix[0]) @ shortest
    found = cut.ratios(Seen(places[:, :1], values[None], places[None]))  # log-probabilities do as logits do
    torch.testing.assert_close(found[0, 0], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(cut.embed([TEXTS[0]])[0].double(), expected, atol=1e-3, rtol=1e-3)


def test_rows_are_chosen_by_their_distance_from_the_span_of_earlier_ones() -> None:
    rows = torch.tensor([[3.0, 0.0, 0.0], [4.0, 0.0, 0.0], [4.0, 0.1, 0.0], [3.0, 2.0, 0.0], [0.0, 0.0, 1.0]]).double()
    assert independent_rows(rows, 3).tolist() == [2, 3, 4]  # the longest; 1.92 off it; 1 off both
    with pytest.raises(InputError, match="has rank 2, and not 3 as its hidden size"):
        independent_rows(rows[:4], 3)
    assert least_squares(torch.tensor([[2.0, 0.0]]).double(), torch.tensor([6.0]).double()).tolist() == pytest.approx(
        [3, 0]
    )


def test_whitening_leaves_steps_of_mean_zero_and_unit_covariance() -> None:
    torch.manual_seed(0)
    mixed = torch.randn(2000, 2, 4) @ torch.randn(4, 4) + torch.tensor([[5.0], [-3.0]])
    prefix = WhitenedSteps(steps=2, each=3, hidden=8)
    prefix.build(dimension=8, width=6)
    prefix.fit(mixed.flatten(1))
    whitened = prefix.whitened(mixed.flatten(1))
    assert whitened.mean(0).abs().max() < 1e-4
    covariance = whitened.flatten(0, 1).T.cov()
    assert (covariance - torch.eye(4)).abs().max() < 0.1  # but for the ridge
    groups = torch.arange(2000) % 3
    prefix.fit((mixed + 100 * groups[:, None, None]).flatten(1), groups)
    assert (prefix.whitened(mixed.flatten(1)).flatten(0, 1).T.cov() - torch.eye(4)).abs().max() < 0.1
    assert prefix(mixed.flatten(1)).shape == (2000, 6, 6)


def overrides(language_model: Path, tmp_path: Path) -> list[str]:
    return [
        "attack=pils", "embedder=log_ratios", f"embedder.model={language_model}", "embedder.device=cpu",
        "embedder.output_tokens=2", "datamodule=random_tokens", "datamodule.source.max_length=2",
        "datamodule.source.test_per_length=6", "datamodule.source.valid_per_length=4",
        "datamodule.source.train_per_length=40", "attack.backbone.width=32", "attack.backbone.heads=2",
        "attack.backbone.encoder_layers=1", "attack.backbone.decoder_layers=1", "attack.backbone.vocabulary=300",
        "attack.prefix.steps=2", "attack.prefix.hidden=16", f"run_dir={tmp_path / 'run'}",
        f"cache_dir={tmp_path / 'cache'}", "logger=none", "trainer.max_steps=3", "trainer.accelerator=cpu",
        "trainer.precision=32-true",
    ]  # fmt: skip


def test_a_run_from_training_to_metrics(language_model: Path, tmp_path: Path) -> None:
    train(launch.compose("train", overrides(language_model, tmp_path)))
    rows = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 12
    metrics: dict[str, Any] = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert 0 <= metrics["token_exact"] <= 100
    assert metrics["claims"] == 0
    stored = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert not torch.equal(stored["prefix.whitening"], torch.eye(WIDTH))  # fitted before the first step, and stored


def test_other_observations_are_refused(language_model: Path, tmp_path: Path) -> None:
    wrong = [*overrides(language_model, tmp_path), "embedder=language_model"]
    with pytest.raises(InputError, match="LanguageModelEmbedder gives none; take embedder=log_ratios"):
        train(launch.compose("train", wrong))
    more = ["attack.prefix.steps=3", f"run_dir={tmp_path / 'other'}"]
    with pytest.raises(InputError, match=r"^attack\.prefix\.steps=3: .* take attack\.prefix\.steps=2$"):
        train(launch.compose("train", [*overrides(language_model, tmp_path), *more]))
    with pytest.raises(InputError, match=r"^embedder\.top_k=61: .* has 60 logits"):
        _ = LogRatioEmbedder(str(language_model), top_k=61).dimension
