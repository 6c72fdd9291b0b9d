"""From predictions to predictions.jsonl and metrics: the one place where an attack is scored.

rows = score_predictions(directory, predictions, datamodule, embedder)     # {"bleu": 91.2, "cosine": 0.98, ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attacks.base import Prediction
from datamodules.inversion import InversionDataModule
from embedders.cache import CachedEmbedder
from metrics.scoring import Scored, score
from metrics.vectors import cosine_rows

BLOCK = 4096  # rows of vectors held in memory at once


def score_predictions(
    predictions: Mapping[int, Prediction],
    datamodule: InversionDataModule,
    embedder: CachedEmbedder,
    training_entities: frozenset[tuple[str, str]] | None,
) -> tuple[list[dict[str, Any]], dict[str, float | int | None]]:
    """Score the best candidate of each test example against its reference.

    Args:
        predictions: By example index.
        datamodule: Holds the test examples and the target vectors as the attacker saw them.
        embedder: Embeds the predictions; these queries are scoring's, not the attack's.
        training_entities: (label, lower-cased text) of the entities that the attack was trained on; None where unknown.

    Returns:
        The rows of predictions.jsonl, sorted by index, and the metrics.
    """
    examples = datamodule.examples("test")
    indices = sorted(predictions)
    best = [predictions[index].candidates[0] for index in indices]
    cosines = _cosines(indices, best, datamodule, embedder)
    rows, scored = [], []
    for index, text, cosine in zip(indices, best, cosines, strict=True):
        example = examples[index]
        prediction = predictions[index]
        scored.append(
            Scored(reference=example.text, prediction=text, spans=example.spans, kind=prediction.kind, cosine=cosine)
        )
        rows.append(
            {
                **row_of(index, example.text, prediction),
                "spans": [[span.start, span.end, span.label] for span in example.spans],
                "cosine": cosine,
            }
        )
    return rows, score(scored, training_entities=training_entities)


def row_of(index: int, reference: str, prediction: Prediction) -> dict[str, Any]:
    """A line of predictions.jsonl before it is scored."""
    return {
        "index": index,
        "reference": reference,
        "prediction": prediction.candidates[0],
        "candidates": list(prediction.candidates),
        "kind": prediction.kind,
    }


def _cosines(
    indices: list[int], texts: list[str], datamodule: InversionDataModule, embedder: CachedEmbedder
) -> list[float | None]:
    embedder.fill(texts, "scoring")
    cosines: list[float | None] = []
    for begin in range(0, len(indices), BLOCK):
        targets = datamodule.vectors("test", indices[begin : begin + BLOCK])
        vectors = embedder.embed(texts[begin : begin + BLOCK], "scoring")
        if vectors.shape != targets.shape:  # a defense that changes the width leaves nothing to compare with
            cosines += [None] * len(targets)
        else:
            cosines += cosine_rows(vectors, targets).tolist()
    return cosines
