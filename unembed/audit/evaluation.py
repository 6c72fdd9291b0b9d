"""Compute all results of an audit from what the attackers recovered of the store and of the run's test texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from omegaconf import DictConfig
from scipy import stats
from torch import Tensor

from unembed.audit.attackers import AttackerReadings, AuditedRows, Lookup, StoreReader, among_others
from unembed.audit.defenses import Trials
from unembed.audit.estimates import (
    Estimator,
    PartEstimator,
    estimated_classes,
    estimated_entities,
    estimated_kinds,
    features,
    leaked_classes,
    leaked_entities,
    leaked_kinds,
    length,
    was_read,
)
from unembed.audit.exposure import Found, masked, places
from unembed.audit.results import AttackerResult, Audit, Reading, Row, Truth, largest
from unembed.core.commands import quoted
from unembed.datamodules.vector_stores.sampling import Sample
from unembed.metrics import calibration
from unembed.metrics.entities import recovered_entities, span_text
from unembed.reports.numbers import counted
from unembed.scoring.recognisers import Recognisers
from unembed.scoring.taggers import Tagger

SHIFT, SURE = 0.15, 1e-3  # largest difference of two cosine distributions still called alike, and its p value
# At 50 texts Wilson's interval of one in five is 22 points wide, as wide as domains of text make one of any size.
FEWEST = 50
NEAR, USUAL = 0.5, 0.6  # smallest accepted ratio of median cosines, where those of the test texts are at least usual
EXAMPLES = 3  # rows that the page opens with
CURVE = 41  # points of the calibration curve


def evaluate(
    settings: DictConfig,
    config: DictConfig,
    rows: AuditedRows,
    own: Sequence[AttackerReadings],
    tagger: Tagger | None,
    trials: Trials,
    reader: StoreReader,
    lookup: Lookup | None,
) -> Audit:
    """Evaluate the texts that the attackers recovered, and try the defenses.

    Of the attackers, ``own``, the run's attack is first and the closest text of all last; ``reader`` inverts vectors
    with the run's attack, and ``lookup`` knows the defenses. Without a tagger, recognisers that need no model find
    entities.
    """
    ordered, last, sample = reader.kind == "sequence", own[-1], rows.sample
    finder = tagger or Recognisers()
    truths = _with_entities(rows.truths, finder)
    by_label = any(one and one.spans for one in rows.truths)
    tagged = type(tagger).__name__ if tagger else "their form alone (mail addresses, cards, ...)"
    attackers = [_result(one, settings.readable, ordered) for one in own]
    calibrated = last.estimator.calibrated(settings.readable)
    ranked = _ranked(settings, sample, truths, last.readings, calibrated, finder)
    distinct: dict[str, tuple[Row, Reading]] = {}  # the first row of each recovered text
    for row, reading in ranked:
        distinct.setdefault(_words(reading), (row, reading))
    audit = Audit(
        store=sample.name,
        named=_named(settings, sample.name),
        size=sample.size,
        sampled=len(sample.positions),
        width=sample.vectors.shape[1],
        run=_run(settings, config),
        threshold=settings.readable,
        masked=not settings.show_text,
        tagged="the labels of the true texts" if by_label else tagged,
        readable=largest(one.readable for one in attackers),
        exact=largest(one.exact for one in attackers),
        attackers=attackers,
        rows=[row for row, _ in distinct.values()][: settings.exposed],
        examples=_examples(list(distinct.values())),
        ranked=[row for row, _ in ranked],
        cosines=[one.cosine for one in last.readings],
        known=[one.cosine for one in last.estimator.known],
        tried_on=len(trials.chosen),
    )
    if audit.measured:
        best = own[attackers.index(max(attackers, key=lambda one: one.readable.value if one.readable else 0.0))]
        for name, threshold in (("readable", settings.readable), *([("exact", None)] if ordered else [])):
            if (guess := best.estimator.estimated(best.readings, threshold)) is not None:
                audit.estimated[name] = guess
        places_ = [row for row, one in enumerate(truths) if one is not None]
        true = [one for one in truths if one is not None]
        read = [[one.readings[row] for row in places_] for one in own]
        audit.kinds = leaked_kinds(true, read, ordered=ordered)
        audit.entities = largest(leaked_entities(true, one, ordered=ordered) for one in read)
        how: Found = "labels" if by_label else "tagger" if tagger else "form"
        plain = [one for one in rows.truths if one is not None] if how == "form" else true
        audit.insider = _insider(sample.vectors[places_], plain, reader, settings.readable, ordered)
        audit.classes = leaked_classes(plain, read, how, ordered=ordered)
    else:
        parts = [
            PartEstimator.of(one.readings, one.tested, rows.tested, one.estimator.known, tagger, ordered=ordered)
            for one in own
        ]
        audit.kinds, audit.classes = estimated_kinds(parts), estimated_classes(parts, tagger)
        audit.entities = estimated_entities(parts)
        audit.held_out = leaked_kinds(rows.tested, [last.tested], ordered=ordered)
    audit.unjudged = _unjudged(audit)
    if _is_strange(audit):
        audit.readable = audit.exact = None  # what a cosine means was learned from vectors of text
    audit.warnings = _shift(audit)
    if calibrated is not None:
        grid = np.linspace(min(audit.known), 1.0, CURVE).tolist()
        middle = round(np.median([length(one) for one in last.readings]))
        audit.curve = list(zip(grid, calibrated.probabilities(grid, [middle] * CURVE).tolist(), strict=True))
    elif not audit.measured:
        audit.warnings.append(
            f"Nothing can be estimated: the run has {len(audit.known)} test texts of known truth, and it takes "
            f"{calibration.SMALLEST}. Test it (evaluate.py), or give the true texts of some rows (texts=<file>)."
        )
    trials = trials._replace(truths=[truths[row] for row in trials.chosen])
    audit.tried = trials.results(own, reader, lookup, settings.readable)
    return audit


def _result(one: AttackerReadings, readable: float, ordered: bool) -> AttackerResult:
    return AttackerResult(
        name=one.name,
        readable=one.estimator.share(one.readings, readable),
        exact=one.estimator.share(one.readings, None) if ordered else None,
        cosine=sum(reading.cosine for reading in one.readings) / len(one.readings),
        label=one.label,
        cost=one.cost,
    )


def _insider(
    vectors: Tensor, truths: Sequence[Truth], reader: StoreReader, readable: float, ordered: bool
) -> AttackerResult | None:
    """Who knows the other texts of the store; ``vectors`` (n, d) are those of the ``truths``."""
    if len(truths) < 2:
        return None
    label = f"lookup among the {len(truths) - 1:,} other known texts of the store"
    readings = reader.readings(among_others(vectors, truths), vectors, truths)
    return _result(AttackerReadings("lookup", label, readings, [], Estimator([])), readable, ordered)


def _words(reading: Reading) -> str:
    return " ".join(reading.text.split())


def _ranked(
    settings: DictConfig,
    sample: Sample,
    truths: Sequence[Truth | None],
    readings: Sequence[Reading],
    calibrated: calibration.Calibration | None,
    tagger: Tagger,
) -> list[tuple[Row, Reading]]:
    """All rows, the most exposed first: by entities times probability, then cosine, then length."""
    likely = [None] * len(readings)
    if calibrated is not None:
        likely = calibrated.probabilities(*features(readings)).tolist()
    same = Counter(map(_words, readings))
    rows = []
    for place, spans in enumerate(tagger.tag([one.text for one in readings])):
        reading, truth = readings[place], truths[place]
        masks = entities = places(reading.text, truth, spans)
        if truth is not None:  # those that stand in the true text
            values = ((span, span_text(reading.text, span)) for span in masks)
            entities = tuple(span for span, value in values if recovered_entities([value], truth.text, ordered=True))
        row = Row(
            id=sample.ids[place],
            position=sample.positions[place],
            cosine=reading.cosine,
            probability=likely[place] if reading.f1 is None else float(was_read(reading, settings.readable)),
            kinds=tuple(dict.fromkeys(span.label for span in entities)),
            text=reading.text if settings.show_text else masked(reading.text, masks),
            truth=truth.text if settings.show_text and truth is not None else None,
            f1=reading.f1,
            exact=reading.exact,
            same=same[_words(reading)],
            entities=len(entities),
        )
        rows.append((row, reading))
    return sorted(
        rows, key=lambda one: (-one[0].rank, -(one[0].f1 or 0), -one[0].cosine, -len(one[1].text), one[0].position)
    )


def _examples(rows: Sequence[tuple[Row, Reading]]) -> list[Row]:
    """Readable rows that tell most, of those whose truth is known if any is; without readable ones the nearest."""
    known = [one for one in rows if one[0].f1 is not None] or rows
    telling = sorted(known, key=lambda one: (-one[0].entities, -length(one[1]) * (one[0].probability or 0)))
    readable = [row for row, _ in telling if row.is_readable]
    nearest = sorted((row for row, _ in known), key=lambda row: -(row.f1 or row.probability or row.cosine))
    return (readable or nearest)[:EXAMPLES]


def _with_entities(truths: Sequence[Truth | None], tagger: Tagger) -> list[Truth | None]:
    """True texts with their labelled entities; if no text has labels, with those that the tagger finds."""
    if any(one.spans for one in truths if one is not None):
        return list(truths)
    texts = [one.text for one in truths if one is not None]
    tagged = iter(tagger.tag(texts))
    return [None if one is None else Truth(one.text, next(tagged), one.language) for one in truths]


def _unjudged(audit: Audit) -> str:
    """Why the shares say little of the store: its vectors are strange to the attacker, or too few; empty if they do."""
    share = audit.readable
    if _is_strange(audit):
        return (
            "This audit says nothing of the texts: what was read, embedded again, is nowhere near the vectors (median "
            f"cosine {np.median(audit.cosines):.2f}; {np.median(audit.known):.2f} for the attacker's test texts). They "
            "are no vectors of text, or another embedder or a defense made them."
        )
    if share is None or share.rows >= FEWEST:
        return ""
    what = "text" if share.measured else "vector"
    return (
        f"{counted(share.rows, what)} {'is' if share.rows == 1 else 'are'} too few to judge the store by: the 95 % "
        f"interval of what is read reaches from {share.reach}. At least {FEWEST} are needed."
    )


def _is_strange(audit: Audit) -> bool:
    """Whether no true text is known, and the recovered ones are much farther from the vectors than the test texts."""
    if audit.measured or len(audit.known) < calibration.SMALLEST:
        return False
    usual = np.median(audit.known)
    return bool(usual >= USUAL and np.median(audit.cosines) < NEAR * usual)


def _shift(audit: Audit) -> list[str]:
    """A warning if shares are estimated and the cosines are not those of the test texts (Kolmogorov-Smirnov test)."""
    store, known = audit.cosines, audit.known
    if audit.measured or len(known) < calibration.SMALLEST or _is_strange(audit):
        return []
    # Rounded: the last bits of equal texts' cosines differ between batch sizes.
    gap = stats.ks_2samp(np.round(store, calibration.DIGITS), np.round(known, calibration.DIGITS))
    if gap.statistic <= SHIFT or gap.pvalue >= SURE:
        return []
    lower = np.median(store) < np.median(known)
    return [
        f"The store's text looks unlike the attacker's test texts: recovered texts come {'less' if lower else 'more'} "
        f"near to its vectors (median cosine {np.median(store):.2f} against {np.median(known):.2f}). What is estimated "
        "from those texts may be off beyond the intervals"
        + (", and an attacker who trains on text like the store's reads more." if lower else ".")
    ]


def _run(settings: DictConfig, config: DictConfig) -> dict[str, str]:
    groups = {"attack": "attack", "embedder": "embedder", "defense": "defense", "data": "datamodule"}
    named = {name: str(config.choices.get(group) or "") for name, group in groups.items()}
    return {"directory": str(settings.run_as), **{name: value for name, value in named.items() if value}}


def _named(settings: DictConfig, store: str) -> tuple[str, ...]:
    """The overrides that name the store; a collection that was not chosen is the only one: ``chroma:db (notes)``."""
    collection = settings.collection or store.partition(f"{settings.vectors} (")[2].removesuffix(")")
    return (f"vectors={settings.vectors}", *([f"collection={quoted(collection)}"] if collection else []))
