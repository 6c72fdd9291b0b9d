"""The notebooks run from beginning to end, one of them in Jupyter, and show what their texts say."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pages import ROOT
from support.processes import Warm

pytestmark = pytest.mark.slow
NOTEBOOKS = ROOT / "notebooks"
Notebook = Callable[[str], tuple[str, int]]
MINUTES = 3  # that each may take on two cores; other tests run beside it


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all three: two of them embed the same texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNEMBED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def in_jupyter(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """What the cells print, and how many figures they show."""
    jupytext, nbclient = pytest.importorskip("jupytext"), pytest.importorskip("nbclient")
    for module in ("ipykernel", "matplotlib"):
        pytest.importorskip(module)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = jupytext.read(NOTEBOOKS / f"{name}.py")
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=60 * 10 * MINUTES, kernel_name="python3", resources=place).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in shown if output.output_type == "stream" and output.name == "stdout")
    return re.sub(r"\x1b\[[0-9;]*m", "", printed), sum("image/png" in output.get("data", {}) for output in shown)


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Warm, capsys: pytest.CaptureFixture[str]
) -> Iterator[Notebook]:
    """The same of a notebook whose cells run in this process, and whose commands need not import libraries again."""
    jupytext = pytest.importorskip("jupytext")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    plt.switch_backend("agg")

    def started(command: list[str], env: dict[str, str] | None = None, **_: Any) -> subprocess.CompletedProcess[str]:
        return warm.run(command[1:], cwd=tmp_path, environment=env)

    monkeypatch.setattr(subprocess, "run", started)

    def executed(name: str) -> tuple[str, int]:
        names: dict[str, Any] = {}
        for cell in jupytext.read(NOTEBOOKS / f"{name}.py").cells:
            magic = re.match(r"%%writefile (\S+)\n", cell.source)
            if magic:
                Path(magic[1]).write_text(cell.source[magic.end() :], encoding="utf-8")
            elif cell.cell_type == "code":
                exec(cell.source, names)
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out), len(plt.get_fignums())

    yield executed
    logging.disable(logging.NOTSET)
    plt.close("all")


def test_read_your_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, figures = in_jupyter("read_your_vectors", tmp_path, monkeypatch)
    assert "1.000  I have two cats.\n       I have two cats." in printed
    low, high = map(int, re.findall(r"95 % interval (\d+)% to (\d+)%", printed)[0])
    measured = int(re.findall(r"readable, measured: (\d+)%", printed)[0])
    assert low <= measured <= high
    assert measured > 30
    assert (tmp_path / "audit" / "audit.html").is_file()
    assert figures == 1


def test_add_an_attack(here: Notebook) -> None:
    printed, figures = here("add_an_attack")
    assert "attack.ridge=-1: must be greater than 0" in printed
    shares = re.findall(r"│ Word F1 +│ +([\d.]+)\s% │ +([\d.]+)\s% │", printed)
    assert float(shares[0][0]) > 50
    assert "Difference to least_squares" in printed
    assert figures == 1


def test_measure_a_defense(here: Notebook) -> None:
    printed, figures = here("measure_a_defense")
    scores = {
        name: (float(naive), float(adaptive))
        for name, naive, adaptive in re.findall(r"(\w+) +naive +([\d.]+) +adaptive +([\d.]+)", printed)
    }
    assert scores.keys() == {"noise", "rotation"}
    assert scores["rotation"][1] > scores["rotation"][0] + 10  # it stops the naive attacker alone
    assert scores["noise"][1] < scores["rotation"][1] - 5
    assert re.search(r"'noise': '[3-7]\d%', 'rotation': '100%'", printed)
    assert figures == 1
