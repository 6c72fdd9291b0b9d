"""A causal language model as a black box: from a text, or the ids of its tokens, to what is seen of its output.

    model = LanguageModelEmbedder("gpt2", output_tokens=1)
    model.embed(["My name is", written_ids([3666, 1438, 318])])     # (2, 50257): the logits of the next token
    model.relaxed(vectors, continuation, keep=1)                    # (B, 1, 50257), differentiable: white box

Nothing is put before or after an input's tokens. Everything is computed in float32: an exact check of a candidate
needs it. Attacks that hold the model itself reach it by ``CachedEmbedder.embedder``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from embedders.base import fingerprint_of
from embedders.causal_model import CausalModel, load
from embedders.model_files import ModelFiles, locate
from embedders.observation import Observation
from errors import InputError
from examples import read_ids

_LOGITS_AT_ONCE = 2**24  # of one forward pass: 64 MB


class LanguageModelEmbedder:
    """Texts to observations of the greedy output; always in eval mode, in float32, without gradients of its weights."""

    def __init__(
        self,
        model: str,
        output_tokens: PositiveInt = 1,
        top_k: NonNegativeInt | None = None,
        revision: str | None = None,
        max_tokens: PositiveInt | None = None,
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        """Nothing is looked for or loaded before it is needed.

        Args:
            model: Path of a folder, or name on the Hugging Face hub.
            output_tokens: Tokens that the model writes, m.
            top_k: Logits seen of each of them; null: all, 0: none, but the text alone.
            max_tokens: Texts are cut after so many tokens; null: as many as the model has positions for.
            revision, device, trust_remote_code: As of ``TransformerEmbedder``.
        """
        self.name, self._revision, self._device, self._trust_remote_code = model, revision, device, trust_remote_code
        self._output_tokens, self._top_k, self._max_tokens = output_tokens, top_k, max_tokens

    @cached_property
    def observation(self) -> Observation:
        """What a row holds.

        Raises:
            InputError: More logits are asked for than there are.
        """
        vocabulary = self._files.read_json("config.json").get("vocab_size")
        if not isinstance(vocabulary, int):
            raise InputError(f"embedder.model={self.name}: its config.json names no vocab_size: no language model?")
        if self._top_k is not None and self._top_k > vocabulary:
            raise InputError(
                f"embedder.top_k={self._top_k}: {self.name} has {vocabulary} logits; null takes all of them"
            )
        return Observation(vocabulary, self._output_tokens, self._top_k)

    @property
    def dimension(self) -> int:
        return self.observation.dimension

    @cached_property
    def max_tokens(self) -> int:
        """Tokens of the longest input: the output needs positions too.

        Raises:
            InputError: The output alone takes all positions.
        """
        config = self._files.read_json("config.json")
        positions = next(
            (int(config[name]) for name in ("max_position_embeddings", "n_positions") if name in config), 0
        )
        room = (positions or 1024) - self._output_tokens + 1
        if room < 1:
            raise InputError(
                f"embedder.output_tokens={self._output_tokens}: {self.name} has {positions} positions for input and "
                "output together"
            )
        return min(room, self._max_tokens or room)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(
            kind="language_model",
            model=self._files.identity,
            output_tokens=self._output_tokens,
            top_k=self._top_k,
            max_tokens=self.max_tokens,
        )

    @cached_property
    def inputs(self) -> int:
        """Ids that an input may have: those of the tokenizer; a model's matrices are often padded beyond."""
        return len(self._loaded.tokenizer)

    @cached_property
    def input_vectors(self) -> Tensor:
        """The vector that each input id stands for, (inputs, hidden)."""
        weight: Tensor = self._loaded.model.get_input_embeddings().weight
        return weight.detach()[: self.inputs]

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        device: torch.device = self._loaded.model.device
        return device

    def ids(self, text: str) -> list[int]:
        """The input of a text: its tokens, cut to ``max_tokens``, or the ids that it writes out.

        An empty text is the token that begins a text, or ends one.

        Raises:
            InputError: Written ids that the model does not have, or more of them than it has positions for.
        """
        written = read_ids(text)
        if written is None:
            tokenizer = self._loaded.tokenizer
            found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"][: self.max_tokens]
            empty = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
            return found or [empty or 0]
        if len(written) > self.max_tokens:
            raise InputError(
                f"an input of {len(written)} tokens: {self.name} has positions for {self.max_tokens} beside "
                f"{self._output_tokens} of output"
            )
        if max(written) >= self.observation.vocabulary:
            raise InputError(
                f"token id {max(written)}: {self.name} has {self.observation.vocabulary}; were the ids made with the "
                "tokenizer of another model?"
            )
        return written

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown."""
        decoded: str = self._loaded.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return decoded

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Observations of ``texts``, (n, d) float32 on the CPU; inputs of one length run together.

        Raises:
            InputError: The model cannot be found or loaded; see ``ids``.
        """
        rows = torch.empty(len(texts), self.dimension)
        _ = self._loaded  # that its tokenizer is another's is said before what is wrong with that one's ids
        by_length: dict[int, list[int]] = {}
        inputs = [self.ids(text) for text in texts]
        for place, ids in enumerate(inputs):
            by_length.setdefault(len(ids), []).append(place)
        together = max(1, _LOGITS_AT_ONCE // (self.observation.vocabulary * self._output_tokens))
        for places in by_length.values():
            for begin in range(0, len(places), together):
                chosen = places[begin : begin + together]
                rows[chosen] = self.observe(torch.tensor([inputs[place] for place in chosen])).cpu()
        return rows

    @torch.no_grad()
    def observe(self, ids: Tensor) -> Tensor:
        """Observations of inputs of one length, (B, n) int64 -> (B, d)."""
        model, logits, past = self._loaded.model, [], None
        step = ids.to(self.device)
        for _ in range(self._output_tokens):
            output = model(input_ids=step, past_key_values=past, use_cache=self._output_tokens > 1, logits_to_keep=1)
            logits.append(output.logits[:, -1].float())
            step, past = logits[-1].argmax(dim=-1, keepdim=True), output.past_key_values
        return self.observation.pack(torch.stack(logits, dim=1))

    @torch.no_grad()
    def logits(self, ids: Tensor, continuation: Tensor) -> Tensor:
        """Logits (B, m, V) with which candidates (B, n) and then ``continuation`` (B, m - 1) are followed."""
        whole = torch.cat([ids, continuation], dim=1)
        return self._forward(self._loaded.model.get_input_embeddings()(whole), continuation.shape[1] + 1)

    def relaxed(self, vectors: Tensor, continuation: Tensor, keep: int) -> Tensor:
        """Logits of the last ``keep`` places after relaxed inputs; gradients reach ``vectors``.

        Args:
            vectors: (B, n, hidden): ``P @ input_vectors`` for distributions P (B, n, inputs) over tokens.
            continuation: (B, m - 1) output ids that follow; m = 1: none.
            keep: Places, at most n + m - 1; the last m say the output.

        Returns:
            (B, keep, V).
        """
        if continuation.shape[1]:
            following = self._loaded.model.get_input_embeddings()(continuation)
            vectors = torch.cat([vectors, following], dim=1)
        return self._forward(vectors, keep)

    def _forward(self, vectors: Tensor, keep: int) -> Tensor:
        output: Tensor = self._loaded.model(inputs_embeds=vectors, use_cache=False, logits_to_keep=keep).logits
        return output.float()

    @cached_property
    def _files(self) -> ModelFiles:
        return locate(self.name, self._revision)

    @cached_property
    def _loaded(self) -> CausalModel:
        # Not as inference tensors, wherever the first use is: attacks take gradients through the model.
        with torch.inference_mode(False):
            return load(self.name, self._files, self._device, self._trust_remote_code)
