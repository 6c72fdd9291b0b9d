"""Every command that a W&B sweep file would issue composes and fits the constructors."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.processes import ROOT
from unembed import launch

SWEEPS = sorted((ROOT / "configs" / "sweep").glob("*.yaml"))


def values(parameter: dict[str, Any]) -> list[Any]:
    """All values of a parameter of a sweep, or the ends of its range."""
    if "value" in parameter:
        return [parameter["value"]]
    if "values" in parameter:
        return list(parameter["values"])
    return [parameter["min"], parameter["max"]]


def commands(sweep: dict[str, Any], *, few: bool = False) -> list[list[str]]:
    """The argument lists that ``wandb agent`` would run, made by its own functions; ``few`` has each value once."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    issued = []
    offered = [values(parameter) for parameter in sweep["parameters"].values()]
    combinations = list(itertools.product(*offered))
    if few:
        most = max(map(len, offered))
        combinations = [tuple(choices[i % len(choices)] for choices in offered) for i in range(most)]
    for combination in combinations:
        chosen = dict(zip(sweep["parameters"], combination, strict=True))
        macros: dict[str, Any] = create_sweep_command_args({"args": {k: {"value": v} for k, v in chosen.items()}})
        macros |= {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [sweep["program"]]}
        command: list[str] = []
        for part in create_sweep_command(list(sweep["command"])):
            command += macros[part[2:-1]] if part.startswith("${") else [part]
        issued.append(command)
    return issued


@pytest.mark.slow
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_command_of_a_sweep_composes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.splitlines()[0].endswith(f"wandb sweep configs/sweep/{path.name}")
    sweep = yaml.safe_load(text)
    assert sweep["method"] in ("grid", "random", "bayes")
    assert set(sweep["metric"]) == {"name", "goal"}
    assert sweep["metric"]["goal"] in ("maximize", "minimize")
    for name, parameter in sweep["parameters"].items():
        assert set(parameter) in ({"value"}, {"values"}, {"min", "max"}, {"min", "max", "distribution"}), name
        assert sweep["method"] != "grid" or "min" not in parameter, f"{name}: a grid needs values"
    for command in commands(sweep, few=True):
        assert command[:3] == ["/usr/bin/env", "python", "train.py"]
        assert not any(part.endswith("=None") for part in command), "write null as the text 'null'"
        config = launch.compose("train", command[3:])
        assert launch.check(config) == [], command
        assert config.logger.project == sweep["project"]  # or the sweep and its runs are in different projects


def test_the_expansion_writes_what_the_agent_writes() -> None:
    sweep = {
        "program": "train.py",
        "parameters": {"seed": {"values": [1, "null"]}, "attack": {"value": "geia"}, "x": {"min": 0, "max": 0.5}},
        "command": ["${env}", "${interpreter}", "${program}", "logger=wandb", "${args_no_hyphens}"],
    }
    start = ["/usr/bin/env", "python", "train.py", "logger=wandb"]
    assert commands(sweep) == [
        [*start, "seed=1", "attack=geia", "x=0"],
        [*start, "seed=1", "attack=geia", "x=0.5"],
        [*start, "seed=null", "attack=geia", "x=0"],
        [*start, "seed=null", "attack=geia", "x=0.5"],
    ]
