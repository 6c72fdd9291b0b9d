"""attack=mt5_inverter: Vec2Text's inverter for 101 languages, on mT5 (Chen et al. 2024, appendix D).

vector (d,) --MLP--> 16 vectors --mT5 encoder, decoder--> "zwei männer kochen ."

As the inverter of Vec2Text (``GEIAEncoderDecoder``), whose place it takes before a corrector. Two things are
mT5's own. Its vocabulary has 250,112 entries, so the logits of one batch of 128 texts take 4 GB and their gradient as
much again: the loss is computed over chunks of the labels, padding left out. And its input and output embeddings are
two matrices: transformers 5 makes one of them wherever a model is built from its configuration, as for evaluation,
which would drop half of what was trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.backbones import RandomT5, untied
from unembed.attacks.parts.decoders import EncoderDecoder, cross_entropy, decoder_inputs
from unembed.datamodules.arrow_examples import IGNORED

LOGITS_AT_ONCE = 2**28  # in one part of the loss: 1 GB in float32


class MT5Inverter(GenerativeAttack):
    """An inverter on mT5 or any other encoder-decoder with a large vocabulary."""

    def load_model(self) -> Any:
        """The backbone's model with two embeddings, whether its weights come from the hub or from a checkpoint."""
        return untied(super().load_model())

    def make_decoder(self, model: Any) -> MT5Decoder:
        return MT5Decoder(model)


class MT5Decoder(EncoderDecoder):
    """An encoder-decoder whose loss never holds the logits of a whole batch."""

    def loss(self, prefix: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        inputs = decoder_inputs(self.model, labels)
        encoded = self.model.get_encoder()(inputs_embeds=prefix).last_hidden_state
        decoder = self.model.get_decoder()
        hidden = decoder(input_ids=inputs, encoder_hidden_states=encoded, use_cache=False).last_hidden_state
        real = labels != IGNORED
        hidden, wanted = hidden[real], labels[real]
        size = max(1, LOGITS_AT_ONCE // self.model.lm_head.out_features)
        if len(hidden) <= size:
            return self._summed(hidden, wanted, smoothing) / len(wanted)
        # The logits of a part are computed again in the backward pass, so those of one part exist at a time.
        parts = zip(torch.split(hidden, size), torch.split(wanted, size), strict=True)
        sums = [checkpoint(self._summed, *part, smoothing, use_reentrant=False) for part in parts]
        total: Tensor = torch.stack(sums).sum() / len(wanted)
        return total

    def _summed(self, hidden: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        return cross_entropy(self.model.lm_head(hidden), labels, smoothing) * len(labels)


class RandomMT5(RandomT5):
    """A small mT5 from random weights, with a byte-level BPE of its own: any language, offline. See RandomT5."""

    def architecture(self) -> Any:
        from transformers import MT5Config

        return MT5Config
