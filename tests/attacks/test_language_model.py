"""The baseline without vectors: what it is given, that vectors do not matter, that context helps where it decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor

from support.assembled import Texts, data_module, quiet_trainer
from unembed.attacks.base import Attack
from unembed.attacks.language_model import FIRST, LanguageModel
from unembed.attacks.nearest_neighbor import NearestNeighbor
from unembed.attacks.parts.backbones import RandomGPT2
from unembed.attacks.parts.decoding import BeamSearch, NucleusSampling
from unembed.attacks.parts.optimizers import MuonAdamW
from unembed.attacks.parts.predictions import Hint, Targets
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.scoring.language_model import PerplexityModel

HOMES = {"ada": "paris", "bob": "rome", "cleo": "oslo", "dan": "lima"}
TEXTS = [f"{name} lives in {city} ." for name, city in HOMES.items()]
# Without the context nothing tells where one lives: all texts begin with the same word.
ANSWERS = [Example(0, f"i live in {city} .", context=f"are you {name} ?") for name, city in HOMES.items()]


class Noise:
    """Vectors that say nothing about a text."""

    dimension, max_tokens, fingerprint = 4, 64, "ab" * 32

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.randn(len(texts), 4, generator=torch.Generator().manual_seed(len(texts[0])))


class Keep(Callback):
    def __init__(self) -> None:
        self.found: dict[int, str] = {}

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        self.found |= {i: p.candidates[0] for i, p in zip(outputs["index"], outputs["predictions"], strict=True)}


def model(context_tokens: int = 0) -> LanguageModel:
    return LanguageModel(
        backbone=RandomGPT2(layers=1, width=32, heads=2, vocabulary=300),
        optimizer=MuonAdamW(muon_lr=0.02, adamw_lr=0.01, weight_decay=0.0, warmup_steps=0),
        decoding=BeamSearch(beams=2, max_new_tokens=30),
        context_tokens=context_tokens,
    )


def trained(tmp_path: Path, attack: Attack, examples: Sequence[Example], steps: int = 150) -> list[str]:
    """What it makes of the texts that it was trained on."""
    seed_everything(0, verbose=False)
    source = Texts(train=examples, valid=examples, test=examples)
    data = data_module(source, Noise(), tmp_path, batch_size=4, drop_repeated=False)
    attack.connect(tmp_path / "artifacts", CachedEmbedder(Noise(), tmp_path / "cache"))
    kept = Keep()
    trainer = quiet_trainer(max_steps=steps, callbacks=[kept], check_val_every_n_epoch=50, num_sanity_val_steps=0)
    trainer.fit(attack, data)
    trainer.test(attack, data, verbose=False)
    return [kept.found[i] for i in range(len(examples))]


def test_it_continues_the_first_word_whatever_the_vector(tmp_path: Path) -> None:
    attack = model()
    assert trained(tmp_path, attack, [Example(0, text) for text in TEXTS]) == TEXTS
    hints = tuple(Hint(name) for name in reversed(HOMES))
    one, other = (
        [p.candidates for p in attack.invert(Targets(vectors, torch.arange(4), hints), None)]
        for vectors in (torch.zeros(4, 4), torch.randn(4, 4))
    )
    assert one == other == [(text,) for text in reversed(TEXTS)]
    again = model()
    again.connect(tmp_path / "artifacts", None, from_checkpoint=True)
    again.restore(None, dimension=4)
    again.load_state_dict(attack.state_dict())
    assert [p.candidates for p in again.invert(Targets(torch.zeros(4, 4), torch.arange(4), hints), None)] == one


def test_context_tells_what_the_first_word_does_not(tmp_path: Path) -> None:
    answers = [example.text for example in ANSWERS]
    assert trained(tmp_path / "with", model(context_tokens=24), ANSWERS, steps=200) == answers
    assert len(set(trained(tmp_path / "without", model(), ANSWERS))) == 1


def test_the_trained_model_scores_texts_as_any_language_model_of_a_folder(tmp_path: Path) -> None:
    attack = model()
    trained(tmp_path, attack, [Example(0, text) for text in TEXTS], steps=40)
    scorer = PerplexityModel(str(tmp_path / "artifacts" / "language_model"), device="cpu")
    texts = [*TEXTS, "paris lives in ada ."]
    for text, likelihood in zip(texts, scorer.likelihoods(texts), strict=True):
        ids = attack.tokens([text])[0]
        logits = attack.decoder.model(torch.tensor([[attack.tokenizer.eos_token_id, *ids]])).logits[0].log_softmax(1)
        assert likelihood.tokens == len(ids)
        expected = sum(logits[i, n].item() for i, n in enumerate(ids))
        assert likelihood.log_probability == pytest.approx(expected, rel=1e-4)
        # The attack's own loss has the end of the text besides.
        end = logits[len(ids), attack.tokenizer.eos_token_id].item()
        loss = attack.eval().loss(torch.zeros(1, 4), torch.tensor([[*ids, attack.tokenizer.eos_token_id]])).item()
        assert loss * (len(ids) + 1) == pytest.approx(-likelihood.log_probability - end, rel=1e-4)
    *known, shuffled = [-likelihood.log_probability for likelihood in scorer.likelihoods(texts)]
    assert shuffled > 2 * max(known)


def test_hints_of_any_length_keep_their_places_and_are_said(tmp_path: Path) -> None:
    attack = model(context_tokens=3)
    attack.decoding = NucleusSampling(max_new_tokens=5)
    attack.connect(tmp_path, None)
    attack.prepare(TEXTS, tmp_path)
    attack.restore(None, dimension=4)
    long = "x" * 200
    hints = (Hint("ada"), Hint(long, "a"), Hint("bob", "who lives where ?"), Hint("cleo"))
    together = attack.invert(Targets(torch.zeros(4, 4), torch.arange(4), hints), None)
    for row, hint in enumerate(hints):
        alone = attack.invert(Targets(torch.zeros(1, 4), torch.tensor([row]), (hint,)), None)
        assert alone[0].candidates == together[row].candidates
        begin = hint.first if hint.first != long else "x" * FIRST
        assert together[row].candidates[0].startswith(begin)
    attack = model()
    attack.connect(tmp_path, None)
    attack.prepare(TEXTS, tmp_path)
    attack.restore(None, 4)
    hints = (Hint("ada"), Hint("bob"))
    found = attack.invert(Targets(torch.zeros(2, 4), torch.arange(2), hints), None)
    assert [prediction.given for prediction in found] == ["ada", "bob"]


def test_what_it_cannot_work_with(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="attack=language_model reads no vectors"):
        model().invert(Targets(torch.zeros(1, 4), torch.arange(1)), None)
    assert NearestNeighbor().targets({"vectors": torch.zeros(1, 2), "index": torch.zeros(1)}).hints is None
    with pytest.raises(InputError, match=r"attack\.context_tokens=8: no test text has a context; .*context_field"):
        trained(tmp_path, model(context_tokens=8), [Example(0, text) for text in TEXTS])
    assert not (tmp_path / "artifacts").exists()
