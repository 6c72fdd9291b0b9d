"""The pages say what is there: commands, links and names hold, and the examples run as they are printed."""

from __future__ import annotations

import json
import mailbox
import math
import re
import subprocess
import sys
from email.message import EmailMessage
from itertools import islice
from pathlib import Path

import pytest
import yaml

import attacks
import configuration
import datamodules
import defenses
import embedders
from datamodules.synthetic import SyntheticCorpus
from train import train

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
MAIN_COMMAND = "pip install -e . && python train.py"
TEST_COMMAND = 'pip install -e ".[dev]" && pytest'


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", read(page), flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("command", [MAIN_COMMAND, TEST_COMMAND])
def test_the_readme_prints_each_set_up_command_on_a_line_of_its_own(command: str) -> None:
    assert read(ROOT / "README.md").splitlines().count(command) == 1


def test_the_check_script_finds_the_test_command_in_the_readme() -> None:
    pattern = re.search(r"grep -E '(.+)' README\.md", read(ROOT / ".ci" / "run"))
    assert pattern is not None
    assert [line for line in read(ROOT / "README.md").splitlines() if re.search(pattern[1], line)] == [TEST_COMMAND]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", read(page)):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            found = (page.parent / name).resolve() if name else page
            assert found.is_file(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(found), f"{page.name}: {target}"


@pytest.mark.parametrize("group", ["attack", "embedder", "datamodule"])
def test_every_option_is_mentioned(group: str) -> None:
    named = set(re.findall(r"[\w.]+", " ".join(map(read, PAGES))))
    assert {path.stem for path in (ROOT / "configs" / group).glob("*.yaml")} - named == set()


def commands() -> list[str]:
    """The overrides of every train.py command of the pages that names its options in full."""
    text = "\n".join(map(read, PAGES)).replace("\\\n", " ")
    found = re.findall(r"^python train\.py(.*)$", text, flags=re.MULTILINE)
    lines = {line.partition("#")[0].strip() for line in found}
    return sorted(line for line in lines if not re.search(r"[<']|-m |word_guesser|simsce", line))


@pytest.mark.parametrize("line", commands())
def test_commands_compose(line: str) -> None:
    assert configuration.check(configuration.compose("train", line.split())) == []


def test_the_answer_to_misspelt_names_is_the_one_that_the_readme_prints() -> None:
    block = re.search(r"^\$ python (train\.py .+)\n((?:.+\n)+?)```", read(ROOT / "README.md"), flags=re.MULTILINE)
    assert block is not None
    done = subprocess.run([sys.executable, *block[1].split()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, block[2])


def blocks() -> dict[str, str]:
    """The files that extending.md prints, by name."""
    found = re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```", read(ROOT / "docs" / "extending.md"), re.M | re.S)
    return dict(found)


def test_the_examples_of_extending_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = blocks()
    assert len(files) == 8
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for package in (attacks, embedders, defenses, datamodules):
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / package.__name__)])
    box = mailbox.mbox(tmp_path / "inbox.mbox")
    for example in islice(SyntheticCorpus(sentences=400, valid=50, test=50).load()["train"], 250):
        mail = EmailMessage()
        mail["Subject"] = example.text
        box.add(mail)
    box.close()

    config = configuration.compose(
        "train",
        [
            f"hydra.searchpath=[file://{tmp_path / 'configs'}]",
            *("attack=word_guesser", "embedder=hashed_trigrams", "defense=clipping", "datamodule=mail_subjects"),
            *(f"datamodule.source.path={tmp_path / 'inbox.mbox'}", f"run_dir={tmp_path / 'run'}"),
            *(f"cache_dir={tmp_path / 'cache'}", "trainer.max_steps=60", "trainer=cpu", "~callbacks.progress"),
        ],
    )
    assert configuration.check(config) == []
    train(config)

    predictions = [json.loads(line) for line in read(tmp_path / "run" / "predictions.jsonl").splitlines()]
    metrics = json.loads(read(tmp_path / "run" / "metrics.json"))
    assert len(predictions) == metrics["examples"] == 25
    assert {row["kind"] for row in predictions} == {"set"}
    assert metrics["exact_match"] is metrics["bleu"] is None
    known = {name: value for name, value in metrics.items() if value is not None}
    assert all(math.isfinite(value) for value in known.values())
    assert known["token_f1"] > 20  # eight guesses by chance would share hardly a word
    assert yaml.safe_load(read(tmp_path / "run" / "config.yaml"))["choices"]["attack"] == "word_guesser"
