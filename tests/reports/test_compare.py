"""unembed compare: its tables are right, and nothing is resampled before all input is checked."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from support.runs import PAIRS, write_run
from unembed.callbacks.results import word_frequency
from unembed.commands.compare import compare as run_compare
from unembed.commands.compare import read_settings
from unembed.core.errors import InputError
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import score
from unembed.reports.breakdowns import frequency_charts
from unembed.reports.comparison.entries import read_entries
from unembed.reports.comparison.measuring import compare, text_difference
from unembed.reports.comparison.tables import charts, p_value, side_by_side, tables
from unembed.reports.numbers import DASH, shown
from unembed.reports.output import Cell, Line, Table, markdown, print_tables
from unembed.reports.page import write_report
from unembed.runs.files import Row

METRICS = ["bleu", "token_f1", "exact_match", "cosine"]


def improved(number: int) -> list[tuple[str, str]]:
    """The pairs with the first ``number`` predictions right."""
    return [(one, one) for one, _ in PAIRS[:number]] + PAIRS[number:]


def test_intervals_and_paired_differences_agree_with_scipy(tmp_path: Path) -> None:
    entries = read_entries([write_run(tmp_path / "a"), write_run(tmp_path / "b", improved(9))])
    first, second = compare(entries, METRICS, resamples=5000, seed=0)
    values = [np.array([score([Scored(*pair)])["token_f1"] for pair in pairs], float) for pairs in (PAIRS, improved(9))]
    measured = second.values["token_f1"]
    assert measured.value == pytest.approx(values[1].mean())
    options: dict[str, Any] = {"n_resamples": 5000, "method": "percentile", "random_state": 1}
    oracle = scipy.stats.bootstrap((values[1],), np.mean, **options).confidence_interval
    assert measured.interval == pytest.approx((oracle.low, oracle.high), abs=1.0)
    difference = text_difference([second], [first], "token_f1")
    assert difference is not None
    assert difference.value == pytest.approx((values[1] - values[0]).mean())
    oracle = scipy.stats.bootstrap((values[1] - values[0],), np.mean, **options).confidence_interval
    assert difference.interval == pytest.approx((oracle.low, oracle.high), abs=1.0)
    assert difference.p < 0.02
    # Pairing is worth something: the interval of the difference is narrower than that of either metric alone.
    assert measured.interval is not None
    assert difference.interval.high - difference.interval.low < measured.interval.high - measured.interval.low
    same = text_difference([first], [first], "bleu")
    assert same is not None
    assert (same.value, same.interval, same.p) == (0.0, (0.0, 0.0), 1.0)


def test_exact_match_has_wilsons_interval(tmp_path: Path) -> None:
    (only,) = compare(read_entries([write_run(tmp_path / "a")]), METRICS, resamples=1000, seed=0)
    oracle = scipy.stats.binomtest(10, 30).proportion_ci(method="wilson")
    assert only.values["exact_match"].interval == pytest.approx((100 * oracle.low, 100 * oracle.high))
    assert only.values["cosine"].interval == pytest.approx((0.5, 0.5))


def test_a_seed_gives_the_same_intervals_and_another_one_others(tmp_path: Path) -> None:
    entries = read_entries([write_run(tmp_path / "a")])
    found = [compare(entries, ["bleu"], resamples=1000, seed=seed)[0].values["bleu"].interval for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_order_of_the_lines_does_not_matter(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    before = compare(read_entries([run]), METRICS, resamples=1000, seed=0)[0].values
    lines = (run / "predictions.jsonl").read_text().splitlines()
    (run / "predictions.jsonl").write_text("\n".join(reversed(lines)))
    assert compare(read_entries([run]), METRICS, resamples=1000, seed=0)[0].values == before


def test_a_set_of_words_has_no_metrics_of_order(tmp_path: Path) -> None:
    entries = read_entries([write_run(tmp_path / "a"), write_run(tmp_path / "b", kind="set")])
    first, second = compare(entries, METRICS, resamples=1000, seed=0)
    assert second.values["bleu"].value is None
    assert text_difference([second], [first], "bleu") is None
    assert text_difference([second], [first], "token_f1") is not None


def test_a_figure_that_is_no_sum_is_shown_without_an_interval(tmp_path: Path) -> None:
    (only,) = compare(read_entries([write_run(tmp_path / "a")]), ["edit_distance_median"], resamples=1000, seed=0)
    assert only.values["edit_distance_median"].value == 5.5  # of 0, 0, 5 and 6, and two more
    assert only.values["edit_distance_median"].interval is None


def test_a_figure_of_labels_that_are_not_in_the_file_is_shown_without_an_interval(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", metrics={"entity_recovery": 12.5})  # of a tagger's spans
    (only,) = compare(read_entries([run]), ["entity_recovery"], resamples=1000, seed=0)
    assert only.values["entity_recovery"].value == 12.5
    assert only.values["entity_recovery"].interval is None


def test_other_test_texts_are_allowed_with_a_loud_note_and_no_pairing(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", PAIRS[:20]), write_run(tmp_path / "c", improved(3))]
    compared = compare(read_entries(runs), METRICS, resamples=1000, seed=0)
    assert [one.paired for one in compared] == [True, False, True]
    assert compared[1].common == 20
    first, differences = tables(compared, METRICS, 1000)
    assert len(first.warnings) == 1
    assert first.warnings[0].startswith("OTHER TEST TEXTS: b was tested on 20 texts, a on 30, and 20 are the same.")
    assert [line.title for line in differences.lines] == ["c"]
    assert len(tables(compared[:2], METRICS, 1000)) == 1


def test_the_baseline_has_a_row_of_its_own_once_for_runs_that_share_it(tmp_path: Path) -> None:
    baseline = {"bleu": 11.0, "token_f1": 38.1, "exact_match": 0.0, "cosine": 0.7, "examples": 30}
    runs = [write_run(tmp_path / name, baseline=baseline) for name in "ab"]
    runs.append(write_run(tmp_path / "c", embedder="gtr", baseline=baseline | {"bleu": 9.0}))
    table = tables(compare(read_entries(runs), METRICS, 1000, 0), METRICS, 1000)[0]
    lines = [(line.title, line.below, line.cells[table.facts].text) for line in table.lines[3:]]
    assert lines == [("nearest neighbour", "baseline of a", "11.0"), ("nearest neighbour", "baseline of c", "9.0")]
    assert table.lines[3].cells[table.facts + 2].below == ("0.0 to 11.4",)  # Wilson: z^2 / (30 + z^2)


def test_facts_of_a_run_and_of_its_evaluation(tmp_path: Path) -> None:
    place = "unembed.attacks.parts.decoding"
    decoding = f"attack: {{{{decoding: {{{{_target_: {place}.{{}}, {{}}}}}}, _target_: unembed.attacks.geia.GEIA}}}}\n"
    run = write_run(tmp_path / "a", config=decoding.format("BeamSearch", "beams: 5"))
    inner = run / "evaluations" / "greedy"
    evaluation = write_run(inner, parameters=None, config=decoding.format("BeamSearch", "beams: 1"))
    (evaluation / "record.json").write_text(json.dumps({"parameters": 7}))
    nucleus = write_run(tmp_path / "n", parameters=None, config=decoding.format("Nucleus", "p: 0.9"))
    entries = read_entries([run, evaluation, nucleus])
    assert [one.label for one in entries] == ["a", "greedy", "n"]
    assert [one.parameters for one in entries] == [1_814_592, 7, None]
    assert [one.training_seconds for one in entries] == [423.0, 423.0, None]
    assert [one.settings for one in entries] == ["decoding=BeamSearch", "decoding=BeamSearch", "decoding=Nucleus"]
    assert [one.settings for one in read_entries([run, evaluation])] == ["beams=5", "beams=1"]
    elsewhere = write_run(tmp_path / "x" / "a")
    assert [one.label for one in read_entries([run, elsewhere])] == [f"{tmp_path.name}/a", "x/a"]


def test_runs_down_and_data_sets_across(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def on(run: str, name: str, right: int, data: str = "") -> Path:
        config = f"run_dir: /old/place/{run}\ndatamodule: {{{data}}}\n"
        return write_run(tmp_path / run / name, improved(right), config=config)

    found = [
        on("a", "chat", 3, "path: chat.jsonl"),
        on("a", "mail", 4, "test: mail.jsonl"),
        on("b", "mail", 5, "test: mail.jsonl"),
    ]
    french = on("b", "fr", 6, "languages: [de], test_languages: [fr]")
    words = [*map(str, found), str(french), "columns=data", "metrics=bleu,exact_match", f"output={tmp_path / 'grid'}"]
    run_compare(read_settings([*words, "resamples=1000"]))
    exact = (tmp_path / "grid.md").read_text().split("## ")[2].splitlines()
    cells = [[cell.split(" (")[0] for cell in line.strip("| ").split(" | ")] for line in exact if line.startswith("|")]
    of = {n: f"{100 * (n + 10 - n // 4 - n // 6) / 30:.1f}" for n in (3, 4, 5, 6)}  # the fourth, the sixth were right
    assert exact[0] == "Exact match by data"
    assert [row[0] for row in cells] == ["run", "---", "a", "b"]
    assert [row[1:] for row in cells[2:]] == [
        [of[3] + "\u00a0%", of[4] + "\u00a0%", DASH],
        [DASH, of[5] + "\u00a0%", of[6] + "\u00a0%"],
    ]
    assert "synthetic: chat" in exact[2]
    assert "OTHER TEST TEXTS" not in capsys.readouterr().out
    again = on("a", "again", 1, "test: mail.jsonl")
    with pytest.raises(
        InputError, match="columns=data: mail and again are of one run on one data set, synthetic: mail"
    ):
        run_compare(read_settings([str(found[1]), str(again), "columns=data"]))


def test_charts_are_drawn_where_runs_differ(tmp_path: Path) -> None:
    sizes = [(1000, 0.5), (2000, 0.6), (4000, 0.7)]
    runs = [
        write_run(
            tmp_path / f"r{texts}",
            improved(texts // 1000),
            embedder="gtr" if texts == 4000 else "minilm",
            analyses={"training_texts": texts, "corpus_similarity": similarity},
        )
        for texts, similarity in sizes
    ]
    runs.append(write_run(tmp_path / "other", PAIRS[:4], analyses={"training_texts": 9, "corpus_similarity": 0.9}))
    compared = compare(read_entries(runs), ["token_f1"], 1000, 0)
    by_size, by_similarity = charts(compared, ["token_f1"], None)
    assert by_size[0] == "Word F1 by training texts"
    assert by_size[1].count("<polyline") == 2  # one an embedder; the run on other texts is not joined to them
    assert by_size[1].count("<circle") == 3 + 2  # three runs, two names
    assert by_similarity[0] == "Word F1 by similarity of the corpora"
    assert by_similarity[1].count("<circle") == 4
    assert [title for title, _, _ in charts(compared, ["token_f1"], "corpus_similarity")] == [by_similarity[0]]


def test_compare_draws_metrics_by_the_words_that_were_embedded(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"r{length}", improved(better), analyses={"training_texts": 9, "embedded_words": length})
        for length, better in ((7.5, 12), (20.0, 6), (41.5, 0))
    ]
    runs.append(write_run(tmp_path / "other", PAIRS[:4], analyses={"training_texts": 9, "embedded_words": 3.0}))
    compared = compare(read_entries(runs), ["token_f1"], 1000, 0)
    (chart,) = charts(compared, ["token_f1"], "embedded_words")
    assert chart[0] == "Word F1 by words of an embedded text"
    assert chart[1].count("<circle") == 3 + 1  # three runs on the same references, one name
    assert all(one.paired for one in compared[:3])


def test_lines_join_sizes_of_one_attack_and_never_two_attacks(tmp_path: Path) -> None:
    sizes = [("geia", "GEIA", 1_000), ("geia_gpt2_large", "GEIA", 2_000), ("bag_of_words", "BagOfWords", 1_500)]
    runs = [
        write_run(
            tmp_path / attack,
            improved(number),
            attack=attack,
            parameters=parameters,
            kind="set" if attack == "bag_of_words" else "sequence",
            config=f"attack: {{_target_: attacks.x.{name}}}\n",
        )
        for number, (attack, name, parameters) in enumerate(sizes)
    ]
    words, order = charts(compare(read_entries(runs), ["token_f1", "bleu"], 1000, 0), ["token_f1", "bleu"], None)
    assert [len(points.split()) for points in re.findall(r'points="([^"]*)"', words[1])] == [2, 1]
    assert ">GEIA</text>" in words[1]
    assert ">BagOfWords</text>" in words[1]
    assert order[0] == "BLEU by parameters"
    # Only one size of those that have the metric: there is nothing to draw over sizes.
    alone = compare(read_entries([runs[0], runs[2]]), ["token_f1", "bleu"], 1000, 0)
    assert [title for title, _, _ in charts(alone, ["token_f1", "bleu"], None)] == ["Word F1 by parameters"]


def test_a_baseline_that_is_one_of_the_runs_has_no_second_row(tmp_path: Path) -> None:
    neighbour = write_run(tmp_path / "nearest", attack="nearest_neighbor", parameters=None)
    metrics_found = json.loads((neighbour / "metrics.json").read_text())
    runs = [neighbour, write_run(tmp_path / "geia", improved(9), baseline=metrics_found)]
    table = tables(compare(read_entries(runs), METRICS, 1000, 0), METRICS, 1000)[0]
    assert [line.title for line in table.lines] == ["nearest", "geia"]
    assert not any("Nearest neighbour" in note for note in table.notes)


def test_runs_are_drawn_side_by_side(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "greedy"),
        write_run(tmp_path / "<beam>", improved(9)),
        write_run(tmp_path / "words", kind="set"),
        write_run(tmp_path / "other", PAIRS[:4]),
    ]
    compared = compare(read_entries(runs), ["token_f1", "bleu", "perplexity"], 1000, 0)
    words, order = side_by_side(compared, ["token_f1", "bleu", "perplexity"])  # no run has a perplexity
    assert (words[0], order[0]) == ("Word F1", "BLEU")
    assert (words[1].count("<circle"), words[1].count("<polyline")) == (4, 4)
    assert order[1].count("<circle") == 3  # a set of words has no BLEU
    assert "&lt;beam&gt;" in words[1]
    assert "other (other texts)" in words[1]
    assert "greedy (other texts)" not in words[1]
    (low, high), value = compared[0].values["token_f1"].interval, compared[0].values["token_f1"].value
    dot = float(re.findall(r'cx="([\d.]+)"', words[1])[0])
    ends = re.findall(r'points="([\d.]+),[\d.]+ ([\d.]+),', words[1])[0]
    assert (dot - float(ends[0])) / (float(ends[1]) - float(ends[0])) == pytest.approx(
        (value - low) / (high - low), abs=0.02
    )


def test_short_forms() -> None:
    assert [shown("size", n) for n in (5, 1234, 1_814_592)] == ["5", "1.23\u00a0k", "1.81\u00a0M"]
    assert shown("size", 1_557_611_200) == "1.56\u00a0G"
    assert [p_value(p, 2000) for p in (2 / 2001, 0.008, 0.25, 1.0)] == ["p < .001", "p = .008", "p = .25", "p = 1"]


def test_the_command_prints_and_writes_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", analyses={"training_texts": 10})
    write_run(tmp_path / "b", improved(9), attack="<b>|x", analyses={"training_texts": 100})
    monkeypatch.chdir(tmp_path)
    run_compare(read_settings(["b", "reference=a", "output=out/words", "metrics=token_f1,bleu"]))
    assert "Difference to a" in capsys.readouterr().out
    text = (tmp_path / "out" / "words.md").read_text()
    header, _, first, second = [line for line in text.splitlines() if line.startswith("|")][:4]
    assert [cell.strip() for cell in header.strip("|").split("|")][-2:] == ["Word F1", "BLEU"]
    assert first.startswith("| a | geia | 1.81")
    assert "\\<b>\\|x" in second
    assert re.search(r"\| 7\d\.\d\u00a0% \(\d\d\.\d to \d\d\.\d\) \|", first)
    page = (tmp_path / "out" / "words.html").read_text()
    assert "<b>|x" not in page
    assert "&lt;b&gt;|x" in page
    assert "Word F1 by training texts" in page
    assert not re.search(r"<script|https?:|url\(", page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the directories to compare"),
        (["a", "bb"], "no directory .*bb, did you mean b?"),
        (["."], r"^nothing to compare: \. holds no metrics\.json, did you mean wrong\?$"),
        (["multirun", "notes.txt"], r"^nothing to compare: multirun holds no .*ends; notes.txt holds no .* ends$"),
        (["a", "reference=multirun"], "^nothing to compare: multirun holds no metrics.json"),
        (["a", "b", "metrics=blue"], "metrics: no run has 'blue'; did you mean bleu?"),
        (["a", "b", "metric=bleu"], "metric=bleu: unknown key metric, did you mean metrics?"),
        (["a", "b", "resamples=10"], "resamples=10: .*greater than or equal to 1000"),
        (["a", "b", "x=size"], "x=size: .*training_texts"),
        (["a", "b", "x=parameters"], r"x=parameters: at least two runs on the same test texts must differ in it \(a: "),
        (["a", "a"], "given twice"),
        (["a", "short"], "short/predictions.jsonl: 30 predictions, but metrics.json beside it says 29 examples"),
        (["a", "wrong"], r"wrong: predictions\.jsonl gives bleu=[\d.]+, metrics\.json says 99:"),
    ],
)
def test_bad_input_is_one_message_before_any_resampling(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("resampled")

    for name, metrics in (("a", {}), ("b", {}), ("short", {"examples": 29}), ("wrong", {"bleu": 99.0})):
        write_run(tmp_path / name, metrics=metrics)
    (tmp_path / "multirun" / "2026").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unembed.reports.comparison.measuring.resampled_sums", never)
    with pytest.raises(InputError, match=message):
        run_compare(read_settings(arguments))
    assert not list(tmp_path.glob("comparison.*"))


def test_what_is_no_run_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``runs/*`` names the folder of a sweep, runs in a folder of their attack, and a run that was killed."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b" / "2026")
    (tmp_path / "multirun" / "2026").mkdir(parents=True)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    run_compare(read_settings(["a", "b", "killed", "multirun", "resamples=1000"]))
    said = capsys.readouterr().out
    assert said.splitlines()[:3] == [
        "passed over: b holds no metrics.json, did you mean b/2026?",
        "passed over: killed holds no metrics.json, which a run writes when its test ends",
        "passed over: multirun holds no metrics.json, which a run writes when its test ends",
    ]
    assert "Written: comparison.md comparison.html" in said


def test_a_directory_may_have_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "seed9=1")
    (tmp_path / "beams=5").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_settings(["seed9=1", "beams=5", "seed=3"]).directories == [Path("seed9=1"), Path("beams=5")]


def test_text_of_directories_is_not_markup(tmp_path: Path) -> None:
    compared = compare(read_entries([write_run(tmp_path / "[red]a")]), METRICS, 1000, 0)
    out = io.StringIO()
    print_tables(tables(compared, METRICS, 1000), Console(file=out, width=100))
    assert "[red]a" in out.getvalue()


def row(reference: str, prediction: str) -> Row:
    return Row(index=0, reference=reference, prediction=prediction, kind="sequence")


def test_word_frequency_by_hand() -> None:
    training = ["the the the cat", "The dog sat"]  # the 4, cat dog sat 1
    rows = [row("the the cat ran", "the dog ran"), row("a dog", "dog dog")]
    assert word_frequency(training, rows) == [
        {"from": 0, "to": 0, "words": 2, "occurrences": 2, "recovered": 1},  # ran came back, a did not
        {"from": 1, "to": 2, "words": 2, "occurrences": 2, "recovered": 1},  # dog did, cat did not
        {"from": 3, "to": 9, "words": 1, "occurrences": 2, "recovered": 1},  # the: one of two
    ]


def test_word_frequency_covers_all_words_in_bins_that_do_not_overlap() -> None:
    training = [" ".join(f"w{n}" for _ in range(n)) for n in (1, 2, 3, 9, 10, 29, 30, 99, 100, 300)]
    bins = word_frequency(training, [row(" ".join(f"w{n}" for n in (1, 2, 3, 9, 10, 29, 30, 99, 100, 300)), "")])
    assert [(one["from"], one["to"], one["words"]) for one in bins] == [
        (1, 2, 2), (3, 9, 2), (10, 29, 2), (30, 99, 2), (100, 299, 1), (300, 999, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "shown"), [(7, 7), (11, 11), (16, 8)])
def test_labels_below_the_bars_do_not_touch(count: int, shown: int) -> None:
    """As wide as DejaVu Sans, a wide font, draws them: a label of 11 px and a note of 9.5 px."""
    lows = [0, *(digit * 10**power for power in range(8) for digit in (1, 3))][:count]
    bins = [{"from": low, "to": low, "words": 1, "occurrences": 2639, "recovered": 9} for low in lows]
    ((_, chart, _),) = frequency_charts({"word_frequency": bins})
    for style, width in (("tick middle", 0.56 * 11), ("note middle", 0.56 * 9.5)):
        placed = re.findall(rf'<text class="{style}" x="([\d.]+)" y="[\d.]+">([^<]*)</text>', chart)
        ends = [(float(x) - width * len(text) / 2, float(x) + width * len(text) / 2) for x, text in placed]
        assert len(ends) == shown
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


def test_the_report_draws_words_by_frequency(tmp_path: Path) -> None:
    bins = [
        {"from": 0, "to": 0, "words": 9, "occurrences": 10, "recovered": 0},
        {"from": 3000, "to": 9999, "words": 2, "occurrences": 1234, "recovered": 617},
    ]
    ((title, chart, _),) = frequency_charts({"word_frequency": bins})
    assert title == "Words by frequency"
    assert ">3k</text>" in chart
    assert ">1.2k</text>" in chart
    assert frequency_charts(None) == frequency_charts({"training_texts": 3}) == []
    broken: dict[str, Any]
    for broken, said in (
        ({"word_frequency": 3}, "word_frequency: Input should be a valid list"),
        ({"word_frequency": [[]]}, "word_frequency.0: "),
        ({"word_frequency": [{**bins[0], "occurrences": 0}]}, "word_frequency.0.occurrences: "),
        ({"word_frequency": [{**bins[0], "from": "a"}]}, "word_frequency.0.from: "),
    ):
        with pytest.raises(InputError, match=f"analyses.json: {said}"):
            frequency_charts(broken)
    run = write_run(tmp_path / "a", analyses={"word_frequency": bins})
    assert "Rare and common words" in write_report(run).read_text()


def test_a_narrow_terminal_still_names_the_runs_and_their_settings(tmp_path: Path) -> None:
    configs = ["seed: 1\ntrainer: {max_steps: 1}\n", "seed: 12345678901234567890123\ntrainer: {max_steps: 2}\n"]
    runs = [write_run(tmp_path / f"r{place}", config=config) for place, config in enumerate(configs)]
    compared = compare(read_entries(runs), ["stop_word_rate", *METRICS], 1000, 0)
    out = io.StringIO()
    found = tables(compared, ["stop_word_rate", *METRICS], 1000)
    print_tables(found, Console(file=out, width=100))
    assert "…" not in out.getvalue()
    assert found[1].lines[0].cells[0].text == "+0.0"  # neither more nor less is better, but there is a difference
    assert found[1].lines[0].cells[0].gain is None


def test_no_table_holds_what_a_terminal_would_obey(tmp_path: Path) -> None:
    said, out = "a\x1b[2J\u202e<b>|", io.StringIO()
    found = Table(said, (said,) * 3, (Line(said, said, (Cell(said), Cell(said, (said,)))),), 1, (said,), (said,))
    print_tables([found], Console(file=out, width=200))
    (tmp_path / "table.md").write_text(markdown(found))
    for text in (out.getvalue(), (tmp_path / "table.md").read_text()):
        assert "a\ufffd[2J\ufffd" in text.replace("\\", "")
        assert not {"\x1b", "\u202e"} & set(text)
