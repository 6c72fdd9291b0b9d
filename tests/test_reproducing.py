"""docs/reproducing.md, followed line by line on tiny stand-ins of the models and data sets that it names.

Each command trains two steps, tests, and is laid out as the page says, in the order of the page and in one folder.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from test_documented_commands import Desk

from support.pages import ROOT, fenced, read, words
from support.stand_ins import SENTENCES, put_in
from unembed import launch
from unembed.commands.compare import compare, read_settings
from unembed.launch.composing import survey
from unembed.reports.comparison.papers import read_layout

PAPERS = ("geia", "llm", "vec2text", "multilingual", "soda")
SCRIPTS = ("train", "evaluate", "compare")
LINES = [line for line, page in fenced().items() if page == "reproducing.md" and words(line)[0] in SCRIPTS]
FOLDER = ROOT / "configs" / "layout"
LAYOUTS = [f"{path.stem}_{table}" for path in sorted(FOLDER.glob("*.yaml")) for table in OmegaConf.load(path)]
PRESETS = sorted(path for paper in PAPERS for path in (ROOT / "configs" / "experiment" / paper).glob("*.yaml"))


class Reader(Desk):
    """Follows the page: what would be downloaded is replaced, and globs find what the lines before have made."""

    def download(self, config: DictConfig) -> str | None:
        """Nothing is downloaded: a folder in the working directory has the name of each model."""
        put_in(config, Path())
        return None

    def train(self, given: list[str], run_dir: str) -> None:
        """In the preset's own directory."""
        super().train(given, "")

    def compose(self, lines: list[str], several: bool) -> list[DictConfig]:
        """One job of each attack, among those whose earlier runs have been made.

        Composed are the first cell of a grid and, for each key, its other values beside the first ones of the others.
        """
        configs, errors = survey("train", lines, multirun=several)
        assert errors == []
        found: dict[str, DictConfig] = {}
        for config in configs:
            named = (config.attack.get(key) for key in ("inverter_run", "corrector_run"))
            if all(Path(run).is_dir() for run in named if run is not None):
                found.setdefault(config.choices.attack, config)
        assert found, "no command above has made the run that this one builds on"
        return [*found.values()]

    def compare(self, given: list[str]) -> None:
        paths: list[Path] = []
        for word in given:
            paths += sorted(Path().glob(word)) if "=" not in word else []
        made = [str(path) for path in paths if (path / "config.yaml").is_file()]
        assert made, f"{given}: no command above has made such a run"
        compare(read_settings([*made, *(word for word in given if "=" in word), "resamples=1000"]))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    made = Reader(tmp_path_factory.mktemp("reader"))
    for name in ("scifact", "cqadupstack/android"):
        shutil.copytree(made.folder / "collection", made.folder / "beir" / name)
    unseen = [f"{n}\t{sentence} that sings\n" for n, sentence in enumerate(SENTENCES)]
    made.write("clirmatrix/fr.tsv", "".join(unseen))
    judged = [[str(n), 6 - n % 6] for n in range(len(unseen))]
    asked = [{"src_id": str(n), "src_query": SENTENCES[n], "tgt_results": judged[n::4]} for n in range(4)]
    made.write("clirmatrix/en_fr.jsonl", asked)
    made.write("round_trip.jsonl", [{"text": sentence, "language": "en"} for sentence in SENTENCES[:8]])
    return made


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.removeprefix("python ")[:90])
def test_each_command_of_the_page_runs(line: str, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader.folder)
    reader.do(line)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_is_of_a_table_on_the_page(name: str) -> None:
    layout = read_layout(name, FOLDER)
    assert any(re.search(rf"layout={name}( |$)", line) for line in LINES)
    assert layout.paper, "the paper's values are missing"


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_preset_is_on_the_page(path: Path) -> None:
    assert any(re.search(rf"experiment={path.parent.name}/{path.stem}( |$)", line) for line in LINES)


@pytest.mark.parametrize(("preset", "tables"), [("table13", (13, 14, 15)), ("table16", (16, 17, 18))])
def test_the_points_of_a_sweep_are_the_lines_of_its_tables(preset: str, tables: tuple[int, ...]) -> None:
    of_pair = ["tradeoff.collection.query_language=en", "tradeoff.collection.document_language=fr"]
    given = ["run=x", "collection=y", f"experiment=multilingual/{preset}", *(of_pair if preset == "table16" else [])]
    configs, errors = survey("evaluate", given)
    assert errors == []
    points = launch.defense_points(launch.compose("train", []), configs[0].tradeoff.points, "points")
    for table in tables:
        layout = read_layout(f"multilingual_table{table}", FOLDER)
        assert {place.source.select["name"] for place in layout.places()} == {point.name for point in points}


def test_the_row_of_cqadupstack_is_the_mean_of_all_its_folders() -> None:
    page = read(ROOT / "docs" / "reproducing.md")
    names = re.search(r"for name in ([a-z ]+); do\n.*/cqadupstack/\$name$", page, flags=re.MULTILINE)
    assert names is not None
    folders = [f"beir/cqadupstack/{name}" for name in names[1].split()]
    layout = read_layout("vec2text_table2", FOLDER)
    places = [place for place in layout.places() if place.row == "cqadupstack"]
    assert len(folders) == 12
    assert all(place.source.mean and list(place.conditions["datamodule.source.path"]) == folders for place in places)
