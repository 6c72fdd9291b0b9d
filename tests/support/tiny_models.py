"""A causal language model small enough to try all of its inputs, for tests of attacks on language models."""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = 59
VOCABULARY = WORDS + 1
POSITIONS = 16


def tiny_language_model(folder: Path, *, words: int = WORDS, causal: bool = True) -> Path:
    """Write a GPT-2 of random weights with a tokenizer of whole words: id 0 is <unk>, id 8 is "w7".

    Args:
        folder: Made here.
        words: Of the tokenizer; the model has 60 ids.
        causal: False writes a BERT that reads to both sides.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        PreTrainedModel,
        PreTrainedTokenizerFast,
    )

    vocabulary = {"<unk>": 0, **{f"w{number}": number + 1 for number in range(words)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    model: PreTrainedModel
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if causal:
            # Under the usual .02 the first tokens are nearly invisible in the logits.
            shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS}
            special = {"bos_token_id": 0, "eos_token_id": 0}
            model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, initializer_range=0.1, **shape, **special))
        else:
            sides = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
            model = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, hidden_size=32, **sides))
        model.save_pretrained(folder)
    return folder
