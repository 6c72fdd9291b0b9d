"""Compute all results of an audit from a sample of the store and the run's test texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from omegaconf import DictConfig
from scipy import stats
from torch import Tensor

from datamodules.vector_stores.sampling import Sample
from metrics import calibration
from reports.audit import exposure
from reports.audit.defenses import Trials, calibrate, estimated, look_up, neighbours_kept, share, summary, try_defense
from reports.audit.entity_kinds import leaked, places, suspected
from reports.audit.findings import Attacker, Audit, AuditedShare, Exposed, Reading, Tried, Truth
from reports.audit.lookup import Lookup
from reports.audit.masking import masked
from reports.audit.reading import Known, StoreReader
from scoring.recognisers import Recognisers
from scoring.taggers import Tagger

SHIFT, SURE = 0.15, 1e-3  # largest difference of two cosine distributions still called alike, and its p value
CURVE = 41  # points of the calibration curve


def evaluate(
    settings: DictConfig,
    config: DictConfig,
    sample: Sample,
    truths: Mapping[int, Truth],
    known: Known,
    reader: StoreReader,
    tagger: Tagger | None,
    trials: Trials,
    lookup: Lookup | None,
    known_vectors: Tensor,
) -> Audit:
    """Invert the sample and evaluate the recovered texts.

    Args:
        settings: The settings of configs/audit.yaml.
        config: The run's configuration with overrides.
        sample: The sampled rows of the store.
        truths: True texts by position; may be empty.
        known: The run's test texts and their recovered texts.
        reader: Inverts vectors with the attack.
        tagger: Finds entities; None uses recognisers that need no model.
        trials: The defenses to try.
        lookup: The second attacker; None if there is none.
        known_vectors: Of the run's test texts, (n, d).
    """
    truth = [truths.get(place) for place in sample.positions]
    texts = reader.texts("store", sample.vectors, sample.positions)
    ordered = reader.kind == "sequence"
    own = {"attack": (reader.readings(texts, sample.vectors, truth), known.readings)}
    if lookup is not None:
        own["lookup"] = (
            reader.readings(lookup.texts(sample.vectors), sample.vectors, truth),
            reader.readings(lookup.texts(known_vectors), known_vectors, known.truths) if known.readings else [],
        )
        own["closest"] = (closest(*(read for read, _ in own.values())), closest(*(read for _, read in own.values())))
    by_attack, attack_known = own["attack"]
    readings, of_known = [*own.values()][-1]
    known = replace(known, readings=of_known)
    attackers = [
        Attacker(
            name,
            share(read, of_test, settings.readable),
            share(read, of_test, None) if ordered else None,
            sum(one.cosine for one in read) / len(read),
        )
        for name, (read, of_test) in own.items()
    ]
    finder = tagger or Recognisers()
    labelled = _with_entities(truth, finder)
    found = Audit(
        store=sample.name,
        size=sample.size,
        sampled=len(sample.positions),
        dimension=sample.vectors.shape[1],
        run=_run(settings, config),
        threshold=settings.readable,
        masked=not settings.show_text,
        tagged="the labels of the true texts" if any(one and one.spans for one in truth) else _tagged(tagger),
        readable=largest(one.readable for one in attackers),
        exact=largest(one.exact for one in attackers),
        cosines=[one.cosine for one in readings],
        known=[one.cosine for one in known.readings],
        attackers=attackers,
    )
    learned = calibrate(known.readings, settings.readable) if len(known.readings) >= calibration.SMALLEST else None
    if found.measured:
        best = max(attackers, key=lambda one: 0.0 if one.readable is None else one.readable.value)
        guesses = {"readable": estimated(*own[best.name], settings.readable)}
        if ordered:
            guesses["exact"] = estimated(*own[best.name], None)
        found.estimated = {name: guess for name, guess in guesses.items() if guess is not None}
        rows = [row for row, one in enumerate(labelled) if one is not None]
        true = [one for one in labelled if one is not None]
        by_each = [leaked(true, [read[row] for row in rows], ordered=ordered) for read, _ in own.values()]
        found.kinds = max(by_each, key=lambda kinds: sum(one.share.value * one.total for one in kinds if one.share))
        how = "labels" if any(one and one.spans for one in truth) else "tagger" if tagger else "form"
        known_truths = [one for one in truth if one is not None] if how == "form" else true
        by_rows = [[read[row] for row in rows] for read, _ in own.values()]
        found.classes = exposure.measured(known_truths, by_rows, how, ordered=ordered)
    else:
        found.kinds = suspected(readings, known, finder, ordered=ordered)
        found.classes = exposure.estimated(readings, known, tagger, ordered=ordered)
        found.held_out = leaked(known.truths, known.readings, ordered=ordered)
    found.rows = _exposed(settings, sample, labelled, readings, learned, finder)
    found.warnings = _shift(found.cosines, found.known)
    if learned is None and not found.measured:
        found.warnings.append(
            f"Nothing can be estimated: the run has {len(known.readings)} test texts of known truth, and it takes "
            f"{calibration.SMALLEST}. Test it (evaluate.py), or give the true texts of some rows (texts=<file>)."
        )
    if learned is not None:
        grid = np.linspace(min(found.known), 1.0, CURVE).tolist()
        found.curve = list(zip(grid, learned.probabilities(grid).tolist(), strict=True))
    found.tried_on = len(trials.chosen)
    trials = replace(trials, rows=replace(trials.rows, truths=[labelled[row] for row in trials.chosen]))
    found.tried = _tried(by_attack, replace(known, readings=attack_known), reader, settings.readable, trials)
    if lookup is not None:
        near, near_known = own["lookup"]
        undefended = share([near[row] for row in trials.chosen], near_known, settings.readable)
        shares = [
            undefended,
            *(
                look_up(one, trials.rows, trials.known, reader, lookup, settings.readable)
                for one in trials.defended.values()
            ),
        ]
        found.tried = [replace(one, lookup=looked) for one, looked in zip(found.tried, shares, strict=True)]
    return found


def largest(shares: Iterable[AuditedShare | None]) -> AuditedShare | None:
    """The largest of the known shares."""
    return max((one for one in shares if one is not None), key=lambda one: one.value, default=None)


def closest(first: Sequence[Reading], second: Sequence[Reading]) -> list[Reading]:
    """Of two texts for each vector, the one whose own vector is nearer, which an attacker can see."""
    return [one if one.cosine >= other.cosine else other for one, other in zip(first, second, strict=True)]


def _tried(
    readings: Sequence[Reading], known: Known, reader: StoreReader, readable: float, trials: Trials
) -> list[Tried]:
    """The metrics of the undefended rows, then of each defense."""
    rows = trials.rows
    read = [readings[row] for row in trials.chosen]
    kept, dimension = neighbours_kept(rows.vectors, rows.vectors), rows.vectors.shape[1]
    tried = [summary("none", rows, read, known.readings, reader, readable, kept, dimension)]
    for name, vectors in trials.defended.items():
        tried.append(try_defense(name, vectors, rows, trials.known, reader, readable, f"defense {name}"))
    return tried


def _exposed(
    settings: DictConfig,
    sample: Sample,
    truth: Sequence[Truth | None],
    readings: Sequence[Reading],
    learned: calibration.Calibration | None,
    tagger: Tagger,
) -> list[Exposed]:
    """The rows with the highest cosines; among equals the longer text first."""
    order = sorted(range(len(readings)), key=lambda row: (-readings[row].cosine, -len(readings[row].text), row))
    chosen = order[: settings.exposed]
    tagged = tagger.tag([readings[row].text for row in chosen])
    rows = []
    for row, spans in zip(chosen, tagged, strict=True):
        reading, known = readings[row], truth[row]
        entities = places(reading.text, known, spans)
        rows.append(
            Exposed(
                id=sample.ids[row],
                position=sample.positions[row],
                reading=reading,
                probability=None if learned is None else float(learned.probabilities([reading.cosine])[0]),
                kinds=tuple(dict.fromkeys(span.label for span in entities)),
                text=reading.text if settings.show_text else masked(reading.text, entities),
                truth=known.text if settings.show_text and known is not None else None,
            )
        )
    return rows


def _with_entities(truths: Sequence[Truth | None], tagger: Tagger) -> list[Truth | None]:
    """True texts with their labelled entities; if no text has labels, with those that the tagger finds."""
    if any(one.spans for one in truths if one is not None):
        return list(truths)
    texts = [one.text for one in truths if one is not None]
    tagged = iter(tagger.tag(texts))
    return [None if one is None else Truth(one.text, next(tagged), one.language) for one in truths]


def _shift(store: Sequence[float], known: Sequence[float]) -> list[str]:
    """A warning if the cosines of the store differ from those of the run's test texts (Kolmogorov-Smirnov test)."""
    if len(known) < calibration.SMALLEST:
        return []
    # Rounded: the last bits of equal texts' cosines differ between batch sizes.
    gap = stats.ks_2samp(np.round(store, calibration.DIGITS), np.round(known, calibration.DIGITS))
    if gap.statistic <= SHIFT or gap.pvalue >= SURE:
        return []
    lower = np.median(store) < np.median(known)
    return [
        f"The store's text looks unlike the run's own test texts: recovered texts come {'less' if lower else 'more'} "
        f"near to its vectors (median cosine {np.median(store):.2f} against {np.median(known):.2f}). What is estimated "
        "from those texts may be off beyond the intervals"
        + (", and an attacker who trains on text like the store's reads more." if lower else ".")
    ]


def _run(settings: DictConfig, config: DictConfig) -> dict[str, str]:
    choices = config.choices
    named = {name: str(choices[name]) for name in ("attack", "embedder", "datamodule", "defense") if name in choices}
    named["data"] = named.pop("datamodule", "")
    return {"directory": str(settings.run), **{name: value for name, value in named.items() if value}}


def _tagged(tagger: Tagger | None) -> str:
    return "their form alone (mail addresses, cards, ...)" if tagger is None else type(tagger).__name__
