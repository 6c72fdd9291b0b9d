"""Base of attacks that read with the trained decoder of another run, of which their own run keeps a copy.

vector --something--> vector that the decoder of attack.source_run reads --decoder--> text
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.generative import GenerativeAttack
from unembed.attacks.refine.refining import Refiner
from unembed.core.errors import InputError
from unembed.runs.stored_attack import attack_of, class_of

COPY = "source"  # among the artifacts
KEY = "attack.source_run"


class HeldDecoder(Attack):
    """Holds the decoder of a finished run; a subclass copies that run in ``prepare`` and calls ``hold`` in ``build``.

    Args:
        source_run: A finished run of attack=geia, or another decoder of vectors.
        refine: See Attack.
    """

    trainable = False
    reads_training_text = False

    def __init__(self, source_run: str, refine: Mapping[str, Refiner] | None = None) -> None:
        super().__init__(refine)
        self.source_run = Path(source_run)
        self._held: list[GenerativeAttack] = []  # no submodule: it is not trained

    def check_kind(self) -> None:
        """Check what ``source_run`` is a run of.

        Raises:
            InputError: It is not a decoder of vectors.
        """
        kind = class_of(self.source_run)
        if not (issubclass(kind, GenerativeAttack) and kind.decodes_vectors):
            raise InputError(
                f"{KEY}={self.source_run}: a trained decoder of vectors is wanted (attack=geia, vec2text_inverter), "
                f"and that is a run of {kind.__name__}"
            )

    def hold(self, dimension: int, proposals: int) -> None:
        """Read the copied decoder, of vectors of this dimension, and let it propose so many texts for a vector."""
        assert self.artifacts is not None
        decoder = attack_of(self.artifacts / COPY, dimension)
        assert isinstance(decoder, GenerativeAttack)
        decoder.decoding.propose(proposals)
        self._held = [decoder.requires_grad_(self.trainable)]

    @property
    def decoder(self) -> GenerativeAttack:
        """The decoder, where this attack is."""
        return self._held[0].to(self.device)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Those of the decoder."""
        return self.decoder.tokens(texts)

    def begin_trial(self, number: int) -> None:
        """See GenerativeAttack."""
        self.decoder.begin_trial(number)

    def all_weights(self) -> dict[str, Tensor]:
        """The decoder's weights beside the attack's own."""
        held = {f"{COPY}.{name}": tensor for name, tensor in self.decoder.all_weights().items()}
        return super().all_weights() | held
