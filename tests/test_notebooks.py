"""The notebooks run from beginning to end in Jupyter, and show what their texts say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages import ROOT

pytestmark = pytest.mark.slow
NOTEBOOKS = ROOT / "notebooks"
MINUTES = 3  # that each may take on two cores; other tests run beside it


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all three: two of them embed the same texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNEMBED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
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


def test_read_your_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, figures = executed("read_your_vectors", tmp_path, monkeypatch)
    assert "1.000  I have two cats.\n       I have two cats." in printed
    low, high = map(int, re.findall(r"95 % interval (\d+)% to (\d+)%", printed)[0])
    measured = int(re.findall(r"readable, measured: (\d+)%", printed)[0])
    assert low <= measured <= high
    assert measured > 30
    assert (tmp_path / "audit" / "audit.html").is_file()
    assert figures == 1


def test_add_an_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, figures = executed("add_an_attack", tmp_path, monkeypatch)
    assert "attack.ridge=-1: must be greater than 0" in printed
    shares = re.findall(r"│ Word F1 +│ +([\d.]+)\s% │ +([\d.]+)\s% │", printed)
    assert float(shares[0][0]) > 50
    assert "Difference to least_squares" in printed
    assert figures == 1


def test_measure_a_defense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, figures = executed("measure_a_defense", tmp_path, monkeypatch)
    scores = {
        name: (float(naive), float(adaptive))
        for name, naive, adaptive in re.findall(r"(\w+) +naive +([\d.]+) +adaptive +([\d.]+)", printed)
    }
    assert scores.keys() == {"noise", "rotation"}
    assert scores["rotation"][1] > scores["rotation"][0] + 10  # it stops the naive attacker alone
    assert scores["noise"][1] < scores["rotation"][1] - 5
    assert re.search(r"'noise': '[3-7]\d%', 'rotation': '100%'", printed)
    assert figures == 1
