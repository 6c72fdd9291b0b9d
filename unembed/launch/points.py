"""A list of defenses, written as overrides of evaluate.py, with the run's configuration under each of them.

points = defense_points(config, ["defense=none", "defense=noise defense.level=0.01"], "tradeoff.points")
points[1].name, threat_of(points[1].config.defense)       # "noise level=0.01", and the defense built from its node
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from unembed.launch.checking import check
from unembed.launch.composing import raise_all, survey_amended
from unembed.launch.overrides import search_path_of

PREFIX = "defense"


@dataclass(frozen=True, slots=True)
class DefensePoint:
    """One defense at one strength.

    Attributes:
        name: Its name in tables.
        overrides: Its overrides.
        config: The complete resolved configuration with this defense.
    """

    name: str
    overrides: tuple[str, ...]
    config: DictConfig


def defense_points(
    config: DictConfig, lines: Sequence[str], key: str, config_dir: str | None = None
) -> list[DefensePoint]:
    """The configuration of a run under each defense of ``lines``; ``key`` names the list in messages.

    ``config_dir`` is a directory with the user's own configurations, or None.

    Raises:
        InputError: One line for each mistake: a misspelt name, an invalid value, a key outside the defense, a defense
            that is listed twice.
    """
    points: list[DefensePoint] = []
    errors: list[str] = []
    unamended = set(check(config))
    for number, line in enumerate(lines):
        where = f"{key}[{number}]={line}"
        try:
            words = shlex.split(line)
        except ValueError as error:
            errors.append(f"{where}: {error}")
            continue
        foreign = [word for word in words if word.partition("=")[0].partition(".")[0] != PREFIX]
        if foreign or not any(word.startswith(f"{PREFIX}=") for word in words):
            errors.append(f"{where}: write it as for evaluate.py, such as 'defense=noise defense.level=0.01'")
            continue
        amended, found = survey_amended(config, [*words, *search_path_of(config_dir)])
        found = found or [message for message in check(amended) if message not in unamended]
        errors += [f"{where}: {message}" for message in found]
        if not found:
            OmegaConf.resolve(amended)
            points.append(DefensePoint(_name(words), tuple(words), amended))
    names = [point.name for point in points]
    errors += [f"{key}: {name} is listed twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    raise_all(errors)
    return points


def _name(words: Sequence[str]) -> str:
    """The name of a defense: ``defense=noise defense.level=0.01`` without the repeated words."""
    chosen = [word.partition("=")[2] for word in words if word.startswith(f"{PREFIX}=")]
    rest = [word.removeprefix(f"{PREFIX}.") for word in words if not word.startswith(f"{PREFIX}=")]
    return " ".join([*(one.strip("[]").replace(",", " + ") for one in chosen), *rest])
