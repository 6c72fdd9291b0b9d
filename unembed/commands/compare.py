"""Compare runs: one table of metrics with 95 % intervals, and paired differences where the test texts are the same.

Runs that differ only in their seeds are shown as mean and standard deviation, and in a second table one by one.

    unembed compare runs/a runs/b runs/b/evaluations/beam1       # writes comparison.md and comparison.html
    unembed compare runs/* metrics=token_f1,entity_recovery output=tables/words reference=runs/a
    unembed compare runs/* x=parameters                          # charts over the number of parameters alone
    unembed compare runs/*/evaluations/* columns=data            # a table a metric: runs down, data sets across
    unembed compare columns=access runs/access/*                 # attacks down, what the attacker has across
    unembed compare columns=locks runs/locks/*                   # defenses down, attackers across, equally useful
    unembed compare layout=geia_table3 runs/geia_table3/*        # a table of a paper, its values below ours

Each directory is a run or one of its evaluations, with metrics.json and predictions.jsonl; others are passed over, and
named.

    output      comparison                          name of the files, without extension
    metrics     bleu,token_f1,exact_match,cosine    keys of metrics.json
    reference   the first directory                 the run that the others are compared with
    x           everything that differs             training_texts, parameters, embedded_words or corpus_similarity: the
                                                    charts' axis
    columns     metrics of one table                data: a table a metric, with a column for each data set; access: the
                                                    cells of experiment=access, with a heat map (docs/access.md);
                                                    locks: those of experiment=locks (docs/locks.md)
    layout      runs down, metrics across           a table of configs/layout, or a .yaml file of your own
    resamples   2000                                bootstrap resamples, at least 1,000
    seed        0                                   seed of the resampling
    trust       nothing                             modules with your own metrics that the runs name
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from unembed.core.commands import arguments, command
from unembed.core.errors import InputError, did_you_mean, missing, printable
from unembed.launch import console
from unembed.launch.console import check_writable, ending
from unembed.launch.locations import find_run, is_named
from unembed.launch.overrides import CONFIGS

if TYPE_CHECKING:
    from unembed.reports.charts import Chart
    from unembed.reports.output import Table

_LISTS = ("metrics", "trust")


class Settings(BaseModel):
    """Settings from the command line; values arrive as text and are converted."""

    directories: Annotated[list[Path], Field(min_length=1)]
    output: Path = Path("comparison")
    metrics: Annotated[list[str], Field(min_length=1)] = ["bleu", "token_f1", "exact_match", "cosine"]
    reference: Path | None = None
    x: Literal["training_texts", "parameters", "embedded_words", "corpus_similarity"] | None = None
    columns: Literal["data", "access", "locks"] | None = None
    layout: str | None = None
    resamples: Annotated[int, Field(ge=1000)] = 2000
    seed: NonNegativeInt = 0
    trust: list[str] = []


def read_settings(words: Sequence[str]) -> Settings:
    """Directories and ``key=value`` in any order; a directory may have ``=`` in its name."""
    known = sorted(set(Settings.model_fields) - {"directories"})
    values: dict[str, object] = {}
    directories = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in known:
            values[key] = [name for name in value.split(",") if name] if key in _LISTS else value
        elif equals and re.fullmatch(r"\w+", key) and not Path(word).exists():
            raise InputError(f"{word}: unknown key {key}, {did_you_mean(key, known)}")
        else:
            directories.append(word)
    directories = [_directory(word) for word in directories]
    if "reference" in values:
        values["reference"] = _directory(str(values["reference"]))
    if "layout" in values and (beside := sorted({"metrics", "reference", "x", "columns"} & set(values))):
        raise InputError(f"layout: a layout has rows, columns and metrics of its own; leave out {', '.join(beside)}")
    if values.get("columns") in ("access", "locks") and (beside := sorted({"metrics", "reference", "x"} & set(values))):
        raise InputError(
            f"columns={values['columns']}: its metrics and their places are fixed; leave out {', '.join(beside)}"
        )
    try:
        return Settings.model_validate({"directories": directories, **values})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if key == "directories":
            raise InputError(f"give the directories to compare: {command('compare', '<dir>', '<dir>')}") from error
        raise InputError(f"{key}={first['input']}: {first['msg']}") from error


def _directory(word: str) -> str:
    """The directory that a word names: that of a shipped attacker, or of one of the hub, or else the word."""
    return str(find_run(word, "compare")) if is_named(word) else word


def compare(settings: Settings) -> None:
    """Read -> check -> resample -> write -> print."""
    from unembed.reports.output import charts_of, macro, print_tables, write
    from unembed.runs.trust import trusting

    check_writable(settings.output)
    for directory in filter(None, [*settings.directories, settings.reference]):  # before torch is imported
        if not directory.exists():
            raise InputError(f"{directory}: {missing(directory, 'directory')}")
    if settings.columns == "access":
        from unembed.reports.access import write_access_table

        paths = write_access_table(settings.directories, settings.output, settings.resamples, settings.seed)
    elif settings.columns == "locks":
        from unembed.reports.locks import write_lock_table

        paths = write_lock_table(settings.directories, settings.output, settings.resamples, settings.seed)
    else:
        with trusting(settings.trust):
            tables, charts, lead = _side_by_side(settings) if settings.layout is None else _laid_out(settings)
        sections = [
            (f"table-{number}", table.title, macro("table_of", table=table, style="wide"))
            for number, table in enumerate(tables)
        ]
        if charts:
            sections.append(("charts", "In pictures", charts_of(charts)))
        page = {"heading": "Attacks compared", "run": "comparison", "facts": [], "lead": lead, "sections": sections}
        paths = write(settings.output, page, tables)
        print_tables(tables)  # the reader of a pipe, such as head, may close it
    print(printable(f"Written: {' '.join(map(str, paths))}"))


def _side_by_side(settings: Settings) -> tuple[list[Table], list[Chart], str]:
    from unembed.reports.comparison.entries import read_entries, with_results

    directories = settings.directories
    if settings.reference is not None:
        with_results([settings.reference])
        reference = settings.reference.resolve()
        directories = [settings.reference, *(path for path in directories if path.resolve() != reference)]
    entries = read_entries(directories)
    # Importing the metrics imports torch; report a missing directory first.
    from unembed.reports.comparison import measuring, tables
    from unembed.reports.results import knowing

    if settings.x is not None:
        tables.check_axis(settings.x, entries)
    if settings.columns is not None:
        tables.check_grid(entries)
    metrics = settings.metrics
    described = {one.key: one for entry in entries for one in entry.results.described}
    with knowing([*described.values()]):
        compared = measuring.compare(entries, metrics, settings.resamples, settings.seed)
        across = settings.columns is not None
        found = tables.grids(compared, metrics) if across else tables.tables(compared, metrics, settings.resamples)
        charts = tables.side_by_side(compared, metrics) + tables.charts(compared, metrics, settings.x)
    lead = f"{len(entries)} runs and evaluations, each metric with its 95 % interval over the choice of the test texts."
    return found, charts, lead


def _laid_out(settings: Settings) -> tuple[list[Table], list[Chart], str]:
    """One table, as a paper has it."""
    from unembed.reports.comparison.papers import paper_table, read_directories, read_layout

    layout = read_layout(str(settings.layout), CONFIGS / "layout")
    found = read_directories(settings.directories, layout, settings.resamples, settings.seed)
    return [paper_table(layout, found)], [], f"{len(found)} runs and evaluations in the layout of a paper's table."


def main() -> None:
    """``unembed compare``."""
    words = arguments()
    console.begin()
    with ending():
        if {"--help", "-h"} & set(words):
            print(__doc__)
        else:
            compare(read_settings(words))
