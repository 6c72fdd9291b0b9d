"""A corrector of ours, with its inverter, as files that the published implementation reads.

    export(Path("exported"), prefix, model, network, tokenizer, length=33)     # then attack.pretrained=exported

Two things differ and are bridged. Our layers see vectors of norm sqrt(d), the published ones see them as they are: for
an embedder of unit vectors, as most are, the factor moves into the weights of each first layer. And transformers 5
keeps apart whether a T5's head is tied and whether its input is scaled; older versions know one switch for both, so a
head that is tied but not scaled, or scaled but not tied, is written out as a matrix of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.vec2text.network import CorrectorNetwork
from unembed.core.atomic_files import write_file, write_json
from unembed.core.errors import InputError

_ARCHITECTURE = (
    "vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "dropout_rate",
    "relative_attention_num_buckets", "relative_attention_max_distance", "layer_norm_epsilon", "feed_forward_proj",
    "pad_token_id", "eos_token_id", "decoder_start_token_id",
)  # fmt: skip


def export(
    folder: Path,
    prefix: Prefix,
    model: Any,
    network: CorrectorNetwork,
    tokenizer: Any,
    *,
    length: int,
    embedder: str = "minilm",
) -> None:
    """Write ``folder/inverter``, ``folder/corrector`` and the language model's configuration, ``folder/t5``.

    Args:
        folder: Made where it is missing.
        prefix: Of the inverter; the vectors must be of norm 1 where it normalises.
        model: The inverter's encoder-decoder, a T5 or mT5.
        network: The corrector, built on the same architecture.
        tokenizer: Of both.
        length: The longest text in tokens as the published implementation counts, start and end token included; it cuts
            what it embeds to as many tokens of the embedder.
        embedder: Name of the embedder in config.json.

    Raises:
        InputError: The inverter's prefix is not the published MLP.
    """
    if prefix.kind != "mlp":
        raise InputError(f"attack.prefix.kind={prefix.kind}: the published inverter's is an MLP (mlp)")
    config, tied = _language_model(model)
    write_json(folder / "t5" / "config.json", config)
    _write_tokenizer(tokenizer, folder / "t5", length)
    _write_weights(folder / "t5", _model_weights(model, "", tied))
    described = {
        "model_name_or_path": str((folder / "t5").resolve()),
        "embedder_model_name": embedder,
        "embedder_model_api": None,
        "embedder_torch_dtype": "float32",
        "max_seq_length": length,
        "embedder_no_grad": True,
        "embedder_fake_with_zeros": False,
        "use_frozen_embeddings_as_input": True,
        "encoder_dropout_disabled": False,
        "decoder_dropout_disabled": False,
        "embeddings_from_layer_n": None,
        "use_lora": False,
        "embedder_gaussian_noise_level": 0.0,
        "corrector_ignore_hypothesis_embedding": not network.layout.feedback,
    }
    own = {"architectures": ["InversionModel"], "num_repeat_tokens": prefix.vectors}
    write_json(folder / "inverter" / "config.json", described | own)
    _write_weights(folder / "inverter", _inverter_weights(prefix, model, tied))
    own = {"architectures": ["CorrectorEncoderModel"], "num_repeat_tokens": network.layout.vectors}
    write_json(folder / "corrector" / "config.json", described | own)
    _write_weights(folder / "corrector", _corrector_weights(network, tied))


def _inverter_weights(prefix: Prefix, model: Any, tied: bool) -> dict[str, Tensor]:
    layers = prefix.layers
    assert isinstance(layers, nn.Sequential)
    scale = math.sqrt(_width(layers)) if prefix.normalize else 1.0
    return _transform("embedding_transform", layers, scale) | _model_weights(model, "encoder_decoder.", tied)


def _corrector_weights(network: CorrectorNetwork, tied: bool) -> dict[str, Tensor]:
    weights = _model_weights(network.model, "encoder_decoder.", tied)
    roles = (network.target, network.difference, network.hypothesis)
    for number, transform in enumerate(roles, start=1):
        scale = math.sqrt(_width(transform)) if network.layout.normalize else 1.0
        weights |= _transform(f"embedding_transform_{number}", transform, scale)
    return weights | {f"layernorm.{name}": tensor for name, tensor in network.norm.state_dict().items()}


def _transform(name: str, layers: nn.Sequential, scale: float) -> dict[str, Tensor]:
    """The two linear layers of an MLP, wherever they stand in ours, with ``scale`` on what the first one reads."""
    first, last = (layer for layer in layers if isinstance(layer, nn.Linear))
    return {
        f"{name}.0.weight": first.weight * scale,
        f"{name}.0.bias": first.bias,
        f"{name}.3.weight": last.weight,
        f"{name}.3.bias": last.bias,
    }


def _width(layers: nn.Sequential) -> int:
    return int(next(layer for layer in layers if isinstance(layer, nn.Linear)).in_features)


def _language_model(model: Any) -> tuple[dict[str, Any], bool]:
    """config.json for transformers 4, and whether the head is tied there."""
    values = model.config.to_dict()
    tied = model.lm_head.weight is model.shared.weight and bool(values.get("scale_decoder_outputs"))
    chosen = {name: values[name] for name in _ARCHITECTURE}
    named = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "tie_word_embeddings": tied}
    return named | {"is_encoder_decoder": True, "use_cache": True} | chosen, tied


def _model_weights(model: Any, prefix: str, tied: bool) -> dict[str, Tensor]:
    scaled = bool(model.config.to_dict().get("scale_decoder_outputs"))
    weights = {name: parameter for name, parameter in model.named_parameters() if name != "lm_head.weight"}
    if not tied:
        weights["lm_head.weight"] = model.lm_head.weight * (model.config.d_model**-0.5 if scaled else 1.0)
    return {prefix + name: tensor for name, tensor in weights.items()}


def _write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save

    content = save({name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}, {"format": "pt"})
    write_file(folder / "model.safetensors", lambda file: file.write(content))


def _write_tokenizer(tokenizer: Any, folder: Path, length: int) -> None:
    """tokenizer.json, and the little beside it that transformers 4 understands."""
    write_file(folder / "tokenizer.json", tokenizer.backend_tokenizer.to_str())
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": tokenizer.pad_token,
        "eos_token": tokenizer.eos_token,
        "clean_up_tokenization_spaces": False,
        "model_max_length": length,
    }
    write_file(folder / "tokenizer_config.json", json.dumps(described) + "\n")
