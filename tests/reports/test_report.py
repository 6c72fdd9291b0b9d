"""The report: what it says, that it is right for every mix of metrics, and that hostile text stays text."""

from __future__ import annotations

import io
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.files import write_lines
from unembed.core.errors import InputError
from unembed.core.examples import Span
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import score
from unembed.reports.charts import thin
from unembed.reports.numbers import duration, in_words, shown
from unembed.reports.page import SECTIONS, Section, below_baseline, print_summary, verdict, write_report
from unembed.reports.results import by_quality, measure, parts, read_results
from unembed.reports.svg import nice_ticks
from unembed.runs.files import undertrained

VOID = {"meta", "link", "br", "hr", "img", "input"}
SPACES = dict.fromkeys(map(ord, "\u00a0\u202f"), " ")
METRICS: dict[str, Any] = {
    "bleu": 84.31,
    "token_f1": 90.6,
    "token_recall": 90.1,
    "exact_match": 61.04,
    "cosine": 0.9641,
    "entity_recovery": 78.61,
    "edit_distance_mean": 7.31,
    "examples": 3,
    "queries": 0,
    "seconds": 196.4,
    "perplexity_of_something": 12.5,
}
BASELINE = dict.fromkeys(METRICS, None) | {"bleu": 41.2, "exact_match": 0.0, "token_recall": 55.0, "cosine": 0.741}
CONFIG = """name: first-light
seed: 7
choices: {attack: geia, embedder: minilm, datamodule: synthetic, defense: none}
"""


def row(index: int, reference: str, prediction: str, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "reference": reference,
        "prediction": prediction,
        "candidates": [prediction],
        "kind": "sequence",
        "spans": [],
        "cosine": 0.9,
    } | more


ROWS = [
    row(0, "Ada lives in Paris with her dog", "Ada lives in Paris with her dog", spans=[[13, 18, "city"]], cosine=1.0),
    row(1, "the invoice is due on Monday", "the invoice came on Friday", cosine=0.8),
    row(2, "call me", "purple", cosine=0.3),
]
HISTORY: list[dict[str, Any]] = [
    {"step": 10, "epoch": 0, "seconds": 1.5, "train_loss": 6.0, "val_loss": None, "learning_rate": 0.01},
    {"step": 20, "epoch": 1, "seconds": 3.0, "train_loss": 2.0, "val_loss": 2.5, "learning_rate": 0.005},
]


def make_run(
    path: Path,
    metrics: dict[str, Any] = METRICS,
    baseline: dict[str, Any] | None = BASELINE,
    rows: list[dict[str, Any]] = ROWS,
    history: list[dict[str, Any]] | None = HISTORY,
    config: str = CONFIG,
) -> Path:
    (path / "config.yaml").write_text(config)
    (path / "metrics.json").write_text(json.dumps(metrics))
    write_lines(path / "predictions.jsonl", rows)
    if baseline is not None:
        (path / "baseline.json").write_text(json.dumps(baseline))
    if history is not None:
        write_lines(path / "history.jsonl", history)
    return path


class Page(HTMLParser):
    """Tags, attributes, and the text of each element by tag and class; fails where elements are badly nested."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.stack: list[tuple[str, set[str], list[str]]] = []
        self.elements: list[tuple[str, set[str], str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(source)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.stack.append((tag, set((dict(attrs).get("class") or "").split()), []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        opened, classes, text = self.stack.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        self.elements.append((tag, classes, "".join(text).translate(SPACES)))

    def handle_data(self, data: str) -> None:
        for _, _, text in self.stack:
            text.append(data)

    def texts(self, tag: str, *classes: str) -> list[str]:
        return [text for found, has, text in self.elements if found == tag and has.issuperset(classes)]


def page_of(run_dir: Path) -> Page:
    return Page(write_report(run_dir).read_text(encoding="utf-8"))


def test_headline_shows_five_metrics_beside_the_neighbours(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path))
    assert page.texts("p", "value") == ["61.0 %", "90.6 %", "84.3", "0.964", "78.6 %"]
    assert page.texts("p", "other") == [
        "nearest neighbour 0.0 %",
        "no nearest neighbour value",
        "nearest neighbour 41.2",
        "nearest neighbour 0.741",
        "no nearest neighbour value",
    ]
    assert page.texts("h1") == ["What geia read from minilm vectors"]
    assert page.texts("p", "lead") == [
        "Of 3 test texts, 61 % came back exactly, on average 90 % of a text's words were recovered, and 79 % of "
        "the labelled names, places and other entities were read. Merely looking up the nearest training text gives no "
        "text exactly and 55 % of the words."
    ]


def test_table_holds_every_figure_with_its_difference(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path))
    lines = [" ".join(text.split()) for text in page.texts("tr")][1:]
    assert len(lines) == len(METRICS)
    cells = page.texts("td")
    assert cells[cells.index("84.3") :][:3] == ["84.3", "41.2", "+43.1"]
    assert lines[-1].startswith("perplexity of something 12.5")  # a key that the report does not know
    assert any(line.startswith("Time") and "3 min 16 s" in line for line in lines)


def test_nulls_no_baseline_no_history(tmp_path: Path) -> None:
    nulls: dict[str, Any] = dict.fromkeys(METRICS, None) | {"examples": 3, "token_recall": 12.0}
    rows = [one | {"kind": "set", "cosine": None} for one in ROWS]
    page = page_of(make_run(tmp_path, nulls, None, rows, None, config="attack: {_target_: a.B}\n"))
    assert page.texts("p", "value") == ["–"] * 5  # noqa: RUF001
    assert page.texts("p", "other") == ["does not apply to this run"] * 5
    assert page.texts("p", "lead") == ["Of 3 test texts, on average 12 % of a text's words were recovered."]
    assert page.texts("h2") == ["In short", "How close it came", "Side by side", "All metrics", "Configuration"]
    assert [text for text in page.texts("h3") if "cosine" in text.lower()] == ["Cosine"]  # the tile, no chart
    assert page.texts("thead")[0].split() == ["MetricThis", "run"]  # no column for a neighbour
    assert "This run has no nearest neighbour baseline" in " ".join(page.texts("p"))


def test_a_loss_that_is_not_a_number_breaks_nothing(tmp_path: Path) -> None:
    broken = [moment | {"train_loss": float("nan")} for moment in HISTORY]
    assert "How it learned" in page_of(make_run(tmp_path, history=broken)).texts("h2")


def test_training_section_states_its_facts(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path))
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts == {
        "Steps": "20",
        "Time": "3.0 s",
        "Last epoch": "1",
        "Last training loss": "2.000",
        "Best validation loss": "2.500 at step 20",
    }


HOSTILE = '<script>alert(1)</script>"><img src=https://evil.example/x onerror=alert(2)>{{ 7*7 }}'


def test_a_baseline_without_vectors_read_none(tmp_path: Path) -> None:
    write_report(make_run(tmp_path, rows=[one | {"given": one["reference"].split()[0]} for one in ROWS]))
    page = (tmp_path / "report.html").read_text()
    assert "read from" not in page
    assert "guessed from first words, without vectors" in page
    assert "guessed from “call”" in page


@pytest.mark.parametrize(
    ("attack", "shown"),
    [("{refine: {rerank: {proposals: 4}, lexicon: {}}}", True), ("{refine: {}}", False), ("{}", False), ("3", False)],
)
def test_the_head_names_the_refiners(tmp_path: Path, attack: str, shown: bool) -> None:
    source = write_report(make_run(tmp_path, config=f"{CONFIG}attack: {attack}\n")).read_text(encoding="utf-8")
    assert ("<span>refine</span> rerank, lexicon" in source) is shown


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    rows = [row(0, f"{HOSTILE} name", f"name {HOSTILE}", spans=[[0, 8, HOSTILE]])]
    config = f"name: {json.dumps(HOSTILE)}\nseed: {json.dumps(HOSTILE)}\nchoices: {{attack: {json.dumps(HOSTILE)}}}\n"
    page = page_of(make_run(tmp_path, METRICS | {HOSTILE: HOSTILE}, METRICS, rows, config=config))
    tags = {tag for tag, _, _ in page.elements} | {tag for tag, _, _ in page.attributes}
    assert not tags & {"script", "img", "iframe", "object", "embed", "form"}
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.texts("p", "run") == [HOSTILE]
    assert HOSTILE in page.texts("p", "text")[0]
    assert HOSTILE in page.texts("p", "read")[0]
    assert ("span", "data-label", HOSTILE) in page.attributes
    assert HOSTILE in page.texts("td")


def test_page_loads_nothing(tmp_path: Path) -> None:
    source = write_report(make_run(tmp_path)).read_text(encoding="utf-8")
    page = Page(source)
    links = [value for _, name, value in page.attributes if name in {"src", "href", "srcset", "data", "xlink:href"}]
    assert links
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not re.search(r"https?:|@import|url\(", source)
    policy = [value for tag, name, value in page.attributes if tag == "meta" and name == "content"]
    assert any("default-src 'none'" in value and "script-src" not in value for value in policy)
    assert "prefers-color-scheme: dark" in source
    anchors = {value for _, name, value in page.attributes if name == "id"}
    assert {link[1:] for link in links if link.startswith("#")} <= anchors


def test_recovered_words_are_marked_in_both_texts(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, rows=ROWS[1:2]))
    assert page.texts("mark") == ["Marked", "the invoice", "on", "the invoice", "on"]


def test_parts_put_together_are_the_text_and_label_entities_once() -> None:
    text = "Ada Lovelace paid $3.50 in Paris"
    cut = parts(text, "ada paid 3 in paris", [(0, 12, "name"), (18, 23, "amount"), (27, 99, "city")])
    assert "".join(part.text for part in cut) == text
    assert [part.text for part in cut if part.recovered] == ["Ada", "paid", "3", "in ", "Paris"]
    assert [(part.label, part.ends) for part in cut if part.label and part.ends] == [
        ("name", True),
        ("amount", True),
        ("city", True),
    ]
    assert parts("", "ada") == []
    assert [part.text for part in parts("one two", "", limit=3)] == ["one"]


def many(count: int) -> list[dict[str, Any]]:
    text = "one two three four five six seven eight nine ten"
    return [row(i, text, " ".join(text.split()[: 1 + i % 10]), cosine=(i % 100) / 100) for i in range(count)]


def test_examples_are_the_best_ten_the_worst_ten_and_thirty_between(tmp_path: Path) -> None:
    run = make_run(tmp_path, rows=many(200))
    page = page_of(run)
    indices = [int(found) for found in re.findall(r"<div>text (\d+)</div>", (run / "report.html").read_text())]
    assert len(indices) == len(set(indices)) == 50
    # Quality grows with i % 10: the first ten of 9, 19, ... are the best, the last ten of 0, 10, ... the worst.
    assert indices[:10] == [9 + 10 * n for n in range(10)]
    assert indices[40:] == [100 + 10 * n for n in range(10)]
    between = [9 - index % 10 for index in indices[10:40]]
    assert between == sorted(between)
    assert set(between) == set(range(10))
    assert any("other 180, sorted by sentence BLEU and cut into thirty equal parts" in text for text in page.texts("p"))
    first = (run / "report.html").read_bytes()
    assert write_report(run).read_bytes() == first


def test_few_examples_are_all_shown_once_best_first(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    found = re.findall(r"<div>text (\d+)</div>", write_report(run).read_text())
    assert found == ["0", "1", "2"]


def test_two_thousand_predictions_stay_small_and_say_that_the_scatter_is_a_sample(tmp_path: Path) -> None:
    run = make_run(tmp_path, rows=many(2000))
    page = page_of(run)
    assert "One dot a text; 1,500 of 2,000 drawn, evenly." in page.texts("figcaption")
    scatter = re.search(r'aria-label="BLEU against cosine.*?</svg>', (run / "report.html").read_text(), re.S)
    assert scatter
    assert scatter[0].count("<circle") == 1500
    assert (run / "report.html").stat().st_size < 1_500_000


def test_quality_of_a_set_is_its_share_of_words(tmp_path: Path) -> None:
    rows = [row(5, "red green blue black", "black red", kind="set"), row(6, "red green", "red green", kind="set")]
    results = read_results(make_run(tmp_path, rows=rows))
    assert [(one.row.index, one.quality, one.exact) for one in by_quality(results.recovered)] == [
        (6, 100.0, False),
        (5, 50.0, False),
    ]


def test_a_section_is_added_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from markupsafe import Markup

    def mine(results: Any) -> Markup:
        return Markup("<p class='mine'>{}</p>").format(results.metrics["examples"])

    added = (*SECTIONS, Section("My own", mine), Section("Empty", lambda results: None))
    monkeypatch.setattr("unembed.reports.page.SECTIONS", added)
    page = page_of(make_run(tmp_path))
    assert page.texts("p", "mine") == ["3"]
    assert page.texts("h2")[-1] == "My own"
    assert ("a", "href", "#my-own") in page.attributes


def test_verdict_never_rounds_to_none_or_all() -> None:
    assert [in_words(x).translate(SPACES) for x in (0, 0.04, 0.6, 61.4, 99.4, 99.96, 100)] == [
        "none",
        "less than 1 %",
        "1 %",
        "61 %",
        "99 %",
        "more than 99 %",
        "all",
    ]


@pytest.mark.parametrize(
    ("metrics", "texts", "sentence"),
    [
        (
            {"exact_match": 0, "token_recall": 0.0},
            5,
            "Of 5 test texts, none came back exactly; no word of any text was recovered.",
        ),
        ({"exact_match": 100.0, "token_recall": 100.0}, 1, "Of 1 test text, all came back exactly."),
        ({"exact_match": None, "token_recall": 100.0}, 2, "Of 2 test texts, every word of every text was recovered."),
        (
            {"entity_recovery": 0.2},
            2000,
            "Of 2,000 test texts, less than 1 % of the labelled names, places and other entities were read.",
        ),
        ({"cosine": 0.5}, 1, "1 test text was attacked; no metric of this run counts whole texts or words."),
    ],
)
def test_verdict(metrics: dict[str, Any], texts: int, sentence: str) -> None:
    assert verdict(metrics, None, texts).translate(SPACES) == sentence


def test_verdict_mentions_exactly_the_metrics_that_exist() -> None:
    keys = ("exact_match", "token_recall", "entity_recovery")
    for values in itertools.product((None, 0.0, 0.2, 50.0, 99.9, 100.0), repeat=3):
        text = verdict(dict(zip(keys, values, strict=True)), {"exact_match": 3.0}, 7).translate(SPACES)
        exact, recall, entities = (value is not None for value in values)
        assert ("came back exactly" in text) == exact
        assert ("recovered" in text) == (recall and not (values[0] == values[1] == 100.0))
        assert ("entities were read" in text) == entities
        assert ("nearest training text gives 3 % exactly." in text) == exact
        assert text.endswith(".")
        assert "None" not in text


def test_duration() -> None:
    assert [duration(s).translate(SPACES) for s in (0.25, 59.6, 196.4, 3599.7, 7322)] == [
        "0.2 s",
        "1 min 0 s",
        "3 min 16 s",
        "1 h 0 min",
        "2 h 2 min",
    ]


def test_metrics_helpers() -> None:
    assert nice_ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert nice_ticks(0.31, 0.99, 5) == pytest.approx([0.4, 0.6, 0.8])
    assert thin([(0, 1), (1, 3), (2, 5)], 2) == [(0.5, 2), (2, 5)]
    assert thin([], 2) == []


@pytest.mark.parametrize("name", ["config.yaml", "metrics.json", "predictions.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (make_run(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=re.escape(name)):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.json", '{\n"bleu": ', r"metrics\.json: not JSON .*line 2"),
        ("baseline.json", "[1]", r"baseline\.json: expected an object of keys and values, found list"),
        ("config.yaml", "a: [1", r"config\.yaml: cannot be read: while parsing"),
        ("config.yaml", "just text", r"config\.yaml: expected keys and values, found str"),
        ("predictions.jsonl", "\n\n", r"predictions\.jsonl: holds no prediction"),
        ("predictions.jsonl", json.dumps(ROWS[0]) + "\n{", r"predictions\.jsonl:2: not JSON"),
        ("predictions.jsonl", json.dumps(ROWS[0]) + '\n\n{"index": 1}', r"predictions\.jsonl:3: reference: "),
        ("history.jsonl", '{"step": "soon"}', r"history\.jsonl:1: step: "),
        ("history.jsonl", "[]", r"history\.jsonl:1: the line: "),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (make_run(tmp_path) / name).write_text(content)
    with pytest.raises(InputError, match=message):
        write_report(tmp_path)


def test_bytes_that_are_not_utf8_are_an_error(tmp_path: Path) -> None:
    (make_run(tmp_path) / "predictions.jsonl").write_bytes(b'{"index": 0, "reference": "\xff"}')
    with pytest.raises(InputError, match=r"predictions\.jsonl:1: not JSON .*byte 0xff in position 27"):
        write_report(tmp_path)


def test_separators_inside_a_text_do_not_cut_its_line(tmp_path: Path) -> None:
    (make_run(tmp_path) / "predictions.jsonl").write_text(
        json.dumps(row(0, "a\u2028b", "a\u0085b"), ensure_ascii=False)
    )
    assert len(read_results(tmp_path).recovered) == 1


def test_a_lone_surrogate_does_not_lose_the_report(tmp_path: Path) -> None:
    assert "caf?" in page_of(make_run(tmp_path, rows=[row(0, "caf\ud800", "")])).texts("p", "text")[0]


def summary(run_dir: Path, **options: Any) -> str:
    out = io.StringIO()
    print_summary(run_dir, Console(file=out, width=160, **options))
    return out.getvalue().translate(SPACES)


def test_summary_has_table_sentences_and_path(tmp_path: Path) -> None:
    write_report(make_run(tmp_path))
    text = summary(tmp_path)
    assert re.search(r"BLEU +│ +84\.3 +│ +41\.2 +│ +\+43\.1", text)
    assert "Of 3 test texts, 61 % came back exactly" in text
    assert "read  the invoice came on Friday" in text
    assert str(tmp_path / "report.html") in text
    assert "nearest" not in summary(make_run_without_baseline(tmp_path))


def test_the_few_failures_are_among_the_texts_of_the_summary(tmp_path: Path) -> None:
    exact = [row(n, f"she has {n} cats in london", f"she has {n} cats in london") for n in range(97)]
    failed = [
        row(97, "the train to the city leaves at nine today", "the train to the city leaves at ten today"),
        row(98, "the weather is nice in the north", "the weather was cold in the north"),
        row(99, "please call me", "a dog"),
    ]
    text = summary(make_run(tmp_path, rows=[*exact, *failed]))
    shown = re.findall(r"(?:read|BLEU) +(.*?) *\n", text.partition("Five of them")[2])
    assert [line for line in shown if not line[0].isdigit()] == [
        "she has 48 cats in london", "she has 49 cats in london", "the train to the city leaves at ten today",
        "the weather was cold in the north", "a dog",
    ]  # fmt: skip
    assert shown[1] == "100; 3.0 % of the texts have less"
    assert re.fullmatch(r"\d; 0 % of the texts have less", shown[-1])


def make_run_without_baseline(path: Path) -> Path:
    (path / "baseline.json").unlink()
    return path


def test_summary_colours_recovered_words_only(tmp_path: Path) -> None:
    coloured = summary(make_run(tmp_path, rows=ROWS[1:2]), force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[1;32mthe invoice\x1b[0m came \x1b[1;32mon\x1b[0m Friday" in coloured


def test_summary_obeys_no_markup_and_no_escape_sequence_of_recovered_text(tmp_path: Path) -> None:
    text = summary(make_run(tmp_path, rows=[row(0, "[red]hi[/blue]\x1b[2J\u202e", "[/]\x07\x9b31m")]))
    assert "[red]hi[/blue]\ufffd[2J\ufffd" in text
    assert "[/]\ufffd\ufffd31m" in text
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


def test_secondary_metrics_are_folded_in_the_page_and_left_out_of_the_terminal(tmp_path: Path) -> None:
    more = {"micro_f1": 61.25, "micro_recall": 55.5, "entity_recovery/first_name": 12.5, "perplexity": None}
    page = page_of(make_run(tmp_path, METRICS | more, dict.fromkeys(METRICS | more)))
    folded = [text for text in page.texts("details") if "more metrics" in text]
    assert len(folded) == 1
    assert "Entities: first name" in folded[0]
    assert "55.5 %" in folded[0]
    assert "61.2 %" not in folded[0]
    text = summary(tmp_path)
    assert "Micro F1, words" in text
    assert "Micro recall" not in text
    assert "first name" not in text
    assert "Perplexity" not in text  # neither this run nor the neighbour has one
    assert str(tmp_path / "metrics.json") in text


def test_every_figure_has_a_title_and_an_explanation() -> None:
    row = Scored("Ada left", "Ada left", (Span(0, 3, "first_name"),))
    assert [key for key in score([row]) if not measure(key).explanation] == []


def test_a_training_that_was_cut_short_is_told() -> None:
    planned = {"steps": 460, "planned_steps": 1800}
    assert "460 of 1,800 steps" in (undertrained({**planned, "cut_short": True}) or "")
    assert undertrained({**planned, "cut_short": False}) is None
    assert undertrained({"steps": 460, "planned_steps": None, "cut_short": True}) is None
    assert undertrained({}) is None


@pytest.mark.parametrize(
    ("metrics", "baseline", "below"),
    [
        ({"bleu": 0.2}, {"bleu": 54.8}, "BLEU 0.2 against 54.8"),
        ({"bleu": 54.8}, {"bleu": 54.8}, None),
        ({"bleu": 87.0, "token_f1": 10.0}, {"bleu": 54.8, "token_f1": 70.0}, None),
        ({"bleu": None, "token_f1": 10.0}, {"bleu": 54.8, "token_f1": 70.0}, "word F1 10.0 against 70.0"),
        ({"bleu": 0.2}, None, None),
        ({}, {"bleu": 54.8}, None),
    ],
)
def test_an_attack_below_its_baseline(
    metrics: dict[str, Any], baseline: dict[str, Any] | None, below: str | None
) -> None:
    said = below_baseline(metrics, baseline)
    assert said == "" if below is None else below in said


def test_caveats_stand_first_on_page_and_terminal(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    training = {"steps": 460, "planned_steps": 1800, "cut_short": True}
    (run / "record.json").write_text(json.dumps({"training": training}))
    for name, value in (("metrics.json", 0.2), ("baseline.json", 54.8)):
        (run / name).write_text(json.dumps({**json.loads((run / name).read_text()), "bleu": value}))
    page = write_report(run).read_text()
    assert '<p class="lead">This attack reads less than a lookup' in page
    assert page.index("This attack reads less") < page.index("460 of 1,800 steps")
    shown = summary(run)
    assert shown.index("This attack reads less") < shown.index("460 of 1,800 steps")


def test_numbers_beyond_a_float_are_no_numbers() -> None:
    for value in (10**400, -(10**400), 1e301, float("nan")):
        assert shown("count", value) == "not a number"
