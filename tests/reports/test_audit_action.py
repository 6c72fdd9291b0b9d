"""The composite GitHub action: its script is run as a runner would run it, with a stand-in for unembed audit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.processes import ROOT
from unembed.audit.thresholds import parse

ACTION = ROOT / ".github" / "actions" / "audit" / "action.yml"
STAND_IN = """\
import pathlib, sys
given = dict(word.split("=", 1) for word in sys.argv[2:])
output = pathlib.Path(given["output_dir"])
output.mkdir()
(output / "audit.md").write_text("FAILED: it reads too much")
(output / "given").write_text("\\n".join(sys.argv[2:]))
sys.exit(int(given.get("limit", "0")))
"""


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    return content


def run(action: dict[str, Any], folder: Path, **inputs: str) -> tuple[int, list[str], str, str]:
    """Exit code, arguments of unembed audit, outputs of the step, and the summary."""
    place = folder / "unembed" / ".github" / "actions" / "audit"
    place.mkdir(parents=True)
    shutil.copy(ACTION, place)
    (folder / "bin").mkdir()
    (folder / "bin" / "unembed").write_text(f"#!{sys.executable}\n{STAND_IN}")
    (folder / "bin" / "unembed").chmod(0o755)
    values = {name: str(one.get("default", "")) for name, one in action["inputs"].items()} | inputs
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "audit")
    environment = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text)
        for name, text in step["env"].items()
    }
    files = {name: str(folder / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=folder, check=False,
        env=os.environ | environment | files
        | {"GITHUB_ACTION_PATH": str(place), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
    given = (folder / values["output"] / "given").read_text().splitlines()
    outputs, summary = (Path(file).read_text() for file in files.values())
    return done.returncode, given, outputs, summary


def test_inputs_become_arguments_and_the_exit_code_is_passed_on(action: dict[str, Any], tmp_path: Path) -> None:
    hostile = "a b'; touch stolen; $(touch stolen) `touch stolen`.npy"
    code, given, outputs, summary = run(
        action, tmp_path, run="r", vectors=hostile, **{"fail-on": "readable>5"}, overrides="limit=3\nseed=1\n"
    )
    assert code == 3
    assert given == [f"vectors={hostile}", "output_dir=audit", "run=r", "fail_on=readable>5", "limit=3", "seed=1"]
    assert outputs == "exit-code=3\n"
    assert summary == "FAILED: it reads too much"
    assert not (tmp_path / "stolen").exists()


def test_what_is_not_given_is_left_out(action: dict[str, Any], tmp_path: Path) -> None:
    code, given, outputs, _ = run(action, tmp_path, vectors="v.npy", texts="t.jsonl", baseline="b.json")
    assert (code, outputs) == (0, "exit-code=0\n")
    assert given == ["vectors=v.npy", "output_dir=audit", "texts=t.jsonl", "baseline=b.json"]


def test_other_actions_are_pinned_to_a_commit_and_scripts_hold_no_input(action: dict[str, Any]) -> None:
    for step in action["runs"]["steps"]:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", "a@" + "0" * 40))
        assert "${{" not in step.get("run", "")
    example = yaml.safe_load((ROOT / "docs" / "audit_workflow.yml").read_text(encoding="utf-8"))
    used_actions = [step["uses"] for step in example["jobs"]["audit"]["steps"]]
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one) for one in used_actions)
    used = next(step["with"] for step in example["jobs"]["audit"]["steps"] if "actions/audit" in step["uses"])
    assert set(used) <= set(action["inputs"])
    assert [one.text for one in parse(used["fail-on"])] == ["readable>5", "classes.names>10"]
