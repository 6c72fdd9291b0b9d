"""What a report, a terminal and a comparison say of entities inside and outside a lexicon."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from support.files import write_lines
from support.scored import spans_of
from unembed.core.errors import InputError
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import score
from unembed.reports.comparison.entries import read_entries
from unembed.reports.comparison.measuring import compare
from unembed.reports.page import print_summary, write_report

TEXT = "Ada met Winifred in Oslo"
SPANS = spans_of(TEXT, ("Ada", "name"), ("Winifred", "name"), ("Oslo", "city"))
ROWS = [
    Scored(TEXT, prediction, SPANS, cosine=0.5, unseen=(False, True, True), in_lexicon=(True, True, False))
    for prediction in ["Ada met Winifred in Rome", "Ada met Bob in Oslo", "Ada met Winifred in Rome"] * 4
]
CELLS = [
    ("all", "36", "66.7 %", "24 of 36", "83.3 %", "20 of 24", "33.3 %", "4 of 12"),
    ("in the training text", "12", "100.0 %", "12 of 12", "100.0 %", "12 of 12", "–"),  # noqa: RUF001
    ("not in the training text", "24", "50.0 %", "12 of 24", "66.7 %", "8 of 12", "33.3 %", "4 of 12"),
]  # fmt: skip


def write_run(path: Path, rows: list[Scored], *, known: bool = True) -> Path:
    path.mkdir()
    (path / "config.yaml").write_text("choices: {attack: geia, embedder: minilm, datamodule: synthetic, defense: no}\n")
    (path / "metrics.json").write_text(json.dumps(score(rows)))
    lines = [
        {"index": place, "reference": row.reference, "prediction": row.prediction, "kind": row.kind, "cosine": 0.5,
         "spans": [[span.start, span.end, span.label] for span in row.spans]}
        | ({"unseen": row.unseen, "in_lexicon": row.in_lexicon} if known and row.in_lexicon is not None else {})
        for place, row in enumerate(rows)
    ]  # fmt: skip
    write_lines(path / "predictions.jsonl", lines)
    return path


def test_the_page_has_a_table_of_counts(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run", ROWS)).read_text()
    section = page.partition('<section id="inside-and-outside-the-lexicon">')[2].partition("</section>")[0]
    rows = [re.sub(r"<[^>]*>", "|", row) for row in section.split("<tr>")[2:]]
    found = [tuple(cell.replace("\xa0", " ").strip() for cell in row.split("|") if cell.strip()) for row in rows]
    assert [row[: len(wanted)] for row, wanted in zip(found, CELLS, strict=True)] == CELLS
    without = write_run(tmp_path / "without", [Scored(TEXT, TEXT, SPANS)])
    assert "lexicon" not in write_report(without).read_text()


def test_the_terminal_says_the_same(tmp_path: Path) -> None:
    output = io.StringIO()
    print_summary(write_run(tmp_path / "run", ROWS), Console(file=output, width=100))
    lines = dict(re.findall(r"│ (Entities.*?) *│ *(\S+ %) *│", output.getvalue().replace("\xa0", " ")))
    assert lines == {
        "Entities": "66.7 %", "Entities, unseen": "50.0 %", "Entities that the lexicon has": "66.7 %",
        "Entities, unseen, that the lexicon has": "50.0 %", "Entities, in the lexicon": "83.3 %",
        "Entities, outside the lexicon": "33.3 %", "Entities, unseen, in the lexicon": "66.7 %",
        "Entities, unseen, outside the lexicon": "33.3 %",
    }  # fmt: skip


def test_comparisons_give_intervals(tmp_path: Path) -> None:
    keys = ["entity_recovery_unseen", "entity_recovery_in_lexicon", "entity_coverage"]
    runs = [write_run(tmp_path / "a", ROWS), write_run(tmp_path / "old", ROWS, known=False)]
    found, old = compare(read_entries(runs), keys, 1000, 0)
    for key in keys:
        interval = found.values[key].interval
        assert interval is not None
        assert interval.low <= (found.values[key].value or 0) <= interval.high
        assert (old.values[key].value, old.values[key].interval) == (found.values[key].value, None)


def test_a_line_with_too_few_values_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ROWS[:1])
    path = run / "predictions.jsonl"
    path.write_text(path.read_text().replace('"in_lexicon": [true, true, false]', '"in_lexicon": [true]'))
    with pytest.raises(InputError, match=r"predictions\.jsonl:1: .*1 values of unseen or in_lexicon for 3 spans"):
        write_report(run)
