"""Beam search steps of GPT-2 without reordering keys and values: beams of a target share one cache through masks.

    slots of one target:   my | name dog | is was | ...      as the tokens were written, two beams here
    beam 0 looks at:        x    x         x
    beam 1 looks at:        x    x            x

Beam search reorders its beams after every token; transformers then reorders all keys and values. Here a token stays in
its cache slot, and each beam has a mask of the slots that belong to its past. The beams of a target are the queries of
one attention, so their shared past is stored once. The model's own layers are called; only attention, its cache and the
activation are replaced.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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
    """Decoding state of a GPT-2 for n targets with b beams each.

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
            for layer in output.past_key_values.layers
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
        """Input embeddings of one token a beam, (n, b) -> (n, b, width)."""
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
