"""Invert vectors for an audit, and load the run's test texts with their recovered texts.

reader = StoreReader(attack, oracle, batch_size=128)
texts = reader.texts("store", vectors, positions)
known = held_out(rows, unchanged, reader, known_vectors)      # the run's test texts and their recovered texts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig
from torch import Tensor

from unembed.audit.findings import Reading, Truth
from unembed.core.errors import InputError
from unembed.core.examples import Span
from unembed.defenses.threat import Threat
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.metrics.tokens import same_words, token_overlap
from unembed.metrics.vectors import cosine_rows
from unembed.reports.reading import Reader
from unembed.runs.files import Row
from unembed.session import Session

PredictionKind = Literal["sequence", "set"]


class StoreReader(Reader):
    """Inverts vectors for an audit and compares the recovered texts with the vectors and with known texts.

    Attributes:
        kind: Kind of the last predictions: whether word order is meaningful.
    """

    kind: PredictionKind = "sequence"

    def texts(self, part: str, vectors: Tensor, positions: Sequence[int]) -> list[str]:
        """The best text for each vector, (n, d); ``part`` names the work, ``positions`` seed any sampling.

        Raises:
            InputError: A query limit cut the attack short; finished batches stay in the test batch cache.
        """
        predictions = self.read(vectors, positions, f"reading {part}")
        self.kind = predictions[-1].kind if predictions else self.kind
        return [prediction.candidates[0] for prediction in predictions]

    def readings(self, texts: Sequence[str], vectors: Tensor, truths: Sequence[Truth | None]) -> list[Reading]:
        """Recovered texts with their cosine to ``vectors``, (n, d), and their scores if the true text is known."""
        cosines = cosine_rows(self.oracle.embed(list(texts), "scoring"), vectors).tolist()
        return [
            reading(text, cosine, None if truth is None else truth.text, self.kind)
            for text, cosine, truth in zip(texts, cosines, truths, strict=True)
        ]


def reading(text: str, cosine: float, truth: str | None, kind: PredictionKind) -> Reading:
    """Score a recovered text against the true text, if known."""
    if truth is None:
        return Reading(text, cosine)
    exact = same_words(truth, text) if kind == "sequence" else None
    return Reading(text, cosine, token_overlap(truth, text).f1, exact)


@dataclass(frozen=True, slots=True)
class Known:
    """The run's test texts with known true text, and their recovered texts."""

    truths: list[Truth]
    readings: list[Reading]


def truths_of(rows: Sequence[Row]) -> list[Truth]:
    """The references of predictions.jsonl."""
    return [Truth(row.reference, tuple(Span(*span) for span in row.spans), row.language) for row in rows]


def held_out(rows: Sequence[Row], unchanged: bool, reader: StoreReader, vectors: Callable[[], Tensor]) -> Known:
    """The run's test texts and their recovered texts, from predictions.jsonl unless the attack was changed.

    Args:
        rows: Of the run's predictions.jsonl.
        unchanged: Whether the attack's settings are those of that file.
        reader: Inverts the vectors otherwise.
        vectors: Gives vectors of the references, as the attacker would receive them, (n, d).
    """
    truths = truths_of(rows)
    if unchanged:
        reader.kind = rows[0].kind if rows else reader.kind
        if all(row.cosine is not None for row in rows):
            known = [
                reading(row.prediction, row.cosine or 0.0, truth.text, reader.kind)
                for row, truth in zip(rows, truths, strict=True)
            ]
            return Known(truths, known)
        texts = [row.prediction for row in rows]
    else:
        texts = reader.texts("test texts", vectors(), [row.index for row in rows])
    return Known(truths, reader.readings(texts, vectors(), truths))


def check_embedder(run: Path, embedder: CachedEmbedder) -> None:
    """Raise InputError if the run does not attack text embeddings."""
    if isinstance(embedder.embedder, LanguageModelEmbedder):
        raise InputError(
            f"run={run}: its attack reads what a language model wrote; an audit is of embeddings, and takes a run of "
            "an attack on those, such as attack=geia"
        )


def services(session: Session) -> tuple[CachedEmbedder, CachedEmbedder]:
    """The embedder of the store's vectors and the one that the attacker queries; without defense if trained so.

    Raises:
        InputError: The run does not attack text embeddings; it lacks the defense's fitted state; or only one of the two
            embedders is defended with another dimension, so that recovered texts have no cosine with the vectors.
    """
    check_embedder(session.run, session.embedder)
    service, oracle = session.service, session.oracle if session.threat.adaptive else session.embedder
    if oracle.dimension != service.dimension:
        raise InputError(
            f"run={session.run}: its attacker reads vectors of dimension {service.dimension}, its embedder makes "
            f"{oracle.dimension}: for an audit to compare both, add defense.hypotheses=defended"
        )
    return service, oracle


def same_attack(config: DictConfig, original: DictConfig, threat: Threat, ckpt_path: str | None) -> bool:
    """Whether the run's own predictions are those that the amended configuration would give for the store's vectors.

    A naive attacker's predictions may come from defended vectors, whereas the store's vectors are undefended.
    """
    alike = all(config[name] == original[name] for name in ("attack", "defense"))
    return alike and ckpt_path in (None, "last") and (threat.adaptive or original.choices.defense == "none")
