"""Another run's attack inside this one: rebuilt, copied or trained further; hashes that recognise stored results.

    check_embedder(run, "attack.inverter_run", fingerprint, dimension)
    keep(Path("runs/inverter"), artifacts / "inverter")       # config, artifacts and weights, without the optimizer
    inverter = attack_of(artifacts / "inverter", dimension=384)

    python train.py init_from=<run> ...

Zhu et al. (2024, figure 3) fine-tune an attacker on a small part of the target's own text. The new run starts with the
artifacts and weights of the old one; optimizer, schedule and random state are new.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from unembed.core.atomic_files import read_json, replacing, write_file
from unembed.core.commands import shown_value
from unembed.core.errors import InputError, missing
from unembed.runs import layout
from unembed.runs.checkpoints import finished_checkpoint, load_checkpoint, resuming
from unembed.runs.config_file import differences, read_config
from unembed.runs.trust import check_trusted

if TYPE_CHECKING:
    from unembed.attacks.base import Attack

# Settings of an attack that may differ from its origin's; all others determine the modules or the artifacts.
_OF_TRAINING = {
    "optimizer", "decoding", "gradient_checkpointing", "lr", "noise", "seed", "label_smoothing",
    "hypotheses", "search", "initial", "constant", "refine",
}  # fmt: skip
# Left out of the hash of settings: where and on how many processes the run works, what it does beside inverting, and
# how the access table describes it. The embedder is represented by its fingerprint instead.
_FREE = {
    "choices", "run_dir", "cache_dir", "ckpt_path", "init_from", "embedder", "scoring", "callbacks", "logger",
    "trust", "access",
}  # fmt: skip
_FREE_OF_TRAINER = {"devices", "num_nodes", "strategy"}


def keep(run: Path, folder: Path) -> None:
    """Copy the parts of a run that are needed for inversion."""
    content = load_checkpoint(finished_checkpoint(run))
    wanted = {name: content[name] for name in ("state_dict", "base") if name in content}
    with replacing(folder) as copy:
        shutil.copy2(run / layout.CONFIG, copy / layout.CONFIG)
        shutil.copytree(run / layout.ARTIFACTS, copy / layout.ARTIFACTS)
        write_file(copy / layout.CHECKPOINT, lambda file: torch.save(wanted, file))


def attack_of(folder: Path, dimension: int) -> Attack:
    """The attack of a run in eval mode, for vectors of ``dimension``."""
    from hydra.utils import instantiate

    attack: Attack = instantiate(_trusted_config(folder).attack, _convert_="all")
    attack.connect(folder / layout.ARTIFACTS, None, from_checkpoint=True)
    attack.restore(finished_checkpoint(folder), dimension)
    return attack


def class_of(folder: Path) -> type:
    """The class of a run's attack, without building it."""
    from hydra.utils import get_class

    return get_class(str(_trusted_config(folder).attack._target_))


def identity(folder: Path) -> str:
    """A hash of an attack's weights and configuration, without decoding and refining."""
    attack = {name: value for name, value in _attack_values(folder).items() if name not in ("decoding", "refine")}
    content = load_checkpoint(finished_checkpoint(folder))
    described = json.dumps([attack, weights_key(content["state_dict"])], sort_keys=True)
    return blake2b(described.encode(), digest_size=16).hexdigest()


def check_directory(run: Path, key: str) -> None:
    """Check that ``run``, the value of ``key``, is a run directory."""
    if not (run / layout.CONFIG).is_file():
        reason = f"{layout.CONFIG} is missing" if run.is_dir() else missing(run, "directory")
        raise InputError(f"{key}={run}: not a run directory ({reason})")


def check_embedder(run: Path, key: str, fingerprint: str, dimension: int) -> None:
    """Check that a finished run was trained on vectors of this embedder."""
    check_directory(run, key)
    choices = read_config(run).get("choices")
    layout.check_links(run)
    finished_checkpoint(run, key=key)
    if not (run / layout.RECORD).is_file():
        raise InputError(
            f"{key}={run}: its training has not ended ({layout.RECORD} is missing); resume it first: {resuming(run)}"
        )
    record = read_json(run / layout.RECORD).get("embedder")
    if not isinstance(record, dict) or not {"dimension", "fingerprint"} <= record.keys():
        raise InputError(f"{run / layout.RECORD}: does not say which embedder the run was trained on")
    theirs = choices.get("embedder") if isinstance(choices, DictConfig) else None
    if record["dimension"] != dimension:
        raise InputError(
            f"{key}={run}: its embedder gives vectors of dimension {record['dimension']}, this one (embedder=...) of "
            f"{dimension}; take embedder={theirs}, as that run"
        )
    if record["fingerprint"] != fingerprint:
        raise InputError(
            f"{key}={run}: its vectors come from another embedder (fingerprint {str(record['fingerprint'])[:16]}, here "
            f"{fingerprint[:16]}); take embedder={theirs} with the settings of that run"
        )


def check_origin(run: Path, attack: Mapping[str, Any], fingerprint: str, dimension: int) -> None:
    """Check that a run with this ``attack`` (plain values) and embedder can start from ``run``.

    It must have finished, with the same embedder and an attack that differs in training and decoding alone.
    """
    check_embedder(run, "init_from", fingerprint, dimension)
    different = [
        f"{key}={shown_value(here)}, {shown_value(there)} there"
        for key, there, here in differences({"attack": _attack_values(run)}, {"attack": attack}, _OF_TRAINING)
    ]
    if different:
        raise InputError(f"init_from={run}: was made with another attack: {'; '.join(different)}")


def copy_artifacts(run: Path, artifacts: Path) -> None:
    """Copy the artifacts of ``run``.

    The fitted state of a defense is not copied: the defense is fitted anew to the new run's text.
    """
    with replacing(artifacts) as copy:
        shutil.copytree(run / layout.ARTIFACTS, copy, dirs_exist_ok=True)
        (copy / layout.DEFENSE).unlink(missing_ok=True)
        if (artifacts / layout.DEFENSE).is_file():
            shutil.copy2(artifacts / layout.DEFENSE, copy / layout.DEFENSE)


def _trusted_config(folder: Path) -> DictConfig:
    config = read_config(folder)
    check_trusted(config, folder, built=["attack"])
    return config


def _attack_values(run: Path) -> dict[str, Any]:
    values = OmegaConf.to_container(read_config(run).attack)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items()}


# -- hashes -----------------------------------------------------------------------------------------------------------


def settings_key(config: Mapping[str, Any], fingerprint: str) -> str:
    """Hash of the settings (plain values) that may change a result; ``fingerprint`` is the embedder's."""
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


def file_key(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's values."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
