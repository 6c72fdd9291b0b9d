"""Presets that are grids: which runs ``-m`` makes of them, and what the command line changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.processes import ROOT, Warm
from unembed import launch
from unembed.core.errors import InputError
from unembed.launch.composing import expand_grid, grid_of, survey
from unembed.runs.config_file import read_config

PRESET = """\
# @package _global_
defaults:
  - override /attack: geia
seed: 7
run_dir: runs/grid/${choices.attack}-${seed}
hydra:
  sweeper:
    params:
      attack: geia,nearest_neighbor
      seed: 1,2
"""


@pytest.fixture
def search(tmp_path: Path) -> str:
    folder = tmp_path / "own" / "experiment" / "paper"
    folder.mkdir(parents=True)
    (folder / "table1.yaml").write_text(PRESET)
    (folder / "cell.yaml").write_text(PRESET.partition("hydra:")[0])
    return f"hydra.searchpath=[{tmp_path / 'own'}]"


def runs(*words: str) -> set[str]:
    configs, errors = survey("train", expand_grid("train", words), multirun=True)
    assert errors == []
    return {config.run_dir for config in configs}


def script_of_the_grid(tmp_path: Path, text: str) -> list[str]:
    """Write a script that trains, and return its command line with the preset."""
    (tmp_path / "train.py").write_text(text)
    return [str(tmp_path / "train.py"), "experiment=paper/table1", "--config-dir", str(tmp_path / "own")]


def test_the_cells_of_a_grid_and_what_the_command_line_changes(search: str) -> None:
    preset = "experiment=paper/table1"
    assert grid_of("train", [preset, search]) == {"attack": "geia,nearest_neighbor", "seed": "1,2"}
    # Each value beside the first ones of the others; Hydra runs their product.
    assert runs(preset, search) == {"runs/grid/geia-1", "runs/grid/nearest_neighbor-1", "runs/grid/geia-2"}
    assert runs(preset, search, "attack=multiset") == {"runs/grid/multiset-1", "runs/grid/multiset-2"}
    assert runs(preset, search, "seed=5,6", "attack=geia") == {"runs/grid/geia-5", "runs/grid/geia-6"}
    assert survey("train", [preset, search])[0][0].run_dir == "runs/grid/geia-7"  # one cell: the preset's own values


def test_a_preset_that_is_no_grid_is_left_as_it_is(search: str) -> None:
    assert grid_of("train", ["experiment=paper/cell", search]) == {}
    assert expand_grid("train", ["experiment=paper/cell", search]) == ["experiment=paper/cell", search]
    assert grid_of("train", ["experiment=paper/tabel1", search]) == {}
    with pytest.raises(InputError, match="experiment=paper/table1: a grid of its own, so it cannot be swept"):
        expand_grid("train", ["experiment=paper/cell,paper/table1", search])
    (error,) = survey("train", ["experiment=paper/tabel1", search])[1]
    assert error == "experiment=paper/tabel1: did you mean paper/table1?"


@pytest.mark.slow
def test_a_grid_runs_all_its_cells_once_side_by_side(search: str, tmp_path: Path, warm: Warm) -> None:
    script = (
        "from joblib.externals.loky.backend import context\n"
        "from unembed import launch as configuration\n"
        "context.set_start_method('fork', force=True)  # joblib's processes need not import torch again\n"
        "def task(config):\n    print(f'run {config.run_dir}\\n', end='', flush=True)  # one write\n"
        "configuration.main(task, 'train')\n"
    )
    command = script_of_the_grid(tmp_path, script)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    done = warm.run([*command, "-m", *launcher], cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    named = sorted(Path(line.split()[1]).name for line in done.stdout.splitlines() if line.startswith("run "))
    assert named == ["geia-1", "geia-2", "nearest_neighbor-1", "nearest_neighbor-2"]
    one = warm.run(command, cwd=tmp_path, environment=environment)
    assert one.stdout.splitlines()[0] == "one cell of a grid over attack, seed: -m runs all"
    assert one.stdout.splitlines()[-1].endswith("runs/grid/geia-7")


ENDING = """\
import os, time
from pathlib import Path
from unembed import launch as configuration
from unembed.runs.config_file import record_config
def task(config):
    run = Path(config.run_dir)
    record_config(run, configuration.plain(config))
    print('run', run.name, flush=True)
    if config.seed == 2 and not (run / 'begun').exists():
        (run / 'begun').touch()
        time.sleep(60)
    for name in ('predictions.jsonl', 'metrics.json', 'report.html'):
        (run / name).write_text('{"token_f1": 50.0}')
configuration.main(task, 'train')
"""


def test_a_killed_grid_runs_no_cell_twice_that_has_ended(search: str, tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "own" / "experiment" / "paper" / "table1.yaml").write_text(
        PRESET.replace("geia,nearest_neighbor", "geia")
    )
    command = [*script_of_the_grid(tmp_path, ENDING), "-m"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    begun = tmp_path / "runs" / "grid" / "geia-2" / "begun"
    warm.start(command, cwd=tmp_path, environment=environment).kill_when(begun.exists)
    again = warm.run([*command, "ckpt_path=last"], cwd=tmp_path, environment=environment)
    assert again.returncode == 0, again.stderr
    said = [line for line in again.stdout.splitlines() if line.startswith(("run ", "finished before"))]
    assert said == ["finished before: runs/grid/geia-1", "run geia-2"]
    (tmp_path / "runs" / "grid" / "geia-1" / "metrics.json").unlink()
    again = warm.run([*command, "ckpt_path=last"], cwd=tmp_path, environment=environment)
    said = [line for line in again.stdout.splitlines() if line.startswith(("run ", "finished before"))]
    assert said == ["run geia-1", "finished before: runs/grid/geia-2"]
    other = "access={attack: renamed, has: weights, presumes: the same}"
    again = warm.run([*command, "ckpt_path=last", other], cwd=tmp_path, environment=environment)
    assert again.stdout.count("finished before") == 2, again.stderr
    for n in (1, 2):
        assert read_config(tmp_path / "runs" / "grid" / f"geia-{n}").access.attack == "renamed"
    more = warm.run([*command, "ckpt_path=last", "trainer.max_steps=9"], cwd=tmp_path, environment=environment)
    assert [line for line in more.stdout.splitlines() if line.startswith("run ")] == ["run geia-1", "run geia-2"]


def test_a_cell_that_fails_does_not_keep_the_others_from_running(search: str, tmp_path: Path, warm: Warm) -> None:
    script = (
        "from unembed import launch as configuration\n"
        "from unembed.core.errors import InputError\n"
        "def task(config):\n"
        "    if config.seed == 1:\n        raise InputError('defense.recall=0.99: too much')\n"
        "    print('run', config.run_dir, flush=True)\n"
        "configuration.main(task, 'train')\n"
    )
    command = [*script_of_the_grid(tmp_path, script), "-m"]
    done = warm.run(command, cwd=tmp_path, environment=os.environ | {"PYTHONPATH": str(ROOT)})
    named = [Path(line.split()[1]).name for line in done.stdout.splitlines() if line.startswith("run ")]
    assert named == ["geia-2", "nearest_neighbor-2"]
    assert done.returncode == 2
    assert done.stderr.count("defense.recall=0.99: too much\n") == 2
    assert done.stderr.splitlines()[-1] == (
        "a run failed: runs/grid/geia-1, and perhaps others (see above); "
        "the same command with ckpt_path=last runs what is missing"
    )
    assert "Traceback" not in done.stderr


def test_a_cell_that_the_table_would_refuse_is_refused_before_it_runs(search: str, tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(ENDING)
    command = [str(tmp_path / "train.py"), "attack=geia", "access={attack: mine, has: pairs_50, presums: x}"]
    refused = warm.run(command, cwd=tmp_path, environment=os.environ | {"PYTHONPATH": str(ROOT)})
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "access.has=pairs_50: no column of the access table, did you mean pairs_10?",
        "access.presumes: missing",
        "access.presums: unknown key, did you mean presumes?",
    ]
    assert not (tmp_path / "runs").exists()


def test_a_key_that_only_swept_options_have_is_explained(search: str, tmp_path: Path, warm: Warm) -> None:
    own = tmp_path / "own" / "experiment" / "paper"
    cell = (own / "cell.yaml").read_text()
    for name in ("cell", "other"):
        declared = "access: {attack: GEIA, has: weights, presumes: all}\nrun_dir: runs/" + name
        (own / f"{name}.yaml").write_text(cell.partition("run_dir")[0] + declared)
    (tmp_path / "train.py").write_text(ENDING.replace("2 and", "-1 and"))
    command = [str(tmp_path / "train.py"), "-m", "experiment=paper/cell,paper/other", "--config-dir", "own"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    refused = warm.run([*command, "access.attack=mine"], cwd=tmp_path, environment=environment)
    assert refused.returncode == 2
    assert refused.stderr.startswith("Could not override 'access.attack'")
    assert refused.stderr.endswith("write a key that only swept options have as <key>='choice(<value>)'\n")
    taken = warm.run([*command, "access.attack=choice(mine)"], cwd=tmp_path, environment=environment)
    assert taken.returncode == 0, taken.stderr
    assert read_config(tmp_path / "runs" / "other").access.attack == "mine"


def test_a_grid_over_experiments_runs_those_that_it_lists(search: str, tmp_path: Path) -> None:
    own = tmp_path / "own" / "experiment"
    params = "{experiment: 'paper/cell,paper/other', seed: '1,2'}"
    (own / "all.yaml").write_text(f"# @package _global_\nhydra: {{sweeper: {{params: {params}}}}}\n")
    cell = (own / "paper" / "cell.yaml").read_text()
    (own / "paper" / "other.yaml").write_text(cell.replace("/attack: geia", "/attack: multiset"))
    assert runs("experiment=all", search) == {"runs/grid/geia-1", "runs/grid/multiset-1", "runs/grid/geia-2"}
    assert runs("experiment=all", search, "seed=1") == {"runs/grid/geia-1", "runs/grid/multiset-1"}


DEFENDED = [
    "experiment=access/nearest,access/algen,access/shipped,access/unpaired_known,access/geia,access/geia_search",
    "defense=noise,noise_strong,int8,truncation,rotation",
]


@pytest.mark.parametrize(("words", "parts"), [(["experiment=access"], 2), (DEFENDED, 0)], ids=["access", "defended"])
def test_the_cells_of_the_access_table_compose(words: list[str], parts: int) -> None:
    configs, errors = survey("train", expand_grid("train", words), multirun=True)
    assert errors == []
    assert [message for config in configs for message in launch.check(config)] == []
    directories = [config.run_dir for config in configs]
    assert len(set(directories)) == len(directories)
    cells = [config.access for config in configs if config.access is not None]
    assert all(set(cell) == {"attack", "has", "presumes"} for cell in cells)
    assert len(configs) - len(cells) == parts  # own and corrector are parts of others
