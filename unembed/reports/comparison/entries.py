"""The runs and evaluations that unembed compare reads, and which of them are seeds of one setting."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from unembed.core.errors import InputError, printable
from unembed.reports.numbers import number
from unembed.reports.results import Results, chosen, read_results
from unembed.runs import layout
from unembed.runs.files import read_config, training_of

COMPARED = ("attack", "defense", "embedder", "datamodule", "trainer")  # config nodes whose differences are shown
ALSO_COMPARED = ("scoring", "init_from")  # compared when grouping seeds, but not shown
KINDS = ("attack", "embedder", "datamodule", "defense")  # config groups shared by alike runs
SHOWN_SETTINGS = 3
Item = TypeVar("Item")


@dataclass(frozen=True)
class Entry:
    """A run or one of its evaluations.

    Attributes:
        results: The results in its directory.
        label: The end of its path, as short as possible but unique.
        settings: The settings that distinguish it from entries with the same attack, embedder, data and defense.
        apart: Like ``settings``, without seeds.
    """

    results: Results
    label: str
    settings: str
    apart: str

    def choice(self, group: str) -> str:
        """The option chosen in a config group."""
        return self.results.choice(group) or "unknown"

    @property
    def attack_class(self) -> str:
        """The name of the attack's class, which different sizes of one attack share."""
        node = self.results.config.get("attack")
        target = node.get("_target_") if isinstance(node, dict) else None
        return self.choice("attack") if target is None else str(target).rpartition(".")[2]

    @property
    def embedder(self) -> str:
        return self.choice("embedder")

    @property
    def data(self) -> str:
        """The data module; for text files, the test file."""
        node = self.results.config.get("datamodule")
        files = [node.get(key) for key in ("test", "path")] if isinstance(node, dict) else []
        named = next((file for file in files if isinstance(file, str)), None)
        return self.choice("datamodule") + ("" if named is None else f": {Path(named).stem}")

    @cached_property
    def texts(self) -> frozenset[tuple[int, str]]:
        """Index and reference of each test example; runs in which these agree can be paired."""
        return frozenset((one.row.index, one.row.reference) for one in self.results.recovered)

    @property
    def parameters(self) -> int | None:
        """Number of parameters of the attack; None if it has none or record.json is missing."""
        return round(number(self.results.record, "parameters") or 0) or None

    @property
    def training_seconds(self) -> float | None:
        """Training time of the run, for an evaluation of the run that it is in or that its config names."""
        directory = self.results.directory.resolve()
        named = self.results.config.get("run_dir")
        for origin in (directory, directory.parent.parent, *([Path(named)] if isinstance(named, str) else [])):
            if (training := training_of(origin)) is not None:
                return number(training, "seconds")
        return None

    @cached_property
    def origin(self) -> dict[str, Any] | None:
        """The configuration of the training; None if the evaluated run cannot be found."""
        return origin_config(self.results.directory, self.results.config)

    @property
    def seeds(self) -> tuple[Any, Any]:
        """Seeds of the training and of the test."""
        return None if self.origin is None else self.origin.get("seed"), self.results.config.get("seed")

    @cached_property
    def setting(self) -> str | None:
        """All configuration values of the training and the test that can change a metric, except seeds.

        Runs with equal values are seeds of one setting. None if a seed or the evaluated run is unknown.
        """
        if self.origin is None or None in self.seeds:
            return None
        parts = [
            {key: _without_seeds(config.get(key)) for key in (*COMPARED, *ALSO_COMPARED)}
            | {"choices": [chosen(config, group) for group in KINDS]}
            for config in (self.origin, self.results.config)
        ]
        return json.dumps(parts, sort_keys=True, default=str)


def read_entries(directories: Sequence[Path]) -> list[Entry]:
    """Read runs and evaluations, each once."""
    directories = with_results(directories)
    twice = [path for path, times in Counter(path.resolve() for path in directories).items() if times > 1]
    if twice:
        raise InputError(f"{twice[0]}: given twice")
    results = [read_results(directory) for directory in directories]
    columns = zip(results, _labels(directories), _settings(results), strict=True)
    return [Entry(own, label, *settings) for own, label, settings in columns]


def with_results(directories: Sequence[Path]) -> list[Path]:
    """Those with the results of a test; the others, which ``runs/*`` names too, are named on the terminal."""
    lacking = {directory: _lacking(directory) for directory in directories}
    reasons = [f"{directory} {reason}" for directory, reason in lacking.items() if reason is not None]
    if len(reasons) == len(lacking):
        raise InputError(f"nothing to compare: {'; '.join(reasons)}")
    for reason in reasons:
        print(printable(f"passed over: {reason}"))
    return [directory for directory in directories if lacking[directory] is None]


def _lacking(directory: Path) -> str | None:
    """Which file of a test a directory lacks; None if it lacks none."""
    for name in (layout.METRICS, layout.PREDICTIONS):
        if not (directory / name).is_file():
            inner = sorted(str(path.parent) for path in directory.glob(f"**/{name}"))
            hint = f", did you mean {inner[-1]}?" if inner else ", which a run writes when its test ends"
            return f"holds no {name}{hint}"
    return None


def _labels(directories: Sequence[Path]) -> list[str]:
    parts = [path.resolve().parts for path in directories]
    for length in range(1, max(map(len, parts))):
        labels = ["/".join(one[-length:]) for one in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(path) for path in directories]


def _settings(results: Sequence[Results]) -> list[tuple[str, str]]:
    """For each, the values that differ from others with the same attack, embedder, data and defense; and without seeds.

    The root seed is listed once or not at all; copies in other parts of the configuration are left out.
    """
    kinds = [[one.choice(group) for group in KINDS] for one in results]
    values = [
        {**{key: _without_seeds(one.config.get(key)) for key in COMPARED}, "seed": one.config.get("seed")}
        for one in results
    ]
    texts = []
    for kind, own in zip(kinds, values, strict=True):
        alike = [other for other, other_kind in zip(values, kinds, strict=True) if other_kind == kind]
        place = next(number for number, other in enumerate(alike) if other is own)
        differing = {
            name: f"{name.rpartition('.')[2]}={_short(column[place])}" for name, column in _differing("", alike)
        }
        apart = [text for name, text in differing.items() if name != "seed"]
        texts.append((_first([*differing.values()]), _first(apart)))
    return texts


def _first(settings: Sequence[str]) -> str:
    more = f" and {len(settings) - SHOWN_SETTINGS} more" if len(settings) > SHOWN_SETTINGS else ""
    return ", ".join(settings[:SHOWN_SETTINGS]) + more


def _differing(name: str, values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Keys in which configs differ, with all values; if the classes differ, only the classes."""
    if all(isinstance(value, dict) for value in values):
        classes = [value.get("_target_") for value in values]
        if len(set(classes)) > 1:
            yield name, [str(target).rpartition(".")[2] for target in classes]
            return
        for key in dict.fromkeys(key for value in values for key in value):
            yield from _differing(f"{name}.{key}".lstrip("."), [value.get(key) for value in values])
    elif any(value != values[0] for value in values):
        yield name, list(values)


def _short(value: Any) -> str:
    return Path(value).name if isinstance(value, str) else "null" if value is None else str(value)


def _without_seeds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_seeds(child) for key, child in value.items() if key != "seed"}
    return [_without_seeds(child) for child in value] if isinstance(value, list) else value


def origin_config(directory: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The configuration of the trained run: ``config`` itself, or for an evaluation the one of its run.

    Needed since an evaluation on other text does not name the training text. None if the run cannot be found.
    """
    directory, named = directory.resolve(), config.get("run_dir")
    if directory.parent.name == "evaluations":
        origin = directory.parent.parent
    elif (directory / layout.ARTIFACTS).is_dir() or not isinstance(named, str) or Path(named).resolve() == directory:
        return config
    else:
        origin = Path(named)
    return read_config(origin / layout.CONFIG)[1] if (origin / layout.CONFIG).is_file() else None


def grouped(items: Sequence[Item], key: Callable[[Item], object], seed: Callable[[Item], object]) -> list[list[Item]]:
    """The items in groups of one setting, each seed once; an item whose ``key`` is None is alone."""
    groups: list[list[Item]] = []
    for item in items:
        own = key(item)
        joins = (one for one in groups if own is not None and key(one[0]) == own and seed(item) not in map(seed, one))
        if (group := next(joins, None)) is None:
            groups.append([item])
        else:
            group.append(item)
    return groups


def setting_and_texts(entry: Entry) -> object:
    """What seeds of one setting share; None if it is unknown."""
    return None if entry.setting is None else (entry.setting, entry.texts)
