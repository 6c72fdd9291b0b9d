"""Scores of iterative correction for all steps and beam widths in one test.

    python evaluate.py run=<dir> callbacks=iterative_correction
    python train.py attack=vec2text attack.corrector_run=<dir> callbacks=iterative_correction

A search of fifty steps includes all shorter ones, so each beam width is searched once (Morris et al. 2023, table 1 and
section 3.2; Chen et al. 2024, appendix C). Two files are written beside metrics.json:

    corrections.json    {"steps": [0, 1, 2], "beams": [1, 4], "examples": 500,
                         "table": [{"beams": 1, "step": 0, "bleu": 61.2, "exact_match": 40.1, "queries": 1, ...}, ...]}
    corrections.jsonl   {"index": 3, "beams": 4, "reference": "my name is ada .",
                         "rounds": [{"step": 0, "text": "my name is bob .", "cosine": 0.71, "queries": 1, ...}, ...]}

Each line of corrections.jsonl has the requested steps, and those at which the text changed. If a query limit cut the
search short, its rounds say "partial": true, rows of the table count them, and corrections.json has the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import fmean
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.vec2text.search import Round
from unembed.callbacks.results import Predictions, Testing
from unembed.callbacks.scoring import subwords_of
from unembed.core.atomic_files import write_json, write_json_lines
from unembed.core.errors import InputError
from unembed.core.ranks import of_every_rank
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.base import ExampleMetric
from unembed.metrics.bleu import SentenceBleu, bleu
from unembed.metrics.matches import ExactMatch
from unembed.metrics.rouge import RougeL, RougeN
from unembed.metrics.scored import Scored
from unembed.metrics.word_overlap import TokenCount, TokenOverlap, TokenSetF1
from unembed.runs import layout

SCORED: tuple[ExampleMetric[Scored], ...] = (
    *(bleu(), SentenceBleu(), RougeN(1), RougeL(), TokenOverlap("f1"), TokenSetF1(), ExactMatch()),
    TokenCount("prediction"),
)
METRICS = (*(metric.description.key for metric in SCORED), "cosine", "queries", "seconds")
Line = dict[str, Any]  # a line of corrections.jsonl


@runtime_checkable
class Corrects(Protocol):
    """An attack that guesses a text and then corrects it."""

    def correct(
        self, targets: Targets, oracle: CachedEmbedder | None, *, steps: int, beams: int
    ) -> Sequence[Sequence[Round]]:
        """The rounds 0 to ``steps`` of each target."""
        ...


class IterativeCorrection(Testing):
    """Corrects every test target once per beam width, for the largest number of steps, and scores all requested steps.

    The table counts these queries per target; ``queries`` of metrics.json are those of the attack's own settings. Steps
    and widths are in ascending order; step 0 is the initial hypothesis, and width 1 greedy correction.
    """

    def __init__(
        self,
        steps: Annotated[list[NonNegativeInt], Field(min_length=1)],
        beams: Annotated[list[PositiveInt], Field(min_length=1)],
    ) -> None:
        for name, values in (("steps", steps), ("beams", beams)):
            if sorted(set(values)) != values:
                raise ValueError(f"{name}={values}: each must be greater than the one before")
        self.steps, self.beams = steps, beams
        self.lines: dict[tuple[int, int], Line] = {}
        self.limit: str | None = None

    def check(self, attack: Attack) -> None:
        """Check that the attack can correct texts."""
        if not isinstance(attack, Corrects):
            raise InputError(
                f"callbacks.iterative_correction: {type(attack).__name__} does not correct its texts; attack=vec2text "
                "and attack=vec2text_corrector do; for others, leave it out with ~callbacks.iterative_correction"
            )

    def on_test_start(self, *_: Any) -> None:
        self.lines, self.limit = {}, None

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Correct the batch with each beam width, unless the test batch cache has the result."""
        assert isinstance(pl_module, Attack)
        for beams in self.beams:
            work = partial(self._correct, pl_module, batch, beams)
            part, steps = f"correction-{beams}", str(self.steps)
            done = pl_module.batch_cache.once(part, batch, pl_module.oracle, work, steps)
            self.lines |= {(beams, line["index"]): line for line in done.value}
            self.limit = done.limit or self.limit

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Attack)
        gathered = of_every_rank((self.lines, self.limit))
        lines = {key: line for part, _ in gathered for key, line in part.items()}
        if not trainer.is_global_zero:
            return
        examples = pl_module.data.examples("test")
        ordered: list[Line] = []
        for beams, index in sorted(lines):
            reference, rounds = examples[index].reference, lines[beams, index]["rounds"]
            ordered.append({"index": index, "beams": beams, "reference": reference, "rounds": rounds})
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        directory = next(one for one in callbacks if isinstance(one, Predictions)).directory
        write_json_lines(directory / layout.CORRECTION_ROUNDS, ordered)
        table = table_of(ordered, self.steps, pl_module.data.tokenizer)
        head: Line = {"steps": self.steps, "beams": self.beams, "examples": len({line["index"] for line in ordered})}
        limits = [limit for _, limit in gathered if limit is not None]
        if limits:
            head["partial"] = limits[0]
            pl_module.batch_cache.keep()
        write_json(directory / layout.CORRECTIONS, {**head, "table": table})
        self._log(trainer, table)

    def _correct(self, attack: Attack, batch: Mapping[str, Tensor], beams: int) -> list[Line]:
        assert isinstance(attack, Corrects)
        targets = Targets(vectors=batch["vectors"], index=batch["index"])
        with torch.autocast(attack.device.type, enabled=False):
            paths = attack.correct(targets, attack.oracle, steps=self.steps[-1], beams=beams)
        return [
            {"index": index, "rounds": recorded_rounds(rounds, self.steps)}
            for index, rounds in zip(targets.index.tolist(), paths, strict=True)
        ]

    def _log(self, trainer: Trainer, table: Sequence[Line]) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):  # otherwise the x axis would be the training step
                logger.experiment.define_metric("correction/*", step_metric="correction/step")
            for step in self.steps:
                rows = [row for row in table if row["step"] == step]
                values = {f"correction/beams_{row['beams']}/{name}": row[name] for row in rows for name in METRICS}
                known = {name: value for name, value in values.items() if value is not None}
                logger.log_metrics({**known, "correction/step": step}, step=step)
            logger.save()


def recorded_rounds(rounds: Sequence[Round], steps: Sequence[int]) -> list[Line]:
    """The rounds of one target (the first is step 0) that were requested or changed the text."""
    return [
        {"step": step, **{name: value for name, value in asdict(one).items() if name != "partial" or value}}
        for step, one in enumerate(rounds)
        if step in steps or one.text != rounds[step - 1].text
    ]


def table_of(lines: Iterable[Line], steps: Sequence[int], tokenizer: str) -> list[Line]:
    """One row per beam width and step: the metrics SCORED, and means of the other values.

    Args:
        lines: Lines of corrections.jsonl; each has all of ``steps``.
        steps: The steps of the table.
        tokenizer: Counts the tokens of a prediction.

    Returns:
        Rows of ``beams``, ``step`` and METRICS. Percentages and BLEU are 0 to 100; ``queries`` (distinct texts) and
        ``seconds`` are per target. ``partial`` is the number of texts whose search was cut short, if there are any;
        ``cosine`` is None if a text has none.
    """
    groups: dict[tuple[int, int], list[tuple[tuple[str, str], Line]]] = {}
    for line in lines:
        for one in line["rounds"]:
            if one["step"] in steps:
                pair = line["reference"], one["text"]
                groups.setdefault((line["beams"], one["step"]), []).append((pair, one))
    # A text often stays the same over many steps, so each distinct pair is scored once.
    pairs = {pair: None for members in groups.values() for pair, _ in members}
    place = {pair: number for number, pair in enumerate(pairs)}
    counted = subwords_of([reference for reference, _ in pairs], [text for _, text in pairs], tokenizer)
    rows = [Scored(*pair, subwords=subwords) for pair, subwords in zip(pairs, counted, strict=True)]
    parts = {metric: metric.statistics(rows) for metric in SCORED}
    table = []
    for (beams, step), members in sorted(groups.items()):
        places, rounds = [place[pair] for pair, _ in members], [one for _, one in members]
        cut, cosines = sum(one.get("partial", False) for one in rounds), [one["cosine"] for one in rounds]
        table.append(
            {
                "beams": beams,
                "step": step,
                **{metric.description.key: metric.written(own[places]) for metric, own in parts.items()},
                "cosine": None if None in cosines else fmean(cosines),
                "queries": fmean(one["queries"] for one in rounds),
                "seconds": fmean(one["seconds"] for one in rounds),
                **({"partial": cut} if cut else {}),
            }
        )
    return table
