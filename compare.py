"""Compare runs: one table of metrics with 95 % intervals, and paired differences where the test texts are the same.

Runs that differ only in their seeds are shown as mean and standard deviation, and in a second table one by one.

    python compare.py runs/a runs/b runs/b/evaluations/beam1       # writes comparison.md and comparison.html
    python compare.py runs/* metrics=token_f1,entity_recovery output=tables/words reference=runs/a
    python compare.py runs/* x=parameters                          # charts over the number of parameters alone
    python compare.py runs/*/evaluations/* columns=data            # a table a metric: runs down, data sets across
    python compare.py columns=access runs/access/* rows=mine.json  # attacks down, what the attacker has across
    python compare.py layout=geia_table3 runs/geia_table3/*        # a table of a paper, its values below ours

Each directory is a run or one of its evaluations, with metrics.json and predictions.jsonl; others are passed over, and
named.

    output      comparison                          name of the files, without extension
    metrics     bleu,token_f1,exact_match,cosine    keys of metrics.json
    reference   the first directory                 the run that the others are compared with
    x           everything that differs             training_texts, parameters, embedded_words or corpus_similarity: the
                                                    charts' axis
    columns     metrics of one table                data: a table a metric, with a column for each data set; access: the
                                                    cells of experiment=access, with a heat map (docs/access.md)
    rows        none                                with columns=access: files of rows that others submit
    layout      runs down, metrics across           a table of configs/layout, or a .yaml file of your own
    resamples   2000                                bootstrap resamples, at least 1,000
    seed        0                                   seed of the resampling
    trust       nothing                             modules with your own metrics that the runs name
"""

from __future__ import annotations

if __name__ == "__main__":
    from unembed.core import stopping

    stopping.begin()

import sys
from pathlib import Path

from unembed.core.errors import printable
from unembed.launch import console
from unembed.launch.comparison import Settings, read_settings
from unembed.launch.ending import check_writable, ending


def compare(settings: Settings) -> None:
    """Read -> check -> resample -> print -> write."""
    from unembed.reports.comparison.entries import read_entries, with_results

    check_writable(settings.output.parent)
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
    """Read -> score the submitted rows -> print and write the access table."""
    from unembed.reports.access.cells import read_cells
    from unembed.reports.access.output import write_table
    from unembed.reports.access.submitted import with_rows

    found = read_cells(settings.directories, settings.resamples, settings.seed)
    cells = with_rows(found, settings.rows, settings.resamples, settings.seed)
    written = write_table(settings.output, cells, found, settings.resamples)
    print(printable(f"Written: {' '.join(map(str, written))}"))


def lay_out(settings: Settings, file: Path) -> None:
    """Read -> resample -> print and write one table, as a paper has it."""
    from unembed.reports.comparison.laid_out import paper_table, read_directories
    from unembed.reports.comparison.output import write_page
    from unembed.reports.comparison.paper_layout import read_layout
    from unembed.reports.tables import print_tables, write_markdown
    from unembed.runs.trust import trusting

    layout = read_layout(file)
    with trusting(settings.trust):
        found = read_directories(settings.directories, layout, settings.resamples, settings.seed)
        table = paper_table(layout, found)
    page, text = (settings.output.with_name(settings.output.name + ending) for ending in (".html", ".md"))
    write_markdown(text, [table])
    write_page(page, [table], [], f"{len(found)} runs and evaluations in the layout of a paper's table.")
    print_tables([table])
    print(printable(f"Written: {text} {page}"))


if __name__ == "__main__":
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(__doc__)
    else:
        held = console.hold()
        console.show_and_log(None)
        console.quieten(held)
        with ending():
            compare(read_settings(sys.argv[1:]))
