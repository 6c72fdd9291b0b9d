"""Compare runs: one table of metrics with 95 % intervals, and paired differences where the test texts are the same.

Runs that differ only in their seeds are shown as mean and standard deviation, and in a second table one by one.

    unembed compare runs/a runs/b runs/b/evaluations/beam1       # writes comparison.md and comparison.html
    unembed compare runs/* metrics=token_f1,entity_recovery output=tables/words reference=runs/a
    unembed compare runs/* x=parameters                          # charts over the number of parameters alone
    unembed compare runs/*/evaluations/* columns=data            # a table a metric: runs down, data sets across
    unembed compare columns=access runs/access/*                 # attacks down, what the attacker has across
    unembed compare layout=geia_table3 runs/geia_table3/*        # a table of a paper, its values below ours

Each directory is a run or one of its evaluations, with metrics.json and predictions.jsonl; others are passed over, and
named.

    output      comparison                          name of the files, without extension
    metrics     bleu,token_f1,exact_match,cosine    keys of metrics.json
    reference   the first directory                 the run that the others are compared with
    x           everything that differs             training_texts, parameters, embedded_words or corpus_similarity: the
                                                    charts' axis
    columns     metrics of one table                data: a table a metric, with a column for each data set; access: the
                                                    cells of experiment=access, with a heat map (docs/access.md)
    layout      runs down, metrics across           a table of configs/layout, or a .yaml file of your own
    resamples   2000                                bootstrap resamples, at least 1,000
    seed        0                                   seed of the resampling
    trust       nothing                             modules with your own metrics that the runs name
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from unembed.core.commands import arguments, command
from unembed.core.errors import InputError, did_you_mean, printable
from unembed.launch import console
from unembed.launch.ending import check_writable, ending
from unembed.launch.named_runs import find_run, is_named
from unembed.launch.sources import CONFIGS

_LISTS = ("metrics", "trust")


class Settings(BaseModel):
    """Settings from the command line; values arrive as text and are converted."""

    directories: Annotated[list[Path], Field(min_length=1)]
    output: Path = Path("comparison")
    metrics: Annotated[list[str], Field(min_length=1)] = ["bleu", "token_f1", "exact_match", "cosine"]
    reference: Path | None = None
    x: Literal["training_texts", "parameters", "embedded_words", "corpus_similarity"] | None = None
    columns: Literal["data", "access"] | None = None
    layout: str | None = None
    resamples: Annotated[int, Field(ge=1000)] = 2000
    seed: NonNegativeInt = 0
    trust: list[str] = []


def read_settings(words: Sequence[str]) -> Settings:
    """Directories and ``key=value`` in any order; a directory may have ``=`` in its name.

    Raises:
        InputError: An unknown key, an invalid value, or no directory.
    """
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
    if values.get("columns") == "access" and (beside := sorted({"metrics", "reference", "x"} & set(values))):
        raise InputError(f"columns=access: its metrics and their places are fixed; leave out {', '.join(beside)}")
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
    """Read -> check -> resample -> print -> write."""
    from unembed.reports.comparison.entries import read_entries, with_results

    check_writable(settings.output)
    if settings.layout is not None:
        lay_out(settings, settings.layout)
        return
    if settings.columns == "access":
        show_access(settings)
        return
    directories = settings.directories
    if settings.reference is not None:
        with_results([settings.reference])
        reference = settings.reference.resolve()
        directories = [settings.reference, *(path for path in directories if path.resolve() != reference)]
    entries = read_entries(directories)
    # Importing the metrics imports torch; report a missing directory first.
    from unembed.reports.comparison import measuring
    from unembed.reports.comparison.charts import charts, check_axis, side_by_side
    from unembed.reports.comparison.grid import check_grid, grids
    from unembed.reports.comparison.output import write_page
    from unembed.reports.comparison.table import tables
    from unembed.reports.tables import print_tables, write_markdown
    from unembed.reports.wording import knowing
    from unembed.runs.trust import trusting

    if settings.x is not None:
        check_axis(settings.x, entries)
    if settings.columns is not None:
        check_grid(entries)
    described = {one.key: one for entry in entries for one in entry.results.described}
    with trusting(settings.trust), knowing([*described.values()]):
        compared = measuring.compare(entries, settings.metrics, settings.resamples, settings.seed)
        found = (
            tables(compared, settings.metrics, settings.resamples)
            if settings.columns is None
            else grids(compared, settings.metrics)
        )
        drawn = side_by_side(compared, settings.metrics) + charts(compared, settings.metrics, settings.x)
    page, text = (settings.output.with_name(settings.output.name + ending) for ending in (".html", ".md"))
    lead = f"{len(entries)} runs and evaluations, each metric with its 95 % interval over the choice of the test texts."
    write_markdown(text, found)
    write_page(page, found, drawn, lead)
    print_tables(found)  # the reader of a pipe, such as head, may close it
    print(printable(f"Written: {text} {page}"))


def show_access(settings: Settings) -> None:
    """Read -> print and write the access table."""
    from unembed.reports.access.cells import read_cells
    from unembed.reports.access.output import write_table

    found = read_cells(settings.directories, settings.resamples, settings.seed)
    written = write_table(settings.output, found, settings.resamples)
    print(printable(f"Written: {' '.join(map(str, written))}"))


def lay_out(settings: Settings, name: str) -> None:
    """Read -> resample -> print and write one table, as a paper has it."""
    from unembed.reports.comparison.laid_out import paper_table, read_directories
    from unembed.reports.comparison.output import write_page
    from unembed.reports.comparison.paper_layout import read_layout
    from unembed.reports.tables import print_tables, write_markdown
    from unembed.runs.trust import trusting

    layout = read_layout(name, CONFIGS / "layout")
    with trusting(settings.trust):
        found = read_directories(settings.directories, layout, settings.resamples, settings.seed)
        table = paper_table(layout, found)
    page, text = (settings.output.with_name(settings.output.name + ending) for ending in (".html", ".md"))
    write_markdown(text, [table])
    write_page(page, [table], [], f"{len(found)} runs and evaluations in the layout of a paper's table.")
    print_tables([table])
    print(printable(f"Written: {text} {page}"))


def main() -> None:
    """``unembed compare``."""
    words = arguments()
    console.begin()
    with ending():
        if {"--help", "-h"} & set(words):
            print(__doc__)
        else:
            compare(read_settings(words))
