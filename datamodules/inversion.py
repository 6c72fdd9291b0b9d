"""The data module: truncates, deduplicates, embeds, defends and labels the texts of a source.

datamodule = InversionDataModule(SyntheticCorpus())
datamodule.connect(CachedEmbedder(...), Identity())   # the black boxes
datamodule.setup("fit")                               # reads, cuts, embeds training and validation texts
datamodule.encode = attack.encode                     # what the attack predicts: token ids of a text
batch = next(iter(datamodule.train_dataloader()))
batch["vectors"], batch["labels"]                     # (64, d) float32, (64, T) int64 padded with -100
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt

from unembed.core.errors import InputError, listed
from unembed.core.examples import Split
from unembed.datamodules.arrow_examples import ArrowExamples, Encode, TokenIds
from unembed.datamodules.batching import (
    Batch,
    BatchLoader,
    EvaluationBatchSampler,
    Indices,
    LengthBucketBatchSampler,
    Lengths,
    ResumableLoader,
)
from unembed.datamodules.embedded import EmbeddedExamples
from unembed.datamodules.reading import Languages, check_attributes, read_splits
from unembed.datamodules.sources.base import SPLITS, Downloaded, InLanguages, ReadsFiles, Source
from unembed.datamodules.truncation import Truncation
from unembed.embedders.model_files import file_hash
from unembed.runs.files import DataFile, absent_data

if TYPE_CHECKING:
    from omegaconf import DictConfig

STAGES: Mapping[str | None, tuple[Split, ...]] = {
    "fit": ("train", "valid"),
    "validate": ("valid",),
    "test": ("test",),
    "predict": ("test",),
    None: SPLITS,
}


class InversionDataModule(EmbeddedExamples):
    """Texts, their defended vectors and their labels, in batches.

    A text is truncated once, to the reference that both embedder and attack see. Vectors are read from the cache's
    files batch by batch; labels are token ids, computed once. Test batches have no labels, since an attacker knows
    neither a text nor its length.

    The arguments are those of configs/datamodule/shared/texts.yaml and languages.yaml, and ``attributes``: labels of
    the texts that the attribute attack predicts (see callbacks/attributes.py).
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

    def expect(self, files: Sequence[DataFile] | None, advice: str) -> None:
        """Check that each file of the source has the content of one that a run was trained on, under any name.

        Args:
            files: As recorded by the run; None skips the check.
            advice: What to do if the changed content is intended, or the file has moved.

        Raises:
            InputError: A file has changed, is unknown or missing; names the file and the advice.
        """
        before = {file.path: file for file in files or ()}
        for file in files_of(self.source) if files is not None else ():
            path = str(file.absolute())
            if not file.is_file():
                raise InputError(f"{path}: the run was trained on this file, which is not there any more; {advice}")
            (now,) = described([file])
            if now.sha256 in {known.sha256 for known in before.values()}:
                continue
            if path not in before:
                raise InputError(
                    f"{path}: it has the content of none of the files that the run was trained on; {advice}"
                )
            then = before[path]
            raise InputError(
                f"{path}: has changed since the run was trained on it ({then.bytes:,} bytes, SHA-256 "
                f"{then.sha256[:12]}...; now {now.bytes:,} bytes, {now.sha256[:12]}...); {advice}"
            )

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
        """Check that there are enough training texts."""
        if (count := len(self.examples("train"))) < 2:
            raise InputError(
                f"training needs at least two training texts, there {'is' if count == 1 else 'are'} {count} (after "
                "repeats were dropped): check datamodule.train, datamodule.path or datamodule.limit_train, or of token "
                "inputs datamodule.source.train_per_length"
            )

    def examples(self, split: Split) -> ArrowExamples:
        """The examples of a split: cut, without repeats, numbered by position. Needs no embedder."""
        if self._examples is None:
            self._examples = self._read()
        return self._examples[split]

    def share(self, other: InversionDataModule) -> None:
        """Take the examples that a data module with the same settings has read, if it has."""
        self._examples, self.files_read = other._examples, other.files_read

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
        texts = self.languages.select(self.source.load())
        splits = read_splits(texts, truncation, self.limits, drop_repeated=self.drop_repeated)
        check_attributes(splits, self.attributes)
        return splits


def training_data(run: Path, config: DictConfig, files: Sequence[DataFile] | None) -> InversionDataModule:
    """The data module of a run's training texts, not connected.

    Args:
        run: The run directory.
        config: The configuration that it was trained with.
        files: The files that the texts were read from in training; None if that was not recorded.
    """
    from hydra.utils import instantiate

    if absent := absent_data(run):
        raise InputError(f"run={run}: {listed(absent)} is not part of it")
    datamodule: InversionDataModule = instantiate(config.datamodule, _convert_="all")
    datamodule.expect(files, "put back what it was")
    return datamodule


def files_of(source: object) -> list[Path]:
    """The files that a source reads; empty if it does not list them."""
    return list(dict.fromkeys(source.data_files())) if isinstance(source, ReadsFiles) else []


def described(files: Iterable[Path]) -> list[DataFile]:
    """Size and hash of each file that exists; some 2 seconds a gigabyte at most."""
    return [DataFile(str(file.absolute()), file.stat().st_size, file_hash(file)) for file in files if file.is_file()]
