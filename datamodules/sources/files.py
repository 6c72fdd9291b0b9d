"""datamodule=files: your own text, one file or several.

    python train.py datamodule=files datamodule.path=chat.jsonl datamodule.text_field=utterance

where a line of chat.jsonl is ``{"utterance": "hi, I am Ada", "split": "train"}``. Readable: .jsonl, .csv, .tsv (no
quoting: a quote is a character like any other), .parquet and .txt (a text a line), all in UTF-8, and .gz of each but
parquet. Blank texts and lines are skipped, with one warning for a file; anything else that cannot be read is an error
that names the file and line.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from pydantic import NonNegativeInt

from unembed.core import limits
from unembed.core.errors import InputError, did_you_mean, printable
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.base import (
    SPLITS,
    Fields,
    Fraction,
    completed,
    cut_apart,
    field_of,
    parted,
    rows,
)

_LONGEST = 40  # characters of a value that are shown
USUAL_NAMES: Mapping[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "dev", "val"),
    "test": ("test",),
}


def _listed(values: Iterable[str]) -> str:
    """The first few, none of them longer than a name: a wrong field may hold whole texts."""
    shown = (value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…" for value in sorted(values)[:8])
    return printable(", ".join(shown))


Paths = str | Sequence[str]


class TextFiles:
    """Texts from files.

    Either ``path`` holds all texts, with an optional ``split_field``, or ``train``, ``valid`` and ``test`` are separate
    files. A missing validation or test split is split off the training texts by a hash of the text. ``test`` alone is
    enough to evaluate. The arguments are those of configs/datamodule/files.yaml.
    """

    def __init__(
        self,
        path: Paths | None = None,
        train: Paths | None = None,
        valid: Paths | None = None,
        test: Paths | None = None,
        text_field: str = "text",
        split_field: str | None = None,
        split_values: Mapping[Split, str | None] | None = None,
        spans_field: str | None = None,
        language_field: str | None = None,
        attributes: Sequence[str] = (),
        group_field: str | None = None,
        context_field: str | None = None,
        original_field: str | None = None,
        valid_fraction: Fraction = 0.05,
        test_fraction: Fraction = 0.05,
        split_seed: NonNegativeInt = 0,
    ) -> None:
        self.path = path
        self.files: Mapping[Split, Paths | None] = {"train": train, "valid": valid, "test": test}
        self.fields = Fields(
            text=text_field,
            spans=spans_field,
            language=language_field,
            attributes=tuple(attributes),
            group=group_field,
            context=context_field,
            original=original_field,
        )
        self.split_field = split_field
        self.split_values = {split: value for split, value in (split_values or {}).items() if value is not None}
        self.fractions: Mapping[Split, float] = {"valid": valid_fraction, "test": test_fraction}
        self.split_seed = split_seed
        given = [split for split in SPLITS if self.files[split] is not None]
        if path is None and not given:
            raise InputError("datamodule=files needs datamodule.path=<file>, or datamodule.train, .valid, .test")
        if path is not None and given:
            raise InputError(
                f"datamodule.path={path} and datamodule.{given[0]}={self.files[given[0]]} exclude each other"
            )
        if path is None and split_field is not None:
            raise InputError(
                f"datamodule.split_field={split_field} is for datamodule.path, not for a file for each split"
            )
        if valid_fraction + test_fraction >= 1:
            raise InputError(
                f"datamodule.valid_fraction={valid_fraction} and datamodule.test_fraction={test_fraction} leave no "
                "training text"
            )

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """Read the files."""
        splits: dict[Split, ArrowExamples] = {}
        self._columns = set[str]()
        if self.path is None:
            for split in SPLITS:
                if (files := self.files[split]) is not None:
                    splits[split] = to_arrow(example for example, _ in self._texts(files, f"datamodule.{split}"))
        else:
            splits = self._by_split_field(self.path)
        single = [("group_field", self.fields.group), ("context_field", self.fields.context)]
        for key, name in [*(("attributes", name) for name in self.fields.attributes), *single]:
            if name is not None and name not in self._columns:
                names = ", ".join(map(str, self.data_files()))
                raise InputError(
                    f"datamodule.{key}: no row of {names} has {name!r}; {did_you_mean(name, self._columns)}"
                )
        train = splits.get("train", to_arrow(()))
        cut_off, divisible = cut_apart, len(train)
        if self.fields.group is not None:
            check_disjoint(splits, self.fields.group)
            cut_off, divisible = cut_by_group, sum(group is not None for group in train.column("group"))
        counts = {split: math.ceil(divisible * fraction) for split, fraction in self.fractions.items()}
        return completed(splits, counts, self.split_seed, cut_off)

    def data_files(self) -> list[Path]:
        """The files that ``load`` reads."""
        given = [paths for paths in (self.path, *self.files.values()) if paths is not None]
        return [Path(name).expanduser() for paths in given for name in ([paths] if isinstance(paths, str) else paths)]

    def _by_split_field(self, path: Paths) -> dict[Split, ArrowExamples]:
        """The rows of all files that belong to a split; without ``split_field`` all are training texts."""
        names: dict[str, Split] = {"": "train"}
        if self.split_field is not None:
            usual = [split for split in SPLITS if split not in self.split_values]
            names = {name: split for split in usual for name in USUAL_NAMES[split]}
            names |= {value: split for split, value in self.split_values.items()}
        counts: Counter[str] = Counter()
        splits: list[str] = []

        def texts() -> Iterator[Example]:
            for example, value in self._texts(path, "datamodule.path"):
                counts[value] += 1
                splits.append(names.get(value, ""))
                yield example

        examples = to_arrow(texts())
        if self.split_field is not None:
            self._check_splits(counts, names)
        chosen = np.array(splits)
        return {split: examples.select(np.flatnonzero(chosen == split)) for split in SPLITS if split in chosen}

    def _check_splits(self, counts: Counter[str], names: Mapping[str, Split]) -> None:
        """Check that the chosen values occur, and some name of a split; ``counts`` are of rows by value."""
        for split, value in self.split_values.items():
            if value not in counts:
                raise InputError(
                    f"datamodule.split_values.{split}={value}: no row has it in field {self.split_field!r}; "
                    f"{did_you_mean(value, counts)}"
                )
        others = {value: count for value, count in counts.items() if value not in names}
        if len(others) == len(counts):
            raise InputError(
                f"datamodule.split_field={self.split_field}: none of its values is the name of a split "
                f"({_listed(counts)}); say which is which by datamodule.split_values.train=<value>, ..."
            )
        if others:
            rank_zero_info(f"{sum(others.values())} rows belong to no split: {_listed(others)}")

    def _texts(self, paths: Paths, key: str) -> Iterator[tuple[Example, str]]:
        """Examples with the value of their split field ('' without one); blank texts are counted and left out."""
        for name in [paths] if isinstance(paths, str) else paths:
            file = limits.existing(name, key)
            blank = texts = 0
            for line, row in rows(file, self.fields.text):
                where = f"{file}:{line}"
                example = self.fields.example(row, where)
                if example is None:
                    blank += 1
                    continue
                texts += 1
                self._columns.update(row)
                if isinstance(nested := row.get("attributes"), Mapping):
                    self._columns.update(nested)
                split = self.split_field
                yield example, "" if split is None else str(field_of(row, split, "split_field", where))
            if not texts:
                raise InputError(f"{key}={name}: {'every text is blank' if blank else 'the file is empty'}")
            if blank:
                rank_zero_warn(f"{file}: {blank} blank texts skipped")


VALUES = 10  # distinct values of each attribute in the test split, if available: fewer are too easy to guess


def cut_by_group(examples: Sequence[Example], counts: Sequence[int], seed: int) -> list[ArrowExamples]:
    """Split off parts of whole groups with about ``counts`` texts: [the rest, the first part, ...], all in order.

    Groups are chosen by a hash of their name. The last part (the test) is chosen first, preferring groups with new
    attribute values until it has ``VALUES`` of each attribute, even if it then exceeds its count. Texts without a group
    stay in the rest, and so does at least one group.
    """
    stored = to_arrow(examples)
    sizes: Counter[str] = Counter()
    attributes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # values of each group
    for example in stored:
        if example.group is not None:
            sizes[example.group] += 1
            for attribute, value in example.attributes.items():
                attributes[example.group][attribute].add(value)
    salt = seed.to_bytes(8, "little")
    left = sorted(sizes, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8, salt=salt).digest())
    part_of: dict[str | None, int] = {}
    for part in range(len(counts), 0, -1):
        values = VALUES if part == len(counts) else 0
        chosen = _choose({name: sizes[name] for name in left}, attributes, counts[part - 1], values)
        part_of |= dict.fromkeys(chosen, part)
        left = [name for name in left if name not in part_of]
    parts = np.fromiter((part_of.get(group, 0) for group in stored.column("group")), np.int8, len(stored))
    held_out = ", ".join(str(list(part_of.values()).count(part + 1)) for part in range(len(counts)))
    rank_zero_info(f"{len(sizes)} groups: {len(left)} for training, {held_out} held out")
    return parted(stored, parts, len(counts) + 1)


def _choose(
    sizes: Mapping[str, int], attributes: Mapping[str, Mapping[str, set[str]]], count: int, values: int
) -> list[str]:
    """Names of groups with about ``count`` texts, and with ``values`` values of each attribute."""
    if count == 0:
        return []
    smallest_first = sorted(sizes, key=sizes.__getitem__)  # of equals, the first by hash
    chosen: list[str] = []
    seen: dict[str, set[str]] = defaultdict(set)
    texts = 0
    for names, most, only_new in (
        (sizes, count, True), (sizes, count, False), (smallest_first, sum(sizes.values()), True)
    ):  # fmt: skip
        for name in names:
            new = any(len(seen[one]) < values and own - seen[one] for one, own in attributes[name].items())
            room = texts + sizes[name] <= most and len(chosen) + 1 < len(sizes)
            if name not in chosen and room and (new or not only_new):
                chosen.append(name)
                texts += sizes[name]
                for attribute, own in attributes[name].items():
                    seen[attribute] |= own
    return chosen or smallest_first[: len(sizes) - 1][:1]  # if each group alone is larger, the smallest


def check_disjoint(splits: Mapping[Split, Sequence[Example]], group_field: str) -> None:
    """Check that the splits given in a file share no group; an InputError names one that they share."""
    where: dict[str, Split] = {}
    for split, examples in splits.items():
        for group in sorted({e for e in to_arrow(examples).column("group") if e is not None}):
            if group in where:
                raise InputError(
                    f"datamodule.group_field={group_field}: {group!r} stands in {where[group]} and in {split}; leave "
                    "out datamodule.split_field to have the texts split anew, no group in two splits"
                )
            where[group] = split


def joined(*called: Callable[..., Any]) -> inspect.Signature:
    """The arguments of several classes side by side, all by name; the source, which the first class is, left out."""
    signatures = (inspect.signature(each, eval_str=True) for each in called)
    arguments = {one.name: one for signature in signatures for one in signature.parameters.values()}
    del arguments["source"]
    return inspect.Signature([one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in arguments.values()])


class FilesDataModule(InversionDataModule):
    """InversionDataModule over TextFiles, with the arguments of both side by side, so that keys stay short."""

    __signature__ = joined(TextFiles, InversionDataModule)

    def __init__(self, path: Paths | None = None, **arguments: Any) -> None:
        of_files = inspect.signature(TextFiles).parameters
        source = TextFiles(path, **{name: value for name, value in arguments.items() if name in of_files})
        both = {name: value for name, value in arguments.items() if name not in of_files or name == "attributes"}
        super().__init__(source, **both)
