"""Splits that share no subject: a test on people of whom the attacker has read nothing.

    rest, valid, test = cut_by_group(examples, counts=[100, 500], seed=0)

Texts about one subject repeat its attributes, so splits that were cut by text would let an attacker look them up.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from lightning.pytorch.utilities import rank_zero_info

from errors import InputError
from examples import Example, Split

VALUES = 10  # of each attribute in the last part, where the data has as many: fewer make a poor guessing game

Groups = Mapping[str, Sequence[Example]]


def cut_by_group(examples: Sequence[Example], counts: Sequence[int], seed: int) -> list[list[Example]]:
    """Take whole groups out, about so many texts for each of ``counts``: [the rest, the first part, ...], all in order.

    Chosen by a hash of the group's name, but the last part (the test) is chosen first, and first of all from groups
    that bring it an attribute's value that it does not have yet, until it has ``VALUES`` of each attribute. For that it
    may grow beyond its count. A text without a group stays in the rest, and so does at least one group.
    """
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        if example.group is not None:
            groups[example.group].append(example)
    salt = seed.to_bytes(8, "little")
    left = {
        name: groups[name]
        for name in sorted(groups, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8, salt=salt).digest())
    }
    part_of: dict[str, int] = {}
    for part in reversed(range(len(counts))):
        last = part == len(counts) - 1
        for name in _choose(left, counts[part], VALUES if last else 0):
            part_of[name] = part + 1
            del left[name]
    parts: list[list[Example]] = [[] for _ in range(len(counts) + 1)]
    for example in examples:
        parts[part_of.get(example.group, 0) if example.group is not None else 0].append(example)
    sizes = [len({e.group for e in part if e.group is not None}) for part in parts]
    rank_zero_info(f"{len(groups)} groups: {sizes[0]} for training, {', '.join(map(str, sizes[1:]))} held out")
    return parts


def _choose(groups: Groups, count: int, values: int) -> list[str]:
    """Names of groups with about ``count`` texts, and with ``values`` values of each attribute."""
    chosen: list[str] = []
    seen: dict[str, set[str]] = defaultdict(set)
    size = 0

    def brings(name: str) -> bool:
        return any(len(seen[attribute]) < values and new - seen[attribute] for attribute, new in _values(groups[name]))

    def take(names: Iterable[str], most: int, *, only_new: bool) -> None:
        nonlocal size
        for name in names:
            room = size + len(groups[name]) <= most and len(chosen) + 1 < len(groups)
            if name not in chosen and room and (not only_new or brings(name)):
                chosen.append(name)
                size += len(groups[name])
                for attribute, new in _values(groups[name]):
                    seen[attribute] |= new

    if count == 0:
        return []
    everything = sum(map(len, groups.values()))
    smallest_first = sorted(groups, key=lambda name: len(groups[name]))  # of equals, the first by hash
    take(groups, count, only_new=True)
    take(groups, count, only_new=False)
    take(smallest_first, everything, only_new=True)
    if not chosen:  # each group alone is larger
        take(smallest_first[:1], everything, only_new=False)
    return chosen


def _values(examples: Sequence[Example]) -> list[tuple[str, set[str]]]:
    found: dict[str, set[str]] = defaultdict(set)
    for example in examples:
        for attribute, value in example.attributes.items():
            found[attribute].add(value)
    return list(found.items())


def check_disjoint(found: Mapping[Split, Sequence[Example]], group_field: str) -> None:
    """Whether splits that a file gives share no group.

    Raises:
        InputError: They do; names one.
    """
    where: dict[str, Split] = {}
    for split, examples in found.items():
        for group in sorted({e.group for e in examples if e.group is not None}):
            if group in where:
                raise InputError(
                    f"datamodule.group_field={group_field}: {group!r} stands in {where[group]} and in {split}; leave "
                    "out datamodule.split_field to have the texts split anew, no group in two splits"
                )
            where[group] = split
