"""Weights & Biases logger that works offline if the server cannot be reached, so that a long run does not fail.

python train.py logger=wandb                       # WANDB_API_KEY in the environment, or `wandb login` before
python train.py logger=wandb logger.offline=true   # never contacts the server
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from unembed.core.errors import InputError, redacted

log = logging.getLogger("train")

_PATIENCE_SECONDS = 10.0


class WandbOrDisk(WandbLogger):
    """Lightning's WandbLogger, offline if the server cannot be reached when the run begins.

    ``offline`` stores everything in the run directory; otherwise the server is contacted once. A run that is resumed
    keeps its W&B id.

    Raises:
        InputError: The server can be reached, but the key is missing or refused.
    """

    def __init__(self, save_dir: str, offline: bool = False, **options: Any) -> None:
        away = None if offline or rank_zero_only.rank != 0 else _unreachable()  # type: ignore[attr-defined]
        if away is not None:
            log.warning("%s; curves are kept, send them later with: wandb sync %s/wandb/offline-run-*", away, save_dir)
        for earlier in sorted(Path(save_dir).glob("wandb/*run-*-*"))[:1]:
            options.setdefault("id", earlier.name.rpartition("-")[2])
        super().__init__(save_dir=save_dir, offline=offline or away is not None, **options)
        if not self._offline and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            self._begin(save_dir)

    def _begin(self, save_dir: str) -> None:
        """Start the W&B run now, so that problems show before anything is embedded."""
        import wandb

        try:
            _ = self.experiment
        except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
            raise InputError(
                f"logger=wandb: {' '.join(str(error).split())}; export WANDB_API_KEY, or give logger.offline=true"
            ) from error
        except wandb.errors.CommError as error:
            log.warning(
                "logger=wandb: %s; curves are kept, send them later with: wandb sync %s/wandb/offline-run-*",
                " ".join(str(error).split()),
                save_dir,
            )
            self._offline, self._experiment = True, None
            self._wandb_init["mode"] = "offline"


def _unreachable() -> str | None:
    """Why the server cannot be reached; None if it can."""
    import httpx
    import wandb

    settings = wandb.Settings()  # wandb.setup() would start a session that cannot become offline
    settings.update_from_system_settings()
    settings.update_from_env_vars(dict(os.environ))
    address = str(settings.base_url)
    if settings.mode != "online":  # set by WANDB_MODE: nothing is sent
        return None
    try:
        httpx.get(address, timeout=_PATIENCE_SECONDS)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return redacted(f"the W&B server {address} cannot be reached ({error})")
    return None
