"""Training text of one source, held-out text of another: an attacker whose own text is not the store's.

SeparateSources(own=SyntheticCorpus(seed=1), target=SyntheticCorpus()).load()["test"]      # the target's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unembed.core.examples import Example, Split
from unembed.datamodules.sources.base import Source


class SeparateSources:
    """The training split of ``own`` beside the other splits of ``target``.

    A training text that is also held out is dropped by the data module, as for any source.

    Args:
        own: The attacker's own text.
        target: The text that is attacked.
    """

    def __init__(self, own: Source, target: Source) -> None:
        self.own, self.target = own, target

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """The splits; a missing one is left out."""
        own, target = self.own.load(), self.target.load()
        chosen: dict[Split, Mapping[Split, Sequence[Example]]] = {"train": own, "valid": target, "test": target}
        return {split: texts[split] for split, texts in chosen.items() if split in texts}
