"""Hashes that tell whether work was done with the same settings, weights and vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

# Say where and with how many processes something is done, or what is done beside inverting; the embedder is named by
# its fingerprint instead.
_FREE = {
    "choices", "run_dir", "cache_dir", "ckpt_path", "init_from", "embedder", "scoring", "callbacks", "logger",
    "trust",
}  # fmt: skip
_FREE_OF_TRAINER = {"devices", "num_nodes", "strategy"}


def settings_key(config: Mapping[str, Any], fingerprint: str) -> str:
    """Hash of what may change a result in a configuration (plain values); ``fingerprint`` is the embedder's."""
    kept = {name: value for name, value in config.items() if name not in _FREE}
    kept["trainer"] = {name: value for name, value in config["trainer"].items() if name not in _FREE_OF_TRAINER}
    return blake2b(json.dumps([kept, fingerprint], sort_keys=True).encode(), digest_size=16).hexdigest()


def weights_key(weights: Mapping[str, Tensor]) -> str:
    """Hash of a state dict."""
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content(tensor))
    return digest.hexdigest()


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's values."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
