"""An attack with a large causal language model, such as GPT-2 XL (Zhu et al. 2024, sections 2.1 and 4.3).

    embedding -> linear projection -> [vector, <eos>] -> "i love to hike with my dog . <eos>"

It is GEIA with an end token between the embedding and the text, and optional adapters: a LoRA checkpoint holds the
adapters and the projection, and the pretrained weights are loaded from their source again.
"""

from __future__ import annotations

import warnings
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.adapters import Adapter
from unembed.attacks.parts.decoders import ClosedPrefixDecoder
from unembed.core.errors import InputError

SAMPLED_ROWS = 64  # of the embedding matrix, to tell one model from another


class LLM(GenerativeAttack):
    """A causal language model that reads an embedding and an end token, and writes the text."""

    def __init__(self, adapter: Adapter, gradient_checkpointing: bool = False, **generative: Any) -> None:
        super().__init__(label_smoothing=0.0, **generative)
        self.adapter, self.gradient_checkpointing = adapter, gradient_checkpointing
        self.base = ""

    @property
    def positions(self) -> int:
        return super().positions + 1

    def check_inputs(self) -> None:
        self.adapter.check(self.backbone)

    def load_model(self) -> Any:
        model = self.adapter.model(
            self.backbone, self.artifacts, weights=not self.from_checkpoint, device=self.target_device
        )
        if self.adapter.frozen:
            self.base = fingerprint(model)
        if self.gradient_checkpointing:
            # Reentrant checkpointing gives no gradient to adapters where the inputs need none.
            with warnings.catch_warnings():  # deprecated in transformers 5.23; earlier ones of 5 have no other name
                warnings.simplefilter("ignore", FutureWarning)
                model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def make_decoder(self, model: Any) -> ClosedPrefixDecoder:
        return ClosedPrefixDecoder(model, self.tokenizer.eos_token_id)

    def checkpoint_weights(self) -> dict[str, Tensor]:
        if not self.adapter.frozen:
            return super().checkpoint_weights()
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return {name: tensor for name, tensor in self.state_dict().items() if name in trained}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["base"] = self.base

    def check_weights(self, checkpoint: dict[str, Any]) -> None:
        """Compare with the checkpoint the weights that it holds, and the model that it belongs to."""
        super().check_weights(checkpoint)
        if checkpoint["base"] != self.base:
            raise InputError(
                "the adapters of the checkpoint were trained beside another model: the weights that "
                "attack.backbone.name stands for have changed since (attack.backbone.revision=<commit> keeps to one)"
            )


def fingerprint(model: Any) -> str:
    """A hash that tells pretrained models of one architecture apart: of a sample of the embedding matrix, and of the
    weights with one dimension. Neither 4 bits nor bfloat16 elsewhere change it."""
    digest = blake2b(digest_size=16)
    embeddings = model.get_input_embeddings().weight.detach()
    step = max(1, len(embeddings) // SAMPLED_ROWS)
    vectors = [p.detach() for _, p in sorted(model.named_parameters()) if p.ndim == 1]
    for tensor in [embeddings[::step], *vectors]:
        digest.update(tensor.to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
