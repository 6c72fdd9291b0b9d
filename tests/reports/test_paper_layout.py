"""unembed compare layout=: runs in a paper's table beside its values, and the messages if none fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.runs import PAIRS, write_run
from unembed.commands.compare import compare, read_settings
from unembed.core.errors import InputError

LAYOUT: dict[str, Any] = {
    "title": "Table 9",
    "source": "Somebody 2023",
    "rows": {"MiniLM": {"embedder": "minilm"}, "GTR": {"embedder": ["gtr", "gtr_st"]}},
    "columns": {
        "GEIA": {"attack": "geia", "attack.decoding.beams": 5, "metric": "exact_match"},
        "MLC": {"attack": "bag_of_words", "metric": "token_f1"},
    },
    "paper": {"MiniLM": {"GEIA": 57.25}},
    "notes": ["Ours counts words."],
}
BEAMS = "attack: {decoding: {beams: 5}}\n"


def written(folder: Path, **changed: Any) -> Path:
    path = folder / "layout.yaml"
    path.write_text(yaml.safe_dump(LAYOUT | changed, sort_keys=False))
    return path


def laid_out(folder: Path, layout: Path, *runs: Path) -> list[str]:
    """The lines of the Markdown table, without spaces between the cells."""
    compare(read_settings([f"layout={layout}", f"output={folder / 'out'}", "resamples=1000", *map(str, runs)]))
    return (folder / "out.md").read_text(encoding="utf-8").splitlines()


def test_each_run_is_in_its_cell_with_the_papers_value(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", config=BEAMS)
    second = write_run(tmp_path / "b", attack="bag_of_words", embedder="gtr_st", kind="set")
    other = write_run(tmp_path / "c", config="attack: {decoding: {beams: 1}}\n")
    lines = laid_out(tmp_path, written(tmp_path), first, second, other)
    exact = json.loads((first / "metrics.json").read_text())["exact_match"]
    assert exact == pytest.approx(100 / 3)
    row = next(line for line in lines if line.startswith("| MiniLM"))
    assert row.split(" | ")[1].startswith("33.3")
    assert "paper 57.2" in row
    assert row.split(" | ")[2].startswith("–")  # noqa: RUF001
    assert next(line for line in lines if line.startswith("| GTR")).split(" | ")[1].startswith("–")  # noqa: RUF001
    assert any("Ours counts words." in line for line in lines)
    assert any("2 cells have no run" in line for line in lines)
    assert any(line.startswith("In no cell: ") and line.endswith("/c.") for line in lines)
    assert "57.2" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_seeds_share_a_cell_and_other_runs_do_not(tmp_path: Path) -> None:
    pairs = [PAIRS, [(one, one) for one, _ in PAIRS[:6]] + PAIRS[6:]]
    runs = [write_run(tmp_path / f"s{n}", pairs[n], config=f"seed: {n}\nrun_dir: x{n}\n" + BEAMS) for n in (0, 1)]
    for run in runs:
        (run / "artifacts").mkdir()
    values = [json.loads((run / "metrics.json").read_text())["exact_match"] for run in runs]
    row = next(line for line in laid_out(tmp_path, written(tmp_path), *runs) if line.startswith("| MiniLM"))
    assert row.split(" | ")[1].startswith(f"{sum(values) / 2:.1f}")
    assert "±" in row
    other = write_run(tmp_path / "other", config="seed: 0\n" + BEAMS + "trainer: {max_steps: 7}\n")
    with pytest.raises(InputError, match=r"row 'MiniLM', column 'GEIA': .* both belong there"):
        laid_out(tmp_path, written(tmp_path), runs[0], other)


def test_a_value_of_another_file_and_a_condition_on_the_training(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", config="run_dir: nowhere\n")
    (run / "artifacts").mkdir()
    test = write_run(run / "evaluations" / "long", config="datamodule: {path: long.jsonl}\n")
    table = [{"step": 1, "beams": 1, "bleu": 40}, {"step": 50, "beams": 8, "bleu": 97.3}]
    (test / "corrections.json").write_text(json.dumps({"table": table}))
    cell = {"file": "corrections.json", "table": "table", "select": {"step": 50, "beams": 8}, "metric": "bleu"}
    columns = {"50 steps": cell, "20 steps": cell | {"select": {"step": 20, "beams": 8}}}
    rows = {"long": {"trained.attack": "geia", "datamodule.path": "long.jsonl"}, "short": {"trained.attack": "gcg"}}
    layout = written(tmp_path, rows=rows, columns=columns, paper={})
    lines = laid_out(tmp_path, layout, test)
    assert next(line for line in lines if line.startswith("| long")) == "| long | 97.3 | – |"  # noqa: RUF001
    (test / "corrections.json").unlink()
    assert "| long | – | – |" in laid_out(tmp_path, layout, test)  # noqa: RUF001
    (test / "trials.json").write_text(json.dumps({"bleu": {"mean": 31.24, "standard_error": 0.04}}))
    columns = {"ten trials": {"file": "trials.json", "metric": "bleu.mean"}}
    lines = laid_out(tmp_path, written(tmp_path, rows=rows, columns=columns, paper={"long": {"ten trials": 40}}), test)
    assert next(line for line in lines if line.startswith("| long")) == "| long | 31.2 (paper 40.0) |"


def test_a_cell_may_be_the_mean_of_its_runs(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"{n}", config=f"seed: {n}\ndatamodule: {{path: {n}}}\n") for n in range(3)]
    for run, value in zip(runs, (0.25, 0.75, None), strict=True):
        (run / "other.json").write_text(json.dumps({"found": value}))
    columns = {"mean": {"file": "other.json", "metric": "found", "mean": True}, "MLC": {"attack": "multiset"}}
    rows = {"MiniLM": {"embedder": "minilm", "metric": "exact_match"}}
    lines = laid_out(tmp_path, written(tmp_path, rows=rows, columns=columns, paper={"MiniLM": {"mean": 0.4}}), *runs)
    row = next(line for line in lines if line.startswith("| MiniLM")).split(" | ")
    assert row[1].startswith("0.5 (mean of 2")
    assert "paper 0.4" in row[1]
    assert row[2].startswith("–")  # noqa: RUF001


def test_a_sweep_of_defenses_has_its_points_in_cells(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "config.yaml").write_text("choices: {attack: geia, embedder: minilm}\n")
    points = [{"point": "none", "read": {"bleu": 80.1}}, {"point": "noise level=0.01", "read": {"bleu": 10.4}}]
    (folder / "tradeoff.json").write_text(json.dumps({"points": points}))
    cell = {"file": "tradeoff.json", "table": "points", "metric": "read.bleu"}
    columns = {name: cell | {"select": {"point": name}} for name in ("none", "noise level=0.01")}
    lines = laid_out(tmp_path, written(tmp_path, columns=columns, paper={"MiniLM": {"none": 77}}), folder)
    assert next(line for line in lines if line.startswith("| MiniLM")) == "| MiniLM | 80.1 (paper 77.0) | 10.4 |"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"paper": {"MiniML": {"GEIA": 1}}}, "paper: 'MiniML' is no row, did you mean MiniLM?"),
        ({"paper": {"MiniLM": {"GEA": 1}}}, "paper.MiniLM: 'GEA' is no column, did you mean GEIA?"),
        ({"columns": {"GEIA": {"attack": "geia"}}}, "row 'MiniLM', column 'GEIA': neither names a metric"),
        ({"note": []}, "note: .* did you mean notes?"),
        ({"rows": {}}, "rows: "),
        ({"columns": {"GEIA": {"metric": "bleu", "select": None}}}, r"columns\.GEIA\.select: "),
        ({"rows": {"MiniLM": {"table": 3}}}, r"rows\.MiniLM\.table: "),
    ],
)
def test_a_mistake_in_a_layout_is_named(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        laid_out(tmp_path, written(tmp_path, **({"paper": {}} | changed)), write_run(tmp_path / "a", config=BEAMS))


def test_runs_that_belong_nowhere_and_layouts_that_do_not_exist(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", attack="multiset")
    with pytest.raises(
        InputError, match=r"its first cell needs embedder=minilm, attack=geia, .*, and .* attack=multiset"
    ):
        laid_out(tmp_path, written(tmp_path), run)
    with pytest.raises(InputError, match="layout=geia_tabel3: no such layout"):
        compare(read_settings(["layout=geia_tabel3", str(run)]))
    with pytest.raises(InputError, match="leave out metrics, x"):
        read_settings(["layout=geia_table3", "x=parameters", "metrics=bleu", str(run)])
    (tmp_path / "layout.yaml").write_text("rows: [")
    with pytest.raises(InputError, match=r"layout\.yaml: not YAML"):
        compare(read_settings([f"layout={tmp_path / 'layout.yaml'}", f"output={tmp_path / 'out'}", str(run)]))


def test_a_path_in_a_layout_is_found_where_the_run_has_made_it_absolute(tmp_path: Path) -> None:
    rows = {"SciFact": {"datamodule.source.path": ["beir/scifact", "BeIR/scifact"]}}
    layout = written(tmp_path, rows=rows, columns={"Exact": {"metric": "exact_match"}}, paper={})
    run = write_run(tmp_path / "a", config="datamodule: {source: {path: /home/ada/beir/scifact}}\n")
    other = write_run(tmp_path / "b", config="datamodule: {source: {path: /home/ada/mybeir/scifact}}\n")
    lines = laid_out(tmp_path, layout, run, other)
    assert next(line for line in lines if line.startswith("| SciFact")).split(" | ")[1].startswith("33.3")
    assert any(line.startswith("In no cell: ") and line.endswith("/b.") for line in lines)
