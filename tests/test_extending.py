"""Somebody else's package adds an attack: installed for real, found by its entry point or by a plugin of Hydra's."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.files import metrics_of
from support.pages import ROOT, blocks, read
from support.processes import Warm

MINE = ROOT / "tests" / "fixtures" / "unembed_mine"
TINY = [
    "trainer=cpu", "trainer.max_steps=2", "trainer.max_time=null", "~callbacks.progress", "run_dir=run",
    "datamodule.source.sentences=200", "+datamodule.source.valid=20", "+datamodule.source.test=30",
]  # fmt: skip


def environment(site: Path, cwd: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(site)])
    return {**os.environ, "PYTHONPATH": paths, "UNEMBED_CACHE": str(cwd / "cache")}


def said(code: int, *arguments: str, site: Path, cwd: Path, warm: Warm | None = None) -> str:
    """What ``unembed <arguments>`` prints; from an interpreter of its own without ``warm``."""
    command, surroundings = ["-m", "unembed", *arguments], environment(site, cwd)
    if warm is None:
        command = [sys.executable, *command]
        done = subprocess.run(command, cwd=cwd, env=surroundings, capture_output=True, text=True, check=False)
    else:
        done = warm.run(command, cwd=cwd, environment=surroundings)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, as pip installs it."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(MINE, tmp_path_factory.mktemp("source") / "mine")
    given = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", "install", *given], check=True, capture_output=True)
    return folder


def test_the_package_holds_what_the_page_prints() -> None:
    printed, package = blocks(), MINE / "unembed_mine"
    attack = read(package / "word_guesser.py")
    assert printed["attacks/word_guesser.py"] == attack
    config = read(package / "configs" / "attack" / "word_guesser.yaml")
    assert printed["configs/attack/word_guesser.yaml"] == config.replace("unembed_mine.", "unembed.attacks.")
    assert printed["pyproject.toml"] == read(MINE / "pyproject.toml")
    assert set(re.findall(r"^from (unembed[\w.]*)", attack, flags=re.MULTILINE)) == {"unembed.attacks"}
    assert len([line for line in attack.partition("class ")[2].splitlines() if line]) <= 23


@pytest.fixture(scope="module")
def trained(site: Path, tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    """The directory, empty before, in which a run of its attack is trained."""
    folder = tmp_path_factory.mktemp("empty")
    assert "Report: run/report.html" in said(0, "train", "attack=word_guesser", *TINY, site=site, cwd=folder, warm=warm)
    return folder


@pytest.mark.slow
def test_its_attack_is_trained_evaluated_and_inverts(site: Path, trained: Path, warm: Warm) -> None:
    said(0, "evaluate", "run=run", "output_dir=again", site=site, cwd=trained, warm=warm)
    assert metrics_of(trained / "again")["token_f1"] == metrics_of(trained / "run")["token_f1"]
    code = "import unembed; one = unembed.load('run'); print(one.invert(one.embed(['two cats'])))"
    done = warm.run(["-c", code], cwd=trained, environment=environment(site, trained))
    assert len(ast.literal_eval(done.stdout)[0].split()) == 8, done.stderr


@pytest.mark.slow
def test_a_run_may_name_what_the_package_adds_and_nothing_else(site: Path, trained: Path, warm: Warm) -> None:
    refused = "_target_={}: none of the classes that configs/attack names"
    nowhere = said(2, "evaluate", "run=run", site=trained, cwd=trained, warm=warm)
    assert refused.format("unembed_mine.word_guesser.WordGuesser") in nowhere
    changed = shutil.copytree(trained / "run", trained / "changed")
    config = read(changed / "config.yaml").replace("word_guesser.WordGuesser", "word_guesser.torch.load")
    (changed / "config.yaml").write_text(config)
    other = said(2, "evaluate", "run=changed", site=site, cwd=trained, warm=warm)
    assert refused.format("unembed_mine.word_guesser.torch.load") in other


def test_its_attack_is_listed(site: Path, tmp_path: Path, warm: Warm) -> None:
    shown = said(0, "train", "--help", site=site, cwd=tmp_path, warm=warm)
    assert re.search(r"attack .*[ \n].*\bword_guesser\b", shown)
    wrong = said(2, "train", "attack=word_gueser", "attack.gueses=1", site=site, cwd=tmp_path, warm=warm)
    assert "attack=word_gueser: did you mean word_guesser?" in wrong
    code = "import unembed; print(unembed.list_attacks()['word_guesser'])"
    done = warm.run(["-c", code], cwd=tmp_path, environment=environment(site, tmp_path))
    assert done.stdout == "Which words a text has, by one linear layer\n"


def declared(site: Path, name: str, package: str) -> None:
    """Install an entry point by hand."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[unembed]\n{name} = {package}\n")


def test_no_package_is_imported_to_be_listed_nor_replaces_our_options(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "configs"
    (theirs / "attack" / "refine").mkdir(parents=True)
    (theirs / "attack" / "geia.yaml").write_text("_target_: theirs.Other\n")
    (theirs / "attack" / "refine" / "theirs.yaml").write_text("theirs:\n  _target_: theirs.Refiner\n")
    (theirs.parent / "__init__.py").write_text("raise SystemExit('imported')\n")
    declared(tmp_path, "theirs", "theirs")
    declared(tmp_path, "gone", "a_package_that_is_gone")
    shown = said(0, "train", "--cfg", "job", "attack=geia", "attack/refine=[theirs]", site=tmp_path, cwd=tmp_path)
    assert "_target_: unembed.attacks.geia.GEIA" in shown
    assert "_target_: theirs.Refiner" in shown
    assert re.search(r"attack/refine .*\btheirs\b", said(0, "train", "--help", site=tmp_path, cwd=tmp_path))


PLUGIN = """
from hydra.plugins.search_path_plugin import SearchPathPlugin


class Theirs(SearchPathPlugin):
    def manipulate_search_path(self, search_path):
        search_path.append("theirs", "pkg://theirs.configs")
"""


def test_a_search_path_plugin_of_hydra_works_too(tmp_path: Path) -> None:
    configs, plugin = tmp_path / "theirs" / "configs", tmp_path / "hydra_plugins" / "theirs" / "__init__.py"
    for path, text in (
        (configs / "defense" / "theirs.yaml", "# Theirs\n_target_: theirs.Defense\n"),
        (configs / "__init__.py", ""),
        (configs.parent / "__init__.py", ""),
        (plugin, PLUGIN),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shown = said(0, "train", "--cfg", "job", "defense=theirs", site=tmp_path, cwd=tmp_path)
    assert "_target_: theirs.Defense" in shown
    code = "import unembed; print(unembed.list_defenses()['theirs'])"
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environment(tmp_path, tmp_path), cwd=tmp_path) == b"Theirs\n"
