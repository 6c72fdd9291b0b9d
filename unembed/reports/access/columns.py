"""What an attacker can have: the columns of the access table, read from columns.yaml.

KNOWN.columns["pairs_10"].title         # 10 known pairs
KNOWN.impossible["ALGEN"]["vectors"]    # needs pairs
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from unembed.core.errors import InputError, did_you_mean


class Column(BaseModel):
    """A column: its title, how a sentence says it, and the columns whose attacker has less."""

    model_config = ConfigDict(extra="forbid")

    title: str
    said: str
    includes: list[str]


class Known(BaseModel):
    """The columns in order, the titles of defenses in order, and why attacks cannot fill cells."""

    model_config = ConfigDict(extra="forbid")

    columns: dict[str, Column]
    defenses: dict[str, str]
    impossible: dict[str, dict[str, str]]

    def check(self, has: str) -> str | None:
        """Why ``has`` is refused; None if it is a column."""
        return None if has in self.columns else f"no column of the access table, {did_you_mean(has, self.columns)}"

    def defense(self, name: str) -> str:
        """The title of a defense."""
        return self.defenses.get(name, name)

    def ordered(self, defenses: Iterable[str]) -> list[str]:
        """Defenses in the order of the titles, others behind them."""
        present = set(defenses)
        return [name for name in self.defenses if name in present] + sorted(present - set(self.defenses))


def _known() -> Known:
    path = Path(__file__).with_name("columns.yaml")
    found = Known.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    for one in (*(column.includes for column in found.columns.values()), *found.impossible.values()):
        for has in one:
            if (wrong := found.check(has)) is not None:
                raise InputError(f"{path}: {has}: {wrong}")
    return found


KNOWN = _known()
