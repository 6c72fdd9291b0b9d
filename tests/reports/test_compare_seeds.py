"""unembed compare on runs that differ in their seeds alone: means, deviations, and what is tested against what."""

from __future__ import annotations

import io
import json
import re
import statistics
from pathlib import Path

import pytest
import scipy.stats
from rich.console import Console
from test_compare import METRICS, improved

from support.processes import Warm
from support.runs import write_run
from unembed.commands.compare import compare as run_compare
from unembed.commands.compare import read_settings
from unembed.reports.comparison.entries import read_entries
from unembed.reports.comparison.measuring import compare, settings
from unembed.reports.comparison.tables import charts, tables
from unembed.reports.numbers import DASH
from unembed.reports.output import print_tables, terminal


def write_seed(path: Path, right: int, seed: int, width: int = 96, more: str = "", parameters: int = 7) -> Path:
    config = f"seed: {seed}\nattack: {{width: {width}, seed: {seed}}}\ndatamodule: {{seed: {seed}}}\n{more}"
    return write_run(path, improved(right), config=config, parameters=parameters)


@pytest.fixture
def six(tmp_path: Path) -> list[Path]:
    """Two settings with three seeds each, in turns."""
    return [
        write_seed(tmp_path / f"{name}{seed}", right + 2 * seed, seed, width)
        for seed in range(3)
        for name, right, width in (("small", 3, 96), ("large", 9, 192))
    ]


def test_seeds_of_one_setting_are_one_row_with_mean_and_deviation(six: list[Path]) -> None:
    compared = compare(read_entries(six), METRICS, 1000, 0)
    values = [json.loads((path / "metrics.json").read_text())["bleu"] for path in six[::2]]
    small, large = settings(compared, METRICS)
    assert small.values["bleu"].mean == pytest.approx(statistics.fmean(values))
    assert small.values["bleu"].deviation == pytest.approx(statistics.stdev(values))
    assert [one.entry.label for one in large.runs] == ["large0", "large1", "large2"]
    side, seeds, _ = tables(compared, METRICS, 1000)
    assert [(line.title, line.below) for line in side.lines] == [
        ("small0 and 2 more", "3 seeds: 0, 1, 2; width=96"),
        ("large0 and 2 more", "3 seeds: 0, 1, 2; width=192"),
    ]
    cell = side.lines[0].cells[side.facts]
    assert (cell.text, cell.below) == (f"{statistics.fmean(values):.1f}", (f"± {statistics.stdev(values):.1f}",))
    assert [line.title for line in seeds.lines] == [f"{name}{n}" for name in ("small", "large") for n in range(3)]
    assert seeds.lines[1].below == "width=96, seed=1"
    assert re.fullmatch(r"[\d.]+ to [\d.]+", seeds.lines[1].cells[seeds.facts].below[0])


def test_two_settings_with_several_seeds_are_tested_over_the_seeds(six: list[Path]) -> None:
    compared = compare(read_entries(six), METRICS, 1000, 0)
    found = settings(compared, METRICS)[1].differences["token_f1"]
    values = [json.loads((path / "metrics.json").read_text())["token_f1"] for path in six]
    oracle = scipy.stats.ttest_ind(values[1::2], values[::2], equal_var=False)
    interval = oracle.confidence_interval()
    assert found is not None
    assert found.over == "seeds"
    assert found.p == pytest.approx(oracle.pvalue)
    assert found.interval == pytest.approx((interval.low, interval.high))
    assert found.value == pytest.approx(statistics.fmean(values[1::2]) - statistics.fmean(values[::2]))
    table = tables(compared, METRICS, 1000)[-1]
    assert [line.title for line in table.lines] == ["large0 and 2 more"]
    assert table.lines[0].cells[0].below[-1] == "over seeds"
    assert table.lines[0].cells[3].text == DASH  # the cosine is the same in all: there is no variance to test with
    assert any("Welch" in note for note in table.notes)


def test_seeds_of_one_setting_are_never_tested(six: list[Path], tmp_path: Path) -> None:
    compared = compare(read_entries(six[::2]), METRICS, 1000, 0)
    assert [table.title for table in tables(compared, METRICS, 1000)] == ["Runs side by side", "Seed by seed"]
    again = write_seed(tmp_path / "again", 9, 0, 96)  # a second run of the seed 0
    found = settings(compare(read_entries([*six[::2], again]), METRICS, 1000, 0), METRICS)
    assert [len(one.runs) for one in found] == [3, 1]
    assert found[1].differences == {}
    one, other = settings(compare(read_entries([six[0], again]), METRICS, 1000, 0), METRICS)
    assert one.runs[0].entry.seeds == other.runs[0].entry.seeds  # nothing differs: the code may
    assert other.differences["bleu"] is not None


def test_a_single_seed_is_tested_over_the_texts_and_the_table_says_so(six: list[Path], tmp_path: Path) -> None:
    alone = write_seed(tmp_path / "alone", 20, 0, 7)
    compared = compare(read_entries([*six[::2], alone]), METRICS, 1000, 0)
    found = settings(compared, METRICS)[1].differences["bleu"]
    values = [json.loads((path / "metrics.json").read_text())["bleu"] for path in (*six[::2], alone)]
    assert found is not None
    assert found.over == "texts"
    assert found.value == pytest.approx(values[3] - statistics.fmean(values[:3]), abs=1e-6)
    single = tables(compare(read_entries([six[0], six[1]]), METRICS, 1000, 0), METRICS, 1000)
    assert [table.title for table in single] == ["Runs side by side", "Difference to small0"]
    for notes in (tables(compared, METRICS, 1000)[-1].notes, single[-1].notes):
        assert any("over the test texts alone and does not cover the seed" in note for note in notes)


def test_evaluations_are_seeds_of_one_setting_only_if_their_runs_are(tmp_path: Path) -> None:
    def evaluated(name: str, seed: int, trained_on: str, elsewhere: bool = False) -> Path:
        run = tmp_path / name
        write_seed(run, 3, seed, more=f"embedder: {{model: {trained_on}}}\nrun_dir: {run}\n")
        place = tmp_path / "out" / name if elsewhere else run / "evaluations" / "mail"
        return write_seed(place, 4 + seed, seed, more=f"run_dir: {run}\n")

    same = [evaluated("a", 0, "x"), evaluated("b", 1, "x"), evaluated("c", 2, "x", elsewhere=True)]
    other = evaluated("d", 3, "y")  # tested alike, but trained on something else
    lost = write_seed(tmp_path / "lost", 4, 4, more="run_dir: /no/such/run\n")
    entries = read_entries([*same, other, lost])
    found = settings(compare(entries, ["bleu"], 1000, 0), ["bleu"])
    assert [len(one.runs) for one in found] == [3, 1, 1]
    tests = [write_seed(tmp_path / "a" / "evaluations" / str(n), n, n, more="run_dir: x\n") for n in (5, 6)]
    (one,) = settings(compare(read_entries(tests), ["bleu"], 1000, 0), ["bleu"])
    assert one.distinct == "2 seeds of the test: 5, 6"


def test_other_texts_other_precision_and_unknown_seeds_are_other_settings(tmp_path: Path) -> None:
    runs = [
        write_seed(tmp_path / "a", 3, 0),
        write_seed(tmp_path / "b", 3, 1, more="trainer: {precision: bf16-mixed}\n"),
        write_seed(tmp_path / "c", 3, 2, more="scoring: {perplexity: gpt2}\n"),
        write_run(tmp_path / "d", improved(3)[:20], config="seed: 3\nattack: {width: 96}\ndatamodule: {}\n"),
        write_run(tmp_path / "e", improved(3), config="attack: {width: 96}\ndatamodule: {}\n"),
    ]
    assert len(settings(compare(read_entries(runs), ["bleu"], 1000, 0), ["bleu"])) == 5


def test_a_chart_joins_means_of_seeds(tmp_path: Path) -> None:
    runs = [
        write_seed(tmp_path / f"{width}-{seed}", right + seed, seed, width, parameters=width)
        for width, right in ((96, 3), (192, 9))
        for seed in (0, 1)
    ]
    ((_, chart, note),) = charts(compare(read_entries(runs), ["bleu"], 1000, 0), ["bleu"], "parameters")
    assert [len(points.split()) for points in re.findall(r'points="([^"]*)"', str(chart))] == [2]
    assert "the mean of its seeds" in note


def test_runs_down_and_data_across_have_means_of_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        for name in ("mail", "chat"):
            run = tmp_path / f"r{seed}"
            more = f"run_dir: {run}\n"
            if not run.exists():
                write_seed(run, 3, seed, more=more)
            config = f"seed: {seed}\ndatamodule: {{test: {name}.jsonl, seed: {seed}}}\n{more}"
            write_run(run / "evaluations" / name, improved(5 + 4 * seed), config=config)
    directories = sorted(str(path) for path in tmp_path.glob("r*/evaluations/*"))
    output = f"output={tmp_path / 'grid'}"
    run_compare(read_settings([*directories, "columns=data", "metrics=token_f1", output, "resamples=1000"]))
    text = (tmp_path / "grid.md").read_text()
    mean, seeds = (part.splitlines() for part in text.split("## ")[1:])
    (row,) = [line for line in mean if line.startswith("| r0")]
    assert row.startswith("| r0 and 1 more (geia, minilm, 2 seeds: 0, 1) |")
    assert row.count("(± ") == 2
    assert seeds[0] == "Word F1 by data, seed by seed"
    assert [line.split(" (")[0] for line in seeds if line.startswith("| r") and "| run" not in line] == ["| r0", "| r1"]


@pytest.mark.parametrize("width", [80, 60])
def test_no_figure_is_cut_on_a_narrow_terminal(six: list[Path], width: int) -> None:
    metrics = [*METRICS, "token_recall", "rouge1", "rouge2"]
    found = tables(compare(read_entries(six), metrics, 1000, 0), metrics, 1000)
    out = io.StringIO()
    print_tables(found, Console(file=out, width=width))
    for cell in (cell for table in found for line in table.lines for cell in line.cells[table.facts :]):
        for part in (cell.text, *cell.below):
            assert part in out.getvalue()


def test_a_piped_table_is_as_wide_as_its_content(
    six: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = "bleu,token_f1,exact_match,cosine,token_recall,token_precision,rouge1,rouge2,rougeL"
    monkeypatch.chdir(tmp_path)
    run_compare(read_settings([*map(str, six), f"metrics={metrics}"]))
    output = capsys.readouterr().out
    assert output.count("┏") == 3  # each table in one part
    lines = [line for line in output.splitlines() if "±" in line and line.startswith("│")]
    assert all(line.count("±") == 9 for line in lines)
    assert output.count("\n") < 100


# A program whose standard output nobody reads, as behind head.
UNREAD = """
import os, sys
sys.argv[0] = "unembed"
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
from unembed.__main__ import main
main()
"""


@pytest.mark.slow
def test_tables_that_nobody_reads_are_written_all_the_same(six: list[Path], tmp_path: Path, warm: Warm) -> None:
    done = warm.run(["-c", UNREAD, "compare", *map(str, six)], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (141, "")
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".md", ".html"}


def test_what_scripts_print_is_not_cut_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal().print("word " * 100)
    assert capsys.readouterr().out == "word " * 100 + "\n"
