"""Tables with runs as rows and data sets as columns, for transfer of an attack to other kinds of text.

    unembed compare runs/*/evaluations/* columns=data metrics=bleu,exact_match

One table per metric (Chen et al. 2024, appendix G, and the cross-lingual tables of its section 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unembed.core.errors import InputError
from unembed.reports.comparison.entries import Entry
from unembed.reports.comparison.measuring import Compared
from unembed.reports.comparison.seeds import spread
from unembed.reports.comparison.table import spread_cell, value_cell
from unembed.reports.numbers import DASH
from unembed.reports.tables import Cell, Line, Table
from unembed.reports.wording import measure


def check_grid(entries: Sequence[Entry]) -> None:
    """Check, before resampling, that each run has at most one entry per data set.

    Raises:
        InputError: Two entries belong in the same cell.
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
    """Tables for each metric: a row for each trained run, a column for each data set, in the given order.

    Runs that differ only in their seeds, with the same tests, share a row with their mean; a second table lists
    them one by one.
    """
    trained = list(dict.fromkeys(_trained(one.entry) for one in compared))
    data = list(dict.fromkeys(_data(one.entry) for one in compared))
    places = {(_trained(one.entry), _data(one.entry)): one for one in compared}
    groups = _groups(trained, data, places)
    found = []
    for key in metrics:
        title, columns = f"{measure(key).title} by data", ("run", *data)
        found.append(
            Table(
                title,
                columns,
                tuple(_line(runs, data, places, key) for runs in groups),
                notes=("Values of two columns also differ because the texts do.", *_notes(groups)),
            )
        )
        if len(groups) < len(trained):
            alone = [[run] for runs in groups if len(runs) > 1 for run in runs]
            lines = tuple(_line(runs, data, places, key) for runs in alone)
            found.append(Table(f"{title}, seed by seed", columns, lines))
    return found


def _groups(
    trained: Sequence[Path], data: Sequence[str], places: Mapping[tuple[Path, str], Compared]
) -> list[list[Path]]:
    """Group the runs that are seeds of one setting with the same data and test settings."""
    groups: list[list[Path]] = []
    for run in trained:
        tests = _tests(run, data, places)
        found = next((group for group in groups if tests and _tests(group[0], data, places) == tests), None)
        seeds = [_seed(other, places) for other in found or ()]
        if found is None or _seed(run, places) in seeds:
            groups.append([run])
        else:
            found.append(run)
    return groups


def _tests(run: Path, data: Sequence[str], places: Mapping[tuple[Path, str], Compared]) -> list[object] | None:
    """What seeds of one setting must share: settings and texts of each test; None if unknown."""
    found = [places.get((run, name)) for name in data]
    if any(one is not None and one.entry.setting is None for one in found):
        return None
    return [None if one is None else (one.entry.setting, one.entry.texts) for one in found]


def _seed(run: Path, places: Mapping[tuple[Path, str], Compared]) -> object:
    return next(one.entry.seeds[0] for (origin, _), one in places.items() if origin == run)


def _notes(groups: Sequence[Sequence[Path]]) -> tuple[str, ...]:
    several = any(len(runs) > 1 for runs in groups)
    return ("Of several seeds: the mean and, below it, ± the standard deviation over the seeds (n - 1).",) * several


def _line(runs: Sequence[Path], data: Sequence[str], places: Mapping[tuple[Path, str], Compared], key: str) -> Line:
    title, below = runs[0].name, _kind(runs[0], places)
    cells = []
    for name in data:
        found = [one for run in runs if (one := places.get((run, name))) is not None]
        if not found:
            cells.append(Cell(DASH))
        elif len(runs) == 1:
            cells.append(value_cell(key, found[0].values[key]))
        else:
            cells.append(spread_cell(key, spread([one.values[key].value for one in found])))
    if len(runs) > 1:
        title = f"{title} and {len(runs) - 1} more"
        below = f"{below}, {len(runs)} seeds: {', '.join(str(_seed(run, places)) for run in runs)}"
    return Line(title, below, tuple(cells))


def _kind(run: Path, places: Mapping[tuple[Path, str], Compared]) -> str:
    entry = next(one.entry for (origin, _), one in places.items() if origin == run)
    return f"{entry.attack}, {entry.embedder}"


def _trained(entry: Entry) -> Path:
    """The trained run; for an evaluation, the one that its configuration names."""
    named = entry.results.config.get("run_dir")
    return Path(named) if isinstance(named, str) else entry.results.directory


def _data(entry: Entry) -> str:
    """The data set, with its languages if some were chosen."""
    node = entry.results.config.get("datamodule")
    chosen = [node.get(key) for key in ("test_languages", "languages")] if isinstance(node, dict) else []
    named: Sequence[object] = next((languages for languages in chosen if languages), [])
    return entry.data + (f" ({', '.join(map(str, named))})" if named else "")
