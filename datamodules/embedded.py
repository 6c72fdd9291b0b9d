"""The vectors of a data module's examples: embedded once, defended, and denoised.

data.connect(CachedEmbedder(...), Identity(), denoiser=GaussianDenoiser())
data.embed("train", "test")                 # every rank together
data.fit_defense()
data.vectors("test", [0, 5])                # (2, d): as the attack reads them
data.stored_vectors("test", [0, 5])         # as they lie in the store, not denoised
data.clean_vectors("test", [0, 5])          # as the embedder made them

DefendedEmbedder(cached, defense).embed(["my name is ada ."])    # what the defended service answers
FittedDefense(run / "artifacts", settings, fingerprint).restore(defense)
"""

from __future__ import annotations

import functools
import json
import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import ArrowExamples
from unembed.datamodules.batching import Indices
from unembed.defenses.base import BaseDefense, Defense, Fitted, Role
from unembed.defenses.denoisers import ADAPTIVE, Denoiser
from unembed.defenses.threat import Hypotheses
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors, Purpose, Queries
from unembed.embedders.cache.shards import Positions
from unembed.metrics.statistics import evenly
from unembed.runs.layout import DEFENSE


def defended(
    defense: Defense, vectors: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None
) -> Tensor:
    """``vectors`` (n, d) of ``examples`` behind the defense, (n, output_dimension), without zeros and NaN."""
    try:
        changed = defense(vectors, examples, role, epoch)
    except RuntimeError as error:
        if not isinstance(defense, Fitted):
            raise
        raise InputError(
            f"defense: what it has estimated does not fit vectors of dimension {vectors.shape[1]}: {error}"
        ) from error
    # Rows that were zero before the defense are valid outputs of a language model (embedders/base.py, LogitsEmbedder).
    sound = changed.isfinite().all(dim=1) & (changed.any(dim=1) | ~vectors.any(dim=1))
    if not sound.all():
        row = int(sound.int().argmin())
        what = "all zeros" if changed[row].isfinite().all() else "NaN or infinite"
        raise InputError(
            f"defense: what it makes of {role} text {examples[row].index}, and of {int((~sound).sum())} of these "
            f"{len(sound)}, is {what}; take a weaker setting"
        )
    return changed


class FittedDefense:
    """The fitted state of a defense, stored in a run's artifacts.

    Args:
        folder: The artifacts.
        settings: The defense's configuration, plain values.
        fingerprint: Fingerprint of the embedder whose vectors the defense was fitted to.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], fingerprint: str) -> None:
        self.path = folder / DEFENSE
        self._about = {"settings": json.dumps(settings, sort_keys=True), "embedder": fingerprint}

    def write(self, defense: Defense) -> None:
        """Store the state of ``defense``, if it has any."""
        from safetensors.torch import save

        state = defense.state() if isinstance(defense, Fitted) else {}
        if state:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.path, save({name: t.contiguous() for name, t in state.items()}, self._about))

    def restore(self, defense: Defense) -> bool:
        """Restore the state of ``defense``; False if none is stored for these settings and this embedder."""
        from safetensors import SafetensorError, safe_open

        if not isinstance(defense, Fitted) or not self.path.is_file():
            return False
        try:
            with safe_open(self.path, framework="pt") as file:
                if file.metadata() != self._about:
                    return False
                defense.restore({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (SafetensorError, LookupError) as error:
            raise InputError(f"{self.path}: the fitted defense cannot be read: {error}") from error
        return True


class DefendedVectors(CachedVectors):
    """The defended vectors of a fixed list of hypotheses, read when they are indexed."""

    def __init__(self, clean: CachedVectors, texts: Sequence[str], change: Callable[[Sequence[str], Tensor], Tensor]):
        self._clean, self._texts, self._change = clean, texts, change

    def __len__(self) -> int:
        return len(self._clean)

    def __getitem__(self, indices: slice | Positions | Tensor | list[int]) -> Tensor:
        """Vectors at ``indices``, (m, output_dimension) float32."""
        rows = range(len(self._texts))[indices] if isinstance(indices, slice) else [int(i) for i in indices]
        return self._change([self._texts[row] for row in rows], self._clean[indices])


class DefendedEmbedder(CachedEmbedder):
    """A defended embedding service: an attacker who embeds a hypothesis gets its defended vector, always the same one.

    The underlying cache stores undefended vectors and counts queries.

    Args:
        source: The underlying cache.
        defense: Fitted before the first call.
        language: Language of the attacker's texts, if known.
    """

    def __init__(
        self, source: CachedEmbedder, defense: Defense, language: Callable[[], str | None] = lambda: None
    ) -> None:
        self._behind, self._defense, self._language = source, defense, language
        self.embedder = source.embedder

    @property
    def source(self) -> CachedEmbedder:
        return self._behind

    @property
    def dimension(self) -> int:
        """Dimension of a defended vector."""
        return self._defense.output_dimension(self._behind.dimension)

    @property
    def max_tokens(self) -> int:
        return self._behind.max_tokens

    @property
    def fingerprint(self) -> str:
        return self._behind.fingerprint

    @property
    def queries(self) -> Queries:
        """The query counter of the underlying cache."""
        return self._behind.queries

    @queries.setter
    def queries(self, queries: Queries) -> None:
        self._behind.queries = queries

    def embed(self, texts: Sequence[str], purpose: Purpose = "attack") -> Tensor:
        """Defended vectors of ``texts``, (n, dimension) float32; those of a QueryLimitError are defended, too."""
        try:
            return self._change(texts, self._behind.embed(texts, purpose))
        except QueryLimitError as error:
            known = self._change([texts[row] for row in error.done], error.vectors)
            raise QueryLimitError(str(error), error.done, known) from error

    def fill(
        self,
        texts: Sequence[str],
        purpose: Purpose,
        *,
        rank: int = 0,
        world_size: int = 1,
        barrier: Callable[[], None] = lambda: None,
    ) -> None:
        self._behind.fill(texts, purpose, rank=rank, world_size=world_size, barrier=barrier)

    def view(self, texts: Sequence[str]) -> CachedVectors:
        return DefendedVectors(self._behind.view(texts), texts, self._change)

    def flush(self) -> None:
        self._behind.flush()

    def _change(self, texts: Sequence[str], vectors: Tensor) -> Tensor:
        if not len(texts):
            return torch.empty(0, self.dimension)
        # Index 0 for all, so that the noise of a text does not depend on the call.
        examples = [Example(0, text, language=self._language()) for text in texts]
        return defended(self._defense, vectors, examples, "hypothesis")


DEFENSE_SAMPLE = 100_000  # training vectors that a defense is fitted to: enough for means and codebooks, bounded memory
EMBEDDING_LIMIT = timedelta(days=30)  # how long a rank waits for the others to embed their part


class EmbeddedExamples(LightningDataModule):
    """Base of the data module: embedder, defense and denoiser, and the vectors of the examples of each split.

    Attributes:
        embedder: The embedder behind its cache; set by ``connect``.
        defense: The defense between the cache and the attacker; set by ``connect``.
        adaptive: Whether the attacker is trained on defended vectors; see ``connect``.
        hypotheses: Whether texts that the attacker embeds get defended vectors too; see ``connect``.
    """

    embedder: CachedEmbedder
    defense: Defense

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[Split, CachedVectors] = {}
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
        """
        before, after = embedder.dimension, defense.output_dimension(embedder.dimension)
        if before != after and not adaptive:
            raise InputError(
                f"defense.adaptive=false: the defense makes vectors of dimension {after} out of {before}, and an "
                "attack that was trained on undefended vectors cannot read them; train one with defense.adaptive=true"
            )
        if adaptive and denoiser is not None:
            raise InputError(ADAPTIVE)
        self.embedder, self.defense, self._kept = embedder, defense, kept
        self.adaptive, self.hypotheses = adaptive, hypotheses
        self._views, self._fitted = {}, False
        self._denoiser, self._denoises = denoiser, False

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
        return defended(self.defense, clean, examples[indices], split, epoch)

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
            fits: object = type(self.defense).fit
            if fits is not BaseDefense.fit:  # a sample of the training vectors takes hundreds of megabytes
                examples = self.examples("train")
                chosen = range(0, len(examples), -(-len(examples) // DEFENSE_SAMPLE))
                self.defense.fit(self.clean_vectors("train", chosen), examples[chosen])
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
        store = [defended(self.defense, self.clean_vectors("test", chosen), test[chosen], "test")]
        if more := evenly(range(len(train)), self._denoiser.rows - len(chosen)):
            others = train[more]
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
        languages = set(read.column("language"))
        return languages.pop() if len(languages) == 1 else None

    def _place(self) -> tuple[int, int]:
        """This rank and the number of ranks."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)


def _barrier() -> Callable[[], None]:
    """A barrier with a long timeout for embedding; that of the default process group is half an hour."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return lambda: None
    group = torch.distributed.new_group(backend="gloo", timeout=EMBEDDING_LIMIT)
    return lambda: torch.distributed.barrier(group=group)
