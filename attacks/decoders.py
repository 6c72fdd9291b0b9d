"""Language models that read prefix vectors in place of a prompt: how they are trained and stepped.

    decoder = CausalDecoder(model)
    decoder.loss(prefix, labels)                 # teacher forcing
    logits, state = decoder.start(prefix)        # then decoding.BeamSearch goes on

``CausalDecoder`` puts the prefix before the text (GEIA), ``ClosedPrefixDecoder`` an end token between the two.
``EncoderDecoder`` gives the prefix to the encoder and writes the text with the decoder (GEIA on T5, Vec2Text's
inverter).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -100  # label of a position that is not trained on


class CausalDecoder(nn.Module):
    """A causal language model after prefix vectors.

    The prefix has the width of the model's *input embeddings*; OPT-350m projects that to another hidden width inside.
    No attention mask is used: padding stands to the right, where causal attention never looks, and a mask would tell
    the attacker the length of the target.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        """Width of a prefix vector."""
        return int(self.model.get_input_embeddings().embedding_dim)

    def loss(self, prefix: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy of labels (n, T), padded with -100, after prefix (n, k, width).

        ``smoothing`` is the share of each target that is spread evenly over the vocabulary.
        """
        inputs = self.model.get_input_embeddings()(labels[:, :-1].clamp_min(0))
        embeds = torch.cat([prefix.to(inputs.dtype), inputs], 1)
        logits = self.model(inputs_embeds=embeds, use_cache=False, logits_to_keep=labels.shape[1]).logits
        return cross_entropy(logits, labels, smoothing)

    def start(self, prefix: Tensor) -> tuple[Tensor, Any]:
        """See decoding.Decoder."""
        prefix = prefix.to(self.model.get_input_embeddings().weight.dtype)
        output = self.model(inputs_embeds=prefix, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1], output.past_key_values

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """See decoding.Decoder."""
        output = self.model(input_ids=tokens[:, None], past_key_values=state, use_cache=True, logits_to_keep=1)
        logits: Tensor = output.logits[:, -1]
        return logits

    def select(self, rows: Tensor, state: Any) -> None:
        """See decoding.Decoder."""
        state.reorder_cache(rows)


class ClosedPrefixDecoder(CausalDecoder):
    """A causal language model that reads an end token between the prefix and the text (Zhu et al. 2024, section 4.3).

    In GEIA, the position of the embedding itself predicts the first token; here, that of the end token does.
    """

    def __init__(self, model: Any, closing: int) -> None:
        super().__init__(model)
        self.closing = closing

    def loss(self, prefix: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """See CausalDecoder; the end token after the prefix is not trained on."""
        return super().loss(self._closed(prefix), labels, smoothing)

    def start(self, prefix: Tensor) -> tuple[Tensor, Any]:
        """See decoding.Decoder."""
        return super().start(self._closed(prefix))

    def _closed(self, prefix: Tensor) -> Tensor:
        ids = torch.full((len(prefix), 1), self.closing, device=prefix.device)
        token = self.model.get_input_embeddings()(ids)
        return torch.cat([prefix.to(token.dtype), token], 1)


class EncoderDecoder(nn.Module):
    """An encoder-decoder model (T5 and kin) whose encoder reads the prefix vectors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        """Width of a prefix vector."""
        return int(self.model.get_input_embeddings().embedding_dim)

    def loss(self, prefix: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy of labels (n, T), padded with -100, given prefix (n, k, width); see CausalDecoder."""
        start = labels.new_full((len(labels), 1), self.model.config.decoder_start_token_id)
        inputs = torch.cat([start, labels[:, :-1].clamp_min(0)], 1)
        logits = self.model(inputs_embeds=prefix, decoder_input_ids=inputs, use_cache=False).logits
        return cross_entropy(logits, labels, smoothing)

    def start(self, prefix: Tensor) -> tuple[Tensor, Any]:
        """See decoding.Decoder."""
        encoded = self.model.get_encoder()(inputs_embeds=prefix)
        state = _EncoderDecoderState(encoded.last_hidden_state)
        start = torch.full(
            (len(prefix),), self.model.config.decoder_start_token_id, dtype=torch.long, device=prefix.device
        )
        return self.step(start, state), state

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """See decoding.Decoder."""
        output = self.model(
            encoder_outputs=(state.encoded,),
            decoder_input_ids=tokens[:, None],
            past_key_values=state.cache,
            use_cache=True,
        )
        state.cache = output.past_key_values
        logits: Tensor = output.logits[:, -1]
        return logits

    def select(self, rows: Tensor, state: Any) -> None:
        """See decoding.Decoder."""
        state.cache.reorder_cache(rows)
        state.encoded = state.encoded[rows]


class _EncoderDecoderState:
    def __init__(self, encoded: Tensor) -> None:
        self.encoded = encoded
        self.cache: Any = None


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Mean over the labels (n, T) that are not -100, for logits (n, T, V)."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, label_smoothing=smoothing
    )
