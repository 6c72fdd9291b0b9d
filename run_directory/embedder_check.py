"""Whether a finished run can be built on: it has ended, and was trained on vectors of the embedder in use."""

from __future__ import annotations

import shlex
from pathlib import Path

from omegaconf import DictConfig

import runs
from errors import InputError


def check_embedder(run: Path, key: str, fingerprint: str, dimension: int) -> None:
    """Whether a finished run was trained on the vectors of this embedder.

    Raises:
        InputError: It is no finished run, or its embedder is another; ``key`` is the configuration's.
    """
    if not (run / runs.CONFIG).is_file():
        reason = f"{runs.CONFIG} is missing" if run.is_dir() else runs.missing_directory(run)
        raise InputError(f"{key}={run}: not a run directory ({reason})")
    config = runs.read_config(run)
    runs.check_links(run)
    runs.finished_checkpoint(run, key=key)
    try:
        record = runs.read_json(run / runs.RECORD)["embedder"]
    except FileNotFoundError as error:
        raise InputError(
            f"{key}={run}: its training has not ended ({runs.RECORD} is missing); resume it first: "
            f"python train.py {shlex.quote(f'run_dir={run}')} ckpt_path=last"
        ) from error
    except KeyError as error:
        raise InputError(f"{run / runs.RECORD}: does not say which embedder the run was trained on") from error
    if not isinstance(record, dict) or not {"dimension", "fingerprint"} <= record.keys():
        raise InputError(f"{run / runs.RECORD}: does not say which embedder the run was trained on")
    choices = config.get("choices")
    theirs = choices.get("embedder") if isinstance(choices, DictConfig) else None
    if record["dimension"] != dimension:
        raise InputError(
            f"{key}={run}: its embedder gives vectors of width {record['dimension']}, this one (embedder=...) of "
            f"{dimension}; take embedder={theirs}, as that run"
        )
    if record["fingerprint"] != fingerprint:
        raise InputError(
            f"{key}={run}: its vectors come from another embedder (fingerprint {str(record['fingerprint'])[:16]}, here "
            f"{fingerprint[:16]}); take embedder={theirs} with the settings of that run"
        )
