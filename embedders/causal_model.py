"""Load a causal language model and its tokenizer, and check that they fit together.

loaded = load("gpt2", locate("gpt2", None), device="auto")
loaded.model(input_ids=torch.tensor([loaded.tokenizer("My name is")["input_ids"]])).logits
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from unembed.core.errors import InputError
from unembed.embedders.base import resolve_device
from unembed.embedders.loading import loading
from unembed.embedders.model_files import ModelFiles

_PROBES = 4  # ids that show whether a model reads to the right


class CausalModel(NamedTuple):
    """A loaded model with its tokenizer."""

    tokenizer: Any
    model: Any


def load(name: str, files: ModelFiles, device: str, trust_remote_code: bool = False) -> CausalModel:
    """The model in float32 and eval mode, without gradients of its weights.

    Args:
        name: ``embedder.model``, for messages.
        files: The model's files.
        device: "auto" is a GPU if there is one.
        trust_remote_code: Whether the model may run code from its repository.

    Raises:
        InputError: The model is not a causal language model, weights or the tokenizer are missing, or the tokenizer
            has more ids than the model.
    """
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
    return CausalModel(tokenizer, model)


@torch.no_grad()
def _check_causal(name: str, model: Any) -> None:
    probe = torch.arange(_PROBES, device=model.device)[None]
    whole, begun = model(input_ids=probe).logits, model(input_ids=probe[:, :1]).logits
    if not torch.allclose(whole[:, :1], begun, atol=1e-3, rtol=1e-3):
        raise InputError(
            f"embedder.model={name} is no causal language model: its logits after the first token depend "
            "on the tokens to the right"
        )
