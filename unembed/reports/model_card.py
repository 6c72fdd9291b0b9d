"""The model card of an exported attacker: README.md from a template, with the metrics of its evaluations.

write_card(folder, "minilm", config, {"built-in corpus": metrics}, scores)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unembed.audit.estimates import Scored
from unembed.core.atomic_files import read_json, write_file
from unembed.reports.calibration_file import Scores
from unembed.runs import layout

_METRICS = {"token_f1": "word F1", "exact_match": "exact", "bleu": "BLEU", "entity_recovery": "entities"}
_LENGTHS = ((1, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, None))  # words of the recovered text
_FEWEST = 20  # texts from which a mean is shown


def write_card(
    folder: Path,
    name: str,
    config: Mapping[str, Any],
    tested: Mapping[str, Mapping[str, Any]],
    scores: Sequence[Scores | Scored],
) -> None:
    """Write README.md.

    Args:
        folder: The exported attacker, with everything else in it.
        name: What it is opened by.
        config: Its configuration.
        tested: metrics.json of each test, by what the texts were.
        scores: Lines of calibration.jsonl; may be empty.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(  # Markdown, not HTML: nothing is escaped
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    record = read_json(folder / layout.RECORD)
    text = environment.get_template("model_card.md.jinja").render(
        name=name,
        config=config,
        record=record,
        training=record.get("training") or {},
        megabytes=(folder / layout.CHECKPOINT).stat().st_size / 1e6,
        files=read_json(folder / layout.DATA)["files"],
        metrics=list(_METRICS.values()),
        tested=[(title, found.get("examples"), _shown(found)) for title, found in tested.items()],
        sources=_means(scores, lambda one: one.source, sorted({one.source for one in scores})),
        lengths=_means(scores, _length, [_range(*bounds) for bounds in _LENGTHS]),
    )
    write_file(folder / layout.CARD, text)


def _shown(found: Mapping[str, Any]) -> list[str]:
    values = [found.get(key) for key in _METRICS]
    return ["" if value is None else f"{value:.1f}" for value in values]


def _means(
    scores: Sequence[Scores | Scored], group_of: Callable[[Scores | Scored], str], groups: Sequence[str]
) -> list[tuple[str, int, str, str]]:
    """Name, texts, mean word F1 and share of exact texts, in percent, of each group with enough texts."""
    rows = []
    for group in groups:
        found = [one for one in scores if group_of(one) == group]
        if len(found) >= _FEWEST:
            f1 = sum(one.f1 for one in found) / len(found)
            exact = 100 * sum(bool(one.exact) for one in found) / len(found)
            rows.append((group, len(found), f"{f1:.1f}", f"{exact:.1f}"))
    return rows


def _length(one: Scores | Scored) -> str:
    return next((_range(*bounds) for bounds in _LENGTHS if bounds[0] <= one.words <= (bounds[1] or one.words)), "0")


def _range(low: int, high: int | None) -> str:
    return f"{low} and more" if high is None else f"{low} to {high}"
