"""A whole sentence-transformers pipeline: encoder, pooling, dense layers and normalisation as the model was saved.

SentenceTransformerEmbedder("sentence-transformers/all-mpnet-base-v1").embed(["hello"])   # (1, 768)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.matmul import use_onednn
from unembed.embedders.base import DType, fingerprint_of, loading, resolve_device
from unembed.embedders.model_files import ModelFiles, locate, read_json

_ARGUMENTS = {"model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"}
_HARMLESS = {"torch_dtype", "dtype", "add_pooling_layer", "padding_side", "truncation_side", "model_max_length",
             "do_lower_case", "use_fast", "trust_remote_code"}  # fmt: skip


class SentenceTransformerEmbedder:
    """The vectors of ``SentenceTransformer.encode``; always in eval mode and without gradients."""

    def __init__(
        self,
        model: str,
        normalize: bool | None = None,
        revision: str | None = None,
        prefix: str = "",
        dtype: DType = "float32",
        max_tokens: PositiveInt | None = None,
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        """The arguments are those of configs/embedder/sentence_transformer.yaml; the model is loaded on first use."""
        self._model, self._revision, self._prefix, self._normalize = model, revision, prefix, normalize
        self._dtype, self._max_tokens, self._device = dtype, max_tokens, device
        self._trust_remote_code = trust_remote_code

    @cached_property
    def dimension(self) -> int:
        """Dimension of a vector: output dimension of the pooling, or of the last dense layer."""
        size = self._files.read_json(f"{self._folders[0]}/config.json".lstrip("/")).get("hidden_size")
        for folder in self._folders[1:]:
            described = self._files.read_json(f"{folder}/config.json")
            pooled = described.get("embedding_dimension", described.get("word_embedding_dimension"))
            if pooled is not None:
                size = int(pooled) * _pooling_modes(described)
            size = described.get("out_features", size)
        return int(size) if size else int(self._loaded.get_embedding_dimension())

    @cached_property
    def max_tokens(self) -> int:
        return self._max_tokens or self._files.token_limit(self._folders[0])

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(
            kind="sentence_transformer",
            model=self._files.identity,
            normalize=self._normalize,
            prefix=self._prefix,
            dtype=self._dtype,
            max_tokens=self.max_tokens,
        )

    def embed(self, texts: Sequence[str]) -> Tensor:
        """See ``Embedder``."""
        if not len(texts):
            return torch.empty(0, self.dimension)
        vectors: Tensor = self._loaded.encode(
            [self._prefix + text for text in texts],
            batch_size=64,
            show_progress_bar=False,
            convert_to_tensor=True,
            normalize_embeddings=bool(self._normalize),
        )
        return vectors.detach().float().cpu()

    @cached_property
    def _files(self) -> ModelFiles:
        return locate(self._model, self._revision)

    @cached_property
    def _folders(self) -> list[str]:
        """Sub-folders of the modules; the first is the encoder's, often "" (the model's folder)."""
        modules = read_json(self._files.folder / "modules.json")
        return [str(module["path"]) for module in modules] if modules else [""]

    @cached_property
    def _loaded(self) -> Any:
        folder = self._files.with_weights()
        if not self._trust_remote_code:
            _check_arguments(folder)
        from sentence_transformers import SentenceTransformer

        with loading(f"embedder.model={self._model} cannot be loaded from {folder}"):
            model = SentenceTransformer(
                str(folder),
                device=str(resolve_device(self._device)),
                trust_remote_code=self._trust_remote_code,
                local_files_only=not self._trust_remote_code,
                model_kwargs={"dtype": getattr(torch, self._dtype)},
            )
        model.max_seq_length = self.max_tokens
        use_onednn(model)
        if self._normalize is False:
            from sentence_transformers.models import Normalize

            for position in reversed([i for i, module in enumerate(model) if isinstance(module, Normalize)]):
                del model[position]
        return model.eval().requires_grad_(False)


def _check_arguments(folder: Path) -> None:
    """Check that the pipeline's files set only loader arguments that cannot run code; else an InputError.

    sentence-transformers passes all arguments in these files except ``trust_remote_code`` to transformers, including
    unsafe ones such as ``weights_only=false`` and ``allow_all_kernels=true``.
    """
    for file in sorted(folder.rglob("sentence_*_config.json")):
        described = read_json(file)
        for name in _ARGUMENTS & described.keys() if isinstance(described, dict) else ():
            arguments = described[name]
            other = sorted(set(arguments) - _HARMLESS) if isinstance(arguments, dict) else [str(arguments)]
            if other:
                raise InputError(
                    f"{file}: {name}.{other[0]}: an argument for loading the model that could have code run; if you "
                    "trust the model, give embedder.trust_remote_code=true"
                )


def _pooling_modes(described: dict[str, Any]) -> int:
    """Number of poolings that a pooling module concatenates."""
    modes = described.get("pooling_mode")
    if modes is None:  # before version 6, files have a switch for each mode
        return sum(value is True for name, value in described.items() if name.startswith("pooling_mode_"))
    return 1 if isinstance(modes, str) else len(modes)
