"""The runs and evaluations that unembed compare reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError, missing, printable
from unembed.reports.numbers import number
from unembed.reports.results import Results, chosen, read_results
from unembed.runs import layout
from unembed.runs.files import read_config

COMPARED = ("attack", "defense", "embedder", "datamodule", "trainer")  # config nodes whose differences are shown
ALSO_COMPARED = ("scoring", "init_from")  # compared when grouping seeds, but not shown
KINDS = ("attack", "embedder", "datamodule", "defense")  # config groups shared by alike runs
SHOWN_SETTINGS = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A run or one of its evaluations.

    Attributes:
        results: The results in its directory.
        label: The end of its path, as short as possible but unique.
        parameters: Number of parameters of the attack; None if it has none or record.json is missing.
        training_seconds: Training time of the evaluated run; None if nothing was trained.
        settings: The settings that distinguish it from entries with the same attack, embedder, data and defense.
        setting: All configuration values of the run and the evaluation that can change a metric, except seeds. Runs
            with equal ``setting`` are seeds of one setting. None if it is unknown.
        seeds: Seeds of the training and of the test.
        apart: Like ``settings``, without seeds.
    """

    results: Results
    label: str
    parameters: int | None
    training_seconds: float | None
    settings: str
    setting: tuple[str, str] | None = None
    seeds: tuple[Any, Any] = (None, None)
    apart: str = ""

    @property
    def attack(self) -> str:
        return self.results.choice("attack") or "unknown"

    @property
    def attack_class(self) -> str:
        """The name of the attack's class, which different sizes of one attack share."""
        node = self.results.config.get("attack")
        target = node.get("_target_") if isinstance(node, dict) else None
        return self.attack if target is None else str(target).rpartition(".")[2]

    @property
    def embedder(self) -> str:
        return self.results.choice("embedder") or "unknown"

    @property
    def data(self) -> str:
        """The data module; for text files, the test file."""
        name = self.results.choice("datamodule") or "unknown"
        node = self.results.config.get("datamodule")
        files = [node.get(key) for key in ("test", "path")] if isinstance(node, dict) else []
        named = next((file for file in files if isinstance(file, str)), None)
        return name if named is None else f"{name}: {Path(named).stem}"

    @property
    def texts(self) -> frozenset[tuple[int, str]]:
        """Index and reference of each test example; runs in which these agree can be paired."""
        return frozenset((one.row.index, one.row.reference) for one in self.results.recovered)

    @property
    def defense(self) -> str:
        return self.results.choice("defense") or "unknown"

    @property
    def training_texts(self) -> float | None:
        return number(self.results.analyses, "training_texts")

    @property
    def embedded_words(self) -> float | None:
        return number(self.results.analyses, "embedded_words")

    @property
    def corpus_similarity(self) -> float | None:
        return number(self.results.analyses, "corpus_similarity")


def read_entries(directories: Sequence[Path]) -> list[Entry]:
    """Read runs and evaluations.

    Raises:
        InputError: One is missing (the nearest name is given), given twice, or has a damaged file; or none has results.
    """
    directories = with_results(directories)
    twice = [path for path, times in Counter(path.resolve() for path in directories).items() if times > 1]
    if twice:
        raise InputError(f"{twice[0]}: given twice")
    results = [read_results(directory) for directory in directories]
    labels = _labels(directories)
    return [
        Entry(
            results=one,
            label=label,
            parameters=round(number(_record(one.directory), "parameters") or 0) or None,
            training_seconds=_training_seconds(one),
            settings=settings,
            setting=_setting(one),
            seeds=_seeds(one),
            apart=apart,
        )
        for one, label, settings, apart in zip(
            results, labels, _settings(results, seeds=True), _settings(results, seeds=False), strict=True
        )
    ]


def with_results(directories: Sequence[Path]) -> list[Path]:
    """Those with the results of a test; the others, which ``runs/*`` names too, are named on the terminal.

    Raises:
        InputError: One does not exist, or none has results.
    """
    lacking = {directory: _lacking(directory) for directory in directories}
    reasons = [f"{directory} {reason}" for directory, reason in lacking.items() if reason is not None]
    if len(reasons) == len(lacking):
        raise InputError(f"nothing to compare: {'; '.join(reasons)}")
    for reason in reasons:
        print(printable(f"passed over: {reason}"))
    return [directory for directory in directories if lacking[directory] is None]


def _lacking(directory: Path) -> str | None:
    """Which file of a test a directory lacks; None if it lacks none."""
    if not directory.exists():
        raise InputError(f"{directory}: {missing(directory, 'directory')}")
    for name in (layout.METRICS, layout.PREDICTIONS):
        if not (directory / name).is_file():
            inner = sorted(str(found.parent) for found in directory.glob(f"**/{name}"))
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


def _record(directory: Path) -> dict[str, Any]:
    """record.json; empty if missing, as in runs of other tools."""
    path = directory / layout.RECORD
    return read_json(path) if path.is_file() else {}


def _training_seconds(results: Results) -> float | None:
    """Training time of the run; for an evaluation, of the run that it is in or that its config names."""
    directory = results.directory.resolve()
    named = results.config.get("run_dir")
    origins = [directory, directory.parent.parent, *([Path(named)] if isinstance(named, str) else [])]
    for origin in origins:
        training = _record(origin).get("training")
        if isinstance(training, dict):
            return number(training, "seconds")
    return None


def _settings(results: Sequence[Results], *, seeds: bool) -> list[str]:
    """For each, the values that differ from others with the same attack, embedder, data and defense.

    The root seed is listed once or not at all; copies in other parts of the configuration are left out.
    """
    found = []
    for one in results:
        alike = [other for other in results if _kind(other) == _kind(one)]
        compared = [{key: without_seeds(other.config.get(key)) for key in COMPARED} for other in alike]
        if seeds:
            compared = [
                values | {"seed": other.config.get("seed")} for values, other in zip(compared, alike, strict=True)
            ]
        differing = list(_differing("", compared))
        place = next(number for number, other in enumerate(alike) if other is one)
        texts = [f"{name.rpartition('.')[2]}={_short(values[place])}" for name, values in differing]
        more = f" and {len(texts) - SHOWN_SETTINGS} more" if len(texts) > SHOWN_SETTINGS else ""
        found.append(", ".join(texts[:SHOWN_SETTINGS]) + more)
    return found


def without_seeds(value: Any) -> Any:
    """A configuration without keys named seed."""
    if isinstance(value, dict):
        return {key: without_seeds(child) for key, child in value.items() if key != "seed"}
    return [without_seeds(child) for child in value] if isinstance(value, list) else value


def _setting(results: Results) -> tuple[str, str] | None:
    """The settings of the run and of its test; None if a seed or the evaluated run is unknown."""
    origin = _origin(results)
    if origin is None or None in _seeds(results):
        return None
    parts = [
        {key: without_seeds(config.get(key)) for key in (*COMPARED, *ALSO_COMPARED)}
        | {"choices": [chosen(config, group) for group in KINDS]}
        for config in (origin, results.config)
    ]
    first, second = (json.dumps(part, sort_keys=True, default=str) for part in parts)
    return first, second


def _seeds(results: Results) -> tuple[Any, Any]:
    origin = _origin(results)
    return (None if origin is None else origin.get("seed"), results.config.get("seed"))


def _origin(results: Results) -> dict[str, Any] | None:
    return origin_config(results.directory, results.config)


def origin_config(directory: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The configuration of the trained run: ``config`` itself, or for an evaluation the one of its run.

    Needed since an evaluation on other text does not name the training text. None if the run cannot be found.
    """
    directory, named = directory.resolve(), config.get("run_dir")
    if directory.parent.name == "evaluations":
        return _config(directory.parent.parent)
    if (directory / layout.ARTIFACTS).is_dir() or not isinstance(named, str) or Path(named).resolve() == directory:
        return config
    return _config(Path(named))


def _config(directory: Path) -> dict[str, Any] | None:
    return read_config(directory / layout.CONFIG)[1] if (directory / layout.CONFIG).is_file() else None


def _short(value: Any) -> str:
    return Path(value).name if isinstance(value, str) else "null" if value is None else str(value)


def _kind(results: Results) -> list[str | None]:
    return [results.choice(group) for group in KINDS]


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
