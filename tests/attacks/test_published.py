"""Released checkpoints: ours compute what the package vec2text 0.0.13 computed with the same files.

The fixtures are that package's own: benchmarks/make_published_fixtures.py.
"""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from support.processes import ROOT
from support.published_export import export
from unembed.attacks.parts.backbones import train_tokenizer, untied
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.vec2text import published as module
from unembed.attacks.vec2text.network import CorrectorNetwork, Layout, padded
from unembed.attacks.vec2text.published import Published, check_space, load_published, stored_embedder
from unembed.attacks.vec2text.search import CorrectionSearch
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder

FIXTURES = ROOT / "tests" / "fixtures" / "published"
REFERENCE = load_file(FIXTURES / "reference.safetensors")
RESULTS: dict[str, Any] = json.loads((FIXTURES / "reference.json").read_text(encoding="utf-8"))
INVERTERS = {"inverter": "inverter", "inverter_old": "inverter", "inverter_mt5": "inverter_mt5"}
CORRECTORS = {
    "inverter_corrector": "inverter",
    "inverter_corrector_zero": "inverter_old",
    "inverter_corrector_plain": "inverter",
    "inverter_corrector_shared": "inverter_old",
    "inverter_corrector_nofeedback": "inverter",
    "inverter_mt5_corrector": "inverter_mt5",
}


def recorded(name: str) -> str:
    """Under which name the reference of a checkpoint stands: another file of the same weights has the same one."""
    return {"inverter_corrector_zero": "inverter_corrector"}.get(name, name)


def pair(folder: Path, inverter: str, corrector: str | None) -> Path:
    """A folder as a user would put one together."""
    for model in ("t5", "mt5"):
        shutil.copytree(FIXTURES / model, folder / model)
    shutil.copytree(FIXTURES / inverter, folder / "inverter")
    if corrector is not None:
        shutil.copytree(FIXTURES / corrector, folder / "corrector")
    return folder


@pytest.fixture(scope="module", params=CORRECTORS)
def layout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Published]:
    name: str = request.param
    return recorded(name), load_published(str(pair(tmp_path_factory.mktemp("pair"), CORRECTORS[name], name)))


@pytest.fixture(scope="module")
def inverter() -> Published:
    return load_published(str(FIXTURES / "inverter"))


def logits(model: Any, labels: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
    """Teacher-forced logits: the decoder reads the labels moved by one behind the start token, which is 0."""
    given = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], 1)
    scores: Tensor = model(inputs_embeds=inputs, attention_mask=mask, decoder_input_ids=given).logits
    return scores


@pytest.mark.parametrize("name", INVERTERS)
def test_inverter_gives_the_packages_encoder_inputs_and_logits(name: str) -> None:
    published = load_published(str(FIXTURES / name))
    want = {key: REFERENCE[f"{INVERTERS[name]}.{key}"] for key in ("vectors", "labels", "encoder_input", "logits")}
    inputs = published.prefix(want["vectors"])
    torch.testing.assert_close(inputs, want["encoder_input"], atol=1e-5, rtol=1e-5)
    found = logits(published.inverter.model, want["labels"], inputs, None)
    torch.testing.assert_close(found, want["logits"], atol=1e-5, rtol=1e-5)


def test_corrector_gives_the_packages_encoder_inputs_and_logits(layout: tuple[str, Published]) -> None:
    name, published = layout
    want = {key.removeprefix(f"{name}."): value for key, value in REFERENCE.items() if key.startswith(f"{name}.")}
    network = published.corrector
    vectors, hypotheses = want["vectors"][:4], want["hypothesis_vectors"][:4]
    inputs, mask = network.encoder_input(network.project(vectors), vectors, hypotheses, want["hypotheses"][:4])
    torch.testing.assert_close(mask, want["encoder_mask"].long())
    torch.testing.assert_close(inputs, want["encoder_input"], atol=1e-5, rtol=1e-5)
    found = logits(network.model, want["labels"], inputs, mask)
    torch.testing.assert_close(found, want["logits"], atol=1e-5, rtol=1e-5)


def test_inverter_and_search_give_the_packages_texts(layout: tuple[str, Published]) -> None:
    name, published = layout
    found = published.guess(REFERENCE[f"{name}.vectors"])
    assert [one.text for one in found] == [text.strip() for text in RESULTS[name]["inverter"]]
    assert padded([one.ids for one in found], 0).tolist() == REFERENCE[f"{name}.hypotheses"].tolist()
    name, published = layout
    embed = stored_embedder(published)
    vectors = REFERENCE[f"{name}.vectors"]
    for key, want in RESULTS[name]["searches"].items():
        steps, width = map(int, key.split("x"))
        search = CorrectionSearch(steps, max(1, width), accept="newest")
        found = search(published.rewriter, vectors, published.guess(vectors), embed)
        assert [rounds[-1].text for rounds in found] == [text.strip() for text in want], key


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_pair_is_found_from_the_name_of_either(tmp_path: Path) -> None:
    folder = pair(tmp_path, "inverter", "inverter_corrector")
    for new in ("gtr__nq__32", "gtr__nq__32__correct"):
        (folder / ("corrector" if new.endswith("correct") else "inverter")).rename(folder / new)
    for name in ("gtr__nq__32", "gtr__nq__32__correct"):
        published = load_published(str(folder / name))
        assert published.corrector is not None
        assert published.embedder == "gtr_base"
        assert (published.dimension, published.max_new_tokens) == (12, 9)  # the package's 10 count the start token


def test_half_a_pair(tmp_path: Path) -> None:
    published = load_published(str(FIXTURES / "inverter_mt5"))
    published.corrector = None
    assert published.guess(REFERENCE["inverter_mt5.vectors"])[0].text
    with pytest.raises(InputError, match="no corrector was found"):
        _ = published.rewriter
    shutil.copytree(FIXTURES / "inverter_corrector", tmp_path / "other")
    with pytest.raises(InputError, match="<folder>/inverter"):
        load_published(str(tmp_path / "other"))


def test_weights_in_several_files(tmp_path: Path) -> None:
    folder = pair(tmp_path, "inverter", "inverter_corrector")
    weights = load_file(folder / "corrector" / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, chosen in parts.items():
        save_file({name: weights[name] for name in chosen}, folder / "corrector" / file)
    index = {"weight_map": {name: file for file, chosen in parts.items() for name in chosen}}
    described = folder / "corrector" / "model.safetensors.index.json"
    for broken in ([], 3, {"weight_map": []}, {"weight_map": {"a": "../../elsewhere.safetensors"}}):
        described.write_text(json.dumps(broken))
        with pytest.raises(InputError, match="weight_map"):
            load_published(str(folder))
    described.write_text(json.dumps(index))
    (folder / "corrector" / "model.safetensors").unlink()
    network = load_published(str(folder)).corrector
    torch.testing.assert_close(network.norm.weight.data, weights["layernorm.weight"])


def without_transforms(weights: dict[str, Tensor]) -> None:
    for name in [name for name in weights if name.startswith("embedding_transform")]:
        del weights[name]


def other_weights(weights: dict[str, Tensor]) -> None:
    del weights["embedding_transform_2.3.bias"], weights["encoder_decoder.shared.weight"]
    weights["encoder_decoder.more.weight"], weights["pooler.weight"] = torch.zeros(2), torch.zeros(2)
    weights["embedding_transform_3.0.weight"] = torch.zeros(3, 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_transforms, r"Vec2Text.* encoder_decoder, layernorm"),
        (other_weights, "; missing: difference.2.bias, model.shared.weight; unknown: model.more.weight, pooler.weight; "
                        r"of another shape: hypothesis.0.weight is \(3, 12\) instead of \(12, 12\)$"),
    ],
)  # fmt: skip
def test_weights_of_something_else(tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str) -> None:
    path = pair(tmp_path, "inverter", "inverter_corrector") / "corrector" / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)
    with pytest.raises(InputError, match=message):
        load_published(str(tmp_path))


def test_a_damaged_file_and_one_with_code_in_it_are_refused(tmp_path: Path) -> None:
    folder = pair(tmp_path, "inverter", "inverter_corrector_zero")
    path = folder / "corrector" / "pytorch_model.bin"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged"):
        load_published(str(folder))
    torch.save({"shared.weight": Path("code")}, path)
    with pytest.raises(InputError, match="not a file of weights"):
        load_published(str(folder))


def test_unknown_names_and_folders_that_hold_no_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"jxm/gtr__nq__33 \(revision v1\).*hub's cache.*hf download"):
        load_published("jxm/gtr__nq__33", "v1")
    folder = pair(tmp_path, "inverter", None)
    path = folder / "t5" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "bart"}))
    with pytest.raises(InputError, match="bart; valid: t5, mt5"):
        load_published(str(folder / "inverter"))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="names no model_name_or_path"):
        load_published(str(tmp_path))


def test_a_pair_and_its_language_model_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cached = {"t5": "t5", "me/gtr_inverter": "inverter_old", "me/gtr_corrector": "inverter_corrector"}
    for name, files in cached.items():
        repository = tmp_path / f"models--{name.replace('/', '--')}"
        shutil.copytree(FIXTURES / files, repository / "snapshots" / "0123")
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0123")
    published = load_published("me/gtr_corrector")
    vectors = REFERENCE["inverter_corrector.vectors"]
    assert [one.text for one in published.guess(vectors)] == RESULTS["inverter_corrector"]["inverter"]
    assert published.rewriter.network.layout == Layout(vectors=3, normalize=False)


# -- the embedder ----------------------------------------------------------------------------------------------------


class Scaled:
    """The checkpoint's embedder with another length, direction or dimension."""

    max_tokens = 64
    fingerprint = "00" * 32

    def __init__(self, embed: Callable[[list[str]], Tensor], change: Callable[[Tensor], Tensor]) -> None:
        self._embed, self._change = embed, change
        self.dimension = change(torch.ones(1, 12)).shape[1]

    def embed(self, texts: Sequence[str]) -> Tensor:
        return self._change(self._embed(list(texts)))


def oracle(folder: Path, published: Published, change: Callable[[Tensor], Tensor]) -> CachedEmbedder:
    return CachedEmbedder(Scaled(stored_embedder(published), change), folder / "cache")


def test_the_embedder_in_the_file_is_the_packages_and_is_not_counted_as_queries(
    tmp_path: Path, inverter: Published
) -> None:
    first = RESULTS["inverter_corrector"]["references"][0]
    torch.testing.assert_close(stored_embedder(inverter)([first])[0], REFERENCE["inverter_corrector.vectors"][0])
    asked = oracle(tmp_path, inverter, lambda vectors: vectors)
    check_space(inverter, asked)
    assert asked.queries.asked["attack"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vectors: torch.nn.functional.normalize(vectors, dim=1), "normalisation"),
        (lambda vectors: vectors.roll(1, dims=1), r"cosine of .*embedder=gtr\. Look at model, pooling"),
        (lambda vectors: vectors[:, :8], "12 dimensions, and the embedder gives 8; .*embedder=gtr"),
    ],
)
def test_an_embedder_of_another_space(
    tmp_path: Path, inverter: Published, change: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_space(inverter, oracle(tmp_path, inverter, change))


def test_without_an_embedder_in_the_file_the_inverter_itself_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = load_published(str(FIXTURES / "inverter_mt5"))
    embed = stored_embedder(published)
    published.embedder_weights = {}
    made = itertools.product(("ada", "bob", "carla"), ("likes", "sees", "found"), ("two dogs", "the sea", "old songs"))
    texts = [f"{' '.join(parts)}." for parts in made]
    guesses = published.guess(embed(texts))
    known = [text for text, guess in zip(texts, guesses, strict=True) if text == guess.text]
    monkeypatch.setattr(module, "SENTENCES", tuple(known[:5]))  # the tiny inverter knows few sentences
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check_space(published, CachedEmbedder(Scaled(embed, lambda vectors: vectors), tmp_path / "cache"))
    with pytest.warns(UserWarning, match="probably of another space"):
        check_space(published, CachedEmbedder(Scaled(embed, lambda vectors: -vectors.roll(5, dims=1)), tmp_path / "c2"))


# -- and back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_an_exported_pair_computes_the_same(tmp_path: Path, scaled: bool, tied: bool) -> None:
    """Through the published layout and back: heads and scales of every kind, normalising layers and plain ones."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["ada likes the sea.", "bob sold two dogs."], 300)
    networks = []
    for _ in range(2):
        config = T5Config(
            vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=24, num_layers=1, num_decoder_layers=2, num_heads=2,
            feed_forward_proj="gated-gelu", tie_word_embeddings=scaled, pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0,
        )  # fmt: skip
        model = T5ForConditionalGeneration(config).eval()
        networks.append(model if tied else untied(model))
        torch.nn.init.normal_(networks[-1].lm_head.weight)
    prefix = Prefix(vectors=3, kind="mlp", normalize=True)
    prefix.build(12, 16)
    network = CorrectorNetwork(networks[1], 12, Layout(vectors=3, normalize=True)).eval()
    export(tmp_path, prefix, networks[0], network, tokenizer, length=20)

    published = load_published(str(tmp_path))
    assert published.corrector is not None
    vectors, hypotheses = torch.nn.functional.normalize(torch.randn(2, 4, 12), dim=-1)
    ids, labels = torch.randint(2, 250, (2, 4, 6))
    inputs, again = prefix(vectors), published.prefix(vectors)
    torch.testing.assert_close(again, inputs)
    torch.testing.assert_close(
        logits(published.inverter.model, labels, again, None), logits(networks[0], labels, inputs, None)
    )
    inputs, mask = network.encoder_input(network.project(vectors), vectors, hypotheses, ids)
    reader = published.corrector
    again, _ = reader.encoder_input(reader.project(vectors), vectors, hypotheses, ids)
    torch.testing.assert_close(again, inputs)
    torch.testing.assert_close(logits(reader.model, labels, again, mask), logits(network.model, labels, inputs, mask))
    assert published.tokenizer.decode([5, 1, 0], skip_special_tokens=True) == tokenizer.decode([5])


def test_a_linear_prefix_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"attack\.prefix\.kind=linear"):
        export(tmp_path, Prefix(kind="linear"), None, cast(Any, None), None, length=20)
