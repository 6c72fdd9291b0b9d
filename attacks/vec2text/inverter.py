"""The inverter of Vec2Text, its first guess (Morris et al. 2023, section 3.1; "base model" in its tables).

vector (d,) --MLP--> 16 vectors --T5 encoder, decoder--> "my name is ada"
"""

from __future__ import annotations

from typing import Any

from attacks.generative import GenerativeAttack
from models.decoders import EncoderDecoder


class Inverter(GenerativeAttack):
    """An encoder-decoder whose encoder reads the projected vector; its run is what a corrector starts from."""

    def make_decoder(self, model: Any) -> EncoderDecoder:
        """The encoder reads the prefix vectors, without a mask: all of them count."""
        return EncoderDecoder(model)
