"""Reading vectors back for an audit, so that it goes on after a kill, and the texts whose truth the run knows.

reader = Reader(attack, embedder, finished, batch_size=128)
texts = reader.read("store", vectors, positions)              # decoded once, whatever happens between
known = held_out(run, config, reader)                         # the run's own test texts and what was read of them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from omegaconf import DictConfig
from pydantic import TypeAdapter, ValidationError
from rich.progress import track
from torch import Tensor

from attacks.base import Attack
from datamodules.defended import DefendedEmbedder, FittedDefense
from defenses.base import Fitted
from defenses.threat import Threat
from embedders.cache.cached import CachedEmbedder
from embedders.language_model import LanguageModelEmbedder
from errors import InputError
from examples import Span
from metrics.text import exact_match
from metrics.tokens import token_overlap
from metrics.vectors import cosine_rows
from models.predictions import Targets
from reports.audit.findings import Reading, Truth
from reports.results import Row, read_rows
from run_directory import layout
from run_directory.batch_cache import BatchCache

_TEXTS = TypeAdapter(list[tuple[str, Literal["sequence", "set"]]])  # that are read of a batch

PredictionKind = Literal["sequence", "set"]


class Reader:
    """An attack that reads vectors in batches; each is kept until the audit is written.

    Args:
        attack: Restored, on its device.
        embedder: Answers the attack, and embeds what was read.
        finished: Keeps the batches.
        batch_size: Vectors decoded at once.
    """

    def __init__(self, attack: Attack, embedder: CachedEmbedder, finished: BatchCache, batch_size: int) -> None:
        self.attack, self.embedder, self.batch_cache, self.batch_size = attack, embedder, finished, batch_size
        self.kind: PredictionKind = "sequence"

    def read(self, part: str, vectors: Tensor, positions: Sequence[int]) -> list[str]:
        """The text of each vector, (n, d); ``part`` names the work, ``positions`` seed any sampling.

        Raises:
            InputError: A limit of the embedder cut the attack short; batches that were done are kept.
        """
        texts: list[str] = []
        index = torch.tensor(positions)
        for begin in track(range(0, len(vectors), self.batch_size), f"reading {part}"):
            batch = {
                "index": index[begin : begin + self.batch_size],
                "vectors": vectors[begin : begin + self.batch_size],
            }

            def work(batch: dict[str, Tensor] = batch) -> list[list[str]]:
                targets = Targets(batch["vectors"].to(self.attack.device), batch["index"])
                with torch.no_grad():
                    return [[one.candidates[0], one.kind] for one in self.attack.invert(targets, self.embedder)]

            # The name tells batches apart by their first index alone, and a sample's may be any.
            done = self.batch_cache.once(f"{part}-{begin}", batch, self.embedder, work, fits=_are_texts)
            if done.limit is not None:  # half a search would make the store look safer than it is
                raise InputError(
                    f"{done.limit} An audit judges whole batches: the same command with a higher limit goes on with "
                    "those that are done"
                )
            texts += [text for text, _ in done.value]
            self.kind = done.value[-1][1]
        return texts

    def readings(self, texts: Sequence[str], vectors: Tensor, truths: Sequence[Truth | None]) -> list[Reading]:
        """What was read, with its cosine with ``vectors``, (n, d), and what it has of the truth where that is known."""
        cosines = cosine_rows(self.embedder.embed(list(texts), "scoring"), vectors).tolist()
        return [
            reading(text, cosine, None if truth is None else truth.text, self.kind)
            for text, cosine, truth in zip(texts, cosines, truths, strict=True)
        ]


def _are_texts(value: list[Any]) -> bool:
    """Whether JSON is a list of texts, each with its kind: a file of the test batch cache may be somebody else's."""
    try:
        _TEXTS.validate_python(value)
    except ValidationError:
        return False
    return True


def reading(text: str, cosine: float, truth: str | None, kind: PredictionKind) -> Reading:
    """Compare a recovered text with the truth, if that is known."""
    if truth is None:
        return Reading(text, cosine)
    exact = exact_match(truth, text) if kind == "sequence" else None
    return Reading(text, cosine, token_overlap(truth, text).f1, exact)


@dataclass(frozen=True, slots=True)
class Known:
    """Texts whose truth the run knows, and what was read of them."""

    truths: list[Truth]
    readings: list[Reading]


def known_rows(run: Path) -> list[Row]:
    """The rows of the run's predictions.jsonl; none where it was not tested."""
    path = run / layout.PREDICTIONS
    return read_rows(path) if path.is_file() else []


def truths_of(rows: Sequence[Row]) -> list[Truth]:
    """The references of predictions.jsonl."""
    return [Truth(row.reference, tuple(Span(*span) for span in row.spans), row.language) for row in rows]


def held_out(rows: Sequence[Row], unchanged: bool, reader: Reader, vectors: Tensor) -> Known:
    """The run's own test texts and what is read of them: as it was written down, unless the attack was changed.

    Args:
        rows: Of the run's predictions.jsonl.
        unchanged: Whether the attack is as it was when they were written.
        reader: Reads them anew otherwise.
        vectors: Of their references, as the attacker would receive them, (n, d).
    """
    truths = truths_of(rows)
    if unchanged:
        reader.kind = rows[0].kind if rows else reader.kind
        texts = [row.prediction for row in rows]
    else:
        texts = reader.read("test texts", vectors, [row.index for row in rows])
    return Known(truths, reader.readings(texts, vectors, truths))


def check_embedder(run: Path, embedder: CachedEmbedder) -> None:
    """Raises InputError where the run's rows are no embeddings of texts."""
    if isinstance(embedder.embedder, LanguageModelEmbedder):
        raise InputError(
            f"run={run}: its attack reads what a language model wrote; an audit is of embeddings, and takes a run of "
            "an attack on those, such as attack=geia"
        )


def services(run: Path, threat: Threat, embedder: CachedEmbedder) -> tuple[CachedEmbedder, CachedEmbedder]:
    """What made the store's vectors, and what answers the attacker.

    An attacker who was trained on defended vectors is for a store of such: its vectors are those of the defended
    embedder, and hypotheses are answered clean or defended as the run says. For all others, both are the embedder.

    Raises:
        InputError: The run keeps no state of the defense; recovered texts have no cosine with the store's vectors,
            since the defense changes the width.
    """
    if not threat.adaptive:
        return embedder, embedder
    kept = FittedDefense(run / layout.ARTIFACTS, threat.settings, embedder.fingerprint)
    if isinstance(threat.defense, Fitted) and not kept.restore(threat.defense):
        raise InputError(f"run={run}: keeps no state of this defense with these settings; take those of its training")
    defended = DefendedEmbedder(embedder, threat.defense)
    oracle = defended if threat.hypotheses == "defended" else embedder
    if oracle.dimension != defended.dimension:
        raise InputError(
            f"run={run}: its attacker reads vectors of width {defended.dimension}, its embedder makes "
            f"{oracle.dimension}: for an audit to compare both, add defense.hypotheses=defended"
        )
    return defended, oracle


def same_attack(config: DictConfig, original: DictConfig, threat: Threat, ckpt_path: str | None) -> bool:
    """Whether the run's own predictions are those that the amended configuration would give for the store's vectors.

    A naive attacker's may have been read from defended vectors, which the store's are not.
    """
    alike = all(config[name] == original[name] for name in ("attack", "defense"))
    return alike and ckpt_path in (None, "last") and (threat.adaptive or original.choices.defense == "none")
