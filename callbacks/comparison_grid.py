"""Runs down, data sets across: how an attack reads text of another kind than it was trained on.

    python compare.py runs/*/evaluations/* columns=data metrics=bleu,exact_match

One table a figure (Chen et al. 2024, appendix G, and the cross-lingual tables of its section 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from callbacks.comparison import Compared
from callbacks.comparison_entries import Entry
from callbacks.comparison_table import DASH, Cell, Line, Table, figure_cell
from callbacks.wording import measure
from errors import InputError


def check_grid(entries: Sequence[Entry]) -> None:
    """Whether each run stands with each data set once at most; before anything is resampled.

    Raises:
        InputError: Two would stand in one cell.
    """
    first: dict[tuple[Path, str], Entry] = {}
    for entry in entries:
        other = first.setdefault((_trained(entry), _data(entry)), entry)
        if other is not entry:
            raise InputError(
                f"columns=data: {other.label} and {entry.label} are of one run on one data set, {_data(entry)}; "
                "leave one of them out"
            )


def grids(compared: Sequence[Compared], metrics: Sequence[str]) -> list[Table]:
    """A table for each metric: a line for each trained run, a column for each data set, in the order given."""
    runs = list(dict.fromkeys(_trained(one.entry) for one in compared))
    data = list(dict.fromkeys(_data(one.entry) for one in compared))
    places = {(_trained(one.entry), _data(one.entry)): one for one in compared}
    return [
        Table(
            f"{measure(key).title} by data",
            ("run", *data),
            tuple(Line(run.name, _kind(run, places), _cells(run, data, places, key)) for run in runs),
            notes=("Figures of two columns also differ because the texts do.",),
        )
        for key in metrics
    ]


def _cells(run: Path, data: Sequence[str], places: Mapping[tuple[Path, str], Compared], key: str) -> tuple[Cell, ...]:
    found = [places.get((run, name)) for name in data]
    return tuple(Cell(DASH) if one is None else figure_cell(key, one.figures[key]) for one in found)


def _kind(run: Path, places: Mapping[tuple[Path, str], Compared]) -> str:
    entry = next(one.entry for (origin, _), one in places.items() if origin == run)
    return f"{entry.attack}, {entry.embedder}"


def _trained(entry: Entry) -> Path:
    """The run that was tested: an evaluation's configuration names it."""
    named = entry.results.config.get("run_dir")
    return Path(named) if isinstance(named, str) else entry.results.directory


def _data(entry: Entry) -> str:
    """The data set, with its languages where some were chosen."""
    node = entry.results.config.get("datamodule")
    chosen = [node.get(key) for key in ("test_languages", "languages")] if isinstance(node, dict) else []
    named: Sequence[object] = next((languages for languages in chosen if languages), [])
    return entry.data + (f" ({', '.join(map(str, named))})" if named else "")
