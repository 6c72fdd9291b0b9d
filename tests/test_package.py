"""A release: contents of sdist and wheel, what an installed wheel does, and the files that describe a release."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml

import unembed
from support import tiny_settings
from support.files import load, read_lines
from support.processes import ROOT
from unembed.embedders.minilm import MiniLM

BESIDE = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"unembed"}  # packages of unembed, too
MINILM = ROOT / "unembed" / "attackers" / "minilm"


class Built(NamedTuple):
    """What was built of the clone: the sdist, the wheel of the sdist, the wheel of the clone, and what was said."""

    sdist: Path
    wheel: Path
    direct: Path
    said: str


def clone_files() -> Iterator[str]:
    """The files that git has or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return (name for name in listed.split("\0") if (ROOT / name).is_file())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    for name in clone_files():
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "clone" / name)
    said = ""
    for arguments in (["--outdir", "dist"], ["--wheel", "--outdir", "direct"]):  # the first builds a wheel of the sdist
        command = [sys.executable, "-m", "build", "--no-isolation", *arguments, "clone"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        said += done.stdout + done.stderr
        assert done.returncode == 0, said
    (sdist,), (wheel,), (direct,) = ((folder / place).glob(kind) for place, kind in
                                     (("dist", "*.tar.gz"), ("dist", "*.whl"), ("direct", "*.whl")))  # fmt: skip
    return Built(sdist, wheel, direct, said)


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_the_wheel_holds_all_files_of_the_packages_and_nothing_else(built: Built) -> None:
    wanted = {f"unembed/{name}" for name in clone_files() if name.split("/")[0] in BESIDE}
    wanted |= {name for name in clone_files() if name.startswith("unembed/")}
    wanted |= {"unembed/train.py", "unembed/evaluate.py"}
    assert {name for name in names(built.wheel) if ".dist-info/" not in name} == wanted
    assert {"unembed/py.typed", "unembed/configs/train.yaml", "unembed/reports/report.html.jinja"} < wanted
    assert names(built.direct) == names(built.wheel)
    assert max(built.sdist.stat().st_size, built.wheel.stat().st_size) < 64e6
    assert "WARNING" not in built.said


@pytest.mark.slow
def test_wheel_and_sdist_name_version_and_licences(built: Built) -> None:
    about = f"unembed-{unembed.__version__}.dist-info"
    metadata = Parser().parsestr(zipfile.ZipFile(built.wheel).read(f"{about}/METADATA").decode())
    assert (metadata["Name"], metadata["Version"]) == ("unembed", unembed.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    attackers = ("minilm", "minilm_large", "me5_small_q4")
    licences = {"LICENSE", *(f"unembed/attackers/{name}/ATTRIBUTION.md" for name in attackers)}
    assert set(metadata.get_all("License-File")) == licences
    assert {f"{about}/licenses/{name}" for name in licences} <= names(built.wheel)
    with tarfile.open(built.sdist) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert licences | {"CHANGELOG.md", "CITATION.cff", "README.md", "docs/README.md", "setup.py"} <= held
    assert not [name for name in held if name.startswith(("tests", "benchmarks", "results"))]


def test_the_changelog_begins_with_this_version() -> None:
    heads = re.findall(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0][0] == unembed.__version__
    assert re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", heads[0][1])


def test_the_citation_names_what_citations_need() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation.keys() >= {"message", "title", "authors", "license", "references"}
    assert all(one.keys() >= {"type", "title", "authors", "year"} for one in citation["references"])


def test_every_source_of_the_shipped_attacker_is_attributed() -> None:
    text = (MINILM / "ATTRIBUTION.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \w+ \| [\d,]+ \|", line)]
    assert len(rows) == 40
    assert all(len(row) == 5 and all(row) for row in rows)
    tested = {row["source"] for row in read_lines(MINILM / "calibration.jsonl")}
    assert {name for name, *_ in rows} < tested  # which has those of texts that it has never seen, too


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, and with the packages of this one, but not its unembed."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Directories that a .pth file names are searched, but the .pth files in them, such as our own, are not read.
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--quiet", built.wheel], check=True)
    return folder


TINY = [
    *tiny_settings.QUIET, *tiny_settings.GEIA, "datamodule.source.sentences=60", "+datamodule.source.valid=4",
    "+datamodule.source.test=4", "attack.decoding.beams=1", "attack.decoding.max_new_tokens=8", "trainer.max_steps=20",
]  # fmt: skip
# What imports find: by the names that the folders and scripts have in the clone, and ours.
LOOK = """
import importlib.util, json, sys
from importlib import metadata
import unembed, unembed.attacks
names = json.loads(sys.argv[1])
found = {name: spec.origin for name in names if (spec := importlib.util.find_spec(name))}
print(json.dumps([unembed.__file__, unembed.attacks.__file__, unembed.__version__, metadata.version("unembed"), found]))
"""

# Two commands and the Python API, by one interpreter.
API = """
import sys, unembed
from unembed.__main__ import main
for command in (["audit", "limit=2", "defenses=[]", "output_dir=audit"], ["invert"]):
    sys.argv = ["unembed", *command, "vectors=mine.npy", "cache_dir=cache"]
    main()
attacker = unembed.load("minilm")
print(len(unembed.list_attacks()), *attacker.invert(attacker.embed(["I have two cats."])))
"""


@pytest.mark.slow
def test_the_installed_wheel_works_beside_modules_of_the_same_names(installed: Path, tmp_path: Path) -> None:
    own = ("metrics", "attacks", "callbacks")
    for name in own:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the module of a user')")
    (tmp_path / "configs").mkdir()
    for name in ("train", "audit", "invert"):
        (tmp_path / "configs" / f"{name}.yaml").write_text("a configuration: [of the user")
    np.save(tmp_path / "mine.npy", MiniLM().embed(["I have two cats.", "She works as a nurse."]).numpy())
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    python, program = str(installed / "bin" / "python"), str(installed / "bin" / "unembed")
    second = sorted(BESIDE | {path.stem for path in ROOT.glob("*.py")})

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    commands = [
        [program, "train", "-m", *TINY, "cache_dir=cache", "seed=1,2", "trainer.max_steps=1", "run_dir=run${seed}"],
        [python, "-c", API],
        [python, "-m", "unembed", "--version"],
        [python, "-c", LOOK, json.dumps(second)],
    ]
    with ThreadPoolExecutor(2) as pool:
        *_, api, told, looked = pool.map(lambda command: run(*command), commands)

    package, attacks, version, recorded, found = json.loads(looked)
    assert {Path(package).parent, Path(attacks).parents[1]} == {*installed.glob("lib/python*/site-packages/unembed")}
    assert version == recorded == unembed.__version__ == told.split()[-1]
    assert found.pop("configs", None) is None  # the user's folder
    assert found == {name: str(tmp_path / f"{name}.py") for name in own}
    assert (tmp_path / "audit" / "audit.html").is_file()
    attacks_listed, read = api.splitlines()[-1].split(maxsplit=1)
    options = [*(ROOT / "configs" / "attack").glob("*.yaml")]
    assert (int(attacks_listed), read) == (len(options), "I have two cats.")
    assert len(read_lines(tmp_path / "mine.npy.texts.jsonl")) == 2
    assert load(tmp_path / "run1" / "record.json")["versions"]["unembed"] == version
    assert all("token_f1" in load(tmp_path / run / "metrics.json") for run in ("run1", "run2"))
