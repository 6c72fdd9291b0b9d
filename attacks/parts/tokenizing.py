"""A decoder's tokenizer: trained on the attacker's texts, read back from artifacts, and what it makes of texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    """The tokenizer that ``prepare`` wrote."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(artifacts / "decoder", trust_remote_code=False)


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, uncut and without special tokens."""
    # A text that contains "<eos>" holds five characters, not the end of a text.
    options = {"add_special_tokens": False, "split_special_tokens": True}
    ids: list[list[int]] = tokenizer(list(texts), **options)["input_ids"] if len(texts) else []
    return ids


def label_ids(rows: Sequence[Sequence[int]], end: int, longest: int) -> list[list[int]]:
    """Token ids of each text and the ``end`` token, cut to the ``longest`` that decoding can write."""
    return [[*row, end][:longest] for row in rows]
