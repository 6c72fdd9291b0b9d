"""GEIA: a decoder that reads the embedding as its first token (Li et al. 2023, section 3.5).

    embedding -> linear projection -> first "token" of a causal language model -> "i love to hike with my dog ."

Training is teacher forcing on the text and its end token. ``GEIAEncoderDecoder`` gives the projected embedding to the
encoder of a T5 instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.parts.backbones import (
    Backbone,
    check_positions,
    decoded_text,
    label_ids,
    load_tokenizer,
    token_ids,
)
from unembed.attacks.parts.decoders import CausalDecoder, EncoderDecoder
from unembed.attacks.parts.decoding import Decoding, NucleusSampling
from unembed.attacks.parts.optimizers import OptimizerSettings, scheduled
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.parts.writing import Writer
from unembed.attacks.refine.refining import Refiner, Rerank, comparable, named
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder


class GenerativeAttack(Attack):
    """A decoder that is trained to write a text from its embedding.

    ``label_smoothing`` is the share of each target token's probability that training spreads evenly over the vocabulary
    (Szegedy et al. 2016, section 7), against overconfidence after several epochs.

    Attributes:
        decodes_vectors: Whether a text is decoded from its vector alone, so that other attacks can use the decoder.
    """

    decodes_vectors = True

    def __init__(
        self,
        backbone: Backbone,
        prefix: Prefix,
        optimizer: OptimizerSettings,
        decoding: Decoding,
        label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        refine: Mapping[str, Refiner] | None = None,
    ) -> None:
        super().__init__(refine)
        decoding.propose(self.refiners.proposals)
        self.backbone, self.optimizer_settings, self.decoding = backbone, optimizer, decoding
        self.label_smoothing = label_smoothing
        self.prefix = prefix
        self.tokenizer: Any = None

    @abstractmethod
    def make_decoder(self, model: Any) -> CausalDecoder | EncoderDecoder:
        """Wrap the backbone's model."""

    @property
    def positions(self) -> int:
        """Longest input of the model, in prefix vectors and tokens."""
        return self.prefix.vectors + self.decoding.max_new_tokens

    def load_model(self) -> Any:
        return self.backbone.model(self.artifacts, weights=not self.from_checkpoint)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        self.backbone.prepare(texts, artifacts, positions=self.positions)

    def build(self, dimension: int) -> None:
        self.tokenizer = load_tokenizer(self.artifacts)
        self.decoder = self.make_decoder(self.load_model())
        check_positions(self.decoder.model.config, self.positions)
        self.prefix.build(dimension, self.decoder.width)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text and the end token, cut to what decoding can write."""
        return label_ids(self.tokens(texts), self.tokenizer.eos_token_id, self.decoding.max_new_tokens)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, uncut and without the end token."""
        return token_ids(self.tokenizer, texts)

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of the labels, end token included, padding excluded; smoothed in training only."""
        return self.decoder.loss(self.prefix(vectors), labels, self.label_smoothing if self.training else 0.0)

    @torch.no_grad()
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Decode each target; asks the embedder only where the decoding reranks."""
        found = [Prediction(tuple(self.text(ids) for ids in candidates)) for candidates in self.decoded(targets)]
        if self.decoding.rerank and oracle is not None:
            return Rerank(self.decoding.rerank).refine(targets, found, oracle)
        return found

    @property
    def writer(self) -> Writer | None:
        return Writer(lambda: self) if self.decodes_vectors else None

    def decoded(self, targets: Targets) -> list[list[list[int]]]:
        return self.decoding(
            self.decoder, self.prefix(targets.vectors), eos=self.tokenizer.eos_token_id, index=targets.index
        )

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        count = self.decoding.candidates
        return [replace(one, candidates=one.candidates[:count]) for one in super().invert(targets, oracle)]

    def check_refining(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        if self.decoding.rerank:
            with named(f"attack.decoding.rerank={self.decoding.rerank}"):
                comparable(dimension, oracle)
        super().check_refining(dimension, oracle)

    def begin_trial(self, number: int) -> None:
        if not isinstance(self.decoding, NucleusSampling):
            raise InputError(
                f"trials: {type(self.decoding).__name__} finds the same texts in every trial; sample them with "
                "attack/decoding=sampling (or nucleus)"
            )
        self.decoding.trial = number

    def text(self, ids: Sequence[int]) -> str:
        return decoded_text(self.tokenizer, ids)

    def configure_optimizers(self) -> Any:
        return scheduled(self.optimizer_settings, self)


class GEIA(GenerativeAttack):
    """GEIA on any causal language model."""

    def make_decoder(self, model: Any) -> CausalDecoder:
        return CausalDecoder(model)


class GEIAEncoderDecoder(GenerativeAttack):
    """GEIA on an encoder-decoder model: the embedding goes to the encoder, the text comes from the decoder.

    With 16 prefix vectors, the inverter of Vec2Text ("base model", Morris et al. 2023, section 3.1), which gives a
    corrector its first hypotheses.
    """

    def make_decoder(self, model: Any) -> EncoderDecoder:
        return EncoderDecoder(model)
