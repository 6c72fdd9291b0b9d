"""How tests/fixtures/published was made: tiny checkpoints and reference outputs by the package vec2text 0.0.13.

    python -m venv peer
    peer/bin/pip install torch==2.13.0 transformers==4.46.3 accelerate==1.1.1 vec2text==0.0.13
    peer/bin/python benchmarks/make_published_fixtures.py tests/fixtures/published

Runs in that environment, in which nothing of ours is installed; the tests read its output and need nothing of the
package. Inverters and correctors of 16 dimensions are built by its classes, trained for a few seconds so that texts
differ and end, and saved by it in every layout that released files have:

    inverter            safetensors, embedding_transform.{0,3}, T5 1.0 (tied)
    inverter_old        pytorch_model.bin, embedding_transform.{0,2}, lm_head of zeros
    inverter_mt5        safetensors, mT5 (head of its own)
    inverter_corrector  safetensors; inverter_corrector_zero is the same as .bin with a head of zeros
    ..._plain           without layer norm
    ..._shared          .bin, one embedding_transform.{0,3} for all three, without layer norm
    ..._nofeedback      corrector_ignore_hypothesis_embedding
    ..._mt5             goes with inverter_mt5

``reference.json`` and ``reference.safetensors`` hold what the package computes with each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

os.environ["HF_HUB_OFFLINE"] = "1"
WIDTH, DIMENSION, REPEATS, LENGTH, VOCABULARY = 16, 12, 3, 10, 48
WHO = ["ada", "bob", "carla", "the doctor"]
DOES = ["likes", "sees", "wants", "found"]
WHAT = ["a red car", "two dogs", "the sea", "old songs"]
SENTENCES = [f"{who} {does} {what}." for who in WHO for does in DOES for what in WHAT]
SEARCHES = {"greedy": [(1, 0), (3, 0), (8, 0)], "beam": [(3, 2), (5, 3)]}


def make_tokenizer() -> Any:
    """A T5 tokenizer of the sentences' words and letters: <pad> 0, </s> 1, <unk> 2."""
    words = sorted({f"▁{word.strip('.')}" for sentence in SENTENCES for word in sentence.split()})
    letters = sorted({letter for word in words for letter in word})
    tokens = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (".", -2.0)]
    tokens += [(word, -2.0) for word in words if len(word) > 2] + [(letter, -9.0) for letter in letters]
    made = Tokenizer(models.Unigram(tokens, unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.T5TokenizerFast(tokenizer_object=made, extra_ids=0, model_max_length=512)


def make_language_model(folder: Path, kind: str, tokenizer: Any) -> None:
    """A T5 with random weights; only config.json and the tokenizer are kept in the end."""
    torch.manual_seed(1)
    options = {
        "vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1,
        "num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 32,
    }  # fmt: skip
    model: Any
    if kind == "t5":
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(feed_forward_proj="relu", **options))
    else:
        model = transformers.MT5ForConditionalGeneration(transformers.MT5Config(tie_word_embeddings=False, **options))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def settings(model: str, **changes: Any) -> Any:
    """The keys of a released config.json that matter."""
    from vec2text.models.config import InversionConfig

    values: dict[str, Any] = {
        "model_name_or_path": model, "embedder_model_name": "gtr_base", "embedder_model_api": None,
        "embedder_torch_dtype": "float32", "num_repeat_tokens": REPEATS, "max_seq_length": LENGTH,
        "embedder_no_grad": True, "embedder_fake_with_zeros": False, "use_frozen_embeddings_as_input": True,
        "encoder_dropout_disabled": False, "decoder_dropout_disabled": False, "embeddings_from_layer_n": None,
        "use_lora": False, "embedder_gaussian_noise_level": 0.0, "corrector_ignore_hypothesis_embedding": False,
    }  # fmt: skip
    return InversionConfig(**(values | changes))


def make_corrector(config: Any) -> Any:
    """A corrector whose vectors are as wide as ours: the package's constructor knows 768 and 1,536 only."""
    from vec2text.models import CorrectorEncoderModel

    model: Any = CorrectorEncoderModel(config)
    model.embedder_dim = DIMENSION
    for number in (1, 2, 3):
        layers = [torch.nn.Linear(DIMENSION, DIMENSION), torch.nn.Dropout(0.0), torch.nn.GELU()]
        transform = torch.nn.Sequential(*layers, torch.nn.Linear(DIMENSION, WIDTH * REPEATS))
        setattr(model, f"embedding_transform_{number}", transform)
    return model


def train(model: Any, steps: int, loss_of: Callable[[], torch.Tensor]) -> None:
    chosen = [p for name, p in model.named_parameters() if not name.startswith("embedder.")]
    optimizer = torch.optim.Adam(chosen, lr=1e-2)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / steps)
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
    print(f"  loss {loss.item():.2f}")
    model.eval()


def save_bin(model: Any, folder: Path, rename: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """As older versions saved: config.json and pytorch_model.bin."""
    model.config.save_pretrained(folder)
    torch.save(rename(dict(model.state_dict())), folder / "pytorch_model.bin")


class Maker:
    """Builds, trains, saves, and writes down what the package computes."""

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()
        for kind in ("t5", "mt5"):
            make_language_model(Path(kind), kind, self.tokenizer)
        torch.manual_seed(2)
        config = transformers.T5Config(
            vocab_size=VOCABULARY, d_model=DIMENSION, d_kv=6, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0,
            relative_attention_num_buckets=8,
        )  # fmt: skip
        self.encoder = transformers.T5Model(config).eval()
        self.ids = self.tokenizer(SENTENCES, return_tensors="pt", padding=True)
        self.labels = self.ids.input_ids.masked_fill(self.ids.input_ids == 0, -100)
        self.tensors: dict[str, torch.Tensor] = {}
        self.results: dict[str, Any] = {}

    def inverter(self, kind: str) -> Any:
        from vec2text.models import InversionModel

        torch.manual_seed(3)
        # gtr_base is a model of the hub: a tiny encoder of the same build takes its place.
        with (
            mock.patch("transformers.AutoModel.from_pretrained", return_value=self.encoder),
            mock.patch("vec2text.models.inversion.load_tokenizer", return_value=self.tokenizer),
            mock.patch("transformers.AutoTokenizer.from_pretrained", return_value=self.tokenizer),
        ):
            model: Any = InversionModel(settings(kind))
        with torch.no_grad():
            self.vectors = model.call_embedding_model(self.ids.input_ids, self.ids.attention_mask)
        train(model, 70, lambda: model(None, None, labels=self.labels, frozen_embeddings=self.vectors).loss)
        return model

    def pair(self, inverter: Any, corrector: Any) -> Any:
        """The package's own inference object; its constructor would fetch metrics from the hub."""
        import vec2text

        with mock.patch("evaluate.load", return_value=SimpleNamespace()):
            return vec2text.load_corrector(inverter, corrector)

    def corrector(self, inverter: Any, kind: str, **changes: Any) -> Any:
        torch.manual_seed(4)
        model = make_corrector(settings(kind, **{k: v for k, v in changes.items() if k.startswith("corrector_")}))
        if not changes.get("layernorm", True):
            model.use_ln = False
            del model.layernorm
        if changes.get("shared"):
            model.embedding_transform_2 = model.embedding_transform_3 = model.embedding_transform_1
        with torch.no_grad():
            pair = self.pair(inverter, model)
            _, hypotheses, mask, vectors = pair._get_hypothesis_uncached({"frozen_embeddings": self.vectors})
        ids = self.labels
        train(model, 80, lambda: model(self.vectors, vectors, hypotheses, mask, labels=ids).loss)
        return model

    @torch.no_grad()
    def record(self, name: str, inverter: Any, corrector: Any, beam: bool) -> None:
        """Encoder inputs, masks and logits of four targets, and the texts of whole searches over eight."""
        pair = self.pair(inverter, corrector)
        chosen = torch.arange(0, len(SENTENCES), len(SENTENCES) // 8)[:8]
        vectors = self.vectors[chosen]
        # Between two sentences lies no text: the search has something to look for.
        vectors[4:] = (vectors[4:] + vectors[:4]) / 2
        _, hypotheses, mask, found = pair._get_hypothesis_uncached({"frozen_embeddings": vectors})
        inputs, input_mask = corrector.get_encoder_embedding(vectors[:4], found[:4], hypotheses[:4], mask[:4])
        labels = self.ids.input_ids[chosen][:4]
        logits = corrector(vectors[:4], found[:4], hypotheses[:4], mask[:4], labels=labels).logits
        self.tensors |= {
            f"{name}.vectors": vectors, f"{name}.hypotheses": hypotheses, f"{name}.hypothesis_vectors": found,
            f"{name}.labels": labels, f"{name}.encoder_input": inputs, f"{name}.encoder_mask": input_mask,
            f"{name}.logits": logits,
        }  # fmt: skip
        searches = {}
        for steps, width in SEARCHES["greedy"] + (SEARCHES["beam"] if beam else []):
            options = {"early_stopping": False, "num_beams": 1, "do_sample": False, "no_repeat_ngram_size": 0}
            pair.return_best_hypothesis = width > 0
            written = pair.generate(
                {"frozen_embeddings": vectors.clone()}, options | {"min_length": 1, "max_length": LENGTH}, steps, width
            )
            searches[f"{steps}x{width}"] = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        first = self.tokenizer.batch_decode(hypotheses, skip_special_tokens=True)
        references = [SENTENCES[number] for number in chosen[:4]]
        self.results[name] = {"references": references, "inverter": first, "searches": searches}
        right = {key: sum(a == b for a, b in zip(texts, references, strict=False)) for key, texts in searches.items()}
        print(f"  {name}: of 4 right: {sum(a == b for a, b in zip(first, references, strict=False))}, then {right}")

    @torch.no_grad()
    def record_inverter(self, name: str, inverter: Any) -> None:
        vectors, labels = self.vectors[:4], self.ids.input_ids[:4]
        inputs, _ = inverter.embed_and_project(None, None, frozen_embeddings=vectors)
        logits = inverter(None, None, labels=labels, frozen_embeddings=vectors).logits
        self.tensors |= {
            f"{name}.vectors": vectors, f"{name}.labels": labels, f"{name}.encoder_input": inputs,
            f"{name}.logits": logits,
        }  # fmt: skip


def without_head(weights: dict[str, Any]) -> dict[str, Any]:
    """Some released files hold a head of zeros, to be tied to the input embeddings."""
    key = "encoder_decoder.lm_head.weight"
    return weights | {key: torch.zeros_like(weights[key])}


def main() -> None:
    os.chdir(sys.argv[1])  # model_name_or_path is written into config.json: a name without folders
    torch.set_num_threads(1)
    made = Maker()
    for kind, name in (("t5", "inverter"), ("mt5", "inverter_mt5")):
        print(name)
        inverter = made.inverter(kind)
        inverter.save_pretrained(name)
        made.record_inverter(name, inverter)
        if kind == "t5":
            tied = inverter
            old = {"embedding_transform.3.weight": "embedding_transform.2.weight",
                   "embedding_transform.3.bias": "embedding_transform.2.bias"}  # fmt: skip
            save_bin(inverter, Path("inverter_old"), lambda w, old=old: {
                old.get(key, key): value for key, value in without_head(w).items()
            })  # fmt: skip
    # After the loop, made.vectors are still those of the one embedder that both inverters share.
    variants: list[tuple[str, Any, str, dict[str, Any]]] = [
        ("inverter_corrector", tied, "t5", {}),
        ("inverter_corrector_plain", tied, "t5", {"layernorm": False}),
        ("inverter_corrector_shared", tied, "t5", {"layernorm": False, "shared": True}),
        ("inverter_corrector_nofeedback", tied, "t5", {"corrector_ignore_hypothesis_embedding": True}),
        ("inverter_mt5_corrector", inverter, "mt5", {}),
    ]
    for name, start, kind, changes in variants:
        print(name)
        corrector = made.corrector(start, kind, **changes)
        if changes.get("shared"):
            keep = {"embedding_transform_1.": "embedding_transform.", "encoder_decoder.": "encoder_decoder."}
            save_bin(corrector, Path(name), lambda w, keep=keep: {
                new + key.removeprefix(old): value for key, value in w.items() for old, new in keep.items()
                if key.startswith(old)
            })  # fmt: skip
        else:
            corrector.save_pretrained(name)
        made.record(name, start, corrector, beam=name in ("inverter_corrector", "inverter_mt5_corrector"))
        if name == "inverter_corrector":
            save_bin(corrector, Path("inverter_corrector_zero"), without_head)
    for kind in ("t5", "mt5"):
        next(Path(kind).glob("*.safetensors")).unlink()
    for path in Path().rglob("generation_config.json"):
        path.unlink()
    save_file({name: tensor.clone().contiguous() for name, tensor in made.tensors.items()}, "reference.safetensors")
    Path("reference.json").write_text(json.dumps(made.results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
