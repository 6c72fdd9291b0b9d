"""Log probabilities of texts under a causal language model, for their perplexity.

    model = PerplexityModel("gpt2-large")                 # a hub name or a folder, fine-tuned or not
    model.likelihoods(["i love my two dogs"])           # [Likelihood(log_probability=-28.1, tokens=5)]

The model's start token precedes each text, so that the first token counts too; a model without one uses its end token,
as GPT-2 does. With neither, the first token does not count. The end of a text is not scored. A text longer than the
model's window is read in windows that overlap by half: every token counts once and sees at least half a window of the
preceding text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.matmul import use_onednn
from unembed.embedders.base import batches_of, loading, resolve_device
from unembed.metrics.scored import Likelihood

WINDOW = 1024  # tokens, if the model's context is longer
_TOKENS_AT_ONCE = 8192  # on a GPU: each needs a row of logits over the vocabulary


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of text ``place``; its tokens from ``scored`` on are scored."""

    place: int
    ids: list[int]
    scored: int


class PerplexityModel:
    """A causal language model from the hub or a folder, in float32; loaded at the first text.

    Args:
        model: Hub name, or path of a folder with a model and its tokenizer.
        revision: Branch, tag or commit of a hub model.
        window: Tokens that the model reads at once; None uses its context length, at most 1,024.
        device: "auto" is a GPU if there is one.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        window: Annotated[int, Field(ge=2)] | None = None,
        device: str = "auto",
    ) -> None:
        self.model, self.revision, self.window, self.device = model, revision, window, device

    def likelihoods(self, texts: Sequence[str]) -> list[Likelihood]:
        """Log probability of each text; independent of the order of the texts and of repetitions."""
        distinct = sorted(set(texts))
        windows = [window for place, text in enumerate(distinct) for window in self._windows(place, text)]
        parts: list[list[tuple[float, int]]] = [[] for _ in distinct]
        lengths = [len(window.ids) for window in windows]
        for places in batches_of(lengths, self._loaded.model.device, _TOKENS_AT_ONCE):
            batch = [windows[place] for place in places]
            for window, value in zip(batch, self._forward(batch), strict=True):
                parts[window.place].append((value, len(window.ids) - window.scored))
        likelihoods = {
            text: Likelihood(math.fsum(value for value, _ in own), sum(count for _, count in own))
            for text, own in zip(distinct, parts, strict=True)
        }
        return [likelihoods[text] for text in texts]

    def _windows(self, place: int, text: str) -> Iterator[_Window]:
        tokenizer, _, size, start = self._loaded
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if not ids:
            return
        ids = [*start, *ids]
        done = 1  # tokens that are scored already or never will be: the first has no token before it
        for begin in range(0, len(ids), size // 2):
            end = min(begin + size, len(ids))
            if end > done:
                yield _Window(place, ids[begin:end], done - begin)
                done = end

    @torch.inference_mode()
    def _forward(self, batch: Sequence[_Window]) -> list[float]:
        """Summed log probability of the scored tokens of each window."""
        model = self._loaded.model
        longest = max(len(window.ids) for window in batch)
        # Padding is on the right, where no scored token attends to it, so any id will do.
        ids = torch.tensor([window.ids + [0] * (longest - len(window.ids)) for window in batch])
        place = torch.arange(1, longest)
        first, length = torch.tensor([[window.scored, len(window.ids)] for window in batch]).T
        counts = (place >= first[:, None]) & (place < length[:, None])
        logits: Tensor = model(input_ids=ids.to(model.device)).logits[:, :-1]
        chosen = logits.gather(2, ids[:, 1:, None].to(logits.device)).squeeze(2)
        log_probabilities = (chosen.double() - logits.logsumexp(dim=2).double()).cpu()
        return [float(value) for value in (log_probabilities * counts).sum(dim=1)]

    @cached_property
    def _loaded(self) -> _Loaded:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        with loading(
            f"scoring.language_model.model={self.model}: no causal language model that can be loaded: neither a folder "
            "with a model and its tokenizer, nor in the hub's cache on this machine, nor on the hub, or the hub cannot "
            "be reached"
        ):
            ours: dict[str, Any] = {"revision": self.revision, "trust_remote_code": False}  # else it asks on stdin
            config = AutoConfig.from_pretrained(self.model, **ours)
            tokenizer = AutoTokenizer.from_pretrained(self.model, **ours)
            model = AutoModelForCausalLM.from_pretrained(self.model, config=config, dtype=torch.float32, **ours)
        room = int(getattr(config, "max_position_embeddings", 0) or WINDOW)
        if self.window is not None and self.window > room:
            raise InputError(f"scoring.language_model.window={self.window}: {self.model} has room for {room} tokens")
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        model = model.eval().requires_grad_(False).to(resolve_device(self.device))
        use_onednn(model)
        return _Loaded(tokenizer, model, self.window or min(WINDOW, room), [] if start is None else [start])


class _Loaded(NamedTuple):
    tokenizer: Any
    model: Any
    window: int
    start: list[int]
