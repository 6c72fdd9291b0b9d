"""Hashes of settings, weights and vectors, to recognise stored results that are still valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Left out of the hash: where and on how many processes the run works, what it does beside inverting, and how the access
# table describes it. The embedder is represented by its fingerprint instead.
_FREE = {
    "choices", "run_dir", "cache_dir", "ckpt_path", "init_from", "embedder", "scoring", "callbacks", "logger",
    "trust", "access",
}  # fmt: skip
_FREE_OF_TRAINER = {"devices", "num_nodes", "strategy"}


def settings_key(config: Mapping[str, Any], fingerprint: str) -> str:
    """Hash of the settings (plain values) that may change a result; ``fingerprint`` is the embedder's."""
    kept = {name: value for name, value in config.items() if name not in _FREE}
    if kept.get("denoiser") is None:  # runs older than this key have none
        kept.pop("denoiser", None)
    kept["trainer"] = {name: value for name, value in config["trainer"].items() if name not in _FREE_OF_TRAINER}
    return blake2b(json.dumps([kept, fingerprint], sort_keys=True).encode(), digest_size=16).hexdigest()


def weights_key(weights: Mapping[str, Tensor]) -> str:
    """Hash of a state dict."""
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content(tensor))
    return digest.hexdigest()


def file_key(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's values."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
