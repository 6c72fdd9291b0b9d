"""Models with random weights in folders like those of the hub, small enough to be built in a moment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from support.letters import TEXTS

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


def pretrained_model(
    folder: Path, kind: str = "gpt2", texts: Sequence[str] = TEXTS, *, seed: int = 1, width: int = 32
) -> str:
    """Write a model of random weights and its own byte-level BPE, as a folder of the hub holds them.

    Args:
        folder: Made here; returned as ``backbone.name`` takes it.
        kind: gpt2, opt, llama, t5, mt5, or t5-own-head, whose head is not tied to the embeddings.
        texts: That the tokenizer is trained on.
        seed: Of the weights.
        width: Of the hidden layers of a gpt2.
    """
    import transformers

    from unembed.attacks.parts.backbones import train_tokenizer

    torch.manual_seed(seed)
    tokenizer = train_tokenizer(texts, 300)
    ids = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    causal = {"bos_token_id": tokenizer.eos_token_id, **ids}
    hidden = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 48}
    model: Any
    match kind:
        case "gpt2":
            config = transformers.GPT2Config(n_positions=48, n_embd=width, n_layer=2, n_head=2, **causal)
            model = transformers.GPT2LMHeadModel(config)
        case "opt":
            shape = {"word_embed_proj_dim": 16, "ffn_dim": 64, "do_layer_norm_before": False}
            model = transformers.OPTForCausalLM(transformers.OPTConfig(**shape, **hidden, **causal))
        case "llama":
            shape = {"intermediate_size": 48, "num_key_value_heads": 1}
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **hidden, **causal))
        case "mt5":
            shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
            model = transformers.MT5ForConditionalGeneration(
                transformers.MT5Config(**shape, decoder_start_token_id=0, **ids)
            )
        case _:
            shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
            model = transformers.T5ForConditionalGeneration(
                transformers.T5Config(**shape, decoder_start_token_id=0, **ids)
            )
    if kind == "t5-own-head":  # as T5 1.1 and t5-base-lm-adapt: transformers 5 would tie it wherever it builds one
        model.lm_head.weight = torch.nn.Parameter(torch.randn(len(tokenizer), 32) / 6)
        model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def t5_model(vocabulary: int = 40, *, seed: int = 0, multilingual: bool = False, **changes: Any) -> Any:
    """A T5 (or mT5) of random weights, in evaluation mode; id 0 pads and starts a text, id 1 ends it.

    Args:
        vocabulary: Number of tokens.
        seed: Of the weights.
        multilingual: Take an mT5.
        changes: Of its configuration.
    """
    from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    usual = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0,
             "pad_token_id": 0, "eos_token_id": 1}  # fmt: skip
    given = {**usual, "vocab_size": vocabulary, **changes}
    if multilingual:
        return MT5ForConditionalGeneration(MT5Config(**given)).eval()
    return T5ForConditionalGeneration(T5Config(**given)).eval()


def tiny_sentence_encoder(folder: Path) -> Path:
    """Write a BERT of random weights with a WordPiece tokenizer of 24 tokens, in lower case.

    Args:
        folder: Made here.
    """
    from transformers import BertConfig, BertModel, BertTokenizerFast

    special = "[PAD] [UNK] [CLS] [SEP] [MASK] [unused0]"
    tokens = f"{special} a ada has dog dogs cat feed we bites zor ##bal ##s . ! bird red i ,"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens.split()))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # Under the usual .02 all texts have nearly the same vector.
        config = BertConfig(vocab_size=len(tokens.split()), initializer_range=0.2, max_position_embeddings=32, **shape)
        BertModel(config).save_pretrained(folder)
    return folder
