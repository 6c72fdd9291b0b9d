"""The files of a released checkpoint: where they are, which two belong together, what their weights are called.

    find_pair("jxm/gtr__nq__32__correct")        # (inverter files, corrector files), by folder or by name on the hub

A released checkpoint is a config.json and weights (safetensors or pickled tensors, in one file or several). An inverter
and its corrector are two of them, whose names differ in their ending.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unembed.core.errors import InputError
from unembed.embedders.model_files import locate, parts_of, read_json
from unembed.runs.checkpoints import is_dense, load_tensors

# How the names of an inverter and of its corrector end; the last pair is that of jxm/gtr__nq__32.
ENDINGS = (("inverter", "corrector"), ("hypothesizer", "corrector"), ("inversion", "corrector"), ("", "__correct"))
EMBEDDER = "embedder."  # how the names of the frozen embedder's weights begin
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# One matrix under three names; a file may hold any of them.
_EMBEDDINGS = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_HEAD = "model.lm_head.weight"


@dataclass(frozen=True, slots=True)
class ReleasedFiles:
    """One checkpoint on this machine: its name, its folder, its config.json, its tensors by the names of the file."""

    name: str
    folder: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]

    @property
    def is_corrector(self) -> bool:
        """Whether these weights correct a hypothesis. Old correctors have one transform, as inverters have, and only
        their configuration tells them apart."""
        named = str((self.config.get("architectures") or [""])[0])
        return named.startswith("Corrector") or any(name.startswith("embedding_transform_") for name in self.weights)


def find_pair(name: str, revision: str | None = None) -> tuple[ReleasedFiles, ReleasedFiles | None]:
    """The inverter and the corrector that belong together, from the name of either; an inverter may have none.

    Args:
        name: A folder that holds config.json, or that holds the folders ``inverter`` and ``corrector``; or a name
            on the hub.
        revision: Branch, tag or commit of ``name`` on the hub; its counterpart is taken from its main branch.
    """
    both = Path(name).expanduser()
    if (both / "inverter").is_dir() and (both / "corrector").is_dir():
        return _read(str(both / "inverter")), _read(str(both / "corrector"))
    files = _read(name, revision)
    if not files.is_corrector:
        return files, _counterpart(name, wanted=1)
    named = files.config.get("corrector_model_from_pretrained")
    inverter = _read(str(named)) if named else _counterpart(name, wanted=0)
    if inverter is None:
        raise InputError(
            f"attack.pretrained={name} is a corrector, and its inverter is nowhere to be found: put both into one "
            "folder, as <folder>/inverter and <folder>/corrector, and give attack.pretrained=<folder>"
        )
    return inverter, files


def _counterpart(name: str, wanted: int) -> ReleasedFiles | None:
    """The other of the pair by its name: ``wanted`` 0 is the inverter, 1 the corrector; None where there is none."""
    stem = name.rstrip("/")
    for ending in ENDINGS:
        other = stem.removesuffix(ending[1 - wanted]) + ending[wanted]
        is_pair = stem.endswith(ending[1 - wanted]) and other != stem
        if is_pair and (Path(other).is_dir() or not Path(stem).is_dir()):
            with suppress(InputError):
                files = _read(other)
                if files.is_corrector == bool(wanted):
                    return files
    return None


def _read(name: str, revision: str | None = None) -> ReleasedFiles:
    folder = find(name, revision, "checkpoint", weights=True)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or "model_name_or_path" not in config:
        raise InputError(
            f"attack.pretrained={name}: {folder / 'config.json'} is missing or names no model_name_or_path: not a "
            "released inverter or corrector of Vec2Text"
        )
    for file in _WEIGHTS:
        parts = parts_of(folder / f"{file}.index.json") or [file]
        if all((folder / part).is_file() for part in parts):
            weights = {key: tensor for part in parts for key, tensor in _tensors(folder / part).items()}
            return ReleasedFiles(name, folder, config, weights)
    raise InputError(f"attack.pretrained={name}: {folder} holds neither {_WEIGHTS[0]} nor {_WEIGHTS[1]}")


def find(name: str, revision: str | None, what: str, *, weights: bool) -> Path:
    """The folder of a checkpoint or language model; from the hub's cache or the hub where there is no such folder."""
    for file in _WEIGHTS if weights else ():
        parts_of(Path(name).expanduser() / f"{file}.index.json")  # else a broken one would read as a missing folder
    try:
        files = locate(name, revision)
        return files.with_weights() if weights else files.folder
    except InputError as error:
        from huggingface_hub.constants import HF_HUB_CACHE

        at = f" (revision {revision})" if revision else ""
        raise InputError(
            f"attack.pretrained: the {what} {name}{at} is not on this machine: there is no folder of that name with "
            f"its files, it is not in the hub's cache {HF_HUB_CACHE}, and the hub does not have it or cannot be "
            f"reached. `hf download {name}` fetches it on a machine with a connection; a copy of its folder works too"
        ) from error


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path}: not a file of weights, or a damaged one: {error}") from error
    content = load_tensors(path, "a file of weights")
    if not isinstance(content, dict) or not all(map(is_dense, content.values())):
        raise InputError(f"{path}: not a file of weights: it holds more than tensors by their names")
    return content


def fill(module: nn.Module, files: ReleasedFiles, names: Mapping[str, str], *, tied: bool) -> None:
    """Copy released weights into a module; all missing, unknown and misshapen ones are named together.

    Args:
        module: Holds the encoder-decoder as ``model``.
        files: The checkpoint; the embedder's weights in it are left out.
        names: Beginning of a name in the file -> beginning in ``module``; the first that fits is taken.
        tied: Whether the language model's head is its input embedding, whatever the file has under its name.
    """
    given: dict[str, Tensor] = {}
    for key, tensor in files.weights.items():
        name = next((new + key.removeprefix(old) for old, new in names.items() if key.startswith(old)), key)
        if not key.startswith(EMBEDDER) and not (tied and name == _HEAD):
            given[_EMBEDDINGS[0] if name in _EMBEDDINGS else name] = tensor
    wanted = dict(module.named_parameters())  # a matrix under two names is listed once, under the first
    faults = {
        "missing": wanted.keys() - given.keys(),
        "unknown": given.keys() - wanted.keys(),
        "of another shape": {
            f"{name} is {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in given.keys() & wanted.keys()
            if given[name].shape != wanted[name].shape
        },
    }
    if any(faults.values()):
        listed = "; ".join(f"{what}: {', '.join(sorted(found))}" for what, found in faults.items() if found)
        raise InputError(f"attack.pretrained={files.name}: weights that do not fit the model; {listed}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(given[name])
