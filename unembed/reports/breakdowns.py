"""Recovery broken down: by language, length, lexicon, attribute, word frequency, threshold, and place in the input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from unembed.metrics.attributes import PREFIX, SOURCES
from unembed.metrics.entities import LexiconEntityRecovery
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import BOUNDS, BY_LENGTH, CHIEF, LENGTHS, LONGER, OF_LENGTH, TRANSLATED
from unembed.metrics.token_inversion import Inverted, TokenExact, TokenPartial, by_length, by_position, exact_by_cost
from unembed.reports.charts import COLOURS, Bars, Chart, Series, grouped_bars, line_chart, trade_off
from unembed.reports.numbers import DASH, number, shown
from unembed.reports.tables import Cell, Line, Table
from unembed.reports.wording import measure, own_keys
from unembed.runs import layout
from unembed.runs.files import Row, read_object, validated

_FEWEST = 20  # texts of each of two lengths, for a table of lengths


def is_of_language(key: str) -> bool:
    """Whether a key of metrics.json belongs to one language: "bleu/de", "translated/bleu/de", "examples/de"."""
    name, _, language = key.removeprefix(TRANSLATED).partition("/")
    return bool(language) and name in ("examples", *CHIEF, *own_keys())


def language_table(metrics: Mapping[str, object]) -> Table | None:
    """One row per language in ``metrics``; None if there are fewer than two."""
    languages = [key.removeprefix("examples/") for key in metrics if key.startswith("examples/")]
    if not languages:
        return None
    names = [*CHIEF, *own_keys()]
    names = ["examples", *names, *(f"{TRANSLATED}{name}" for name in names if name != "cosine")]
    return _table_of_groups(metrics, "Language of the texts", {one: one for one in languages}, names, "{name}/{group}")


def length_table(metrics: Mapping[str, object]) -> Table | None:
    """One row per length in ``metrics``; None if fewer than two have ``_FEWEST`` texts."""
    counts = {name: number(metrics, f"{BY_LENGTH}examples/{name}") or 0 for name in LENGTHS}
    if sum(count >= _FEWEST for count in counts.values()) < 2:
        return None
    starts = dict(zip(LENGTHS, (1, *(bound + 1 for bound in BOUNDS)), strict=True))
    titles = {
        name: f"{starts[name]} {'or more' if name == LONGER else f'to {name}'}" for name in LENGTHS if counts[name]
    }
    return _table_of_groups(
        metrics, "Tokens of the text", titles, ["examples", *OF_LENGTH], f"{BY_LENGTH}{{name}}/{{group}}"
    )


def _table_of_groups(
    metrics: Mapping[str, object], title: str, groups: Mapping[str, str], names: Sequence[str], key: str
) -> Table:
    """A row for each group of texts (key: title), with those of the metrics ``names`` that any group has."""
    values = {name: [metrics.get(key.format(name=name, group=group)) for group in groups] for name in names}
    values = {name: column for name, column in values.items() if any(value is not None for value in column)}
    lines = tuple(
        Line(label, "", tuple(Cell(shown(measure(name).kind, column[place])) for name, column in values.items()))
        for place, label in enumerate(groups.values())
    )
    return Table("", (title, *("Texts" if name == "examples" else measure(name).title for name in values)), lines)


def lexicon_table(rows: Sequence[Scored]) -> Table | None:
    """Entities inside and outside the attack's lexicon, by whether training texts have them; None without a lexicon."""
    if not any(row.in_lexicon for row in rows):
        return None
    kinds: dict[bool | None, str] = {None: "all"}
    if any(row.unseen for row in rows):
        kinds |= {False: "in the training text", True: "not in the training text"}
    lines = []
    for unseen, title in kinds.items():
        (back, has), (others, lacks) = (
            LexiconEntityRecovery(inside=inside, unseen=unseen).statistics(rows).sum(axis=0).astype(int).tolist()
            for inside in (True, False)
        )
        cells = (_share(has, has + lacks), _share(back, has), _share(others, lacks))
        lines.append(Line(title, "", (Cell(f"{has + lacks:,}"), *cells)))
    columns = ("Entities of the test texts", "Count", "In the lexicon", "Recovered of these", "Recovered of the others")
    note = "An entity is in the lexicon if the whole of it, or each of its words, is an entry."
    return Table("", columns, tuple(lines), notes=(note,))


def _share(part: int, total: int) -> Cell:
    """A percentage, above its counts."""
    return Cell(shown("percent", 100 * part / total), (f"{part:,} of {total:,}",)) if total else Cell(DASH)


# ---------------------------------------------------------------------------------------------------------- attributes


def attribute_table(metrics: Mapping[str, object]) -> Table | None:
    """One line per attribute in ``metrics``, followed by one line per source of the guess; None without attributes."""
    names = [
        key.removeprefix(PREFIX).removesuffix("/texts")
        for key in metrics
        if key.startswith(PREFIX) and key.endswith("/texts")
    ]
    if not names:
        return None
    tops = (re.fullmatch(rf"{PREFIX}.*/reconstructed_top(\d+)", key) for key in metrics)
    k = next((top[1] for top in tops if top and top[1] != "1"), "")
    lines = []
    for name in names:
        key = f"{PREFIX}{name}"
        texts, skipped, values, candidates = (
            shown("count", metrics.get(f"{key}/{fact}")) for fact in ("texts", "skipped", "values", "candidates")
        )
        majority = shown("percent", metrics.get(f"{key}/majority"))
        facts = f"{texts} texts ({skipped} without it), {values} values of {candidates}, the commonest {majority}"
        lines.append(Line(name, facts, ()))
        for source, title in SOURCES.items():
            macro_accuracy, accuracy, top_k = (
                shown("percent", metrics.get(f"{key}/{source}_{kind}")) for kind in ("macro", "top1", f"top{k}")
            )
            if (error := number(metrics, f"{key}/{source}_standard_error")) is not None:
                accuracy = f"{accuracy} ± {error:.1f}"
            cells = (macro_accuracy, accuracy, top_k) if k else (macro_accuracy, accuracy)
            lines.append(Line("", title, tuple(map(Cell, cells))))
    columns = ("Attribute, guessed from", "Macro accuracy", "Accuracy ± s.e.")
    note = (
        "The guess is the value whose vector lies nearest; nothing is learned for it. Macro accuracy is the mean over "
        "values, each counted once. The original text bounds what any attack could give. The standard error takes "
        "texts for independent, which texts about one subject are not."
    )
    return Table("", (*columns, *([f"Among the nearest {k}"] if k else [])), tuple(lines), notes=(note,))


# ------------------------------------------------------------------- words by frequency, thresholds, place in the input


class _Bin(BaseModel):
    """Words that occur between ``low`` and ``high`` times in the training text."""

    low: Annotated[int, Field(ge=0, lt=2**53, alias="from")]
    high: Annotated[int, Field(ge=0, lt=2**53, alias="to")]
    occurrences: Annotated[int, Field(gt=0, lt=2**53)]
    recovered: Annotated[int, Field(ge=0, lt=2**53)]

    @property
    def label(self) -> str:
        """``0``, ``1-2``, ``300+``, ``3k+``; from 100 on only the lower end."""
        low = self.low
        if self.high < 100:
            return f"{low}" if low == self.high else f"{low}–{self.high}"  # noqa: RUF001
        return f"{low}+" if low < 1000 else f"{low // 1000}k+" if low < 10**6 else f"{low // 10**6}M+"


class _Analyses(BaseModel):
    word_frequency: list[_Bin] = []


def frequency_charts(analyses: Mapping[str, Any] | None) -> list[Chart]:
    """Recovered words by their frequency in the training text (Morris et al. 2023, figure 6); empty without analyses.

    Raises:
        InputError: The analyses have another form.
    """
    bins = validated(TypeAdapter(_Analyses), analyses or {}, layout.ANALYSES).word_frequency
    if not bins:
        return []
    groups = [Bars(one.label, f"{one.occurrences:,}", [100 * one.recovered / one.occurrences]) for one in bins]
    title = "Words recovered, by their count in the training text"
    chart = grouped_bars(title, ["recovered"], groups, "times in the training text")
    note = "Percent of the words' occurrences in the test texts; below each bin, how many there are."
    return [("Words by frequency", chart, note)]


class _Threshold(BaseModel):
    """Scores at one threshold on the validation text; 0 to 1, precision None if no word is predicted."""

    threshold: float
    precision: float | None
    recall: float
    f1: float


class _Thresholds(BaseModel):
    """artifacts/threshold.json of attack=bag_of_words: the chosen threshold, and the scores at all thresholds."""

    threshold: float
    curve: list[_Threshold]


def threshold_charts(run_dir: Path) -> list[Chart]:
    """Precision against recall of a classifier at other thresholds; empty if the run has none.

    Raises:
        InputError: The file is invalid.
    """
    path = run_dir / layout.ARTIFACTS / "threshold.json"
    if not path.exists():
        return []
    scores = validated(TypeAdapter(_Thresholds), read_object(path), path)
    points = [(one, (100 * one.recall, 100 * one.precision)) for one in scores.curve if one.precision is not None]
    best = next(((one, place) for one, place in points if one.threshold == scores.threshold), None)
    if best is None:
        return []
    title = "Precision against recall, a dot a threshold"
    chart = trade_off(title, [place for _, place in points], best[1], "recall", "precision")
    note = (
        f"Distinct words of the validation text, in percent. Thresholds from {points[0][0].threshold:g}, right, to "
        f"{points[-1][0].threshold:g}, left; the large dot is the chosen one, {scores.threshold:g}, with the best F1: "
        f"{100 * best[0].f1:.1f}."
    )
    return [("Precision and recall", chart, note)]


def token_charts(rows: Sequence[Row]) -> list[Chart]:
    """Recovery of a language model's inputs by length, position and cost; empty without token ids."""
    inverted = [
        Inverted(
            true=row.reference_tokens,
            found=row.prediction_tokens,
            claimed=row.search is not None and row.search.verified,
            cost=None if row.search is None else row.search.passes,
        )
        for row in rows
        if row.reference_tokens is not None and row.prediction_tokens is not None
    ]
    if not inverted:
        return []
    bars = [
        Bars(str(length), f"{len(group):,}", [TokenExact().of(group), TokenPartial().of(group)])
        for length, group in by_length(inverted).items()
    ]
    chart = grouped_bars("Recovered by input length", ["inputs", "tokens"], bars, "tokens in the input")
    note = "Percent of the inputs that came back whole, and of their tokens in their places; below, how many inputs."
    charts = [("By length", chart, note)]
    placed = {length: shares for length, shares in by_position(inverted).items() if length > 1}
    if placed:
        lengths = list(placed)
        some = lengths[:: max(1, len(lengths) // (COLOURS - 1))][: COLOURS - 1]
        series = [
            Series(
                f"{n} tokens", [(float(place), one.rate or 0.0) for place, one in enumerate(placed[n], 1)], dots=True
            )
            for n in sorted({*some, lengths[-1]})
        ]
        chart = line_chart("Tokens recovered by place", series, "place in the input", from_zero=True)
        charts.append(("By place", chart, "Percent of the tokens at each place that came back."))
    costs = [row.cost for row in inverted if row.cost is not None]
    if len(costs) == len(inverted) and max(costs) > 0:
        steps = [max(costs) * place / 100 for place in range(101)]
        points = [(step, share or 0.0) for step, share in zip(steps, exact_by_cost(inverted, steps), strict=True)]
        curve = [Series("inputs", points)]
        chart = line_chart("Inputs recovered by cost", curve, "forward passes a target", from_zero=True)
        charts.append(("By cost", chart, "Percent of the inputs that had come back; a backward pass counts two."))
    return charts
