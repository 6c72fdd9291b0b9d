"""The data module: truncates, deduplicates, embeds, defends and labels the texts of a source.

datamodule = InversionDataModule(SyntheticCorpus())
datamodule.connect(CachedEmbedder(...), Identity())   # the black boxes
datamodule.setup("fit")                               # reads, cuts, embeds training and validation texts
datamodule.encode = attack.encode                     # what the attack predicts: token ids of a text
batch = next(iter(datamodule.train_dataloader()))
batch["vectors"], batch["labels"]                     # (64, d) float32, (64, T) int64 padded with -100
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from datamodules.arrow_examples import ArrowExamples
from datamodules.batching import (
    Batch,
    BatchLoader,
    EvaluationBatchSampler,
    Indices,
    LengthBucketBatchSampler,
    Lengths,
    ResumableLoader,
)
from datamodules.defended import DefendedEmbedder, FittedDefense, defended
from datamodules.languages import InLanguages, Languages
from datamodules.reading import check_attributes, read_splits
from datamodules.sources.base import SPLITS, Downloaded, Source
from datamodules.sources.data_files import DataFile, check_unchanged, described, files_of
from datamodules.token_ids import Encode, TokenIds
from datamodules.truncation import Truncation
from defenses.base import Defense, Fitted
from defenses.threat import Hypotheses
from denoisers.base import ADAPTIVE, Denoiser
from errors import InputError
from examples import Split
from temporary_map import give_back

if TYPE_CHECKING:
    from embedders.cache.cached import CachedEmbedder
    from embedders.cache.rows import CachedVectors

DEFENSE_SAMPLE = 100_000  # training vectors that a defense is fitted to: enough for means and codebooks, bounded memory
EMBEDDING_LIMIT = timedelta(days=30)  # how long a rank waits for the others to embed their part

STAGES: Mapping[str | None, tuple[Split, ...]] = {
    "fit": ("train", "valid"),
    "validate": ("valid",),
    "test": ("test",),
    "predict": ("test",),
    None: SPLITS,
}


class InversionDataModule(LightningDataModule):
    """Texts, their defended vectors and their labels, in batches.

    A text is truncated once, to the reference that both embedder and attack see. Vectors are read from the cache's
    files batch by batch; labels are token ids, computed once. Test batches have no labels, since an attacker knows
    neither a text nor its length.

    Args:
        source: Gives the texts of each split, not truncated.
        max_tokens: Maximum length of a reference in tokens.
        tokenizer: Counts the tokens (see Truncation).
        batch_size: Training examples in a batch of one rank.
        eval_batch_size: Validation and test examples in a batch.
        limit_train: Use at most this many training examples, the first ones after deduplication; with several
            languages, about equally many of each.
        limit_valid: As ``limit_train``, for validation.
        limit_test: As ``limit_train``, for the test.
        drop_repeated: Drop repeated texts within each split, training texts that are also validation or test texts, and
            validation texts that are also test texts. Between splits, case and punctuation are ignored.
        seed: Seed of the order of the training batches.
        attributes: Labels of the texts that the attribute attack predicts (see callbacks/attributes.py).
        languages: Use only texts in these languages; None uses all.
        train_languages: Languages of the training and validation texts; None means ``languages``.
        test_languages: Languages of the test texts; None means ``languages``.
    """

    def __init__(
        self,
        source: Source,
        max_tokens: PositiveInt = 32,
        tokenizer: str = "minilm",
        batch_size: PositiveInt = 64,
        eval_batch_size: PositiveInt = 128,
        limit_train: PositiveInt | None = None,
        limit_valid: PositiveInt | None = None,
        limit_test: PositiveInt | None = None,
        drop_repeated: bool = True,
        seed: NonNegativeInt = 0,
        attributes: Sequence[str] = (),
        languages: Sequence[str] | None = None,
        train_languages: Sequence[str] | None = None,
        test_languages: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.languages = Languages(languages, train_languages, test_languages)
        named = self.languages.named
        self.source = source.only(named) if named is not None and isinstance(source, InLanguages) else source
        self.max_tokens = max_tokens
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.limits: Mapping[Split, int | None] = {"train": limit_train, "valid": limit_valid, "test": limit_test}
        self.drop_repeated = drop_repeated
        self.seed = seed
        self.attributes = tuple(attributes)
        self.encode: Encode | None = None
        self.encodes_ids = False  # whether ``encode`` gets written-out token ids for examples that consist of ids
        self._examples: Mapping[Split, ArrowExamples] | None = None
        self.files_read: Sequence[DataFile] = ()
        self._views: dict[Split, CachedVectors] = {}
        self._embedder: CachedEmbedder | None = None
        self._defense: Defense | None = None
        self.adaptive = False
        self.hypotheses: Hypotheses = "clean"
        self._kept: FittedDefense | None = None
        self._fitted = False
        self._denoiser: Denoiser | None = None
        self._denoises = False

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

    def expect(self, files: Sequence[DataFile] | None, names: str) -> None:
        """Check that the source's files are unchanged since a run was trained on ``files``.

        Args:
            files: As recorded by the run; None skips the check.
            names: See ``check_unchanged``.

        Raises:
            InputError: A file has changed.
        """
        if files is not None:
            check_unchanged(files_of(self.source), files, names)

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

    @property
    def resolved_revision(self) -> str | None:
        """The commit of a downloaded source, for the run's record; None where there is none."""
        return self.source.download() if isinstance(self.source, Downloaded) else None

    def prepare_data(self) -> None:
        """Download what is not on this machine yet; nothing else."""
        if isinstance(self.source, Downloaded):
            self.source.download()

    def setup(self, stage: str | None = None) -> None:
        """Read and embed the splits that a stage needs (None: all of them), and fit the defense where it is ``fit``.

        For ``test``, the defense must be fitted already. Where the trainer takes no batch of the validation texts
        (``trainer.limit_val_batches=0``), ``fit`` does not embed them.

        Raises:
            InputError: An error of the source; fewer than two training texts for ``fit``; no text for ``test``.
        """
        splits = STAGES[stage]
        if "train" in splits:
            self.check_training()
        if stage in ("validate", "test") and not self.examples(splits[0]):
            raise InputError(
                f"there is no {splits[0]} text: give datamodule.{splits[0]}, or datamodule.{splits[0]}_fraction or "
                "datamodule.split_field with datamodule.path"
            )
        if stage == "fit" and self.trainer is not None and self.trainer.limit_val_batches == 0:
            splits = ("train",)
        self.embed(*splits)
        if stage == "fit":
            self.fit_defense()
        if "test" in splits:
            self.fit_denoiser()

    def check_training(self) -> None:
        """Check that there are enough training texts.

        Raises:
            InputError: Fewer than two training texts.
        """
        count = len(self.examples("train"))
        if count < 2:
            raise InputError(
                f"training needs at least two training texts, there {'is' if count == 1 else 'are'} {count} (after "
                "repeats were dropped): check datamodule.train, datamodule.path or datamodule.limit_train, or of token "
                "inputs datamodule.source.train_per_length"
            )

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

    def examples(self, split: Split) -> ArrowExamples:
        """The examples of a split: cut, without repeats, numbered by position. Needs no embedder."""
        if self._examples is None:
            self._examples = self._read()
        return self._examples[split]

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
        chosen = evenly(len(test), self._denoiser.rows)
        store = [defended(self.defense, self.clean_vectors("test", chosen), [test[row] for row in chosen], "test")]
        if more := evenly(len(train), self._denoiser.rows - len(chosen)):
            others = [train[row] for row in more]
            texts = [example.query for example in others]
            rank, world_size = self._place()
            self.embedder.fill(texts, "training", rank=rank, world_size=world_size, barrier=_barrier())
            store.append(defended(self.defense, self.embedder.view(texts)[list(range(len(more)))], others, "train"))
        self._denoiser.fit(torch.cat(store))
        rank_zero_info(self._denoiser.report())
        self._denoises = True

    def training_entities(self) -> frozenset[tuple[str, str]]:
        """Label and lower-cased text of every entity in the training texts."""
        return frozenset(
            (span.label, example.reference[span.start : span.end].lower())
            for example in self.examples("train")
            for span in example.spans
        )

    def train_dataloader(self) -> ResumableLoader:
        """Batches of index, vectors and labels (where ``encode`` is set), on every rank equally many."""
        labels, lengths = self._labels("train")
        rank, world_size = self._place()
        sampler = LengthBucketBatchSampler(lengths, self.batch_size, self.seed, rank, world_size)
        return ResumableLoader(sampler, lambda indices: self._batch("train", indices, labels, sampler.epoch))

    def val_dataloader(self) -> BatchLoader | list[BatchLoader]:
        """Batches of index, vectors and labels; without validation texts, no loader."""
        if not self.examples("valid"):
            return []
        labels, lengths = self._labels("valid")
        sampler = EvaluationBatchSampler(len(lengths), self.eval_batch_size, *self._place(), lengths=lengths)
        return BatchLoader(sampler, lambda indices: self._batch("valid", indices, labels))

    def test_dataloader(self) -> BatchLoader:
        """Batches of index and vectors, in the order of the examples."""
        sampler = EvaluationBatchSampler(len(self.examples("test")), self.eval_batch_size, *self._place())
        return BatchLoader(sampler, lambda indices: self._batch("test", indices, None))

    def _batch(self, split: Split, indices: Indices, labels: TokenIds | None, epoch: int | None = None) -> Batch:
        batch = {"index": torch.from_numpy(indices), "vectors": self.vectors(split, indices, epoch)}
        if labels is not None:
            batch["labels"] = labels.padded(indices)
        return batch

    def _labels(self, split: Split) -> tuple[TokenIds | None, Lengths]:
        """Labels of a split, and the lengths to sort by: in tokens where there are labels, else in characters."""
        texts = self.examples(split).queries if self.encodes_ids else self.examples(split).texts
        if self.encode is None:
            return None, np.fromiter(map(len, texts), np.int32, len(texts))
        labels = TokenIds(texts, self.encode)
        return labels, labels.lengths

    def _read(self) -> Mapping[Split, ArrowExamples]:
        self.files_read = described(files_of(self.source))
        truncation = Truncation(self.max_tokens, self.tokenizer)
        texts = self.languages.kept(self.source.load())
        kept = read_splits(texts, truncation, self.limits, drop_repeated=self.drop_repeated)
        check_attributes(kept, self.attributes)
        give_back()
        return kept

    def _language(self) -> str | None:
        """The one language of the training texts, which the attack writes; without any, that of the attacked texts."""
        read = self.examples("train") or self.examples("test")
        found = set(read.column("language"))
        return found.pop() if len(found) == 1 else None

    def _place(self) -> tuple[int, int]:
        """This rank and the number of ranks."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)


def evenly(count: int, most: int) -> list[int]:
    """At most ``most`` positions out of ``count``, evenly."""
    taken = min(count, most)
    return [place * count // taken for place in range(taken)]


def _barrier() -> Callable[[], None]:
    """A barrier with a long timeout for embedding; that of the default process group is half an hour."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return lambda: None
    group = torch.distributed.new_group(backend="gloo", timeout=EMBEDDING_LIMIT)
    return lambda: torch.distributed.barrier(group=group)
