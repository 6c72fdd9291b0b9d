"""Locate the files of a model: in a local folder, in the hub's cache on this machine, or on the hub.

Files are downloaded when needed: configuration files for dimension and fingerprint, weights for the first text.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from unembed.core import limits
from unembed.core.errors import InputError

_TIMEOUT_SECONDS = 10.0
_DESCRIBING = ("*.json", "*.txt", "*.model", "*.py", "*.jinja", "*.vocab")
_WEIGHTS = ("*.safetensors", "*.bin")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine.

    Attributes:
        folder: Holds the configuration and tokenizer files, and the weights unless they are still to be downloaded.
        commit: Commit on the hub, if the model comes from there.
        name: As the user gave it.
    """

    folder: Path
    commit: str | None
    name: str

    @property
    def identity(self) -> str:
        """The commit, or a hash of the files; equal identities give equal vectors."""
        return f"{self.name}@{self.commit}" if self.commit else folder_hash(self.folder)

    def with_weights(self) -> Path:
        """The folder, with the weights in it; they are downloaded if they are missing."""
        if _has_weights(self.folder):
            return self.folder
        if self.commit is None:
            raise InputError(f"the model folder {self.folder} holds no weights (*.safetensors or *.bin)")
        return _download(self.name, self.commit, weights=True)

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON object from the model's files, empty if there is no such file."""
        return dict(read_json(self.folder / name) or {})

    def token_limit(self, subfolder: str = "") -> int:
        """The longest input in tokens according to the tokenizer's and the encoder's files; 512 if they do not tell."""
        limits = [
            read.get(name)
            for file, name in (
                ("sentence_bert_config.json", "max_seq_length"),
                ("tokenizer_config.json", "model_max_length"),
                ("config.json", "max_position_embeddings"),
            )
            if (read := self.read_json(f"{subfolder}/{file}" if subfolder else file))
        ]
        # a tokenizer without a limit gives 1e30; a model with relative positions gives none
        return int(min((limit for limit in limits if limit and limit < 1e6), default=512))


def locate(model: str, revision: str | None = None) -> ModelFiles:
    """Find a model by the path of its folder or by its name on the hub; its weights may still have to be downloaded."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return ModelFiles(folder, None, model)
    if not _HUB_NAME.fullmatch(model):
        raise InputError(f"embedder.model={model}: no such folder, and no name of a model on the Hugging Face hub")
    downloaded = _in_hub_cache(model, revision) or _download(model, revision, weights=False)
    return ModelFiles(downloaded, downloaded.name, model)  # the folder is named after the commit


def read_json(path: Path) -> Any:
    """The content of a JSON file, None if the file does not exist."""
    if not path.is_file():
        return None
    try:
        return json.loads(limits.text(path, limits.LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def parts_of(index: Path) -> list[str]:
    """The weight files that ``index`` lists, in its folder; empty if there is no index."""
    content = read_json(index)
    if content is None:
        return []
    named = content.get("weight_map") if isinstance(content, dict) else None
    parts = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
    if not parts or any(Path(part).name != part for part in parts):
        raise InputError(f"{index}: no index of weights: its weight_map names no files beside it")
    return parts


def folder_hash(folder: Path) -> str:
    """Hash of the weights, tokenizer and configuration in ``folder``, sub-folders included; not of its path."""
    digest = hashlib.sha256()
    paths = {path for pattern in (*_DESCRIBING, *_WEIGHTS) for path in folder.rglob(pattern) if path.is_file()}
    for path in sorted(paths, key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_hash(path)}\n".encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file; cached in this process while its size and modification time are unchanged."""
    status = path.stat()
    return _file_hash(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _file_hash(path: Path, size: int, changed_at: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_hub_cache(model: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    describing = ["config.json", "modules.json"]  # the weights may still have to be downloaded
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=describing, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if any((folder / name).is_file() for name in describing) else None


def _has_weights(folder: Path) -> bool:
    indexes = [*folder.glob("*.safetensors.index.json"), *folder.glob("*.bin.index.json")]
    if indexes:
        return any(all((folder / part).is_file() for part in parts_of(index)) for index in indexes)
    return any(path.is_file() for pattern in _WEIGHTS for path in folder.rglob(pattern))


def _download(model: str, revision: str | None, weights: bool) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HTTPError, RepositoryNotFoundError, RevisionNotFoundError  # type: ignore[attr-defined]

    patterns = list(_DESCRIBING)
    try:
        if weights:
            names = HfApi().list_repo_files(model, revision=revision)
            patterns.append(_WEIGHTS[0] if any(name.endswith(".safetensors") for name in names) else _WEIGHTS[1])
            # Dense modules of older sentence-transformers models come as pytorch_model.bin only
            patterns.append("*_Dense/*.bin")
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=["onnx/*", "openvino/*", "*/onnx/*", "*/openvino/*"],
                etag_timeout=_TIMEOUT_SECONDS,
            )
        )
    except RepositoryNotFoundError as error:
        raise InputError(
            f"embedder.model={model}: no such folder, and the Hugging Face hub has no such model, or keeps it from you "
            "(log in with `hf auth login`); embedder=minilm needs neither"
        ) from error
    except RevisionNotFoundError as error:
        raise InputError(
            f"embedder.revision={revision}: the model {model} has no such branch, tag or commit"
        ) from error
    except (HTTPError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the embedding model {model} (revision {revision or 'main'}) is not on this machine: no folder has that "
            f"name, it is not in the hub's cache {constants.HF_HUB_CACHE}, and the hub cannot be reached "
            f"({reason}); embedder=minilm works offline"
        ) from error
