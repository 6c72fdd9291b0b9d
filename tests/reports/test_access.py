"""compare.py columns=access: the cells of the access table, submitted rows, the page, and the messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from compare import compare, read_settings
from support.files import load, write_lines
from support.processes import ROOT
from support.runs import PAIRS, write_run
from unembed.core.errors import InputError
from unembed.reports.access.submitted import published

SCHEMA = ROOT / "docs" / "access-1.schema.json"
WORSE = [(one, one.split()[0]) for one, _ in PAIRS]


def cell(folder: Path, attack: str, has: str, defense: str = "none", pairs: list[tuple[str, str]] = PAIRS) -> Path:
    """A finished run that declares a cell."""
    declared = json.dumps({"attack": attack, "has": has, "presumes": f"<{has}> and no more."})
    run = write_run(folder / f"{attack}-{has}-{defense}", pairs, config=f"access: {declared}\n")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("defense: none", f"defense: {defense}"))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "runs"
    perfect = [(one, one) for one, _ in PAIRS]
    return [
        cell(folder, "ALGEN", "pairs_100", pairs=WORSE),
        cell(folder, "GEIA", "queries_0"),
        cell(folder, "GEIA", "queries_20", pairs=perfect),
        cell(folder, "GEIA", "queries_0", "noise", pairs=WORSE),
        write_run(folder / "own"),
    ]


def table(folder: Path, *words: object) -> dict[str, Any]:
    """The access.json of ``compare.py columns=access``."""
    compare(read_settings(["columns=access", f"output={folder / 'access'}", "resamples=1000", *map(str, words)]))
    return load(folder / "access.json")


def submitted(folder: Path, texts: str, **changed: Any) -> Path:
    """A row with a perfect cell."""
    write_lines(folder / "mine.jsonl", [{"index": n, "prediction": one} for n, (one, _) in enumerate(PAIRS)])
    part = {"has": "pairs_100", "presumes": "As many pairs.", "predictions": "mine.jsonl"}
    row = {"version": 1, "attack": "mine & others", "source": "A. Author 2026", "texts": texts, "cells": [part]}
    path = folder / "mine.json"
    path.write_text(json.dumps(row | changed, indent=1))
    return path


def test_the_figures_are_those_of_the_records(runs: list[Path], tmp_path: Path) -> None:
    found = table(tmp_path, *runs)
    assert [(one["attack"], one["has"], one["defense"]) for one in found["cells"]] == [
        ("ALGEN", "pairs_100", "none"), ("GEIA", "queries_0", "none"), ("GEIA", "queries_20", "none"),
        ("GEIA", "queries_0", "noise"),
    ]  # fmt: skip
    page, text = ((tmp_path / f"access.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    for one in found["cells"]:
        value = load(Path(one["source"]) / "metrics.json")["token_f1"]
        assert one["token_f1"]["value"] == value
        assert one["token_f1"]["low"] <= value <= one["token_f1"]["high"]
        assert f"<strong>{value:.1f}</strong>" in page
        assert f"{value:.1f} (" in text
    assert found["examples"] == len(PAIRS)
    assert "&lt;pairs_100&gt; and no more." in page
    assert not re.search(r"<script|https?://|url\(", page)
    assert PAIRS[0][0] not in page


def test_the_map_says_what_is_highest_what_is_impossible_and_what_is_missing(runs: list[Path], tmp_path: Path) -> None:
    first = table(tmp_path, *runs)["cells"][0]
    lines = (tmp_path / "access.md").read_text(encoding="utf-8").splitlines()
    rows = {
        cells[0].partition(" (")[0]: cells[1:]
        for line in lines if line.startswith("| ") and len(cells := line.strip("| ").split(" | ")) > 8
    }  # fmt: skip
    worse = f"{first['token_f1']['value']:.1f} (ALGEN)"
    assert all(cell.startswith(worse) for cell in rows["highest measured"][2:4])
    assert rows["highest measured"][6].startswith("100.0 (GEIA)")
    assert rows["highest measured"][0].strip() == ""  # nothing was measured with vectors only
    assert rows["ALGEN"][0] == "– (needs pairs)"  # noqa: RUF001
    assert rows["ALGEN"][1].strip() == ""
    assert rows["GCG, embedding search"][7].startswith("–")  # noqa: RUF001
    page = (tmp_path / "access.html").read_text(encoding="utf-8")
    assert page.count('class="h9"') >= 2
    assert "What a defense leaves" in page
    assert "noise .01" in page


def test_a_variant_follows_its_attack(runs: list[Path], tmp_path: Path) -> None:
    variants = [cell(tmp_path / "more", name, "queries_0", "noise") for name in ("another", "GEIA, longer")]
    table(tmp_path, *variants, *runs)
    text = (tmp_path / "access.md").read_text(encoding="utf-8").partition("What a defense leaves")[2]
    rows = [line.split(" (")[0] for line in text.splitlines() if line.startswith("| ")]
    assert rows[2:5] == ["| GEIA", "| GEIA, longer", "| another"]  # below the head


def test_a_cell_that_has_not_ended_is_named(runs: list[Path], tmp_path: Path) -> None:
    (runs[1] / "metrics.json").unlink()
    assert len(table(tmp_path, *runs)["cells"]) == 3
    assert f"Not finished, so empty: {runs[1]}" in (tmp_path / "access.html").read_text(encoding="utf-8")


def test_a_submitted_row_is_scored_beside_the_runs(runs: list[Path], tmp_path: Path) -> None:
    texts = table(tmp_path, *runs)["texts"]
    path = submitted(tmp_path, texts)
    jsonschema.validate(json.loads(path.read_text()), json.loads(SCHEMA.read_text(encoding="utf-8")))
    found = table(tmp_path, *runs, f"rows={path}")
    (mine,) = [one for one in found["cells"] if one["submitted"]]
    assert (mine["attack"], mine["has"], mine["token_f1"]["value"]) == ("mine & others", "pairs_100", 100.0)
    page = (tmp_path / "access.html").read_text(encoding="utf-8")
    assert "mine &amp; others" in page
    assert "submitted: A. Author 2026" in page


def test_the_predictions_of_a_run_can_be_submitted(runs: list[Path], tmp_path: Path) -> None:
    texts = table(tmp_path, *runs)["texts"]
    part = {"has": "weights", "presumes": "As it is.", "predictions": str(runs[1] / "predictions.jsonl")}
    found = table(tmp_path, *runs, f"rows={submitted(tmp_path, texts, cells=[part])}")
    assert found["cells"][-1]["token_f1"] == found["cells"][1]["token_f1"]
    with pytest.raises(InputError, match=r"the row of A\. Author 2026 and the row of A\. Author 2026 are both of"):
        table(tmp_path, *runs, f"rows={tmp_path / 'mine.json'},{tmp_path / 'mine.json'}")


def test_without_an_exception_as_many_may_differ_as_three_by_their_number(runs: list[Path], tmp_path: Path) -> None:
    table(tmp_path, *runs[:2])
    assert "rule of three" not in (tmp_path / "access.md").read_text()
    table(tmp_path, *runs)
    assert (
        f"up to {300 / len(PAIRS):.1f}\u00a0% of further texts may still differ" in (tmp_path / "access.md").read_text()
    )
    for run in runs:  # two entities in five of the thirty texts
        lines = (run / "predictions.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        spans = [[11, 14, "first_name"], [29, 34, "city"]]
        write_lines(run / "predictions.jsonl", [row | {"spans": spans * (row["index"] % 6 == 0)} for row in rows])
        metrics = load(run / "metrics.json")
        (run / "metrics.json").write_text(json.dumps(metrics | {"entity_recovery": 100.0}))
    table(tmp_path, *runs)
    said = (
        f"{300 / len(PAIRS):.1f}\u00a0% of further texts and {300 / 10:.1f}\u00a0% of further entities may still differ"
    )
    assert said in (tmp_path / "access.md").read_text()


def test_the_schema_is_published() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == published(), "docs/access-1.schema.json is another one"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"texts": "0123"}, r"mine\.json: texts=0123: predictions for another test set; that of this table is "),
        ({"version": 2}, r"mine\.json: version: Input should be 1"),
        ({"atack": "x"}, r"mine\.json: atack: unknown key, did you mean attack\?"),
        ({"cells": []}, r"mine\.json: cells: "),
        ({"cells": [{"has": "pairs_10"}]}, r"mine\.json: cells\.0\.presumes: missing"),
        (
            {"cells": [{"has": "pairs_50", "presumes": "x", "predictions": "mine.jsonl"}]},
            r"mine\.json: cells\.0\.has=pairs_50: no column of the access table, did you mean pairs_10\?",
        ),
        (
            {"cells": [{"has": "pairs_10", "presumes": "x", "predictions": "other.jsonl"}]},
            r"other\.jsonl: no such file",
        ),
        (
            {"cells": [{"has": "pairs_10", "presumes": "x", "predictions": "mine.jsonl", "defense": "noise .01"}]},
            r"mine\.json: cells\.0\.defense=noise \.01: that is its title, write noise",
        ),
        (
            {"cells": [{"has": "pairs_10", "presumes": "x", "predictions": "mine.jsonl"}] * 2},
            r"mine\.json: cells\.1: has=pairs_10 with defense=none is cells\.0, too",
        ),
        (
            {"cells": [{"has": "pairs_10", "presumes": "x", "predictions": "mine.jsonl", "queries": float("nan")}]},
            r"mine\.json: cells\.0\.queries: Input should be a finite number",
        ),
    ],
)
def test_a_bad_row_is_refused(changed: dict[str, Any], message: str, runs: list[Path], tmp_path: Path) -> None:
    texts = table(tmp_path, *runs)["texts"]
    path = submitted(tmp_path, **({"texts": texts} | changed))
    with pytest.raises(InputError, match=message):
        table(tmp_path, *runs, f"rows={path}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"index": 0}', r"mine\.jsonl:2: prediction: "),
        ("not json", r"mine\.jsonl:2: not JSON"),
        (
            '{"index": 999, "prediction": ""}',
            r"mine\.jsonl:2: index 999 is no test text of this table.* 0 to 29",
        ),
        ('{"index": 1, "predicton": ""}', r"mine\.jsonl:2: the line: unknown key predicton, did you mean prediction\?"),
        ('{"index": 1, "prediction": NaN}', r"mine\.jsonl:2: prediction: Input should be a valid string"),
        ('{"index": 1, "prediction": "", "reference": "x"}', r"mine\.jsonl:2: reference: not the test text 1 of this"),
        ('{"index": 0, "prediction": ""}', r"mine\.jsonl:2: index 0 is there twice"),
        ("", r"mine\.jsonl: 1 test texts have no prediction, the first is index 1"),
    ],
)
def test_bad_predictions_are_refused(line: str, message: str, runs: list[Path], tmp_path: Path) -> None:
    path = submitted(tmp_path, table(tmp_path, *runs)["texts"])
    lines = (tmp_path / "mine.jsonl").read_text().splitlines()
    (tmp_path / "mine.jsonl").write_text("\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(InputError, match=message):
        table(tmp_path, *runs, f"rows={path}")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"version": 1,\n "attack": }', r"mine\.json:2: not JSON"),
        ('[{"version": 1}]', r"mine\.json: a row is one JSON object, and this is a list"),
        (None, r"mine\.jsonl: a JSON list; write one object on each line"),
    ],
)
def test_files_of_another_form_are_refused(row: str | None, message: str, runs: list[Path], tmp_path: Path) -> None:
    path = submitted(tmp_path, table(tmp_path, *runs)["texts"])
    if row is None:
        (tmp_path / "mine.jsonl").write_text(json.dumps([{"index": 0, "prediction": ""}], indent=1))
    else:
        path.write_text(row)
    with pytest.raises(InputError, match=message):
        table(tmp_path, *runs, f"rows={path}")
    with pytest.raises(InputError, match=r"rows=.*: a directory, and a file is needed"):
        table(tmp_path, *runs, f"rows={tmp_path}")


def test_runs_that_make_no_table(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no directory is a finished cell of experiment=access"):
        table(tmp_path, runs[-1])
    with pytest.raises(InputError, match=r"both of attack 'GEIA', queries_0, defense none"):
        table(tmp_path, *runs, cell(tmp_path / "again", "GEIA", "queries_0"))
    with pytest.raises(InputError, match="was tested on other texts than"):
        table(tmp_path, *runs, cell(tmp_path / "other", "GEIA", "weights", pairs=PAIRS[:12]))
    with pytest.raises(InputError, match=r"config\.yaml: access\.has=pairs_1: no column of the access table"):
        table(tmp_path, *runs, cell(tmp_path / "wrong", "GEIA", "pairs_1"))
    with pytest.raises(InputError, match=r"config\.yaml: access\.attack: "):
        table(tmp_path, *runs, cell(tmp_path / "empty", "", "pairs_10"))
    with pytest.raises(InputError, match="rows: files of rows belong to the access table"):
        read_settings(["rows=mine.json", str(runs[0])])
    with pytest.raises(InputError, match=r"columns=access: .* leave out metrics"):
        read_settings(["columns=access", "metrics=bleu", str(runs[0])])
