"""Score predictions: the rows of predictions.jsonl and the metrics, used by all attacks and scripts.

rows, metrics = score_predictions(predictions, datamodule, embedder, entities, attack, models)     # metrics["bleu"] ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Prediction
from unembed.core.examples import Example, Span, written_ids
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.truncation import Truncation
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.entities import (
    EntityWordRecovery,
    entity_words,
    recovered_entity_pieces,
    recovered_entity_words,
    span_text,
    unseen_entities,
)
from unembed.metrics.scored import Scored, Sets
from unembed.metrics.scoring import score
from unembed.metrics.token_inversion import Inverted, token_inversion
from unembed.metrics.vectors import cosine_rows
from unembed.scoring.models import ScoringModels

BLOCK = 4096  # rows of vectors held in memory at once


def score_predictions(
    predictions: Mapping[int, Prediction],
    datamodule: InversionDataModule,
    embedder: CachedEmbedder,
    training_entities: frozenset[tuple[str, str]] | None,
    attack: Attack,
    models: ScoringModels,
) -> tuple[list[dict[str, Any]], dict[str, float | int | None]]:
    """Score the best candidate of each test example against its reference.

    Args:
        predictions: By example index.
        datamodule: Holds the test examples, the target vectors as the attacker saw them, and the subword tokenizer.
        embedder: Embeds the predictions; these queries are counted for scoring, not for the attack.
        training_entities: (label, lower-cased text) of the entities in the attack's training text; None if unknown.
        attack: Provides the tokenizer for token metrics, also for another attack that is compared with it.
        models: Optional tagger, second embedder, language model and translator.

    Returns:
        The rows of predictions.jsonl, sorted by index, and the metrics.
    """
    indices = sorted(predictions)
    chosen = [predictions[index] for index in indices]
    examples = datamodule.examples("test")[indices]
    best = [prediction.candidates[0] for prediction in chosen]
    references = [example.reference for example in examples]
    tagged = models.entities(references)
    spans = [example.spans for example in examples] if tagged is None else tagged
    # Fluency is undefined for a set of words.
    fluent = all(prediction.kind == "sequence" for prediction in chosen)
    languages = [example.language for example in examples]
    lowercase = models.translation is not None and models.translation.lowercase
    received, clean = _cosines(indices, examples, chosen, datamodule, embedder)
    columns: dict[str, Sequence[Any] | None] = {
        "reference": references,
        "prediction": best,
        "spans": spans,
        "kind": [prediction.kind for prediction in chosen],
        "language": languages,
        # The mean of only those texts that have a vector would be too high.
        "cosine": received if None not in received else None,
        "cosine_clean": clean if None not in clean else None,
        "cosine_second": models.cosines(references, best),
        "likelihood": models.likelihoods(best) if fluent else None,
        "translation": models.translations(best, languages) if fluent else None,
        "translation_reference": [reference.lower() for reference in references] if lowercase else None,
        "subwords": subwords_of(references, best, datamodule.tokenizer),
        "tokens": _tokens(examples, chosen, attack),
        # A tagger's labels differ from those of the data, and the training text was not tagged.
        "unseen": None
        if tagged is not None or training_entities is None
        else [unseen_entities(text, own, training_entities) for text, own in zip(references, spans, strict=True)],
        "in_lexicon": _in_lexicon(references, spans, attack),
        "entity_words": _entity_words(references, spans, chosen, attack, models),
    }
    known = {name: column for name, column in columns.items() if column is not None}
    scored = [Scored(**dict(zip(known, row, strict=True))) for row in zip(*known.values(), strict=True)]
    rows = [
        {
            **row_of(example, prediction),
            "spans": [[span.start, span.end, span.label] for span in one.spans],
            **_known(unseen=one.unseen or None, in_lexicon=one.in_lexicon or None),
            "cosine": cosine,
            **_known(cosine_clean=undefended, language=one.language, translation=one.translation),
        }
        for example, prediction, one, cosine, undefended in zip(examples, chosen, scored, received, clean, strict=True)
    ]
    return rows, {**score(scored, own=models.metrics), **_inversion(examples, chosen)}


def row_of(example: Example, prediction: Prediction) -> dict[str, Any]:
    """A line of predictions.jsonl before scoring.

    Includes the search record of an attack that searches, and token ids with labels if the example is token ids.
    """
    row = {
        "index": example.index,
        "reference": example.reference,
        "prediction": prediction.candidates[0],
        "candidates": list(prediction.candidates),
        "kind": prediction.kind,
        **_known(
            attributes=dict(example.attributes) or None,
            given=prediction.given,
            search=None if prediction.search is None else asdict(prediction.search),
        ),
        **({"partial": True} if prediction.partial else {}),
    }
    if example.tokens is None:
        return row
    return row | _known(
        reference_tokens=list(example.tokens),
        token_labels=list(example.token_labels) or None,
        prediction_tokens=None if prediction.tokens is None else list(prediction.tokens),
    )


def _known(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _cosines(
    indices: list[int],
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    datamodule: InversionDataModule,
    embedder: CachedEmbedder,
) -> tuple[list[float | None], list[float | None]]:
    """Cosines with the vectors that the attacker received, and with the undefended vectors.

    None for a text that has no vector since a limit cut the search short. The first cosines are None if the dimensions
    differ; the second are None if no defense changed the vectors.

    Raises:
        QueryLimitError: The limit is reached for a prediction whose search was complete.
    """
    queries = [  # token ids if the example is token ids, else texts
        written_ids(prediction.tokens) if example.tokens is not None and prediction.tokens else prediction.candidates[0]
        for example, prediction in zip(examples, predictions, strict=True)
    ]
    with suppress(QueryLimitError):  # raised again below, where the affected texts are known
        embedder.fill(queries, "scoring")
    received: list[float | None] = []
    clean: list[float | None] = []
    changed = False
    for begin in range(0, len(indices), BLOCK):
        block = indices[begin : begin + BLOCK]
        targets, before = datamodule.vectors("test", block), datamodule.clean_vectors("test", block)
        changed = changed or not torch.equal(targets, before)
        done: Sequence[int] = range(len(targets))
        try:
            vectors = embedder.embed(queries[begin : begin + BLOCK], "scoring")
        except QueryLimitError as error:
            done, vectors = error.done, error.vectors
            if not all(predictions[begin + row].partial for row in range(len(targets)) if row not in done):
                raise
        clean += cosines_at(done, vectors, before)
        if datamodule.hypotheses == "defended":
            vectors = datamodule.oracle.embed([queries[begin + row] for row in done], "scoring")
        received += cosines_at(done, vectors, targets)
    return received, clean if changed else [None] * len(clean)


def cosines_at(done: Sequence[int], vectors: Tensor, targets: Tensor) -> list[float | None]:
    """The cosine of each target (n, d) with the vector of its text; None without a vector of that dimension."""
    cosines: list[float | None] = [None] * len(targets)
    if vectors.shape[-1] == targets.shape[-1]:
        for row, cosine in zip(done, cosine_rows(vectors, targets[list(done)]).tolist(), strict=True):
            cosines[row] = cosine
    return cosines


def _in_lexicon(
    references: Sequence[str], spans: Sequence[Sequence[Span]], attack: Attack
) -> list[tuple[bool, ...]] | None:
    """Whether the attack's lexicon has each span of each reference, if it has a lexicon."""
    values = [[span_text(text, span) for span in own] for text, own in zip(references, spans, strict=True)]
    answers = attack.refiners.in_lexicon([value for own in values for value in own], attack.oracle)
    if answers is None:
        return None
    answer = iter(answers)
    return [tuple(next(answer) for _ in own) for own in values]


def _entity_words(
    references: Sequence[str],
    spans: Sequence[Sequence[Span]],
    predictions: Sequence[Prediction],
    attack: Attack,
    models: ScoringModels,
) -> list[tuple[int, int]] | None:
    """What EntityWordRecovery counts in each text, where it is asked for and a tagger can read the predictions."""
    if models.tagger is None or not any(isinstance(metric, EntityWordRecovery) for metric in models.metrics):
        return None
    wanted = [entity_words(text, own) for text, own in zip(references, spans, strict=True)]
    if all(prediction.kind == "set" for prediction in predictions):
        return [
            recovered_entity_pieces(attack.tokens(own) or (), prediction.tokens or ())
            for own, prediction in zip(wanted, predictions, strict=True)
        ]
    best = [prediction.candidates[0] for prediction in predictions]
    offered = map(entity_words, best, models.entities(best) or ())
    return [recovered_entity_words(own, words) for own, words in zip(wanted, offered, strict=True)]


def subwords_of(references: Sequence[str], texts: Sequence[str], tokenizer: str) -> list[Sets]:
    """Ids by the tokenizer that cut the references, the same for all attacks on this data."""
    declared = Truncation(1, tokenizer)
    return _sets(declared.tokens(references), declared.tokens(texts))


def _tokens(examples: Sequence[Example], predictions: Sequence[Prediction], attack: Attack) -> list[Sets] | None:
    """Ids by the attack's tokenizer, if it has one; where they are known, of the texts that have them."""
    wanted = attack.tokens([example.reference for example in examples])
    offered = attack.tokens([prediction.candidates[0] for prediction in predictions])
    if wanted is None or offered is None:
        return None
    own = ([one.tokens for one in examples], [one.tokens for one in predictions])
    known = (
        [ids if tokens is None else tokens for tokens, ids in zip(*pair, strict=True)]
        for pair in zip(own, (wanted, offered), strict=True)
    )
    return _sets(*known)


def _inversion(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float | int | None]:
    """Metrics on token ids, if both the examples and the predictions have them."""
    rows = [
        Inverted(
            true=example.tokens,
            found=prediction.tokens,
            claimed=prediction.search is not None and prediction.search.verified,
            cost=None if prediction.search is None else prediction.search.passes,
            labels=example.token_labels,
        )
        for example, prediction in zip(examples, predictions, strict=True)
        if example.tokens is not None and prediction.tokens is not None
    ]
    return token_inversion(rows) if len(rows) == len(examples) else {}


def _sets(references: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[Sets]:
    return [
        Sets(frozenset(wanted), frozenset(offered), (len(wanted), len(offered)))
        for wanted, offered in zip(references, texts, strict=True)
    ]
