"""attack=last_state: a T5 that is trained to write the text behind one state of a language model's layer, the last.

    state (d,) of the last position -> whitened -> MLP -> 8 vectors -> T5 encoder, decoder -> " Wheel adop"

What a server that returns or pools one state discloses (as Rep2Text, arXiv 2511.06571, reads it with an adapter and a
large decoder). A state is nearly that of its own token: the others are small beside it. So it is whitened by what
varies among training texts that end with one token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unembed.attacks.lm_inversion.base import language_model_of
from unembed.attacks.lm_inversion.pils import PILS
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder


class LastState(PILS):
    """A decoder trained on pairs of last states and texts."""

    def model(self, oracle: CachedEmbedder | None) -> LanguageModelEmbedder:
        """The language model; InputError unless the state of the last position is observed."""
        model = language_model_of(oracle)
        if not model.layout.last:
            raise InputError("embedder.positions=all: attack=last_state reads one state; take embedder.positions=last")
        return model

    def groups(self, texts: Sequence[str]) -> Tensor:
        """The last token of each text."""
        model = self.model(self.oracle)
        return torch.tensor([model.ids(text)[-1] for text in texts])
