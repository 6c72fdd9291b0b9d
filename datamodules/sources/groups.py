"""Splits by group: the test texts are about subjects, such as people, that are not in the training texts.

    rest, valid, test = cut_by_group(examples, counts=[100, 500], seed=0)

Texts about one subject repeat its attributes, so splits that were cut by text would let an attacker look them up.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from unembed.core.errors import InputError
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow
from unembed.datamodules.sources.base import parted

VALUES = 10  # distinct values of each attribute in the test split, if available: fewer are too easy to guess


@dataclass
class _Group:
    texts: int = 0
    values: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # of each attribute


def cut_by_group(examples: Sequence[Example], counts: Sequence[int], seed: int) -> list[ArrowExamples]:
    """Split off parts of whole groups with about ``counts`` texts: [the rest, the first part, ...], all in order.

    Groups are chosen by a hash of their name. The last part (the test) is chosen first, preferring groups with new
    attribute values until it has ``VALUES`` of each attribute, even if it then exceeds its count. Texts without a group
    stay in the rest, and so does at least one group.
    """
    found = to_arrow(examples)
    groups: dict[str, _Group] = defaultdict(_Group)
    for example in found:
        if example.group is not None:
            group = groups[example.group]
            group.texts += 1
            for attribute, value in example.attributes.items():
                group.values[attribute].add(value)
    salt = seed.to_bytes(8, "little")
    left = {
        name: groups[name]
        for name in sorted(groups, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8, salt=salt).digest())
    }
    part_of: dict[str | None, int] = {}
    for part in reversed(range(len(counts))):
        for name in _choose(left, counts[part], VALUES if part == len(counts) - 1 else 0):
            part_of[name] = part + 1
            del left[name]
    parts = np.fromiter((part_of.get(group, 0) for group in found.column("group")), np.int8, len(found))
    sizes = [len(groups) - len(part_of), *(list(part_of.values()).count(part + 1) for part in range(len(counts)))]
    rank_zero_info(f"{len(groups)} groups: {sizes[0]} for training, {', '.join(map(str, sizes[1:]))} held out")
    return parted(found, parts, len(counts) + 1)


def _choose(groups: Mapping[str, _Group], count: int, values: int) -> list[str]:
    """Names of groups with about ``count`` texts, and with ``values`` values of each attribute."""
    chosen: list[str] = []
    seen: dict[str, set[str]] = defaultdict(set)
    size = 0

    def brings(name: str) -> bool:
        new = groups[name].values.items()
        return any(len(seen[attribute]) < values and found - seen[attribute] for attribute, found in new)

    def take(names: Iterable[str], most: int, *, only_new: bool) -> None:
        nonlocal size
        for name in names:
            room = size + groups[name].texts <= most and len(chosen) + 1 < len(groups)
            if name not in chosen and room and (not only_new or brings(name)):
                chosen.append(name)
                size += groups[name].texts
                for attribute, found in groups[name].values.items():
                    seen[attribute] |= found

    if count == 0:
        return []
    everything = sum(group.texts for group in groups.values())
    smallest_first = sorted(groups, key=lambda name: groups[name].texts)  # of equals, the first by hash
    take(groups, count, only_new=True)
    take(groups, count, only_new=False)
    take(smallest_first, everything, only_new=True)
    if not chosen:  # each group alone is larger
        take(smallest_first[:1], everything, only_new=False)
    return chosen


def check_disjoint(found: Mapping[Split, Sequence[Example]], group_field: str) -> None:
    """Check that the splits given in a file share no group.

    Raises:
        InputError: They share a group; names it.
    """
    where: dict[str, Split] = {}
    for split, examples in found.items():
        for group in sorted({e for e in to_arrow(examples).column("group") if e is not None}):
            if group in where:
                raise InputError(
                    f"datamodule.group_field={group_field}: {group!r} stands in {where[group]} and in {split}; leave "
                    "out datamodule.split_field to have the texts split anew, no group in two splits"
                )
            where[group] = split
