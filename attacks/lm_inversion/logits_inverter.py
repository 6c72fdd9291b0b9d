"""attack=logits_inverter: a T5 that is trained to write the input that a language model's logits come from.

    logits (V,) - their moving average -> 64 chunks of V / 64 -> one MLP per chunk -> 64 vectors
                                                              -> sums of word embeddings -> one MLP -> 64 vectors
    64 vectors -> T5 encoder, decoder -> 17862 14520 -> " Wheel adop"

The inversion model that Skapars et al. 2025 (section 5.1, appendix D) take from Morris et al. 2023b. It needs only
black-box access and no search. Its predictions are not verified with the model, so it claims no inputs.

Logits mostly reflect token frequencies, independent of the input. Subtracting their moving average over the training
batches (unigram adaptation) leaves the effect of the input.

``LogitsInverter`` writes the model's own token ids. A published T5 has other tokens: ``TextLogitsInverter`` writes
text, which is cut into the model's tokens again. Random ids seldom survive that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.lm_inversion.base import language_model_of
from unembed.attacks.parts.backbones import RandomT5, token_ids
from unembed.attacks.parts.decoders import EncoderDecoder
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.core.errors import InputError
from unembed.core.examples import read_ids, written_ids
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder


class ChunkedLogits(Prefix):
    """Logits split into chunks, each with its own MLP, since each chunk belongs to different tokens.

    With ``shared``, one MLP serves all chunks, each of which weights the word embeddings of its own part of the
    encoder's vocabulary: the paper's head, by its authors' code. The embeddings are those before training.
    ``adaptation`` is the share of a training batch in the moving average; 0 leaves the logits as they are.
    """

    unigram: Tensor
    batches: Tensor
    words: Tensor
    inner: nn.Module
    outer: nn.Module

    def __init__(
        self,
        vectors: PositiveInt = 64,
        hidden: PositiveInt = 256,
        adaptation: Annotated[float, Field(ge=0, lt=1)] = 0.01,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        shared: bool = False,
    ) -> None:
        super().__init__(vectors, "mlp", normalize=False, dropout=dropout)
        self.hidden, self.adaptation, self.shared = hidden, adaptation, shared

    def build(self, dimension: int, width: int) -> None:
        """Make the layers for ``dimension`` logits; fewer than ``vectors`` leave chunks of zeros."""
        self.width, self.chunk = width, math.ceil(dimension / self.vectors)
        self.drop = nn.Dropout(self.dropout)
        if self.shared:
            self.inner, self.outer = nn.Linear(width, self.hidden), nn.Linear(self.hidden, width)
            self.register_buffer("words", torch.zeros(self.vectors, self.chunk, width))
        else:
            self.inner = _Layers(self.vectors, self.chunk, self.hidden)
            self.outer = _Layers(self.vectors, self.hidden, width)
        self.register_buffer("unigram", torch.zeros(dimension))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, embeddings: Tensor) -> Tensor:
        """(n, V) -> (n, vectors, width); in training, the batch moves the average first."""
        if self.adaptation:
            if self.training:
                self._adapt(embeddings.detach().mean(0))
            embeddings = embeddings - self.unigram
        missing = self.vectors * self.chunk - embeddings.shape[1]
        chunks = nn.functional.pad(embeddings, (0, missing)).view(len(embeddings), self.vectors, self.chunk)
        if self.shared:
            chunks = torch.einsum("nki,kiw->nkw", chunks, self.words)
        projected: Tensor = self.outer(nn.functional.gelu(self.drop(self.inner(chunks))))
        return projected

    def take_words(self, table: Tensor) -> None:
        """Word embeddings (words, width), dealt to the chunks in order.

        Where a chunk has more logits than words, which are as many as the vocabulary of the encoder is smaller than
        the language model's, its last logits have none and are not read, as in the authors' code.
        """
        each = math.ceil(len(table) / self.vectors)
        dealt = nn.functional.pad(table.detach(), (0, 0, 0, each * self.vectors - len(table)))
        count = min(each, self.chunk)
        self.words.zero_()[:, :count] = dealt.view(self.vectors, each, -1)[:, :count]

    @torch.no_grad()
    def _adapt(self, mean: Tensor) -> None:
        """The first batch begins the average: from zero it would take hundreds."""
        share = torch.where(self.batches == 0, 1.0, self.adaptation)
        self.unigram.lerp_(mean, share)
        self.batches += 1


class _Layers(nn.Module):
    """A linear layer for each of k chunks: (n, k, input) -> (n, k, output)."""

    def __init__(self, chunks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(chunks, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(chunks, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.einsum("nki,kio->nko", inputs, self.weight) + self.bias


PAD, END = "<|padding|>", "<|end of input|>"  # behind the model's own ids, every one of which an input may hold


class LanguageModelT5(RandomT5):
    """A small T5 from random weights that writes the tokens of the language model ``tokenizer``."""

    def __init__(self, tokenizer: str, decoder_layers: PositiveInt = 2, **t5: Any) -> None:
        super().__init__(decoder_layers=decoder_layers, **t5)
        self.name = tokenizer

    def tokenizer(self, texts: Sequence[str]) -> Any:
        """The language model's, with an end and a padding token that no input can hold."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise InputError(f"attack.backbone.tokenizer={self.name}: no such tokenizer here or on the hub") from error
        tokenizer.add_special_tokens({"eos_token": END, "pad_token": PAD})
        return tokenizer


class LogitsInverter(GenerativeAttack):
    """A decoder of token ids, trained on pairs of logits and inputs; see GenerativeAttack."""

    encodes_ids = True
    decodes_vectors = False  # it asks the language model for its tokens

    def make_decoder(self, model: Any) -> EncoderDecoder:
        return EncoderDecoder(model)  # the encoder reads all chunks, without a mask

    def build(self, dimension: int) -> None:
        """Make decoder and prefix; a head that all chunks share reads the words before they are trained."""
        super().build(dimension)
        if isinstance(self.prefix, ChunkedLogits) and self.prefix.shared:
            self.prefix.take_words(self.decoder.model.get_input_embeddings().weight)

    def model(self, oracle: CachedEmbedder | None) -> LanguageModelEmbedder:
        """The language model whose logits are the targets; InputError unless all logits of one token are observed."""
        model = language_model_of(oracle)
        seen = model.observation
        if seen.top_k is not None:
            wrong, right = f"top_k={seen.top_k}", "top_k=null"
            if not seen.sees_logits:
                wrong, right = "observe=words", "observe=logits"
            raise InputError(f"embedder.{wrong}: attack=logits_inverter reads all logits; take embedder.{right}")
        if seen.output_tokens != 1:
            raise InputError(
                f"embedder.output_tokens={seen.output_tokens}: attack=logits_inverter reads the logits of one output "
                "token; take embedder.output_tokens=1"
            )
        return model

    def prepare_data(self) -> None:
        self.model(self.oracle)
        super().prepare_data()

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids as the model reads them: those written out, or those of a text."""
        written = [read_ids(text) for text in texts]
        cut = iter(token_ids(self.tokenizer, [text for text, ids in zip(texts, written, strict=True) if ids is None]))
        return [next(cut) if ids is None else ids for ids in written]

    @torch.no_grad()
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Decode each target, truncated to the input's length, if known, and to the model's positions."""
        model = self.model(oracle)
        decoded = self.decoded(targets)
        lengths = targets.lengths or (None,) * len(decoded)
        found = []
        for candidates, length in zip(decoded, lengths, strict=True):
            longest = model.max_tokens if length is None else length
            kept = [self.input_ids(ids, model)[:longest] for ids in candidates[: self.decoding.candidates]]
            found.append(Prediction(tuple(model.decode(ids) for ids in kept), tokens=tuple(kept[0])))
        return found

    def query(self, prediction: Prediction) -> str:
        return written_ids(prediction.tokens) if prediction.tokens else ""

    def input_ids(self, ids: Sequence[int], model: LanguageModelEmbedder) -> list[int]:
        return [number for number in ids if number < model.inputs]


class TextLogitsInverter(LogitsInverter):
    """The same on a backbone with a tokenizer of its own, such as a published T5."""

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the backbone: written-out ids of the model become text first."""
        model = self.model(self.oracle)
        written = [read_ids(text) for text in texts]
        return token_ids(
            self.tokenizer,
            [text if ids is None else model.decode(ids) for text, ids in zip(texts, written, strict=True)],
        )

    def input_ids(self, ids: Sequence[int], model: LanguageModelEmbedder) -> list[int]:
        return model.ids(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
