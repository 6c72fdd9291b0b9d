"""A transformers encoder with a configurable pooling of its last hidden states.

    TransformerEmbedder("BAAI/bge-large-en", pooling="cls", normalize=True).embed(["hello"])   # (1, 1024)

Of an encoder-decoder (T5, mT5) only the encoder is loaded.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.matmul import use_onednn
from unembed.embedders.base import DType, Embedder, batches_of, fingerprint_of, loading, resolve_device
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.model_files import ModelFiles, locate
from unembed.embedders.outputs import Observation

Pooling = Literal["mean", "cls", "pooler", "last"]

POOLINGS = ("mean", "cls", "last")  # those that variants of an embedder have
PREFIXES = ("query: ", "passage: ", "search_query: ", "search_document: ")  # of E5, BGE and Nomic

_TOKENS_AT_ONCE = 32768  # per batch on a GPU


class TransformerEmbedder:
    """Pooled hidden states of texts; always in eval mode and without gradients."""

    _options: ClassVar[dict[str, Any]] = {}  # further arguments of from_pretrained

    def __init__(
        self,
        model: str,
        pooling: Pooling,
        normalize: bool,
        revision: str | None = None,
        prefix: str | Sequence[str] = "",
        dtype: DType = "float32",
        max_tokens: PositiveInt | None = None,
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        """The arguments are those of configs/embedder/transformer.yaml; the model is loaded on first use."""
        self.name, self.prefixes = model, (prefix,) if isinstance(prefix, str) else tuple(prefix)
        self._revision, self.pooling, self._normalize = revision, pooling, normalize
        self._dtype, self._max_tokens, self._device = dtype, max_tokens, device
        self._trust_remote_code = trust_remote_code

    @cached_property
    def dimension(self) -> int:
        # most configurations contain hidden_size, and importing transformers takes seconds
        hidden_size = self._files.read_json("config.json").get("hidden_size")
        return int(hidden_size or self._config.hidden_size)

    @cached_property
    def max_tokens(self) -> int:
        return self._max_tokens or self._files.token_limit()

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(
            kind="transformer",
            model=self._files.identity,
            pooling=self.pooling,
            normalize=self._normalize,
            prefix="|".join(self.prefixes),
            dtype=self._dtype,
            max_tokens=self.max_tokens,
        )

    def embed(self, texts: Sequence[str]) -> Tensor:
        """See ``Embedder``."""
        vectors = torch.empty(len(texts), self.dimension)
        if not len(texts):
            return vectors
        encoded = self.tokenizer(
            [self._prefix_of(text) + text for text in texts],
            truncation=True,
            max_length=self.max_tokens,
            return_attention_mask=False,
        )
        lengths = [len(ids) for ids in encoded["input_ids"]]
        if not all(lengths):
            raise InputError(f"text {lengths.index(0)} of the batch has no token, so {self.name} cannot embed it")
        for chosen in batches_of(lengths, self.device, _TOKENS_AT_ONCE):
            vectors[chosen] = self._forward({name: [values[i] for i in chosen] for name, values in encoded.items()})
        return vectors

    @property
    def prefix(self) -> str:
        """The prefix, or the first of several."""
        return self.prefixes[0]

    @prefix.setter
    def prefix(self, prefix: str) -> None:
        self.prefixes = (prefix,)

    def _prefix_of(self, text: str) -> str:
        """Of several prefixes the one that the text's hash chooses, so that a text always has the same vector."""
        if len(self.prefixes) == 1:
            return self.prefix
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
        return self.prefixes[int.from_bytes(digest, "big") % len(self.prefixes)]

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._loaded[0]

    @property
    def device(self) -> torch.device:
        """The model's device."""
        device: torch.device = self._model.device
        return device

    @property
    def input_vectors(self) -> Tensor:
        """The input embedding of each token id, (V, hidden)."""
        weight: Tensor = self._model.get_input_embeddings().weight
        return weight.detach()[: len(self.tokenizer)]

    def relaxed(self, vectors: Tensor) -> Tensor:
        """Vectors (B, d) for input embeddings (B, T, hidden), with special tokens and without padding.

        Differentiable with respect to the input embeddings.
        """
        mask = torch.ones(vectors.shape[:2], dtype=torch.long, device=vectors.device)
        pooled = self._pool(self._model(inputs_embeds=vectors, attention_mask=mask), mask).float()
        return torch.nn.functional.normalize(pooled, dim=-1) if self._normalize else pooled

    @property
    def _model(self) -> Any:
        return self._loaded[1]

    @torch.inference_mode()
    def _forward(self, batch: dict[str, list[list[int]]]) -> Tensor:
        padded = self.tokenizer.pad(batch, padding_side="right", return_tensors="pt").to(self.device)
        vectors = self._pool(self._model(**padded), padded["attention_mask"]).float()
        return (torch.nn.functional.normalize(vectors, dim=-1) if self._normalize else vectors).cpu()

    def _pool(self, output: Any, mask: Tensor) -> Tensor:
        hidden: Tensor = output.last_hidden_state  # (n, tokens, d)
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "last":
            return hidden[torch.arange(len(hidden)), mask.sum(dim=1) - 1]
        if self.pooling == "pooler":
            pooled: Tensor | None = output.get("pooler_output")
            if pooled is None:
                raise InputError(f"embedder.pooling=pooler: {self.name} has no pooler layer; valid: mean, cls, last")
            return pooled
        weights = mask.unsqueeze(-1).to(torch.float32)
        return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1)

    @cached_property
    def _files(self) -> ModelFiles:
        return locate(self.name, self._revision)

    @cached_property
    def _config(self) -> Any:
        from transformers import AutoConfig

        with loading(f"embedder.model={self.name}: its configuration cannot be read"):
            return AutoConfig.from_pretrained(self._files.folder, trust_remote_code=self._trust_remote_code)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer

        folder = self._checked(self._files.with_weights())
        kind = AutoModelForTextEncoding if self._config.is_encoder_decoder else AutoModel
        trust = self._trust_remote_code
        # Attacks may backpropagate through the model, so it must not consist of inference tensors.
        with torch.inference_mode(False), loading(f"embedder.model={self.name} cannot be loaded from {folder}"):
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
            options = {"dtype": getattr(torch, self._dtype), "trust_remote_code": trust, **self._options}
            model = kind.from_pretrained(folder, **options)
            model = model.eval().requires_grad_(False).to(resolve_device(self._device))
        use_onednn(model)
        if tokenizer.pad_token is None:  # padding is masked, so any token will do
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer, model

    def _checked(self, folder: Path) -> Path:
        """Hook for subclasses to check the files before they are loaded."""
        return folder


class RelaxedEncoder:
    """A transformer encoder as a white box; its prefix and special tokens are added to each input."""

    def __init__(self, embedder: TransformerEmbedder) -> None:
        self.embedder = embedder

        self.name = embedder.name

    @property
    def observation(self) -> Observation:
        return Observation(self.embedder.dimension)

    @cached_property
    def max_tokens(self) -> int:
        before, after = self._around
        return self.embedder.max_tokens - len(before) - len(after)

    @property
    def device(self) -> torch.device:
        return self.embedder.device

    @property
    def inputs(self) -> int:
        return len(self.input_vectors)

    @cached_property
    def input_vectors(self) -> Tensor:
        return self.embedder.input_vectors.float()

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, truncated to ``max_tokens``; an empty text becomes one unknown token."""
        tokenizer = self.embedder.tokenizer
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"][: self.max_tokens]
        return found or [tokenizer.unk_token_id or 0]

    def decode(self, ids: Sequence[int]) -> str:
        decoded: str = self.embedder.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return decoded

    @torch.no_grad()
    def logits(self, ids: Tensor, continuation: Tensor) -> Tensor:
        """The vectors of candidates (B, n), as (B, 1, d)."""
        return self.relaxed(self.input_vectors[ids], continuation, keep=1)

    def relaxed(self, vectors: Tensor, continuation: Tensor, keep: int) -> Tensor:
        """The vectors of relaxed inputs (B, n, hidden), as (B, 1, d)."""
        before, after = (
            self.input_vectors[torch.tensor(ids, dtype=torch.long, device=self.device)].expand(len(vectors), -1, -1)
            for ids in self._around
        )
        return self.embedder.relaxed(torch.cat([before, vectors, after], dim=1))[:, None]

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The ids before and after every input."""
        tokenizer = self.embedder.tokenizer
        text: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole: list[int] = tokenizer(self.embedder.prefix + "a")["input_ids"]  # the prefix may end within a token
        at = next(place for place in reversed(range(len(whole))) if whole[place : place + len(text)] == text)
        return whole[:at], whole[at + len(text) :]


WhiteBox = LanguageModelEmbedder | RelaxedEncoder  # a model with access to its weights


@dataclass(frozen=True, slots=True)
class Variant:
    """An embedder whose pooling or prefix has another value, to tell what made unknown vectors."""

    key: str
    value: str
    instead_of: str
    embedder: Embedder

    @property
    def title(self) -> str:
        """What distinguishes it, such as "pooling=cls instead of mean"."""
        return f"{self.key}={shown(self.value)} instead of {shown(self.instead_of)}"


def shown(value: str) -> str:
    """``value``, in quotes unless it is one word."""
    return value if value.isidentifier() else repr(value)


def variants(embedder: Embedder, *, prefixes: bool = False) -> list[Variant]:
    """Variants of an embedder that share its weights; none of an embedder other than a transformer run here.

    Other prefixes, which change vectors little, are included if ``prefixes``.
    """
    if not isinstance(embedder, TransformerEmbedder):
        return []
    changes = [("pooling", pooling) for pooling in POOLINGS] + [("prefix", prefix) for prefix in PREFIXES if prefixes]
    others = []
    for key, value in changes:
        if value != (own := getattr(embedder, key)):
            changed = copy.copy(embedder)  # with the loaded weights
            changed.__dict__.pop("fingerprint", None)
            setattr(changed, key, value)
            others.append(Variant(key, value, own, changed))
    return others
