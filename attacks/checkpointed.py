"""Checkpoints of an attack.

They hold weights, which are checked by name and shape before loading, and the state of the random generators, so that a
resumed training takes the same steps as an uninterrupted one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.ranks import of_every_rank
from unembed.runs.checkpoints import load_checkpoint, numbers_of_callbacks


class Checkpointed(LightningModule):
    """Base of Attack: its checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.strict_loading = False  # on_load_checkpoint has compared every name and shape before
        self._random_states: list[dict[str, Tensor]] = []  # of each rank

    def checkpoint_weights(self) -> dict[str, Tensor]:
        """The part of the state dict stored in checkpoints: everything, or without published pretrained weights."""
        return self.state_dict()

    def on_train_start(self) -> None:
        """Resume with the random numbers of a checkpoint.

        Each rank restores its own state if the number of ranks is unchanged; otherwise all are seeded anew.
        """
        if len(self._random_states) == self.trainer.world_size:
            own = self._random_states[self.trainer.global_rank]
            torch.set_rng_state(own["cpu"].cpu())
            if self.device.type == "cuda" and "cuda" in own:
                torch.cuda.set_rng_state(own["cuda"].cpu(), self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store ``checkpoint_weights``, and the state of the random generators (dropout, noise)."""
        if type(self).checkpoint_weights is not Checkpointed.checkpoint_weights:  # gathering all again takes time
            names = self.checkpoint_weights().keys()
            weights = checkpoint["state_dict"].items()
            checkpoint["state_dict"] = {name: tensor for name, tensor in weights if name in names}
        own = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.device)
        checkpoint["random_states"] = of_every_rank(own)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the random generators, and check the weights against the modules before they are loaded.

        Raises:
            InputError: See check_weights.
        """
        # A strategy that cuts the model into shards has read the file itself, and may have loaded the weights.
        checkpoint["callbacks"] = numbers_of_callbacks(checkpoint.get("callbacks"))
        self._random_states = checkpoint.get("random_states", [])
        if "state_dict" in checkpoint:
            self.check_weights(checkpoint)

    def load_weights(self, path: Path) -> None:
        """Load the weights of a checkpoint file, without a trainer.

        Raises:
            InputError: See check_weights.
        """
        content = load_checkpoint(path)
        self.check_weights(content)
        self.load_state_dict(content["state_dict"], strict=self.strict_loading)

    def check_weights(self, checkpoint: dict[str, Any]) -> None:
        """Compare the weights of a checkpoint with the expected ones.

        Raises:
            InputError: Missing or unexpected weights, or other shapes; the first one is named.
        """
        found = {name: tuple(tensor.shape) for name, tensor in checkpoint["state_dict"].items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self.checkpoint_weights().items()}
        if found != wanted:
            name = next(name for name in sorted(found | wanted) if found.get(name) != wanted.get(name))
            raise InputError(
                "the weights of the checkpoint do not fit the attack and the vectors: "
                f"{name} is {found.get(name, 'missing')} in the file, {wanted.get(name, 'unknown')} here; were the "
                "attack, the embedder or the defense changed since?"
            )
