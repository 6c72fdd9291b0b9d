"""A causal language model as an embedder: maps a text, or token ids, to an observation of its output or its inside.

    model = LanguageModelEmbedder("gpt2", output_tokens=3, top_k=10)
    rows = model.embed(["My name is", written_ids([3666, 1438, 318])])     # (2, 60) float32, as the cache stores them
    seen = model.observation.parse(rows)         # seen.logits (2, 3, 10), seen.places (2, 3, 10), seen.ids (2, 3)
    model.observation.agrees(seen, candidate_logits)                # (2,) bool: could the candidate be the input?
    model.relaxed(vectors, continuation, keep=1)                    # (B, 1, 50257), differentiable: white box

    model = LanguageModelEmbedder("gpt2", observe="hidden_state", layer=6, max_tokens=32)
    states, lengths = model.layout.parse(model.embed(["My name is"]))       # (1, 32, 768), (1,)

A row, for m output tokens of a vocabulary of V, and T = max_tokens:

    observe=logits          m x V: the logits of each output token
    ... with top_k          m x k logits, highest first, then m x k token ids
    observe=words           m token ids
    observe=hidden_state    T x d: the state of each position (embedders/hidden_states.py), or d of the last one
    observe=kv              T x d: keys, values or both that one block caches of each position

Ids are stored as float32, which is exact below 2**24. The output is greedy: its ids are the argmax of the logits. It
always has m tokens, even after an end-of-text token. No special tokens are added to an input. Everything is computed in
float32, as the exact check of a candidate requires. White-box attacks access the model through
``CachedEmbedder.embedder``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import read_ids
from unembed.core.matmul import use_onednn
from unembed.embedders.base import fingerprint_of, loading, resolve_device
from unembed.embedders.hidden_states import Blocks, Cached, Precision, StateLayout, cache_argument
from unembed.embedders.model_files import ModelFiles, locate
from unembed.embedders.outputs import Observation

Observe = Literal["logits", "words", "hidden_state", "kv"]
_LOGITS_AT_ONCE = 2**24  # of one forward pass: 64 MB
_TOKENS_AT_ONCE = 1024  # of one forward pass to a layer: more are no faster on a CPU
_SAMPLED = 200  # likeliest tokens among which text of its own is sampled
_ROW_TOKENS = 64  # positions of a row of states where no max_tokens is given: a row has as many whatever its text


# Keys of config.json, in the families that transformers knows.
_LAYERS, _WIDTHS = ("num_hidden_layers", "n_layer", "num_layers"), ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads")


class LanguageModelEmbedder:
    """Texts to observations of the greedy output, or of the states of a layer; in eval mode and float32, untrained.

    A white box: attacks read its input embeddings, and backpropagate from ``relaxed`` to relaxed inputs.
    """

    def __init__(
        self,
        model: str,
        output_tokens: PositiveInt = 1,
        top_k: PositiveInt | None = None,
        observe: Observe = "logits",
        layer: NonNegativeInt | None = None,
        positions: Literal["all", "last"] = "all",
        cached: Cached = "both",
        precision: Precision = "float32",
        revision: str | None = None,
        max_tokens: PositiveInt | None = None,
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        """The arguments are those of configs/embedder/language_model.yaml; the model is loaded on first use."""
        self.name, self._revision, self._device, self._trust_remote_code = model, revision, device, trust_remote_code
        self._output_tokens, self._top_k, self._max_tokens = output_tokens, top_k, max_tokens
        self.observes, self._layer, self._positions = observe, layer, positions
        self._cached, self._precision = cached, precision

    @cached_property
    def observation(self) -> Observation:
        """The layout of a row of logits or words; InputError if the states of a layer are observed."""
        if self.sees_states:
            raise InputError(
                f"embedder.observe={self.observes}: logits or words are read here; take embedder.observe=logits"
            )
        vocabulary = self.vocabulary
        if self._top_k is not None and self._top_k > vocabulary:
            raise InputError(
                f"embedder.top_k={self._top_k}: {self.name} has {vocabulary} logits; null takes all of them"
            )
        return Observation(vocabulary, self._output_tokens, 0 if self.observes == "words" else self._top_k)

    @cached_property
    def layout(self) -> StateLayout:
        """The layout of a row of states; InputError if the output is observed."""
        if not self.sees_states:
            raise InputError(
                f"embedder.observe={self.observes}: the states of a layer are read here; take "
                "embedder.observe=hidden_state, or kv"
            )
        config = self._files.read_json("config.json")
        layers, width, heads = (
            int(next((config[name] for name in names if name in config), 0)) for names in (_LAYERS, _WIDTHS, _HEADS)
        )
        layer = layers if self._layer is None else self._layer
        first = 1 if self.observes == "kv" else 0
        if not first <= layer <= layers:
            what = "blocks that cache keys and values" if first else "layers, 0 the input embedding"
            raise InputError(f"embedder.layer={layer}: {self.name} has {first} to {layers} ({what})")
        last = self._positions == "last"
        cached = self._cached if self.observes == "kv" else None
        if cached is not None:
            of_head = int(config.get("head_dim") or width // heads)
            width = int(config.get("num_key_value_heads") or heads) * of_head * (2 if cached == "both" else 1)
        return StateLayout(layer, width, 1 if last else self.max_tokens, self._precision, cached, last)

    @property
    def sees_states(self) -> bool:
        """Whether the states of a layer are observed, and not the output."""
        return self.observes in ("hidden_state", "kv")

    @cached_property
    def blocks(self) -> Blocks:
        """The input embedding and the blocks up to the observed layer."""
        return Blocks(self._model, self.layout.layer)

    @cached_property
    def vocabulary(self) -> int:
        """Number of logits of an output token."""
        vocabulary = self._files.read_json("config.json").get("vocab_size")
        if not isinstance(vocabulary, int):
            raise InputError(f"embedder.model={self.name}: its config.json names no vocab_size: no language model?")
        return vocabulary

    @property
    def dimension(self) -> int:
        return self.layout.dimension if self.sees_states else self.observation.dimension

    @cached_property
    def max_tokens(self) -> int:
        """Tokens of the longest input; an output takes positions too."""
        config = self._files.read_json("config.json")
        positions = next(
            (int(config[name]) for name in ("max_position_embeddings", "n_positions") if name in config), 0
        )
        if self.sees_states:
            return min(positions or _ROW_TOKENS, self._max_tokens or _ROW_TOKENS)
        room = (positions or 1024) - self._output_tokens + 1
        if room < 1:
            raise InputError(
                f"embedder.output_tokens={self._output_tokens}: {self.name} has {positions} positions for input and "
                "output together"
            )
        return min(room, self._max_tokens or room)

    @cached_property
    def fingerprint(self) -> str:
        if self.sees_states:
            layout = self.layout
            return fingerprint_of(kind="language_model_states", model=self._files.identity, **asdict(layout))
        return fingerprint_of(
            kind="language_model",
            model=self._files.identity,
            observe=self.observes,
            output_tokens=self._output_tokens,
            top_k=self._top_k,
            max_tokens=self.max_tokens,
        )

    @cached_property
    def inputs(self) -> int:
        """Number of possible token ids: the tokenizer's, since embedding matrices may be padded."""
        return len(self._tokenizer)

    @cached_property
    def input_vectors(self) -> Tensor:
        """The input embedding of each token id, (inputs, hidden)."""
        weight: Tensor = self._model.get_input_embeddings().weight
        return weight.detach()[: self.inputs]

    @cached_property
    def output_vectors(self) -> Tensor:
        """The rows (V, hidden) whose products with the last hidden state are the logits.

        Raises:
            InputError: The logits have a bias, or are changed after the product.
        """
        head, config = self._model.get_output_embeddings(), self._model.config
        if head.bias is not None or getattr(config, "final_logit_softcapping", None):
            raise InputError(
                f"embedder.model={self.name}: its logits are not products of one matrix with the last hidden state, "
                "which embedder=log_ratios needs; take embedder=language_model"
            )
        weight: Tensor = head.weight
        return weight.detach()

    @property
    def device(self) -> torch.device:
        """The model's device."""
        device: torch.device = self._model.device
        return device

    def ids(self, text: str) -> list[int]:
        """The token ids of a text, truncated to ``max_tokens``, or the ids given by ``written_ids``.

        An empty text becomes the start token, or the end token.
        """
        written = read_ids(text)
        if written is None:
            tokenizer = self._tokenizer
            found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"][: self.max_tokens]
            empty = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
            return found or [empty or 0]
        if len(written) > self.max_tokens:
            raise InputError(
                f"an input of {len(written)} tokens: {self.name} has positions for {self.max_tokens} beside "
                f"{self._output_tokens} of output"
            )
        if max(written) >= self.vocabulary:
            raise InputError(
                f"token id {max(written)}: {self.name} has {self.vocabulary}; were the ids made with the "
                "tokenizer of another model?"
            )
        return written

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, including special tokens."""
        decoded: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return decoded

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Observations of ``texts``, (n, d) float32 on the CPU; inputs of equal length are batched."""
        rows = torch.empty(len(texts), self.dimension)
        for places, ids in self.batches(texts):
            rows[places] = self.observe(ids).cpu()
        return rows

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Tensor]]:
        """Places of texts of equal length, as many as are run at once, and their ids (B, n) int64."""
        _ = self._loaded  # report a tokenizer that does not fit the model before wrong ids
        by_length: dict[int, list[int]] = {}
        inputs = [self.ids(text) for text in texts]
        for place, ids in enumerate(inputs):
            by_length.setdefault(len(ids), []).append(place)
        together = max(1, _LOGITS_AT_ONCE // (self.vocabulary * self._output_tokens))
        for length, places in by_length.items():
            if self.sees_states:
                together = max(1, _TOKENS_AT_ONCE // length)
            for begin in range(0, len(places), together):
                chosen = places[begin : begin + together]
                yield chosen, torch.tensor([inputs[place] for place in chosen])

    @torch.no_grad()
    def observe(self, ids: Tensor) -> Tensor:
        """Observations of inputs of equal length, (B, n) int64 -> (B, d)."""
        if self.sees_states:
            return self.layout.pack(self.blocks.run(ids.to(self.device)).observed(self.layout.cached))
        model, logits, past, name = self._model, [], None, cache_argument(self._model)
        step = ids.to(self.device)
        for _ in range(self._output_tokens):
            cache = {name: past, "use_cache": self._output_tokens > 1}
            output = model(input_ids=step, logits_to_keep=1, **cache)
            logits.append(output.logits[:, -1].float())
            step, past = logits[-1].argmax(dim=-1, keepdim=True), getattr(output, name)
        return self.observation.pack(torch.stack(logits, dim=1))

    @torch.no_grad()
    def written(self, texts: int, tokens: int, seed: int = 0) -> Tensor:
        """Text of the model's own, sampled from its start token, (texts, tokens) int64."""
        generator = torch.Generator().manual_seed(seed)
        model, name = self._model, cache_argument(self._model)
        start = self._tokenizer.bos_token_id
        step = torch.full((texts, 1), self._tokenizer.eos_token_id or 0 if start is None else start)
        past, found = None, []
        for _ in range(tokens):
            output = model(input_ids=step.to(self.device), logits_to_keep=1, use_cache=True, **{name: past})
            likeliest = output.logits[:, -1, : self.inputs].float().cpu().topk(min(_SAMPLED, self.inputs))
            sampled = torch.multinomial(likeliest.values.softmax(dim=-1), 1, generator=generator)
            step, past = likeliest.indices.gather(1, sampled), getattr(output, name)
            found.append(step)
        return torch.cat(found, dim=1)

    @torch.no_grad()
    def logits(self, ids: Tensor, continuation: Tensor) -> Tensor:
        """Logits (B, m, V) of the m tokens after candidates (B, n), given the output ``continuation`` (B, m - 1)."""
        whole = torch.cat([ids, continuation], dim=1)
        return self._forward(self._model.get_input_embeddings()(whole), continuation.shape[1] + 1)

    def relaxed(self, vectors: Tensor, continuation: Tensor, keep: int) -> Tensor:
        """Logits (B, keep, V) of the last ``keep`` positions; differentiable with respect to ``vectors``.

        Args:
            vectors: (B, n, hidden): ``P @ input_vectors`` for distributions P (B, n, inputs) over tokens.
            continuation: (B, m - 1) output ids that follow the inputs.
            keep: Positions, at most n + m - 1; the last m predict the output.
        """
        if continuation.shape[1]:
            following = self._model.get_input_embeddings()(continuation)
            vectors = torch.cat([vectors, following], dim=1)
        return self._forward(vectors, keep)

    def _forward(self, vectors: Tensor, keep: int) -> Tensor:
        output: Tensor = self._model(inputs_embeds=vectors, use_cache=False, logits_to_keep=keep).logits
        return output.float()

    @cached_property
    def _files(self) -> ModelFiles:
        return locate(self.name, self._revision)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        # Attacks backpropagate through the model, so it must not consist of inference tensors.
        with torch.inference_mode(False):
            return _load(self.name, self._files, self._device, self._trust_remote_code)

    @property
    def _tokenizer(self) -> Any:
        return self._loaded[0]

    @property
    def _model(self) -> Any:
        return self._loaded[1]


def _load(name: str, files: ModelFiles, device: str, trust_remote_code: bool) -> tuple[Any, Any]:
    """The tokenizer, and the model in float32 and eval mode; an InputError if they are no causal language model."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = files.with_weights()
    options = {"trust_remote_code": trust_remote_code}
    with loading(f"embedder.model={name} is no causal language model"):
        if AutoConfig.from_pretrained(folder, **options).is_encoder_decoder:
            raise ValueError("it is an encoder-decoder")
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, **options
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(
            f"embedder.model={name} is no causal language model: {folder} holds no weights for {missing[0]}"
            f"{f' and {len(missing) - 1} others' if missing[1:] else ''}"
        )
    model = model.eval().requires_grad_(False).to(resolve_device(device))
    use_onednn(model)
    _check_causal(name, model)
    with loading(f"embedder.model={name}: {folder} holds no tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers builds such a tokenizer if no file exists
        raise InputError(f"embedder.model={name}: {folder} holds no tokenizer that could cut a text")
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise InputError(
            f"embedder.model={name}: its tokenizer has {len(tokenizer)} ids and the model {known}: they do "
            "not belong together"
        )
    return tokenizer, model


@torch.no_grad()
def _check_causal(name: str, model: Any) -> None:
    probe = torch.arange(4, device=model.device)[None]
    whole, begun = model(input_ids=probe).logits, model(input_ids=probe[:, :1]).logits
    if not torch.allclose(whole[:, :1], begun, atol=1e-3, rtol=1e-3):
        raise InputError(
            f"embedder.model={name} is no causal language model: its logits after the first token depend "
            "on the tokens to the right"
        )
