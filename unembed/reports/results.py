"""Read and validate the files of a finished run directory, score each recovered text, and describe metrics.

    config.yaml        attack, embedder, datamodule, defense, trainer, seed, name, choices
    metrics.json       {"bleu": 91.2, "cosine": 0.981, "entity_recovery": null, "examples": 2000, ...}
    baseline.json      the nearest neighbour's, same keys; optional
    analyses.json      written by callbacks.results; optional
    predictions.jsonl  {"index": 3, "reference": "...", "prediction": "...", "kind": "sequence", "cosine": 0.93, ...}
    record.json        {"training": {"steps": 1800, "planned_steps": 1800, "cut_short": false}, ...}; optional
    history.jsonl      {"step": 120, "train_loss": 3.1, "val_loss": null, ...}; absent if nothing was trained

Other keys are ignored, except in metrics.json, where all keys are shown.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter

from unembed.core.atomic_files import read_json
from unembed.core.examples import Span
from unembed.metrics.entities import EntityRecovery
from unembed.metrics.scored import Description, Scored
from unembed.metrics.scoring import BY_LENGTH, text_metrics
from unembed.metrics.text import exact_match, sentence_bleu
from unembed.metrics.token_inversion import (
    Claimed,
    Claims,
    FalseDiscovery,
    TokenExact,
    TokenLabelled,
    TokenPartial,
    TokenPartialMean,
    TokenUnlabelled,
)
from unembed.metrics.tokens import recovered_words, token_overlap, words
from unembed.reports.numbers import signed
from unembed.runs import layout
from unembed.runs.config_file import sessions
from unembed.runs.files import Row, read_config, read_lines, read_object, read_rows, validated


def _finite(value: float | None) -> float | None:
    """A finite number, else None: the loss of a diverged training is NaN and cannot be shown in a chart."""
    return value if value is not None and abs(value) < 1e150 else None


_Finite = Annotated[float | None, AfterValidator(_finite)]


class Moment(BaseModel):
    """A line of history.jsonl; ``seconds`` since the start of training."""

    step: Annotated[int, Field(ge=0, le=2**53)]
    epoch: _Finite = None
    seconds: _Finite = None
    train_loss: _Finite = None
    val_loss: _Finite = None
    learning_rate: _Finite = None


class Recovered(NamedTuple):
    """A line of predictions.jsonl with its number of words and its quality, 0 to 100: sentence BLEU for a sequence,
    recall of the reference's words for a set.
    """

    row: Row
    quality: float
    words: int

    @property
    def exact(self) -> bool:
        return self.row.kind == "sequence" and exact_match(self.row.reference, self.row.prediction)

    @property
    def cosine(self) -> float | None:
        value = self.row.cosine
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Results:
    """All results shown in a report.

    Missing ``baseline`` and ``analyses`` are None; missing ``history``, ``record`` (of record.json) and ``described``
    (the user's own metrics) are empty.
    """

    directory: Path
    config: dict[str, Any]
    config_text: str
    metrics: dict[str, Any]
    baseline: dict[str, Any] | None
    recovered: list[Recovered]
    history: list[Moment]
    analyses: dict[str, Any] | None = None
    record: dict[str, Any] = field(default_factory=dict)
    described: list[Description] = field(default_factory=list)

    @property
    def training(self) -> dict[str, Any]:
        """What record.json says of the training; empty if nothing was trained."""
        training = self.record.get("training")
        return training if isinstance(training, dict) else {}

    @property
    def ordered_words(self) -> bool:
        """Whether the attack predicts texts, not sets of words, for which BLEU is undefined."""
        return all(one.row.kind == "sequence" for one in self.recovered)

    @property
    def refiners(self) -> list[str]:
        """The names of the attack's refiners, in order."""
        attack = self.config.get("attack")
        refine = attack.get("refine") if isinstance(attack, dict) else None
        return [str(name) for name in refine] if isinstance(refine, dict) else []

    def choice(self, group: str) -> str | None:
        """The option chosen in a config group, such as ``geia`` for ``attack``; None if unknown."""
        return None if (name := chosen(self.config, group)) is None else str(name)


def chosen(config: Mapping[str, Any], group: str) -> Any:
    """The option chosen in a config group; None if unknown."""
    choices = config.get("choices")
    return choices.get(group) if isinstance(choices, dict) else None


def read_results(run_dir: Path) -> Results:
    """Read a run directory."""
    config_text, config = read_config(run_dir / layout.CONFIG)
    if resumed := sessions(run_dir):
        config_text += "\n# Resumed:\n" + yaml.safe_dump(resumed, sort_keys=False, allow_unicode=True)
    baseline, history, analyses = (run_dir / name for name in (layout.BASELINE, layout.HISTORY, layout.ANALYSES))
    record, descriptions = run_dir / layout.RECORD, run_dir / layout.DESCRIPTIONS
    described = read_object(descriptions) if descriptions.exists() else {}
    return Results(
        directory=run_dir,
        config=config,
        config_text=config_text,
        metrics=read_object(run_dir / layout.METRICS),
        baseline=read_object(baseline) if baseline.exists() else None,
        recovered=[_recovered(row) for row in read_rows(run_dir / layout.PREDICTIONS)],
        history=read_lines(history, Moment) if history.exists() else [],
        analyses=read_object(analyses) if analyses.exists() else None,
        record=read_json(record) if record.is_file() else {},
        described=[*validated(TypeAdapter(dict[str, Description]), described, descriptions).values()],
    )


def as_scored(row: Row) -> Scored:
    """The row as metrics take it, without what only models give."""
    unseen, in_lexicon = (None if known is None else tuple(known) for known in (row.unseen, row.in_lexicon))
    return Scored(
        row.reference,
        row.prediction,
        tuple(Span(*span) for span in row.spans),
        kind=row.kind,
        cosine=row.cosine,
        unseen=unseen,
        in_lexicon=in_lexicon,
    )


def by_quality(recovered: Sequence[Recovered]) -> list[Recovered]:
    """Best first; among equals the longer text first, then the lower index, so that the order is deterministic."""
    return sorted(recovered, key=lambda one: (-one.quality, -one.words, one.row.index))


def by_steps(recovered: Sequence[Recovered], count: int) -> list[Recovered]:
    """``count`` texts, best first, whose qualities lie at equal steps from the best to the worst.

    Of equally good ones the middle one is taken. So failures are among them, however few there are.
    """
    left = by_quality(recovered)
    if len(left) <= count:
        return left
    best, worst, chosen = left[0].quality, left[-1].quality, list[Recovered]()
    for step in range(count):
        level = best + (worst - best) * step / (count - 1)
        nearest = min((one.quality for one in left), key=lambda quality: abs(quality - level))
        equal = [one for one in left if one.quality == nearest]
        chosen.append(equal[len(equal) // 2])
        left.remove(chosen[-1])
    return by_quality(chosen)


class Part(NamedTuple):
    """A part of a text: whether it is recovered, the label of its entity, and whether it ends that entity."""

    text: str
    recovered: bool
    label: str | None
    ends: bool


def parts(text: str, other: str, spans: Sequence[tuple[int, int, str]] = (), limit: int = 1000) -> list[Part]:
    """Cut the first ``limit`` characters of ``text`` where words found in ``other`` or ``spans`` start or end.

    Space between two recovered words counts as recovered, so that a recovered phrase is one part.
    """
    marks: list[bool] = []
    found_words = recovered_words(text, other)
    for position, (part, recovered) in enumerate(found_words):
        inner = 0 < position < len(found_words) - 1
        bridge = inner and part.isspace() and found_words[position - 1][1] and found_words[position + 1][1]
        marks += [recovered or bridge] * len(part)
    labels: list[tuple[int, str] | None] = [None] * len(text)
    for number, (start, end, label) in enumerate(spans):
        for position in range(max(0, start), min(end, len(text))):
            labels[position] = labels[position] or (number, label)
    cut = []
    size = min(len(text), limit)
    for (recovered, entity), run in groupby(range(size), key=lambda position: (marks[position], labels[position])):
        positions = [*run]
        end = positions[-1] + 1
        ends = end == size or labels[end] != entity
        cut.append(Part(text[positions[0] : end], recovered, entity and entity[1], ends))
    return cut


def _recovered(row: Row) -> Recovered:
    size = len(words(row.reference))
    if row.kind == "sequence":
        return Recovered(row, sentence_bleu(row.reference, row.prediction), size)
    # A blank reference has no recall and counts as not recovered.
    return Recovered(row, token_overlap(row.reference, row.prediction).recall if size else 0.0, size)


# ---------------------------------------------------------------------------------------------- descriptions of metrics

MEASURES = (
    *(metric.description for metric in text_metrics(lexicon=True)),
    *(kind.description for kind in (TokenExact, TokenPartial, TokenPartialMean)),
    Description("token_exact_low", "Inputs recovered, from", "Lower end of the share's 95 % interval.", secondary=True),
    Description("token_exact_high", "Inputs recovered, to", "Upper end of the share's 95 % interval.", secondary=True),
    *(metric.description for metric in (TokenLabelled(), TokenUnlabelled(), Claims(), Claimed(), FalseDiscovery())),
    Description("examples", "Examples", "Texts attacked.", None, "count"),
    Description("queries", "Queries", "Distinct texts that the attack asked the embedder for.", None, "count"),
    Description("queries_per_target", "Queries a text", "The same, divided by the texts attacked.", None, "score"),
    Description("partial", "Cut short", "Texts whose search ended at a limit of queries.", None, "count"),
    Description("partial_reason", "Why cut short", "What the embedder said.", None, "other", secondary=True),
    Description("seconds", "Time", "Time spent on these texts, training apart.", None, "seconds"),
)
_BY_KEY = {measure.key: measure for measure in MEASURES}

# Descriptions of the user's own metrics in the run that is shown.
_own: contextvars.ContextVar[tuple[Description, ...]] = contextvars.ContextVar("own", default=())


@contextmanager
def knowing(described: Sequence[Description]) -> Iterator[None]:
    """Inside, the user's own metrics have their titles and units too."""
    token = _own.set(tuple(described))
    try:
        yield
    finally:
        _own.reset(token)


def own_keys() -> list[str]:
    """Keys of the user's own metrics."""
    return [one.key for one in _own.get()]


def measure(key: str) -> Description:
    """The description of a metric; an unknown key gets its own name and no explanation."""
    family, _, rest = key.partition("/")
    if rest and family == "entity_recovery":
        return EntityRecovery(rest).description
    if rest and family == "token_exact":
        title = f"Inputs recovered, of {rest} tokens"
        return Description(key, title, "The same share of the inputs of this length.", secondary=True)
    if family == "claimed" and rest.isdigit():
        return Claimed(int(rest)).description
    if rest and family == "token_labelled":
        return TokenLabelled(rest).description
    if family == "translated" and (base := measure(rest)).explanation:
        text = "The same, of predictions translated into the texts' language."
        return replace(base, key=key, title=f"{base.title}, translated", explanation=text)
    if key.startswith(BY_LENGTH) and (base := measure(rest.partition("/")[0])).explanation:
        length = key.rpartition("/")[2]
        title = f"{base.title}, {f'up to {length} tokens' if length.isdigit() else 'longer texts'}"
        return replace(base, key=key, title=title, explanation="The same, of the texts of this length.")
    known = {**_BY_KEY, **{one.key: one for one in _own.get()}}
    return known.get(key) or Description(key, key.replace("_", " "), "", None, "other")


def ordered(keys: Mapping[str, object]) -> list[Description]:
    """The descriptions of ``keys``: known ones in the order of ``MEASURES``, then the others in the given order."""
    known = [one for one in MEASURES if one.key in keys]
    return known + [measure(key) for key in keys if key not in _BY_KEY]


def difference(one: Description, mine: float | None, other: float | None) -> str:
    """``mine - other`` with its sign; empty if a difference is meaningless."""
    if mine is None or other is None or one.more is None:
        return ""
    return signed(one.kind, mine - other)
