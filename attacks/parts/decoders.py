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

from unembed.datamodules.arrow_examples import IGNORED
from unembed.embedders.hidden_states import cache_argument


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
        return cross_entropy(self.logits(prefix, labels), labels, smoothing)

    def logits(self, prefix: Tensor, labels: Tensor) -> Tensor:
        """Of each label, given the prefix and the labels before it: (n, T, V)."""
        inputs = self.model.get_input_embeddings()(labels[:, :-1].clamp_min(0))
        embeds = torch.cat([prefix.to(inputs.dtype), inputs], 1)
        logits: Tensor = self.model(inputs_embeds=embeds, use_cache=False, logits_to_keep=labels.shape[1]).logits
        return logits

    def start(self, prefix: Tensor) -> tuple[Tensor, Any]:
        prefix = prefix.to(self.model.get_input_embeddings().weight.dtype)
        state = GPT2Beams(self.model, prefix) if runs(self.model) else BeamRows(self.model, prefix)
        return state.logits, state


class BeamRows:
    """The state from which any causal language model decodes: each beam is a row of the batch, with its own cache."""

    def __init__(self, model: Any, prefix: Tensor) -> None:
        self.model, self._cache_name = model, cache_argument(model)
        output = model(inputs_embeds=prefix, use_cache=True, logits_to_keep=1)
        self.logits: Tensor = output.logits[:, -1]
        self.cache = getattr(output, self._cache_name)

    def step(self, tokens: Tensor) -> Tensor:
        cache = {self._cache_name: self.cache, "use_cache": True}
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

    def logits(self, prefix: Tensor, labels: Tensor) -> Tensor:
        """See CausalDecoder; the end token after the prefix is not trained on."""
        return super().logits(self._closed(prefix), labels)

    def start(self, prefix: Tensor) -> tuple[Tensor, Any]:
        return super().start(self._closed(prefix))

    def _closed(self, prefix: Tensor) -> Tensor:
        ids = torch.full((len(prefix), 1), self.closing, device=prefix.device)
        token = self.model.get_input_embeddings()(ids)
        return torch.cat([prefix.to(token.dtype), token], 1)


class EncoderDecoder(PrefixDecoder):
    """An encoder-decoder model (T5 and kin) whose encoder reads the prefix vectors.

    ``mask`` (n, k) is 1 where the prefix of a decoding counts; None: everywhere.
    """

    def __init__(self, model: Any, mask: Tensor | None = None) -> None:
        super().__init__(model)
        self.mask = mask

    def loss(self, prefix: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy of labels (n, T), padded with -100, given prefix (n, k, width); see CausalDecoder."""
        return cross_entropy(self.logits(prefix, labels), labels, smoothing)

    def logits(self, prefix: Tensor, labels: Tensor) -> Tensor:
        """Of each label, given the prefix and the labels before it: (n, T, V)."""
        inputs = decoder_inputs(self.model, labels)
        logits: Tensor = self.model(inputs_embeds=prefix, decoder_input_ids=inputs, use_cache=False).logits
        return logits

    def start(self, prefix: Tensor) -> tuple[Tensor, Any]:
        state = EncoderDecoderState(self.model, prefix, self.mask)
        return state.logits, state


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """What an encoder-decoder reads to predict labels (n, T): its start token, and all labels but the last."""
    start = labels.new_full((len(labels), 1), model.config.decoder_start_token_id)
    return torch.cat([start, labels[:, :-1].clamp_min(0)], 1)


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
        self.model, self.mask, self._cache_name = model, mask, cache_argument(model)
        self.cache: Any = None
        self.encoded: Tensor = model.get_encoder()(inputs_embeds=prefix, attention_mask=mask).last_hidden_state
        self.sources = torch.arange(len(prefix), device=prefix.device)
        start = torch.full_like(self.sources, model.config.decoder_start_token_id)
        self.logits = self.step(start[:, None])[:, 0]

    def step(self, tokens: Tensor) -> Tensor:
        output = self.model(
            encoder_outputs=(self.encoded,),
            attention_mask=self.mask,
            decoder_input_ids=tokens.reshape(-1, 1),
            use_cache=True,
            **{self._cache_name: self.cache},
        )
        self.cache = getattr(output, self._cache_name)
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


STEPS = 8  # cache slots are allocated for so many steps; unused slots are then freed
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh")  # two names of one function, x * sigmoid(2u)
GELU_LINEAR = 2 * (2 / torch.pi) ** 0.5  # 2u = GELU_LINEAR * x + GELU_CUBIC * x ** 3
GELU_CUBIC = GELU_LINEAR * 0.044715


def runs(model: Any) -> bool:
    """Whether ``model`` is a GPT-2 whose steps these are, in eval mode, its layers neither wrapped nor sharded."""
    config = model.config
    return (
        type(model).__name__ == "GPT2LMHeadModel"
        and all(type(block).__name__ == "GPT2Block" for block in model.transformer.h)
        and all(parameter.numel() for parameter in model.parameters())
        and not model.training
        and not config.add_cross_attention
        and not config.reorder_and_upcast_attn
    )


class GPT2Beams:
    """Decoding state of a GPT-2 for n targets with b beams each, which share one cache through masks.

        slots of one target:   my | name dog | is was | ...      as the tokens were written, two beams here
        beam 0 looks at:        x    x         x
        beam 1 looks at:        x    x            x

    Beam search reorders its beams after every token; transformers then reorders all keys and values. Here a token stays
    in its cache slot, and each beam has a mask of the slots that belong to its past. The beams of a target are the
    queries of one attention, so their shared past is stored once. The model's own layers are called; only attention,
    its cache and the activation are replaced.

    Attributes:
        logits: Of the first token, (n, V).
        bias: 0 where a beam looks at a slot, the smallest number elsewhere, (n, b, slots).
        position: Of the next token.
        memory: Of each layer, keys and values one after the other, (at least n, at least slots, 2 * width).
    """

    @torch.no_grad()
    def __init__(self, model: Any, prefix: Tensor) -> None:
        """Read prefix vectors (n, k, width) with the model's own forward pass."""
        output = model.transformer(inputs_embeds=prefix, use_cache=True)
        self.model = model
        n, self.position = prefix.shape[:2]
        self.memory = [
            torch.cat([states.transpose(1, 2).flatten(2) for states in (layer.keys, layer.values)], -1)
            for layer in getattr(output, cache_argument(model.transformer)).layers
        ]
        self.bias = self.memory[0].new_zeros((n, 1, self.position))
        self._space = prefix.new_empty(0)
        self.logits = self.scores(output.last_hidden_state[:, -1]).clone()

    def select(self, rows: Tensor) -> None:
        width = self.bias.shape[1]
        targets = rows[:, 0] // width
        beams = rows - targets[:, None] * width
        slots = self.bias.shape[2]
        self.bias = self.bias[targets].gather(1, beams[..., None].expand(-1, -1, slots))
        if len(targets) > len(self.memory[0]):
            self.memory = [memory[targets] for memory in self.memory]
            return
        moved = (targets != torch.arange(len(targets), device=targets.device)).nonzero()[:, 0]
        for memory in self.memory if len(moved) else ():
            memory[moved, :slots] = memory[targets[moved], :slots]

    def step(self, tokens: Tensor) -> Tensor:
        """One token a beam, (n, b) -> logits (n, b, V), which the next step writes over."""
        n, b = tokens.shape
        if self.bias.shape[2] + b > self.memory[0].shape[1]:
            self._reserve(STEPS * b)
        own = self.bias.new_full((b, b), torch.finfo(self.bias.dtype).min).fill_diagonal_(0)
        self.bias = torch.cat([self.bias, own.expand(n, b, b)], -1)
        network = self.model.transformer
        hidden = self.embedded(tokens).flatten(0, 1) + network.wpe.weight[self.position]
        for block, memory in zip(network.h, self.memory, strict=True):
            hidden = hidden + block.attn.c_proj(self._attend(block.attn, block.ln_1(hidden), memory))
            hidden += block.mlp.c_proj(self._activate(block.mlp, block.mlp.c_fc(block.ln_2(hidden))))
        self.position += 1
        return self.scores(network.ln_f(hidden)).view(n, b, -1)

    def embedded(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.model.transformer.wte(tokens)
        return embeddings

    def scores(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states, (n * b, width) -> (n * b, V).

        They are in memory that is used again: fresh memory of this size takes longer than its use.
        """
        head = self.model.lm_head
        if type(head) is not nn.Linear or head.bias is not None:
            logits: Tensor = head(hidden)
            return logits
        size = len(hidden) * head.out_features
        if self._space.numel() < size:
            self._space = hidden.new_empty(size)
        return torch.mm(hidden, head.weight.t(), out=self._space[:size].view(len(hidden), -1))

    def _attend(self, attention: Any, hidden: Tensor, memory: Tensor) -> Tensor:
        """Attention of (n * b, width), each to its past and itself, before the output projection."""
        n, b, slots = self.bias.shape
        width, heads = hidden.shape[-1], attention.num_heads
        made = attention.c_attn(hidden).view(n, b, 3 * width)
        memory[:n, slots - b : slots] = made[..., width:]
        query = made[..., :width].view(n, b, heads, -1).transpose(1, 2)
        keys, values = memory[:n, :slots].view(n, slots, 2, heads, -1).permute(2, 0, 3, 1, 4)
        read = nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=self.bias[:, None], scale=attention.scaling
        )
        return read.transpose(1, 2).reshape(n * b, width)

    def _activate(self, mlp: Any, hidden: Tensor) -> Tensor:
        """The activation of the MLP, which may be computed in the memory of ``hidden``.

        On a CPU, PyTorch's own GELU spends most of its time on tanh; 1 + tanh(u) = 2 sigmoid(2u) takes half as long.
        """
        if self.model.config.activation_function not in TANH_GELU or hidden.dtype != torch.float32 or hidden.is_cuda:
            activated: Tensor = mlp.act(hidden)
            return activated
        gate = hidden * hidden
        torch.add(gate.new_tensor(GELU_LINEAR), gate, alpha=GELU_CUBIC, out=gate)
        return gate.mul_(hidden).sigmoid_().mul_(hidden)

    def _reserve(self, room: int) -> None:
        """Allocate so many slots after those in use, and free the others."""
        n, b, _ = self.bias.shape
        dead = (self.bias != 0).all(1)
        live = int((~dead).sum(1).max())  # where a target has fewer, dead ones fill up
        slots = dead.to(torch.uint8).argsort(dim=1, stable=True)[:, :live]
        self.bias = self.bias.gather(2, slots[:, None].expand(-1, b, -1))
        # The room is filled with copies of a slot, so that one gather makes the new memory.
        taken = nn.functional.pad(slots, (0, room))
        taken = taken + torch.arange(n, device=slots.device)[:, None] * self.memory[0].shape[1]
        for place, memory in enumerate(self.memory):
            self.memory[place] = memory.flatten(0, 1).index_select(0, taken.flatten()).view(n, live + room, -1)
