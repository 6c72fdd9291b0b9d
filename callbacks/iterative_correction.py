"""The whole curve of iterative correction in one test: steps times beam widths.

    python evaluate.py run=<dir> callbacks=iterative_correction
    python train.py attack=vec2text attack.corrector_run=<dir> callbacks=iterative_correction

A search of fifty steps passes through all shorter ones, so each width is searched once (Morris et al. 2023, table 1 and
section 3.2; Chen et al. 2024, appendix C). Two files beside metrics.json:

    corrections.json    {"steps": [0, 1, 2], "beams": [1, 4], "examples": 500,
                         "table": [{"beams": 1, "step": 0, "bleu": 61.2, "exact_match": 40.1, "queries": 1, ...}, ...]}
    corrections.jsonl   {"index": 3, "beams": 4, "reference": "my name is ada .",
                         "rounds": [{"step": 0, "text": "my name is bob .", "cosine": 0.71, "queries": 1, ...}, ...]}

A line of the second has the steps asked for, and those at which the text changed. Where a limit of the embedder cut the
search short, rounds say "partial": true, rows of the table count them, and the first file has the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from torch import Tensor

from atomic_files import write_json, write_json_lines
from attacks.base import Attack
from attacks.vec2text.search import Round
from callbacks.predictions import Predictions
from callbacks.testing import Testing
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from metrics.bleu import bleu
from metrics.matches import ExactMatch
from metrics.scored import Scored
from metrics.word_overlap import TokenOverlap
from models.predictions import Targets
from ranks import of_every_rank
from run_directory import layout

FIGURES = ("bleu", "token_f1", "exact_match", "cosine", "queries", "seconds")
Line = dict[str, Any]  # of corrections.jsonl


@runtime_checkable
class Corrects(Protocol):
    """An attack that guesses a text and corrects it."""

    def correct(
        self, targets: Targets, oracle: CachedEmbedder | None, *, steps: int, beams: int
    ) -> Sequence[Sequence[Round]]:
        """The rounds 0 to ``steps`` of each target."""
        ...


class IterativeCorrection(Testing):
    """Corrects every test target as far as the longest search asked for, once a width, and scores all asked steps.

    Its queries are counted a target, in the table; ``queries`` of metrics.json are those of the attack's own setting.

    Args:
        steps: Correction steps, rising; 0 is the initial hypothesis.
        beams: Widths of the sequence beam, rising; 1 is greedy correction.

    Raises:
        ValueError: Steps or beams that do not rise.
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
        """Whether the attack corrects.

        Raises:
            InputError: It does not.
        """
        if not isinstance(attack, Corrects):
            raise InputError(
                f"callbacks.iterative_correction: {type(attack).__name__} does not correct its texts; attack=vec2text "
                "and attack=vec2text_corrector do; for others, leave it out with ~callbacks.iterative_correction"
            )

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget an earlier test."""
        self.lines, self.limit = {}, None

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Correct the batch with each width, unless that was done before a kill."""
        assert isinstance(pl_module, Attack)
        for beams in self.beams:
            work = partial(self._correct, pl_module, batch, beams)
            part, steps = f"correction-{beams}", str(self.steps)
            fits = partial(_are_lines, batch["index"].tolist())
            done = pl_module.batch_cache.once(part, batch, pl_module.oracle, work, steps, fits)
            self.lines |= {(beams, line["index"]): line for line in done.value}
            self.limit = done.limit or self.limit

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather, score, write and log."""
        assert isinstance(pl_module, Attack)
        gathered = of_every_rank((self.lines, self.limit))
        lines = {key: line for part, _ in gathered for key, line in part.items()}
        if not trainer.is_global_zero:
            return
        examples = pl_module.data.examples("test")
        ordered: list[Line] = []
        for beams, index in sorted(lines):
            known = {"index": index, "beams": beams, "reference": examples[index].reference}
            ordered.append({**known, "rounds": lines[beams, index]["rounds"]})
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        directory = next(one for one in callbacks if isinstance(one, Predictions)).directory
        write_json_lines(directory / layout.CORRECTION_ROUNDS, ordered)
        table = table_of(ordered, self.steps)
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
            found = attack.correct(targets, attack.oracle, steps=self.steps[-1], beams=beams)
        return [
            {"index": index, "rounds": kept(rounds, self.steps)}
            for index, rounds in zip(targets.index.tolist(), found, strict=True)
        ]

    def _log(self, trainer: Trainer, table: Sequence[Line]) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):  # else its curves would run over the steps of training
                logger.experiment.define_metric("correction/*", step_metric="correction/step")
            for step in self.steps:
                rows = [row for row in table if row["step"] == step]
                figures = {f"correction/beams_{row['beams']}/{name}": row[name] for row in rows for name in FIGURES}
                known = {name: value for name, value in figures.items() if value is not None}
                logger.log_metrics({**known, "correction/step": step}, step=step)
            logger.save()


class _Round(BaseModel):
    """A round as ``kept`` gives it."""

    step: NonNegativeInt
    text: str
    cosine: FiniteFloat | None
    queries: NonNegativeInt
    seconds: FiniteFloat
    partial: bool = False


class _Line(BaseModel):
    """A target as ``_correct`` gives it."""

    index: int
    rounds: Annotated[list[_Round], Field(min_length=1)]


_LINES = TypeAdapter(list[_Line])


def _are_lines(index: list[int], value: list[Any]) -> bool:
    """Whether JSON is what ``_correct`` gives of the targets ``index``: the file may be somebody else's."""
    try:
        lines = _LINES.validate_python(value)
    except ValidationError:
        return False
    return [line.index for line in lines] == index and all(line.rounds[0].step == 0 for line in lines)


def kept(rounds: Sequence[Round], steps: Sequence[int]) -> list[Line]:
    """The rounds of one target (the first is step 0) that were asked for, and those that changed its text."""
    return [
        {"step": step, **{name: value for name, value in asdict(one).items() if name != "partial" or value}}
        for step, one in enumerate(rounds)
        if step in steps or one.text != rounds[step - 1].text
    ]


def table_of(lines: Iterable[Line], steps: Sequence[int]) -> list[Line]:
    """A row for each width and step: BLEU, token F1 and exact match of all texts, and means of the rest.

    Args:
        lines: Of corrections.jsonl; each has all of ``steps``.
        steps: Those that the table shows.

    Returns:
        Rows of ``beams``, ``step`` and FIGURES; percentages and BLEU are 0 to 100, ``queries`` are distinct texts and
        ``seconds`` the time, both a target. ``partial`` is the number of texts whose search was cut short, where there
        are any; ``cosine`` is None where one of them has none.
    """
    groups: dict[tuple[int, int], list[tuple[tuple[str, str], Line]]] = {}
    for line in lines:
        for one in line["rounds"]:
            if one["step"] in steps:
                pair = line["reference"], one["text"]
                groups.setdefault((line["beams"], one["step"]), []).append((pair, one))
    # Most texts stand over many steps, so each distinct pair is scored once.
    pairs = dict.fromkeys(pair for members in groups.values() for pair, _ in members)
    place = {pair: number for number, pair in enumerate(pairs)}
    metrics = (bleu(), TokenOverlap("f1"), ExactMatch())
    parts = [metric.statistics([Scored(*pair) for pair in pairs]) for metric in metrics]
    table = []
    for (beams, step), members in sorted(groups.items()):
        places = [place[pair] for pair, _ in members]
        rounds = [one for _, one in members]
        cut, cosines = sum(one.get("partial", False) for one in rounds), [one["cosine"] for one in rounds]
        table.append(
            {
                "beams": beams,
                "step": step,
                **{m.description.key: m.written(one[places]) for m, one in zip(metrics, parts, strict=True)},
                "cosine": None if None in cosines else _mean(cosines),
                "queries": _mean(one["queries"] for one in rounds),
                "seconds": _mean(one["seconds"] for one in rounds),
                **({"partial": cut} if cut else {}),
            }
        )
    return table


def _mean(values: Iterable[float]) -> float:
    """Rounded once, so that it does not depend on the order."""
    known = list(values)
    return math.fsum(known) / len(known)
