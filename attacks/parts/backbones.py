"""Sources of a decoder's model and tokenizer: random weights with a trained tokenizer, or a hub model.

backbone.prepare(texts, artifacts, positions=65)     # writes artifacts/decoder: tokenizer and config.json
model = backbone.model(artifacts, weights=True)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import torch
from lightning.pytorch.utilities import rank_zero_info
from pydantic import Field, PositiveInt

from unembed.core.atomic_files import replacing
from unembed.core.errors import InputError

Dropout = Annotated[float, Field(ge=0, lt=1)]
OWN_HEAD = "unembed_own_head"  # in a kept configuration: the output embedding is not the input embedding


class Backbone(Protocol):
    """Makes a transformers model with a language-modelling head, and its tokenizer."""

    def prepare(self, texts: Sequence[str], artifacts: Path, positions: int) -> None:
        """Write ``artifacts/decoder``: tokenizer (trained on ``texts`` where it is our own) and the model's config."""
        ...

    def model(self, artifacts: Path, *, weights: bool) -> Any:
        """The model; ``weights=False`` gives its architecture only, to load a checkpoint into."""
        ...


@dataclass
class RandomGPT2:
    """A small GPT-2 from random weights with a byte-level BPE trained on the training texts. Works offline."""

    layers: PositiveInt = 3
    width: PositiveInt = 192
    heads: PositiveInt = 3
    vocabulary: Annotated[int, Field(ge=258)] = 4096
    dropout: Dropout = 0.0

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)

    def prepare(self, texts: Sequence[str], artifacts: Path, positions: int) -> None:
        from transformers import GPT2Config

        tokenizer = train_tokenizer(texts, self.vocabulary)
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=positions,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            activation_function="gelu_pytorch_tanh",  # the same function as "gelu_new", in one kernel
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        _save(artifacts, tokenizer, config)

    def model(self, artifacts: Path, *, weights: bool) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_config(_config(artifacts), dtype=torch.float32, attn_implementation="eager")


@dataclass
class RandomT5:
    """A small T5 (gated GELU as in version 1.1, one embedding) from random weights, with its own byte-level BPE."""

    encoder_layers: PositiveInt = 2
    decoder_layers: PositiveInt = 3
    width: PositiveInt = 192
    heads: PositiveInt = 3
    vocabulary: Annotated[int, Field(ge=258)] = 4096
    dropout: Dropout = 0.0

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)

    def prepare(self, texts: Sequence[str], artifacts: Path, positions: int) -> None:
        """See :class:`Backbone`; T5 has relative positions, so any number of them fits."""
        tokenizer = self.tokenizer(texts)
        config = self.architecture()(
            vocab_size=len(tokenizer),
            d_model=self.width,
            d_kv=self.width // self.heads,
            d_ff=self.width * 8 // 3,
            num_layers=self.encoder_layers,
            num_decoder_layers=self.decoder_layers,
            num_heads=self.heads,
            dropout_rate=self.dropout,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
        )
        _save(artifacts, tokenizer, config)

    def tokenizer(self, texts: Sequence[str]) -> Any:
        return train_tokenizer(texts, self.vocabulary)

    def architecture(self) -> Any:
        from transformers import T5Config

        return T5Config

    def model(self, artifacts: Path, *, weights: bool) -> Any:
        from transformers import AutoModelForSeq2SeqLM

        model = AutoModelForSeq2SeqLM.from_config(_config(artifacts), dtype=torch.float32, attn_implementation="eager")
        # transformers 5 ties T5's input and output embeddings and initialises them with std 1: with vectors of norm
        # sqrt(width) after the decoder's last norm, the initial loss would be about 78 instead of 7.
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=self.width**-0.5)
        return model


@dataclass
class Pretrained:
    """A model of the hub or of a local directory, with its own tokenizer.

    ``dtype`` is of frozen weights, as adapters leave them. Weights that are trained are float32 always: in bfloat16,
    AdamW's second moment cannot decay (.999 v is rounded to v), and small steps are lost.
    """

    name: str
    architecture: Literal["causal", "encoder_decoder"] = "causal"
    revision: str | None = None
    random_weights: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    trust_remote_code: bool = False

    def prepare(self, texts: Sequence[str], artifacts: Path, positions: int) -> None:
        from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig

        arguments = {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        with self._located():
            tokenizer = AutoTokenizer.from_pretrained(self.name, **arguments)
            config = AutoConfig.from_pretrained(self.name, **arguments)
            written, _ = PreTrainedConfig.get_config_dict(self.name, revision=self.revision)
        check_positions(config, positions)
        if tokenizer.eos_token_id is None:
            raise InputError(f"attack.backbone.name={self.name}: its tokenizer has no end-of-text token to train on")
        # transformers 5 reads T5's configurations as if every head were tied, and ties it wherever it builds the model
        # without weights: what the file says is kept beside it.
        setattr(
            config, OWN_HEAD, self.architecture == "encoder_decoder" and written.get("tie_word_embeddings") is False
        )
        _save(artifacts, tokenizer, config)

    def model(self, artifacts: Path, *, weights: bool) -> Any:
        """See :class:`Backbone`. A model read from a checkpoint comes in eval mode: training needs ``train()``."""
        if weights and self.dtype != "float32":
            rank_zero_info(
                f"attack.backbone.dtype={self.dtype}: of frozen weights only, and here all are trained: they are "
                "float32, and trainer.precision=bf16-mixed multiplies them in bfloat16"
            )
        if self.random_weights or not weights:
            config = _config(artifacts)
            model = self._loader().from_config(config, **self._options(torch.float32))
        else:
            config, model = _config(artifacts), self.pretrained(dtype=torch.float32)
        return untied(model) if getattr(config, OWN_HEAD, False) else model

    def pretrained(self, **options: Any) -> Any:
        """The model with its published weights, in train mode; ``options`` are those of ``from_pretrained``."""
        from transformers.utils.logging import set_tqdm_hook

        # No bar while weights are read from the disk; downloads keep theirs.
        before = set_tqdm_hook(lambda factory, given, named: factory(*given, **{**named, "disable": True}))
        try:
            with self._located():
                return self._loader().from_pretrained(
                    self.name, revision=self.revision, **{**self._options(), **options}
                ).train()  # fmt: skip
        finally:
            set_tqdm_hook(before)

    def skeleton(self) -> Any:
        """The model on the meta device: names and shapes of its parts, no memory for weights."""
        from transformers import AutoConfig

        with self._located():
            config = AutoConfig.from_pretrained(
                self.name, revision=self.revision, trust_remote_code=self.trust_remote_code
            )
        with torch.device("meta"):
            return self._loader().from_config(config, **self._options())

    def _loader(self) -> Any:
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        return {"causal": AutoModelForCausalLM, "encoder_decoder": AutoModelForSeq2SeqLM}[self.architecture]

    def _options(self, dtype: torch.dtype | None = None) -> dict[str, Any]:
        own = {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.dtype]
        return {"dtype": dtype or own, "trust_remote_code": self.trust_remote_code}

    @contextmanager
    def _located(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            revision = f" (revision {self.revision})" if self.revision else ""
            raise InputError(
                f"attack.backbone.name={self.name}: no such local directory, and no such model{revision} in the hub's "
                "cache or on the hub. Offline, attack=geia works: it trains a small GPT-2 from random weights."
            ) from error


def check_heads(width: int, heads: int) -> None:
    if width % heads:
        raise ValueError(f"width={width}: must be a multiple of heads={heads}")


def untied(model: Any) -> Any:
    """The model with an output embedding of its own, at first equal to the input embedding where they were one."""
    if model.lm_head.weight is model.get_input_embeddings().weight:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    return model


def check_positions(config: Any, positions: int) -> None:
    available = getattr(config, "max_position_embeddings", None)  # None: relative positions
    if available is not None and available < positions:
        raise InputError(
            f"attack.decoding.max_new_tokens: the decoder has {available} positions, but prefix and text may take "
            f"{positions}"
        )


def _save(artifacts: Path, tokenizer: Any, config: Any) -> None:
    with replacing(artifacts / "decoder") as folder:
        tokenizer.save_pretrained(folder)
        config.save_pretrained(folder)


def _config(artifacts: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(artifacts / "decoder", trust_remote_code=False)


PAD, EOS = "<pad>", "<eos>"


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """A byte-level BPE over ``texts`` of at most ``vocabulary`` entries: any text can be written with it, and read back
    character for character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def load_tokenizer(artifacts: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(artifacts / "decoder", trust_remote_code=False)


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, uncut and without special tokens."""
    # A text that contains "<eos>" holds five characters, not the end of a text.
    options = {"add_special_tokens": False, "split_special_tokens": True}
    ids: list[list[int]] = tokenizer(list(texts), **options)["input_ids"] if len(texts) else []
    return ids


def decoded_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of token ids, special tokens and outer white space removed."""
    decoded: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return decoded.strip()


def label_ids(rows: Sequence[Sequence[int]], end: int, longest: int) -> list[list[int]]:
    """Token ids of each text and the ``end`` token, cut to the ``longest`` that decoding can write."""
    return [[*row, end][:longest] for row in rows]
