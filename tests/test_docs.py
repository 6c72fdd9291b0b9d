"""The pages say what is there: commands, links and names hold, and the examples run as they are printed."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import mailbox
import math
import re
import subprocess
import sys
from collections.abc import Callable
from email.message import EmailMessage
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
import yaml
from test_documented_commands import PLACES, reason_to_skip

from support.pages import PAGES, ROOT, blocks, commands, fenced, read, sources, unfolded, words
from unembed import attacks, datamodules, defenses, embedders, launch, metrics
from unembed.attacks import refine
from unembed.commands.compare import compare, read_settings
from unembed.core.errors import InputError
from unembed.datamodules.sources.synthetic import SyntheticCorpus
from unembed.evaluate import evaluate
from unembed.launch.composing import expand_grid, survey
from unembed.runs.config_file import write_config
from unembed.train import train

MAIN_COMMAND = "pip install -e . && python train.py"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
TEST_COMMAND = 'pip install -e ".[dev]" && pytest'


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


class ParsedError(Exception):
    """The command line was read without a complaint."""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[list[str]], None]]:
    """The ``main`` of a benchmark, which reads its command line and does no more."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, argv: list[str]) -> None:
        options = parse(parser, argv)
        if overrides := getattr(options, "overrides", None):
            assert launch.check(launch.compose("train", overrides)) == []
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    return lambda name: importlib.import_module(name).main


def benchmark_commands() -> list[str]:
    """Those of the pages and those of the scripts' own docstrings."""
    scripts = [f"benchmarks/{path.stem}" for path in (ROOT / "benchmarks").glob("*.py")]
    found = set(commands(*scripts, everywhere=True))
    for path in (ROOT / "benchmarks").glob("*.py"):
        text = unfolded(ast.get_docstring(ast.parse(read(path))) or "")
        found |= {line.strip() for line in text.splitlines() if re.match(r" *(\w+=\w+ )*python benchmarks/", line)}
    return sorted(found)


@pytest.mark.parametrize("line", benchmark_commands())
def test_benchmarks_know_their_documented_options(
    line: str, benchmark: Callable[[str], Callable[[list[str]], None]]
) -> None:
    script, arguments = words(line)
    with pytest.raises(ParsedError):
        benchmark(script.removeprefix("benchmarks/"))(arguments)


def elsewhere(*scripts: str) -> list[str]:
    """The documented commands, without those that other files compose: test_grids.py, test_reproducing.py and
    test_documented_commands.py, which also run them."""
    grids = [f"python train.py -m experiment={name}" for name in ("access", "geia/table3")]
    lines = commands(*scripts, everywhere=True)
    if find_spec("hydra_plugins.hydra_optuna_sweeper") is None:
        grids += [line for line in lines if "hydra/sweeper=optuna" in line]
    others = grids + [line for line in PLACES if reason_to_skip(line) is None]
    return [line for line in lines if fenced().get(line) != "reproducing.md" and line not in others]


@pytest.mark.parametrize("line", elsewhere("train"))
def test_commands_compose(line: str) -> None:
    _, arguments = words(line.replace("<that of the vectors>", "mpnet"))
    swept = "-m" in arguments
    given = [word for word in arguments if word != "-m"]
    configs, errors = survey("train", expand_grid("train", given) if swept else given, multirun=swept)
    assert errors == []
    assert len(configs) > 1 if swept else len(configs) == 1
    assert [message for config in configs for message in launch.check(config)] == []


RUNS = {  # kinds of runs that the pages evaluate
    "prefixes": ["attack=geia", "embedder=me5_small_q4"],
    "geia": [],
    "copy": ["attack=geia_copy"],
    "corrector": ["attack=vec2text_corrector", "attack.inverter_run=placeholder"],
    "languages": ["datamodule=multi30k"],
    "queries": ["embedder=openai", "embedder.model=placeholder"],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a run of a kind, as far as a configuration is amended: its config.yaml."""

    @cache
    def made(kind: str) -> Path:
        directory = tmp_path_factory.mktemp(kind)
        config = launch.compose("train", [*RUNS[kind], f"run_dir={directory}"])
        write_config(directory, launch.plain(config))
        return directory

    return made


@pytest.mark.parametrize("line", elsewhere("evaluate", "invert", "audit", "membership", "export"))
def test_commands_on_a_run_compose(line: str, finished: Callable[[str], Path]) -> None:
    script, given = words(line)
    kind = "corrector" if re.search(r"attack\.search|corrector", line) else "geia"
    if "languages" in line or "translation" in line:
        kind = "languages"
    if re.search("max_queries|base_url", line):
        kind = "queries"
    if "attack.words." in line:
        kind = "copy"
    if "embedder.prefix" in line:
        kind = "prefixes"
    arguments = [f"run={finished(kind)}" if word.startswith("run=") else word for word in given]
    if arguments == given:  # the attacker that is shipped
        assert script in ("audit", "invert", "membership")
        arguments.append(f"run={finished(kind)}")
    switches = {"--show-text": "show_text=true", "--json": "json=true"}
    launch.on_run(script, [switches.get(word, word) for word in arguments])


@pytest.mark.parametrize("line", commands("compare", everywhere=True))
def test_comparisons_are_understood(line: str) -> None:
    assert read_settings(words(line)[1]).directories


def test_messages_take_their_commands_from_one_place() -> None:
    """``command`` quotes them, and ``printed`` finds them for the tests above."""
    found = []
    for path in sources():
        every = [*ast.walk(ast.parse(read(path)))]
        texts = {one.value for one in every if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        documented = {ast.get_docstring(one, clean=False) for one in every if isinstance(one, DOCUMENTED)}
        found += [f"{path.name}: {text}" for text in texts - documented if re.search(r"python \w+\.py", text)]
    assert found == []


def test_the_overrides_of_the_built_in_corpus_compose() -> None:
    part = read(ROOT / "docs" / "data.md").partition("Another corpus of the same grammar")[2].partition("\n\n")[0]
    found = re.findall(r"`(\+?datamodule\.source\.\w+=)(\d*)`", part)
    assert len(found) == 4
    overrides = [f"{key}{value or 70}" for key, value in found]
    assert launch.check(launch.compose("train", overrides)) == []


def test_the_answer_to_misspelt_names_is_the_one_that_the_readme_prints() -> None:
    block = re.search(r"^\$ python (train\.py .+)\n((?:.+\n)+?)```", read(ROOT / "README.md"), flags=re.MULTILINE)
    assert block is not None
    done = subprocess.run([sys.executable, *block[1].split()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, block[2])


def test_the_examples_of_extending_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = blocks()
    assert len(files) == 15
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for package in (attacks, refine, embedders, defenses, datamodules, metrics):
        monkeypatch.setattr(
            package, "__path__", [*package.__path__, str(tmp_path.joinpath(*package.__name__.split(".")[1:]))]
        )
    box = mailbox.mbox(tmp_path / "inbox.mbox")
    for example in islice(SyntheticCorpus(sentences=400, valid=50, test=50).load()["train"], 250):
        mail = EmailMessage()
        mail["Subject"] = example.text
        box.add(mail)
    box.close()

    given = [
        f"hydra.searchpath=[file://{tmp_path / 'configs'}]",
        *("embedder=hashed_trigrams", "defense=clipping", "datamodule=mail_subjects"),
        *(f"datamodule.source.path={tmp_path / 'inbox.mbox'}", f"cache_dir={tmp_path / 'cache'}"),
        *("trainer.max_steps=60", "trainer=cpu", "~callbacks.progress"),
    ]
    config = launch.compose("train", [*given, "attack=word_guesser", f"run_dir={tmp_path / 'run'}"])
    assert launch.check(config) == []
    train(config)

    predictions = [json.loads(line) for line in read(tmp_path / "run" / "predictions.jsonl").splitlines()]
    values = json.loads(read(tmp_path / "run" / "metrics.json"))
    assert len(predictions) == values["examples"] == 25
    assert {row["kind"] for row in predictions} == {"set"}
    assert values["exact_match"] is values["bleu"] is None
    known = {name: value for name, value in values.items() if value is not None}
    assert all(math.isfinite(value) for value in known.values())
    assert known["token_f1"] > 20  # eight guesses by chance would share hardly a word
    assert yaml.safe_load(read(tmp_path / "run" / "config.yaml"))["choices"]["attack"] == "word_guesser"

    run = tmp_path / "keywords"
    config = launch.compose("train", [*given, "attack=keywords", f"run_dir={run}"])
    assert launch.check(config) == []
    train(config)
    assert json.loads(read(run / "metrics.json"))["token_f1"] > 20

    run, output = tmp_path / "nearest", tmp_path / "shorter"
    train(launch.compose("train", [*given, "attack=nearest_neighbor", f"run_dir={run}"]))
    trusted = "trust=[unembed.embedders.hashed_trigrams,unembed.defenses.clipping,unembed.datamodules.mail_subjects]"
    place = [f"run={run}", f"output_dir={output}", f"config_dir={tmp_path / 'configs'}", trusted]
    chosen = ["attack/refine=[rerank,shorten]", "scoring/metrics=[word_jaccard]"]
    evaluate(*launch.on_run("evaluate", [*place, *chosen]))
    nearest, shorter = (json.loads(read(folder / "metrics.json")) for folder in (run, output))
    assert shorter["cosine"] > nearest["cosine"]
    assert shorter["queries"] > nearest["queries"] == 0

    # The metric is on the page, and in a comparison beside the run that lacks it.
    assert "word_jaccard" not in nearest
    assert "Word Jaccard" in read(output / "report.html")
    table = [str(run), str(output), "metrics=word_jaccard,bleu", f"output={tmp_path / 'compared'}"]
    with pytest.raises(InputError, match=r"trust=unembed.metrics\.word_jaccard"):
        compare(read_settings(table))
    compare(read_settings([*table, "trust=unembed.metrics.word_jaccard"]))
    row = next(line for line in read(tmp_path / "compared.md").splitlines() if line.startswith("| shorter"))
    assert re.search(rf"\| {shorter['word_jaccard']:.1f}\s% \(\d+\.\d to \d+\.\d\) \|", row)
