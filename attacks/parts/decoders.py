"""Language models that read prefix vectors instead of a prompt: training loss and decoding steps.

    decoder = CausalDecoder(model)
    decoder.loss(prefix, labels)                 # teacher forcing
    logits, state = decoder.start(prefix)        # decoding.BeamSearch continues from there

``CausalDecoder`` puts the prefix before the text (GEIA), ``ClosedPrefixDecoder`` an end token between the two.
``EncoderDecoder`` gives the prefix to the encoder and writes the text with the decoder (GEIA on T5, Vec2Text's
inverter).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unembed.attacks.parts.gpt2_beams import GPT2Beams, runs
from unembed.datamodules.arrow_examples import IGNORED
from unembed.embedders.language_model import cache_argument


class StateSteps:
    """The steps of ``decoding.Decoder`` where the state takes them itself."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        logits: Tensor = state.step(tokens)
        return logits

    def select(self, rows: Tensor, state: Any) -> None:
        state.select(rows)


class PrefixDecoder(StateSteps, nn.Module):
    """A language model that reads prefix vectors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        """Width of a prefix vector."""
        return int(self.model.get_input_embeddings().embedding_dim)


class CausalDecoder(PrefixDecoder):
    """A causal language model after prefix vectors.

    The prefix has the width of the model's *input embeddings*; OPT-350m projects that to another hidden width inside.
    No attention mask is used: causal attention never attends to the padding on the right, and a mask would leak the
    length of the target to the attacker.
    """

    def loss(self, prefix: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy of labels (n, T), padded with -100, after prefix (n, k, width).

        ``smoothing`` is the share of each target that is spread evenly over the vocabulary.
        """
        inputs = self.model.get_input_embeddings()(labels[:, :-1].clamp_min(0))
        embeds = torch.cat([prefix.to(inputs.dtype), inputs], 1)
        logits = self.model(inputs_embeds=embeds, use_cache=False, logits_to_keep=labels.shape[1]).logits
        return cross_entropy(logits, labels, smoothing)

    def start(self, prefix: Tensor) -> tuple[Tensor, Any]:
        prefix = prefix.to(self.model.get_input_embeddings().weight.dtype)
        state = GPT2Beams(self.model, prefix) if runs(self.model) else BeamRows(self.model, prefix)
        return state.logits, state


class BeamRows:
    """The state from which any causal language model decodes: each beam is a row of the batch, with its own cache."""

    def __init__(self, model: Any, prefix: Tensor) -> None:
        self.model = model
        output = model(inputs_embeds=prefix, use_cache=True, logits_to_keep=1)
        self.logits: Tensor = output.logits[:, -1]
        self.cache = output.past_key_values

    def step(self, tokens: Tensor) -> Tensor:
        """One token a beam, (n, b) -> logits (n, b, V)."""
        cache = {cache_argument(self.model): self.cache, "use_cache": True}
        output = self.model(input_ids=tokens.reshape(-1, 1), logits_to_keep=1, **cache)
        logits: Tensor = output.logits
        return logits.view(*tokens.shape, -1)

    def select(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows.flatten())


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
        return super().start(self._closed(prefix))

    def _closed(self, prefix: Tensor) -> Tensor:
        ids = torch.full((len(prefix), 1), self.closing, device=prefix.device)
        token = self.model.get_input_embeddings()(ids)
        return torch.cat([prefix.to(token.dtype), token], 1)


class EncoderDecoder(PrefixDecoder):
    """An encoder-decoder model (T5 and kin) whose encoder reads the prefix vectors."""

    def loss(self, prefix: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy of labels (n, T), padded with -100, given prefix (n, k, width); see CausalDecoder."""
        start = labels.new_full((len(labels), 1), self.model.config.decoder_start_token_id)
        inputs = torch.cat([start, labels[:, :-1].clamp_min(0)], 1)
        logits = self.model(inputs_embeds=prefix, decoder_input_ids=inputs, use_cache=False).logits
        return cross_entropy(logits, labels, smoothing)

    def start(self, prefix: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """See decoding.Decoder; ``mask`` (n, k) is 1 where the prefix counts, None: everywhere."""
        state = EncoderDecoderState(self.model, prefix, mask)
        return state.logits, state


class EncoderDecoderState:
    """Decoding state of an encoder-decoder.

    Attributes:
        encoded: The encoder's output, (n, k, width).
        mask: 1 where it counts, (n, k); None: everywhere.
        cache: Keys and values of both attentions.
        sources: Row of the first batch that each row was encoded from, (n,).
        logits: Of the first token, (n, V).
    """

    def __init__(self, model: Any, prefix: Tensor, mask: Tensor | None) -> None:
        self.model, self.mask = model, mask
        self.cache: Any = None
        self.encoded: Tensor = model.get_encoder()(inputs_embeds=prefix, attention_mask=mask).last_hidden_state
        self.sources = torch.arange(len(prefix), device=prefix.device)
        start = torch.full_like(self.sources, model.config.decoder_start_token_id)
        self.logits = self.step(start[:, None])[:, 0]

    def step(self, tokens: Tensor) -> Tensor:
        """One token a beam, (n, b) -> logits (n, b, V)."""
        output = self.model(
            encoder_outputs=(self.encoded,),
            attention_mask=self.mask,
            decoder_input_ids=tokens.reshape(-1, 1),
            use_cache=True,
            **{cache_argument(self.model): self.cache},
        )
        self.cache = output.past_key_values
        logits: Tensor = output.logits
        return logits.view(*tokens.shape, -1)

    def select(self, rows: Tensor) -> None:
        """Keep ``rows`` (m, b), in that order.

        Beams of one source share its encoding. If every beam stays with its source, only the keys and values of the
        decoded text are reordered; those of the source are ten times larger.
        """
        rows = rows.flatten()
        self.cache.self_attention_cache.reorder_cache(rows)
        sources = self.sources[rows]
        if not torch.equal(sources, self.sources):
            self.cache.cross_attention_cache.reorder_cache(rows)
            self.encoded = self.encoded[rows]
            self.mask = None if self.mask is None else self.mask[rows]
            self.sources = sources


_BLOCK_BYTES = {"cpu": 2**21}  # float32 logits at a time: about a core's share of the cache
_BLOCK_BYTES_ELSEWHERE = 2**28


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Mean over the labels (n, T) that are not -100, for logits (n, T, V).

    The result is that of torch.nn.functional.cross_entropy. ``smoothing`` is the share of each target that is spread
    evenly over the vocabulary.
    """
    loss: Tensor = _CrossEntropy.apply(logits.flatten(0, -2), labels.flatten(), smoothing)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Computes gradient and loss together: the logits are read once, and never stored in float32."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        kept = labels != IGNORED
        weights = (kept / kept.sum())[:, None]
        targets = labels.clamp_min(0)[:, None]
        vocabulary = logits.shape[1]
        block = max(1, _BLOCK_BYTES.get(logits.device.type, _BLOCK_BYTES_ELSEWHERE) // (4 * vocabulary))
        wanted = ctx.needs_input_grad[0]
        # In float16, small gradients are 0 until the loss scale multiplies them.
        dtype = torch.float32 if logits.dtype is torch.float16 else logits.dtype
        gradient = torch.empty_like(logits, dtype=dtype) if wanted else None
        total = torch.zeros((), device=logits.device)
        for begin in range(0, len(logits), block):
            rows = slice(begin, begin + block)
            weight, target = weights[rows], targets[rows]
            log_p = torch.log_softmax(logits[rows], -1, dtype=torch.float32)
            losses = -(1 - smoothing) * log_p.gather(1, target)
            if smoothing:
                losses -= smoothing * log_p.mean(1, keepdim=True)
            # An ignored row of infinite loss must not make the sum NaN.
            total += torch.where(weight > 0, losses * weight, 0.0).sum()
            if gradient is not None:
                block_gradient = log_p.exp_().sub_(smoothing / vocabulary).mul_(weight)
                block_gradient.scatter_add_(1, target, (smoothing - 1) * weight)
                gradient[rows] = block_gradient
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        # Above the loss there is mostly nothing, and a pass over this much memory takes a tenth of the whole function.
        if above[0].device.type == "cpu" and above[0].item() == 1:
            return gradient.to(ctx.dtype), None, None
        return (gradient * above[0]).to(ctx.dtype), None, None
