"""The split of a row of a file, given by a field of the row.

named = NamedSplits("part", {"train": "a", "valid": None, "test": None})
named.split(named.value({"part": "a"}, "chat.jsonl:3"))              # "train"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from unembed.core.errors import InputError, did_you_mean, printable
from unembed.core.examples import Split
from unembed.datamodules.sources.base import SPLITS

_LONGEST = 40  # characters of a value that are shown
USUAL_NAMES: Mapping[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "dev", "val"),
    "test": ("test",),
}


class NamedSplits:
    """Assigns rows to splits by the value of a field.

    Args:
        field: The field; None: all rows are training texts.
        values: The value that makes a split; None means the usual names.
    """

    def __init__(self, field: str | None, values: Mapping[Split, str | None] | None) -> None:
        self.field = field
        self.chosen: dict[str, Split] = {}
        for split in SPLITS:
            value = (values or {}).get(split)
            if value is not None:
                self.chosen[value] = split
        taken = self.chosen.values()
        self.names = {name: split for split in SPLITS if split not in taken for name in USUAL_NAMES[split]}
        self.names |= self.chosen

    def value(self, row: Mapping[str, Any], where: str) -> str:
        """What the field says; '' without one.

        Raises:
            InputError: The row, which stands at ``where``, does not have it.
        """
        if self.field is None:
            return ""
        if self.field not in row:
            raise InputError(
                f"{where}: no field {self.field!r} (datamodule.split_field={self.field}); "
                f"{did_you_mean(self.field, map(str, row))}"
            )
        return str(row[self.field])

    def split(self, value: str) -> Split | None:
        """The split that a value names; None for rows that are not asked for."""
        return "train" if self.field is None else self.names.get(value)

    def check(self, values: Counter[str]) -> None:
        """Whether the splits that were asked for were there; ``values`` counts rows.

        Raises:
            InputError: A value that was chosen does not occur, or none is the name of a split.
        """
        if self.field is None:
            return
        for value, split in self.chosen.items():
            if value not in values:
                raise InputError(
                    f"datamodule.split_values.{split}={value}: no row has it in field {self.field!r}; "
                    f"{did_you_mean(value, values)}"
                )
        others = {value: count for value, count in values.items() if value not in self.names}
        if len(others) == len(values):
            raise InputError(
                f"datamodule.split_field={self.field}: none of its values is the name of a split "
                f"({_listed(values)}); say which is which by datamodule.split_values.train=<value>, ..."
            )
        if others:
            rank_zero_info(f"{sum(others.values())} rows belong to no split: {_listed(others)}")


def _listed(values: Iterable[str]) -> str:
    """The first few, none of them longer than a name: a wrong field may hold whole texts."""
    shown = (value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…" for value in sorted(values)[:8])
    return printable(", ".join(shown))
