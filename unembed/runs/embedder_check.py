"""Check that a finished run can be reused: it has ended, and was trained on vectors of the embedder in use."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError, missing
from unembed.runs import layout
from unembed.runs.checkpoints import finished_checkpoint, resuming
from unembed.runs.config_file import read_config


def check_embedder(run: Path, key: str, fingerprint: str, dimension: int) -> None:
    """Check that a finished run was trained on vectors of this embedder.

    Raises:
        InputError: The run has not finished, or used another embedder; ``key`` is the config key that names the run.
    """
    if not (run / layout.CONFIG).is_file():
        reason = f"{layout.CONFIG} is missing" if run.is_dir() else missing(run, "directory")
        raise InputError(f"{key}={run}: not a run directory ({reason})")
    config = read_config(run)
    layout.check_links(run)
    finished_checkpoint(run, key=key)
    try:
        record = read_json(run / layout.RECORD)["embedder"]
    except FileNotFoundError as error:
        raise InputError(
            f"{key}={run}: its training has not ended ({layout.RECORD} is missing); resume it first: {resuming(run)}"
        ) from error
    except KeyError as error:
        raise InputError(f"{run / layout.RECORD}: does not say which embedder the run was trained on") from error
    if not isinstance(record, dict) or not {"dimension", "fingerprint"} <= record.keys():
        raise InputError(f"{run / layout.RECORD}: does not say which embedder the run was trained on")
    choices = config.get("choices")
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
