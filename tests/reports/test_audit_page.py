"""The page of an audit: one sentence, examples, classes, attackers, defenses, what to do; no network, no scripts."""

from __future__ import annotations

import io
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from unembed import launch
from unembed.audit.report import SUMMARY, print_audit, say, steps, tried_table, write_audit
from unembed.audit.results import AttackerResult, Audit, DataClass, DefenseResult, Kind, Row, Share
from unembed.audit.thresholds import judge, parse
from unembed.core.commands import quoted
from unembed.runs.config_file import write_config

ATTACK, LOOKUP, NONE = (Share.counted(number, 200) for number in (60, 90, 0))


def row(n: int, **values: Any) -> Row:
    common = {"probability": 0.9, "kinds": ("PERSON",), "text": "[PERSON] xx Xxxxx", "cosine": 0.99 - n / 100}
    return Row(id=f"id {n}", position=n, **{**common, **values})


def data_class(name: str, total: int, share: Share | None, found: Any = "form") -> DataClass:
    return DataClass(name=name, total=total, share=share, found=found)


def tried(name: str, share: Share | None, neighbours: float, lookup: Share | None, width: int = 384) -> DefenseResult:
    return DefenseResult(name=name, readable=share, cosine=0.2, neighbours=neighbours, width=width, lookup=lookup)


ROWS = [row(n) for n in range(5)]
AUDIT = Audit(
    store="db/my store.npy", named=("vectors=db/my store.npy",),
    size=1000, sampled=200, width=384, run={"directory": "runs/a", "attack": "geia"},
    threshold=80.0, masked=True, tagged="their form", readable=LOOKUP, exact=Share.counted(1, 200),
    attackers=[AttackerResult(name="attack", readable=ATTACK, exact=NONE, cosine=0.7),
               AttackerResult(name="lookup", readable=LOOKUP, exact=NONE, cosine=0.6, label="a lookup")],
    rows=ROWS, examples=ROWS[:3], cosines=[0.5, 0.9], kinds=[Kind(label="EMAIL", total=10, share=Share.counted(5, 10))],
    classes=[data_class("names", 40, Share.counted(10, 40), "labels"), data_class("phone", 0, None)],
    tried=[tried("none", ATTACK, 1.0, LOOKUP), tried("noise", NONE, 0.6, NONE)],
    tried_on=200,
)  # fmt: skip


def changed(**values: Any) -> Audit:
    return AUDIT.model_copy(update=values)


class Page(HTMLParser):
    """What a browser would find: elements with their attributes, text outside the style, headings of sections."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.style, self._open = "", "", ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "style":
            self.style += data
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag]


def page_of(audit: Audit, folder: Path, *conditions: str) -> Page:
    write_audit(folder, audit.model_copy(update={"thresholds": judge(parse(",".join(conditions)), audit)}))
    return Page((folder / "audit.html").read_text(encoding="utf-8"))


def test_the_page_answers_first_and_says_what_to_do(tmp_path: Path) -> None:
    page = page_of(AUDIT, tmp_path, "readable>5")
    assert [found["id"] for found in page.all("section")] == [
        "examples", "what-leaks", "thresholds", "attackers", "defenses", "what-to-do", "details",
    ]  # fmt: skip
    assert (
        "A lookup reads 45\u00a0% of the texts behind these vectors (measured on 200 texts, 95\u00a0% interval "
        "38 to 52\u00a0%); attackers trained longer, or on text more like yours, read more than this one."
    ) in page.text
    assert "The share is a lower bound of what can be read; its interval says how exactly it is known." in page.text
    order = ["A lookup reads 45", "FAILED: readable>5", "row id 0", "row id 2", "None found: phone",
             "Search kept: of the", "Treat the vectors as the text itself", "The 5 most exposed rows"]  # fmt: skip
    places = [page.text.index(part) for part in order]
    assert places == sorted(places)
    assert "init_from=runs/a datamodule=files 'datamodule.path=<file>' run_dir=runs/own" in page.text
    assert "unembed audit run=runs/a 'vectors=db/my store.npy' 'fail_on=readable>52' baseline=" in page.text
    assert "None found: phone." in page.text
    all_read = page_of(changed(readable=Share.counted(200, 200)), tmp_path)
    assert "'fail_on=readable>5'" in all_read.text
    assert "id 4" in page.text[page.text.index("The 5 most exposed rows") :]


@pytest.mark.parametrize(
    "named",
    [
        ("vectors=../data/my store (2), new.npy",),
        ("vectors=chroma:../data/db", "collection=notes"),
        ("vectors=postgresql://ada@host/mail?sslmode=require", "collection=\"my 'old' mails.vector\""),
    ],
)
def test_every_command_of_the_page_composes(named: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "my run (2)"
    model = ["embedder=sentence_transformer", f"embedder.model={tmp_path}"]  # which no default of that option names
    run_dir = f"run_dir={quoted(run)}"
    config = launch.compose("train", ["attack=geia", "defense=noise", "defense.adaptive=true", *model, run_dir])
    write_config(run, launch.plain(config))
    estimated = Share(value=0.1, low=0.05, high=0.2, rows=200, measured=False)
    of_run = {"directory": str(run), "embedder": "sentence_transformer"}
    audit = changed(run=of_run, named=named, readable=estimated)
    lines = [line for step in steps(audit, tmp_path / "it's (1)" / "audit.json") for line in step.commands]
    assert len(lines) == 5
    for line in lines:
        _, script, *words = shlex.split(line.replace("<file>", "texts.jsonl"))
        given = [f"run={quoted(run)}" if word == "run=runs/own" else word for word in words]
        if script == "train":
            further = launch.compose("train", [*given, "trainer.precision=32-true"])
            assert launch.check(further) == []
            assert (further.embedder, further.choices.embedder) == (config.embedder, "sentence_transformer")
        else:
            settings, _ = launch.on_run("audit", given)
            assert settings.vectors == named[0].removeprefix("vectors=")
            assert settings.collection == (None if len(named) == 1 else named[1].removeprefix("collection=").strip('"'))


def test_the_page_needs_no_network_and_no_script_and_prints(tmp_path: Path) -> None:
    page = page_of(AUDIT, tmp_path)
    assert not page.all("script")
    assert not [found for tag in ("img", "iframe", "object") for found in page.all(tag)]
    links = [found.get("href") or "" for tag in ("a", "link") for found in page.all(tag)]
    assert all(link.startswith(("#", "data:")) for link in links)
    anchors = {found.get("id") for _, found in page.tags}
    assert {link[1:] for link in links if link.startswith("#")} <= anchors
    assert not re.search(r"url\(|@import", page.style)
    assert "@media print" in page.style
    assert "print-color-adjust: exact" in page.style
    assert "prefers-color-scheme: dark" in page.style
    assert all("open" not in found for found in page.all("details"))


def test_tables_and_charts_have_names_for_screen_readers(tmp_path: Path) -> None:
    page = page_of(AUDIT, tmp_path)
    assert all(found.get("scope") in ("col", "row", "rowgroup") for found in page.all("th"))
    assert all(found.get("aria-label") for found in page.all("svg"))
    bars = [found.get("aria-label") for found in page.all("table") if found.get("aria-label")]
    assert bars == [
        "Exposure by class of data", "Shares read by each attacker", "Shares still read and neighbours kept by defense",
    ]  # fmt: skip
    widths = [found["style"] for found in page.all("i")]
    assert widths[0] == "width:25.0%"


def test_without_classes_the_kinds_are_shown_and_little_is_no_comfort(tmp_path: Path) -> None:
    attack = AttackerResult(name="attack", readable=NONE, exact=NONE, cosine=0.2)
    low: dict[str, Any] = {"classes": [], "readable": NONE, "rows": [], "examples": [], "tried": []}
    page = page_of(changed(**low, attackers=[attack]), tmp_path)
    assert "The attack reads 0" in page.text
    assert "read more than this one" in page.text
    assert "Three examples" not in page.text
    assert "EMAIL" in page.text
    assert "No defense was tried" in page.text
    unknown = page_of(changed(**low | {"readable": None}, attackers=[]), tmp_path)
    assert "How much of that is right is not known." in unknown.text
    assert "fail_on=" not in unknown.text


def test_the_command_that_measures_a_defense_stands_below_it() -> None:
    """Of what left the attack least, whose dimension the attacker's weights can take or not."""
    train = "unembed train init_from=runs/a datamodule=files 'datamodule.path=<file>'"
    for name, dimension, begin, words in (
        ("noise level=0.05", 384, train, "defense=noise defense.level=0.05"),
        ("truncation dimensions=128", 128, train.replace("init_from=runs/a ", ""),
         "defense=truncation defense.dimensions=128"),
        ("rounding + noise noise.level=0.01", 384, train, "'defense=[rounding,noise]' defense.noise.level=0.01"),
    ):  # fmt: skip
        results = [AUDIT.tried[0], tried(name, NONE, 0.6, None, dimension)]
        (step,) = (one for one in steps(changed(tried=results)) if one.title.startswith("Choose defenses"))
        assert step.text.startswith("No defense is recommended: no attacker here knew of them")
        assert step.commands == (f"{begin} {words} defense.adaptive=true run_dir=runs/defended",)


def test_the_summary_counts_what_the_table_counts() -> None:
    """Names and numbers by form are no entities of the patterns, of which none may have come back."""
    counts = {"names": (9, 100), "numbers": (51, 100), "e-mail": (1, 2), "free text": (60, 900)}
    classes = [data_class(name, total, Share.counted(read, total)) for name, (read, total) in counts.items()]
    none = changed(classes=classes, entities=Share.counted(0, 30), kinds=[Kind(label="EMAIL", total=30, share=NONE)])
    said = " ".join(say("more", none).replace("\u00a0", " ").split())
    assert said.endswith("Of the names in these texts 9.0 % come back, of the numbers 51 %.")
    results = [one.model_copy(update={"entities": NONE}) for one in AUDIT.tried]
    assert "Entities read" not in tried_table(none.model_copy(update={"tried": results})).columns
    assert "Entities read" in tried_table(changed(tried=results)).columns


@pytest.mark.parametrize(("count", "title"), [(1, "One example"), (2, "Two examples"), (3, "Three examples")])
def test_as_many_examples_as_there_are(count: int, title: str, tmp_path: Path) -> None:
    page = page_of(changed(rows=ROWS[:count], examples=ROWS[:count]), tmp_path)
    assert title in page.text
    assert [found for found in page.all("span") if found.get("class") == "label"] == [{"class": "label"}] * count
    assert "PERSON xx Xxxxx" in page.text
    assert "[PERSON] xx Xxxxx" in page.text  # in the list of all rows


def test_examples_say_how_they_were_chosen_and_show_common_words(tmp_path: Path) -> None:
    shown = "my name is xxx and I read [DATE] xxx'x next box."
    for f1, probability, said in (
        (90.0, 1.0, "Their true texts are known: with a word F1 of 80"),
        (60.0, 0.0, "None of the texts whose truth is known is readable: these came nearest."),
        (None, 0.9, "Of those that are more likely readable than not, these have most entities"),
        (None, 0.2, "None is more likely readable than not: these are the likeliest, and may be wrong."),
    ):
        example = row(0, f1=f1, exact=None if f1 is None else False, probability=probability, kinds=(), text=shown)
        page = page_of(changed(examples=[example]), tmp_path)
        assert said in page.text
        assert ("readable with probability" in page.text) == (f1 is None)
        assert "my name is xxx and I read DATE xxx'x next box." in page.text
        bars = [found for found in page.all("span") if found.get("class") == "word"]
        assert len(bars) == 3


def test_the_terminal_shows_intervals_as_the_summary_does(tmp_path: Path) -> None:
    shown = Console(file=io.StringIO(), width=150)
    print_audit(tmp_path, AUDIT, console=shown)
    assert isinstance(shown.file, io.StringIO)
    said = " ".join(shown.file.getvalue().replace("\u00a0", " ").split())
    for part in ("names │ 25 % (14 to 40 %)", "a lookup │ 45 % (38 to 52 %)", "none │ 30 % (24 to 37 %)"):
        assert part in said


def test_the_summary_for_pull_requests_has_the_order_of_the_page(tmp_path: Path) -> None:
    write_audit(tmp_path, changed(thresholds=judge(parse("readable>5"), AUDIT)))
    said = (tmp_path / SUMMARY).read_text(encoding="utf-8")
    assert said.startswith("**A lookup reads 45")
    parts = ["FAILED: readable>5", "## What kinds of data leak", "## Thresholds", "## Who reads how much",
             "## What each defense changes", "## What to do next", "1. **Treat the vectors"]  # fmt: skip
    places = [said.index(part) for part in parts]
    assert places == sorted(places)
    assert "Xxxxx" not in said
