"""unembed compare columns=access: the cells of the access table, the page, and the messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.files import load, write_lines
from support.runs import PAIRS, write_run
from unembed.commands.compare import compare, read_settings
from unembed.core.errors import InputError

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
    """The access.json of ``unembed compare columns=access``."""
    compare(read_settings(["columns=access", f"output={folder / 'access'}", "resamples=1000", *map(str, words)]))
    return load(folder / "access.json")


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
    with pytest.raises(InputError, match=r"columns=access: .* leave out metrics"):
        read_settings(["columns=access", "metrics=bleu", str(runs[0])])
