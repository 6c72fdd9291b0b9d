"""GEIA: a decoder that reads the embedding as its first token (Li et al. 2023, section 3.5).

    embedding -> linear projection -> first "token" of a causal language model -> "i love to hike with my dog ."

Training is teacher forcing on the text and its end token. ``GEIAEncoderDecoder`` gives the projected embedding to the
encoder of a T5 instead.
"""

from __future__ import annotations

from typing import Any

from unembed.attacks.generative import GenerativeAttack
from unembed.attacks.parts.decoders import CausalDecoder, EncoderDecoder


class GEIA(GenerativeAttack):
    """GEIA on any causal language model."""

    def make_decoder(self, model: Any) -> CausalDecoder:
        """The prefix stands before the text."""
        return CausalDecoder(model)


class GEIAEncoderDecoder(GenerativeAttack):
    """GEIA on an encoder-decoder model: the embedding goes to the encoder, the text comes from the decoder.

    With 16 prefix vectors, the inverter of Vec2Text ("base model", Morris et al. 2023, section 3.1), which gives a
    corrector its first hypotheses.
    """

    def make_decoder(self, model: Any) -> EncoderDecoder:
        """The prefix is the encoder's input, without a mask: all vectors count."""
        return EncoderDecoder(model)
