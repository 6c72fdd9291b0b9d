"""A language model as an embedder: rows against transformers' generation, relaxed inputs, bad models, token data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from support.tiny_models import POSITIONS, VOCABULARY, tiny_language_model
from unembed.core.errors import InputError
from unembed.core.examples import Example, Span, read_ids, written_ids
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.token_inputs import CutTexts, RandomTokens
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.outputs import Observation


@pytest.fixture(scope="module")
def reference(language_model: Path) -> GPT2LMHeadModel:
    model: GPT2LMHeadModel = GPT2LMHeadModel.from_pretrained(language_model, dtype=torch.float32).eval()
    return model


def test_texts_ids_and_fingerprints(language_model: Path, tmp_path: Path) -> None:
    assert read_ids(written_ids([5, 0, 123])) == [5, 0, 123]
    assert read_ids("5 0 123") is None
    assert read_ids(written_ids([5]) + "\n") is None
    model = LanguageModelEmbedder(str(language_model))
    assert model.ids("w0 w58 what") == [1, 59, 0]
    assert torch.equal(model.embed(["w0 w58"]), model.embed([written_ids([1, 59])]))
    assert model.embed([""]).isfinite().all()
    assert model.decode([1, 59]) == "w0 w58"
    fingerprints = {
        LanguageModelEmbedder(str(language_model), output_tokens=m, top_k=k, observe=seen).fingerprint
        for m in (1, 2)
        for k, seen in ((None, "logits"), (None, "words"), (5, "logits"))
    }
    assert len(fingerprints) == 6


INPUTS = [[5, 17, 3], [8], [5, 17, 4], [59, 0, 1, 2, 3, 4]]


@pytest.mark.parametrize("top_k", [None, 4, 1, 0])
@pytest.mark.parametrize("m", [1, 3])
def test_rows_are_the_greedy_generation(
    language_model: Path, reference: GPT2LMHeadModel, m: int, top_k: int | None
) -> None:
    observe = "words" if top_k == 0 else "logits"
    model = LanguageModelEmbedder(str(language_model), output_tokens=m, top_k=top_k, observe=observe)
    rows = model.embed([written_ids(ids) for ids in INPUTS])
    assert rows.shape == (4, model.dimension)
    assert rows.dtype == torch.float32
    seen = model.observation.parse(rows)
    for place, ids in enumerate(INPUTS):
        made = reference.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=m, min_new_tokens=m,
            do_sample=False, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        logits = torch.cat(made.logits)
        assert seen.ids[place].tolist() == logits.argmax(dim=-1).tolist()
        if top_k is None:
            torch.testing.assert_close(seen.logits[place], logits)
        elif top_k:
            torch.testing.assert_close(seen.logits[place], logits.topk(top_k).values)
            assert seen.places[place].tolist() == logits.topk(top_k).indices.tolist()
        else:
            assert seen.logits is None


def test_relaxed_inputs_at_a_corner_and_texts_alone(language_model: Path) -> None:
    model = LanguageModelEmbedder(str(language_model), output_tokens=2)
    ids = torch.tensor([[5, 17, 3], [5, 17, 4]])
    seen = model.observation.parse(model.observe(ids))
    weights = torch.nn.functional.one_hot(ids, VOCABULARY).float().requires_grad_(True)
    logits = model.relaxed(weights @ model.input_vectors, seen.continuation, keep=2)
    torch.testing.assert_close(logits, seen.logits)
    assert model.observation.agrees(seen, model.logits(ids, seen.continuation)).tolist() == [True, True]
    assert model.observation.agrees(seen, model.logits(ids.flip(0), seen.continuation)).tolist() == [False, False]
    (gradient,) = torch.autograd.grad(logits.sum(), weights)
    assert gradient.abs().amax(dim=2).min() > 0  # every place matters
    observation = Observation(vocabulary=3, output_tokens=2, top_k=0)
    seen = observation.parse(torch.tensor([[2.0, 0.0], [2.0, 0.0]]))
    logits = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 1.0, 1.0]], [[0.0, 1.0, 2.0], [0.9, 1.0, 0.0]]])
    assert observation.agrees(seen, logits).tolist() == [True, False]


def test_a_bad_model_says_so(language_model: Path, tmp_path: Path) -> None:
    both = tiny_language_model(tmp_path / "bert", causal=False)
    with pytest.raises(InputError, match="no causal language model"):
        LanguageModelEmbedder(str(both)).embed(["w1"])
    large = tiny_language_model(tmp_path / "large", words=80)
    with pytest.raises(InputError, match="tokenizer has 81 ids and the model 60"):
        LanguageModelEmbedder(str(large)).embed([written_ids([70])])
    bare = tmp_path / "bare"
    shutil.copytree(language_model, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(InputError, match="holds no tokenizer that could cut a text"):
        LanguageModelEmbedder(str(bare)).embed(["w1"])
    headless = tmp_path / "headless"
    headless.mkdir()
    (headless / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match="vocab_size"):
        LanguageModelEmbedder(str(headless)).embed(["w1"])
    with pytest.raises(InputError, match=r"top_k=61.*60 logits"):
        LanguageModelEmbedder(str(language_model), top_k=61).embed(["w1"])
    with pytest.raises(InputError, match=r"output_tokens=17.*16 positions"):
        LanguageModelEmbedder(str(language_model), output_tokens=17).embed(["w1"])
    with pytest.raises(InputError, match="token id 60"):
        LanguageModelEmbedder(str(language_model)).embed([written_ids([60])])
    with pytest.raises(InputError, match="17 tokens"):
        LanguageModelEmbedder(str(language_model)).embed([written_ids([1] * (POSITIONS + 1))])


def test_random_tokens_are_different_and_apart(language_model: Path) -> None:
    source = RandomTokens(
        str(language_model), max_length=3, test_per_length=50, valid_per_length=5, train_per_length=100, seed=3
    )
    found = source.load()
    by_length = {
        split: [sum(len(example.tokens or ()) == length for example in found[split]) for length in (1, 2, 3)]
        for split in found
    }
    assert by_length == {"test": [50, 50, 50], "valid": [5, 5, 5], "train": [5, 100, 100]}  # 60 of length 1 in all
    everything = [example.tokens for examples in found.values() for example in examples]
    assert len(set(everything)) == len(everything)
    assert {token for tokens in everything for token in tokens or ()} == set(range(VOCABULARY))
    assert source.load() == found
    assert RandomTokens(str(language_model), max_length=3, test_per_length=50, seed=4).load()["test"] != found["test"]


def test_the_data_module_keeps_ids_whole(language_model: Path, tmp_path: Path) -> None:
    model = LanguageModelEmbedder(str(language_model))
    data = InversionDataModule(RandomTokens(str(language_model), max_length=4, test_per_length=20), max_tokens=1)
    data.connect(CachedEmbedder(model, tmp_path), Identity())
    data.setup("test")
    examples = data.examples("test")
    assert [len(example.tokens or ()) for example in examples] == [n for n in (1, 2, 3, 4) for _ in range(20)]
    rows = data.vectors("test", range(80))
    for place in (0, 25, 79):
        torch.testing.assert_close(rows[place], model.observe(torch.tensor([examples[place].tokens]))[0])


class Sentences:
    def load(self) -> dict[str, list[Example]]:
        texts = ["w1 w2 w3 w4", "w5 w6", "w7", "w8 w9 w10", "w1 w2 w3"]
        return {"test": [Example(0, text, spans=(Span(3, 5, "name"),) if len(text) > 2 else ()) for text in texts]}


def test_texts_are_cut_to_tokens_with_their_labels(language_model: Path) -> None:
    found = CutTexts(Sentences(), str(language_model), max_length=3).load()["test"]  # type: ignore[arg-type]
    assert [(example.text, example.tokens, example.token_labels) for example in found] == [
        ("w7", (8,), (None,)),
        ("w5 w6", (6, 7), (None, "name")),
        ("w1 w2", (2, 3), (None, "name")),
        ("w1 w2 w3", (2, 3, 4), (None, "name", None)),
        ("w8 w9 w10", (9, 10, 11), (None, "name", None)),
    ]
    with pytest.raises(InputError, match="min_length=5"):
        CutTexts(Sentences(), str(language_model), min_length=5, max_length=6).load()  # type: ignore[arg-type]


class Stories:
    def load(self) -> dict[str, list[Example]]:
        texts = ["w1 w2. w3 w4 w5! w6", "w1 w2", "w7 w8 w9 w10"]
        spans = {0: (Span(7, 9, "name"),)}  # w3
        return {"test": [Example(index, text, spans=spans.get(index, ())) for index, text in enumerate(texts)]}


def test_one_sentence_of_a_text_is_cut_or_whole_texts_are_taken(language_model: Path) -> None:
    tokenizer = str(language_model)
    taken = set()
    for seed in range(12):
        source = CutTexts(Stories(), tokenizer, max_length=2, sentence_within=12, seed=seed)  # type: ignore[arg-type]
        found = source.load()["test"]
        assert found == source.load()["test"]
        taken |= {(example.text, example.token_labels) for example in found if example.index == 0}
    # Sentences of the first 12 characters: "w1 w2." and "w3 w4", of which the first tokens are inputs.
    assert {text.split()[0] for text, _ in taken} == {"w1", "w3"}
    assert all((labels[0] == "name") == text.startswith("w3") for text, labels in taken)
    found = CutTexts(Stories(), str(language_model), min_length=2, max_length=4, whole=True).load()["test"]  # type: ignore[arg-type]
    assert [example.text for example in found] == ["w1 w2", "w7 w8 w9 w10"]
