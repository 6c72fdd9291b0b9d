"""What a causal language model holds between its blocks: the states of a layer, or the keys and values that it caches.

    layout = StateLayout(layer=8, width=576, tokens=64)      # a row: 64 positions of 576 numbers, zeros where none is
    states, lengths = layout.parse(rows)                      # (B, 64, 576), (B,)
    blocks = Blocks(model, layer=8)                           # runs the input embedding and blocks 1 to 8 alone
    first = blocks.run(ids)                                   # ids (B, n): first.states (B, n, 576), first.cache
    next_ones = blocks.run(candidates, first.cache)           # (B, C) tokens for position n, each beside the others
    cache = first.cache.extended(next_ones.cache, chosen)     # with the candidate chosen (B,) of each text

Layer 0 is the input of the first block, layer L the output of the last one before the final norm.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Precision = Literal["float32", "bf16", "fp16", "int8", "int4"]
Cached = Literal["both", "k", "v"]  # of a layer's keys and values
_ROUNDED = {"bf16": torch.bfloat16, "fp16": torch.float16}
CODES = {"int8": 127, "int4": 7}  # largest code: symmetric, one scale a state


def reduced(states: Tensor, precision: Precision) -> Tensor:
    """States (..., d) as they are after storage in a precision, in float32.

    ``int8`` and ``int4`` have one scale a state, from its largest absolute value; ``fp16`` saturates.
    """
    if precision == "float32":
        return states
    if precision in CODES:
        scale = states.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / CODES[precision]
        return (states / scale).round() * scale
    kind = _ROUNDED[precision]
    most = torch.finfo(kind).max
    return states.clamp(-most, most).to(kind).float()


def present(states: Tensor) -> Tensor:
    """Which positions of rows of states (B, T, d) a text has, (B, T) bool: all up to the last that is not zero."""
    return states.any(dim=-1).flip(1).cumsum(dim=1).flip(1) > 0  # the embedding of a padding token may be zero too


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The layout of a row of states.

    Attributes:
        layer: The observed layer.
        width: Numbers of a position, d.
        tokens: Positions of a row, T; a text of fewer leaves zeros at the end.
        precision: In which the states were stored.
        cached: Which part of the key-value cache is observed; None: hidden states.
        last: Whether a row holds the last position alone.
    """

    layer: int
    width: int
    tokens: int
    precision: Precision = "float32"
    cached: Cached | None = None
    last: bool = False

    @property
    def dimension(self) -> int:
        """Numbers in a row."""
        return self.tokens * self.width

    def pack(self, states: Tensor) -> Tensor:
        """Rows (B, T * d) of texts of equal length, from the states (B, n, d) of their positions."""
        if self.last:
            states = states[:, -1:]
        if self.cached == "both":  # two tensors in a real cache, with scales of their own
            stored = torch.cat([reduced(part, self.precision) for part in states.chunk(2, dim=-1)], dim=-1)
        else:
            stored = reduced(states, self.precision)
        rows = stored.new_zeros(len(states), self.tokens, self.width)
        rows[:, : stored.shape[1]] = stored
        return rows.flatten(1)

    def parse(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """States (B, T, w) and how many of them each text has, (B,); w < d where a defense left fewer dimensions."""
        states = rows.view(len(rows), self.tokens, -1)
        return states, present(states).sum(dim=1)


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values (B, heads, length, d / heads) of each block that was run."""

    length: int
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def __getitem__(self, rows: Tensor) -> Cache:
        """The texts at rows (n,)."""
        return Cache(self.length, tuple(k[rows] for k in self.keys), tuple(v[rows] for v in self.values))

    def extended(self, candidates: Cache, chosen: Tensor) -> Cache:
        """This cache (B, ...) and, behind it, one of the candidates (B, ..., C, ...) of each text; ``chosen`` (B,)."""
        rows = torch.arange(len(chosen), device=chosen.device)

        def joined(old: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            last = [part[rows, :, chosen][:, :, None] for part in new]
            return tuple(torch.cat(pair, dim=2) for pair in zip(old, last, strict=True)) if old else tuple(last)

        return Cache(self.length + 1, joined(self.keys, candidates.keys), joined(self.values, candidates.values))


@dataclass(frozen=True, slots=True)
class Inside:
    """The states (B, n, d) of a layer, and the keys and values of the blocks up to it."""

    states: Tensor
    cache: Cache

    def observed(self, cached: Cached | None) -> Tensor:
        """The states, or keys, values or both of the last block that was run, heads side by side: (B, n, d)."""
        if cached is None:
            return self.states
        k, v = (part[-1].transpose(1, 2).flatten(2) for part in (self.cache.keys, self.cache.values))
        return {"k": k, "v": v, "both": torch.cat([k, v], dim=-1)}[cached]


NOTHING = Cache(0, (), ())  # before the first position


class _Reached(Exception):  # noqa: N818
    """Ends a forward pass at the observed layer."""

    def __init__(self, states: Tensor) -> None:
        self.states = states


class Blocks:
    """The first blocks of a language model; they share its weights.

    Args:
        model: A causal language model of transformers, in eval mode.
        layer: Number of blocks.
    """

    def __init__(self, model: Any, layer: int) -> None:
        self.layer, self.device = layer, model.device
        self._base, self._cache_name = model.base_model, cache_argument(model.base_model)
        config = model.config
        every = config.num_hidden_layers
        self.head_dimension = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == every)

    @torch.no_grad()
    def run(self, ids: Tensor, prefix: Cache | None = None) -> Inside:
        """States of ids (B, n), in one forward pass up to the layer.

        With a ``prefix`` (B, ..., t, ...), the ids are alternatives for position t: each reads the prefix and itself.
        """
        from transformers import DynamicCache

        past = DynamicCache()
        arguments: dict[str, Any] = {}
        start = 0 if prefix is None else prefix.length
        if prefix is not None and ids.shape[1] > 1:
            mask = torch.full((ids.shape[1], start + ids.shape[1]), torch.finfo(torch.float32).min, device=ids.device)
            mask[:, :start] = 0
            mask[:, start:].fill_diagonal_(0)
            arguments["attention_mask"] = mask.expand(len(ids), 1, -1, -1)
        if prefix is not None:
            arguments["position_ids"] = torch.full_like(ids, start)
            for number, (keys, values) in enumerate(zip(prefix.keys, prefix.values, strict=True)):
                past.update(keys, values, number)
        states = self._states(input_ids=ids, use_cache=True, **{self._cache_name: past}, **arguments)
        ran = [(layer.keys[:, :, start:], layer.values[:, :, start:]) for layer in past.layers[: self.layer]]
        return Inside(states, Cache(ids.shape[1], tuple(k for k, _ in ran), tuple(v for _, v in ran)))

    def unturned(self, keys: Tensor, position: int) -> Tensor:
        """Keys (..., heads * d) of a position without its rotary encoding; as they are in a model that has none."""
        rotary = getattr(self._base, "rotary_emb", None)
        if rotary is None:
            return keys
        cosines, sines = (part[0, 0] for part in rotary(keys, torch.tensor([[position]], device=keys.device)))
        of_head, half = self.head_dimension, len(cosines) // 2
        heads = keys.reshape(*keys.shape[:-1], -1, of_head)
        turned, rest = heads[..., : 2 * half], heads[..., 2 * half :]
        swapped = torch.cat([-turned[..., half:], turned[..., :half]], dim=-1)
        return torch.cat([turned * cosines - swapped * sines, rest], dim=-1).flatten(-2)

    def _states(self, **inputs: Any) -> Tensor:
        def arrive(module: Any, args: tuple[Tensor, ...], output: Any = None) -> None:
            reached = args[0] if output is None else output
            raise _Reached(reached[0] if isinstance(reached, tuple) else reached)

        if self.layer:
            handle = self._blocks[self.layer - 1].register_forward_hook(arrive)
        else:
            handle = self._blocks[0].register_forward_pre_hook(arrive)
        try:
            self._base(**inputs)
        except _Reached as end:
            return end.states.float()
        finally:
            handle.remove()
        raise AssertionError("the model does not run its blocks one after another")


def cache_argument(model: torch.nn.Module) -> str:
    """The argument of a model that takes the cache of earlier tokens, which transformers 5.24 renamed."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
