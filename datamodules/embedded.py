"""The vectors of a data module's examples: embedded once, defended, and denoised.

data.connect(CachedEmbedder(...), Identity(), denoiser=GaussianDenoiser())
data.embed("train", "test")                 # every rank together
data.fit_defense()
data.vectors("test", [0, 5])                # (2, d): as the attack reads them
data.stored_vectors("test", [0, 5])         # as they lie in the store, not denoised
data.clean_vectors("test", [0, 5])          # as the embedder made them
"""

from __future__ import annotations

import functools
import operator
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from unembed.core.errors import InputError
from unembed.core.examples import Split
from unembed.core.temporary_map import give_back
from unembed.datamodules.arrow_examples import ArrowExamples
from unembed.datamodules.batching import Indices
from unembed.datamodules.defended import DefendedEmbedder, FittedDefense, defended
from unembed.defenses.base import Defense, Fitted
from unembed.defenses.denoisers.base import ADAPTIVE, Denoiser
from unembed.defenses.threat import Hypotheses
from unembed.metrics.statistics import evenly

if TYPE_CHECKING:
    from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors

DEFENSE_SAMPLE = 100_000  # training vectors that a defense is fitted to: enough for means and codebooks, bounded memory
EMBEDDING_LIMIT = timedelta(days=30)  # how long a rank waits for the others to embed their part


class EmbeddedExamples(LightningDataModule):
    """Base of the data module: embedder, defense and denoiser, and the vectors of the examples of each split.

    Attributes:
        adaptive: Whether the attacker is trained on defended vectors; see ``connect``.
        hypotheses: Whether texts that the attacker embeds get defended vectors too; see ``connect``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[Split, CachedVectors] = {}
        self._embedder: CachedEmbedder | None = None
        self._defense: Defense | None = None
        self.adaptive = False
        self.hypotheses: Hypotheses = "clean"
        self._kept: FittedDefense | None = None
        self._fitted = False
        self._denoiser: Denoiser | None = None
        self._denoises = False

    @abstractmethod
    def examples(self, split: Split) -> ArrowExamples:
        """The examples of a split."""

    def connect(
        self,
        embedder: CachedEmbedder,
        defense: Defense,
        *,
        adaptive: bool = False,
        hypotheses: Hypotheses = "clean",
        kept: FittedDefense | None = None,
        denoiser: Denoiser | None = None,
    ) -> None:
        """Set embedder and defense; call before ``setup``.

        Args:
            embedder: Gives undefended vectors.
            defense: Applied to test vectors, and to training and validation vectors if ``adaptive``.
            adaptive: Whether the attacker is trained on defended vectors, rather than undefended ones.
            hypotheses: Whether texts that the attacker embeds get defended vectors too (see ``oracle``).
            kept: Stores the state of a fitted defense.
            denoiser: Applied to defended test vectors before the attack reads them (see ``fit_denoiser``).

        Raises:
            InputError: The defense does not fit the dimension of the vectors, or changes it for a naive attacker; or
                an adaptive attacker has a denoiser.
        """
        given, seen = embedder.dimension, defense.output_dimension(embedder.dimension)
        if given != seen and not adaptive:
            raise InputError(
                f"defense.adaptive=false: the defense makes vectors of dimension {seen} out of {given}, and an attack "
                "that was trained on undefended vectors cannot read them; train one with defense.adaptive=true"
            )
        if adaptive and denoiser is not None:
            raise InputError(ADAPTIVE)
        self._embedder, self._defense, self._kept = embedder, defense, kept
        self.adaptive, self.hypotheses = adaptive, hypotheses
        self._views, self._fitted = {}, False
        self._denoiser, self._denoises = denoiser, False

    @property
    def embedder(self) -> CachedEmbedder:
        """The embedder behind its cache."""
        if self._embedder is None:
            raise RuntimeError("connect(embedder, defense) comes before the first use of vectors")
        return self._embedder

    @property
    def defense(self) -> Defense:
        """The defense between the cache and the attacker."""
        if self._defense is None:
            raise RuntimeError("connect(embedder, defense) comes before the first use of vectors")
        return self._defense

    @property
    def dimension(self) -> int:
        """Dimension of the vectors that the attacker sees."""
        return self.defense.output_dimension(self.embedder.dimension)

    @property
    def oracle(self) -> CachedEmbedder:
        """Embeds the attacker's texts: the cached embedder, or the defended service."""
        if self.hypotheses == "clean":
            return self.embedder
        return DefendedEmbedder(self.embedder, self.defense, self._language)

    def embed(self, *splits: Split) -> None:
        """Make the vectors of these splits readable; on several ranks, all of them call this together."""
        missing = [split for split in splits if split not in self._views]
        if not missing:
            return
        rank, world_size = self._place()
        texts = {split: self.examples(split).queries for split in missing}
        everything = functools.reduce(operator.add, texts.values())
        self.embedder.fill(everything, "training", rank=rank, world_size=world_size, barrier=_barrier())
        for split in missing:
            self._views[split] = self.embedder.view(texts[split])
        give_back()

    def vectors(self, split: Split, indices: Sequence[int] | Indices, epoch: int | None = None) -> Tensor:
        """Vectors as the attack reads them, (len(indices), d) float32; ``epoch`` for training batches only.

        Test vectors are defended, and denoised where there is a denoiser; training and validation vectors are defended
        where the attacker is adaptive.
        """
        seen = self.stored_vectors(split, indices, epoch)
        if split != "test" or self._denoiser is None or len(seen) == 0:
            return seen
        self.fit_denoiser()
        return self._denoiser(seen)

    def stored_vectors(self, split: Split, indices: Sequence[int] | Indices, epoch: int | None = None) -> Tensor:
        """Vectors as they lie in the store: as ``vectors``, but not denoised."""
        if len(indices) == 0:  # the empty last batch of a rank with fewer batches than others
            return torch.empty(0, self.dimension)
        clean = self.clean_vectors(split, indices)
        if split != "test" and not self.adaptive:
            return clean
        examples = self.examples(split)
        return defended(self.defense, clean, [examples[int(index)] for index in indices], split, epoch)

    def clean_vectors(self, split: Split, indices: Sequence[int] | Indices) -> Tensor:
        """The embedder's own vectors, (len(indices), embedder.dimension) float32."""
        return self._views[split][[int(index) for index in indices]]

    def training_sample(self, count: int) -> Tensor | None:
        """About ``count`` training vectors as the attacker sees them, evenly; None if they have not been embedded."""
        if "train" not in self._views:
            return None
        step = max(1, -(-len(self.examples("train")) // count))
        return self.vectors("train", range(0, len(self.examples("train")), step), epoch=0)

    def fit_defense(self) -> None:
        """Fit the defense to training vectors once, or restore its stored state; every rank calls this."""
        if self._fitted:
            return
        if self._kept is None or not self._kept.restore(self.defense):
            self.embed("train")
            examples = self.examples("train")
            step = -(-len(examples) // DEFENSE_SAMPLE)
            chosen = range(0, len(examples), step)
            self.defense.fit(self.clean_vectors("train", chosen), [examples[i] for i in chosen])
            if self._kept is not None and self._place()[0] == 0:
                self._kept.write(self.defense)
        self._fitted = True

    def fit_denoiser(self) -> None:
        """Fit the denoiser to the store once; every rank calls this.

        The store holds the test texts and, up to the denoiser's ``rows``, training texts: their vectors behind the
        defense, each with noise of its own.
        """
        if self._denoiser is None or self._denoises:
            return
        if self._kept is not None and isinstance(self.defense, Fitted):  # the run of an attack that trains nothing
            self.fit_defense()
        self.embed("test")
        test, train = self.examples("test"), self.examples("train")
        chosen = evenly(range(len(test)), self._denoiser.rows)
        store = [defended(self.defense, self.clean_vectors("test", chosen), [test[row] for row in chosen], "test")]
        if more := evenly(range(len(train)), self._denoiser.rows - len(chosen)):
            others = [train[row] for row in more]
            texts = [example.query for example in others]
            rank, world_size = self._place()
            self.embedder.fill(texts, "training", rank=rank, world_size=world_size, barrier=_barrier())
            store.append(defended(self.defense, self.embedder.view(texts)[list(range(len(more)))], others, "train"))
        self._denoiser.fit(torch.cat(store))
        rank_zero_info(self._denoiser.report())
        self._denoises = True

    def _language(self) -> str | None:
        """The one language of the training texts, which the attack writes; without any, that of the attacked texts."""
        read = self.examples("train") or self.examples("test")
        found = set(read.column("language"))
        return found.pop() if len(found) == 1 else None

    def _place(self) -> tuple[int, int]:
        """This rank and the number of ranks."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)


def _barrier() -> Callable[[], None]:
    """A barrier with a long timeout for embedding; that of the default process group is half an hour."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return lambda: None
    group = torch.distributed.new_group(backend="gloo", timeout=EMBEDDING_LIMIT)
    return lambda: torch.distributed.barrier(group=group)
