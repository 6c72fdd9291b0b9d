"""Compute all results of an audit from a sample of the store and the run's test texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from omegaconf import DictConfig
from scipy import stats
from torch import Tensor

from unembed.audit import exposure
from unembed.audit.contenders import Contender
from unembed.audit.defenses import Trials, look_up, neighbours_kept, summary, try_defense
from unembed.audit.entity_kinds import leaked, leaked_entities, places
from unembed.audit.estimates import features, length, measured, was_read
from unembed.audit.findings import Attacker, Audit, AuditedShare, Exposed, Reading, Tried, Truth, most
from unembed.audit.lookup import Lookup, among_others
from unembed.audit.masking import masked
from unembed.audit.part_estimates import PartEstimator, estimated_classes, estimated_entities, estimated_kinds
from unembed.audit.reading import Known, StoreReader
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
    sample: Sample,
    truths: Sequence[Truth | None],
    own: Sequence[Contender],
    known_truths: Sequence[Truth],
    tagger: Tagger | None,
    trials: Trials,
    reader: StoreReader,
    lookup: Lookup | None,
) -> Audit:
    """Evaluate the texts that the attackers recovered, and try the defenses.

    Args:
        settings: The settings of configs/audit.yaml.
        config: The run's configuration with overrides.
        sample: The sampled rows of the store.
        truths: Their true texts, as far as they are known.
        own: The attackers, the run's attack first and the closest text of all last.
        known_truths: The run's test texts.
        tagger: Finds entities; None uses recognisers that need no model.
        trials: The defenses to try.
        reader: Inverts vectors with the run's attack.
        lookup: The attacker that knows the defenses; None if there is none.
    """
    ordered = reader.kind == "sequence"
    last = own[-1]
    known = Known(list(known_truths), last.tested)
    attackers = [_judged(one, settings.readable, ordered) for one in own]
    finder = tagger or Recognisers()
    labelled = _with_entities(truths, finder)
    how = "labels" if any(one and one.spans for one in truths) else "tagger" if tagger else "form"
    found = Audit(
        store=sample.name,
        named=_named(settings, sample.name),
        size=sample.size,
        sampled=len(sample.positions),
        dimension=sample.vectors.shape[1],
        run=_run(settings, config),
        threshold=settings.readable,
        masked=not settings.show_text,
        tagged="the labels of the true texts" if how == "labels" else _tagged(tagger),
        readable=most(one.readable for one in attackers),
        exact=most(one.exact for one in attackers),
        cosines=[one.cosine for one in last.readings],
        known=[one.cosine for one in last.estimator.known],
        attackers=attackers,
    )
    learned = last.estimator.learned(settings.readable)
    if found.measured:
        best = max(own, key=lambda one: _value(measured(one.readings, settings.readable)))
        guesses = {"readable": best.estimator.estimated(best.readings, settings.readable)}
        if ordered:
            guesses["exact"] = best.estimator.estimated(best.readings, None)
        found.estimated = {name: guess for name, guess in guesses.items() if guess is not None}
        rows = [row for row, one in enumerate(labelled) if one is not None]
        true = [one for one in labelled if one is not None]
        read = [[one.readings[row] for row in rows] for one in own]
        found.kinds = leaked(true, read, ordered=ordered)
        found.entities = most(leaked_entities(true, one, ordered=ordered) for one in read)
        plain = [one for one in truths if one is not None] if how == "form" else true
        found.insider = _insider(sample.vectors[rows], plain, reader, settings.readable, ordered)
        found.classes = exposure.measured(plain, read, how, ordered=ordered)
    else:
        parts = [PartEstimator.of(one, known_truths, tagger, ordered=ordered) for one in own]
        found.kinds, found.classes = estimated_kinds(parts), estimated_classes(parts, tagger)
        found.entities = estimated_entities(parts)
        found.held_out = leaked(known.truths, [known.readings], ordered=ordered)
    ranked = _exposed(settings, sample, labelled, last.readings, learned, finder)
    distinct = _distinct(ranked)
    found.rows, found.examples = distinct[: settings.exposed], _examples(distinct)
    found.ranked = [(one.id, one.rank, one.probability, one.reading.cosine, one.entities, one.same) for one in ranked]
    found.unjudged = _unjudged(found)
    if _is_strange(found):
        found.readable = found.exact = None  # what a cosine means was learned from vectors of text
    found.warnings = _shift(found)
    if learned is None and not found.measured:
        found.warnings.append(
            f"Nothing can be estimated: the run has {len(found.known)} test texts of known truth, and it takes "
            f"{calibration.SMALLEST}. Test it (evaluate.py), or give the true texts of some rows (texts=<file>)."
        )
    if learned is not None:
        grid = np.linspace(min(found.known), 1.0, CURVE).tolist()
        middle = round(np.median([length(one) for one in last.readings]))
        found.curve = list(zip(grid, learned.probabilities(grid, [middle] * CURVE).tolist(), strict=True))
    found.tried_on = len(trials.chosen)
    trials = replace(trials, rows=replace(trials.rows, truths=[labelled[row] for row in trials.chosen]))
    found.tried = _tried(own, reader, lookup, settings.readable, trials)
    return found


def _judged(one: Contender, readable: float, ordered: bool) -> Attacker:
    return Attacker(
        one.name,
        one.estimator.share(one.readings, readable),
        one.estimator.share(one.readings, None) if ordered else None,
        sum(reading.cosine for reading in one.readings) / len(one.readings),
        one.label,
        one.cost,
    )


def _insider(
    vectors: Tensor, truths: Sequence[Truth], reader: StoreReader, readable: float, ordered: bool
) -> Attacker | None:
    """Who knows the other texts of the store; ``vectors`` (n, d) are those of the ``truths``."""
    if len(truths) < 2:
        return None
    readings = reader.readings(among_others(vectors, truths), vectors, truths)
    exact = measured(readings, None) if ordered else None
    cosine = sum(one.cosine for one in readings) / len(readings)
    label = f"lookup among the {len(truths) - 1:,} other known texts of the store"
    return Attacker("lookup", measured(readings, readable), exact, cosine, label)


def _value(share: AuditedShare | None) -> float:
    return 0.0 if share is None else share.value


def _tried(
    own: Sequence[Contender], reader: StoreReader, lookup: Lookup | None, readable: float, trials: Trials
) -> list[Tried]:
    """The metrics of the undefended rows, then of each defense."""
    rows, attack = trials.rows, own[0]
    read = [attack.readings[row] for row in trials.chosen]
    kept, dimension = neighbours_kept(rows.vectors, rows.vectors), rows.vectors.shape[1]
    tried = [summary("none", rows, read, attack.estimator, reader, readable, kept, dimension)]
    for name, vectors in trials.defended.items():
        tried.append(try_defense(name, vectors, rows, read, attack.estimator, reader, readable, f"defense {name}"))
    second = next((one for one in own if one.name == "lookup"), None)
    if lookup is None or second is None:
        return tried
    near = second.estimator.share([second.readings[row] for row in trials.chosen], readable)
    others = (look_up(one, rows, second.estimator, reader, lookup, readable) for one in trials.defended.values())
    return [replace(one, lookup=looked) for one, looked in zip(tried, [near, *others], strict=True)]


def _exposed(
    settings: DictConfig,
    sample: Sample,
    truth: Sequence[Truth | None],
    readings: Sequence[Reading],
    learned: calibration.Calibration | None,
    tagger: Tagger,
) -> list[Exposed]:
    """All rows, the most exposed first: by entities times probability, then cosine, then length."""
    tagged = tagger.tag([one.text for one in readings])
    likely = [None] * len(readings) if learned is None else learned.probabilities(*features(readings)).tolist()
    same = Counter(" ".join(one.text.split()) for one in readings)
    rows = []
    for row, (reading, spans, known, probability) in enumerate(zip(readings, tagged, truth, likely, strict=True)):
        masks = places(reading.text, known, spans)
        entities = masks if known is None else [span for span in masks if _stands(span_text(reading.text, span), known)]
        if reading.f1 is not None:
            probability = float(was_read(reading, settings.readable))
        rows.append(
            Exposed(
                id=sample.ids[row],
                position=sample.positions[row],
                reading=reading,
                probability=probability,
                kinds=tuple(dict.fromkeys(span.label for span in entities)),
                text=reading.text if settings.show_text else masked(reading.text, masks),
                truth=known.text if settings.show_text and known is not None else None,
                same=same[" ".join(reading.text.split())],
                entities=len(entities),
            )
        )
    return sorted(
        rows,
        key=lambda one: (-one.rank, -(one.reading.f1 or 0), -one.reading.cosine, -len(one.reading.text), one.position),
    )


def _stands(value: str, truth: Truth) -> bool:
    """Whether an entity of a recovered text stands in the true text."""
    return recovered_entities([value], truth.text, ordered=True) > 0


def _distinct(rows: Sequence[Exposed]) -> list[Exposed]:
    """The first row of each recovered text."""
    first = {" ".join(one.reading.text.split()): one for one in reversed(rows)}
    return [one for one in rows if first[" ".join(one.reading.text.split())] is one]


def _examples(rows: Sequence[Exposed]) -> list[Exposed]:
    """Readable rows that tell most, of those whose truth is known if any is; without readable ones the nearest."""
    known = [one for one in rows if one.reading.f1 is not None] or rows
    telling = sorted(known, key=lambda one: (-one.entities, -length(one.reading) * (one.probability or 0)))
    readable = [one for one in telling if one.is_readable]
    nearest = sorted(known, key=lambda one: -(one.reading.f1 or one.probability or one.reading.cosine))
    return (readable or nearest)[:EXAMPLES]


def _with_entities(truths: Sequence[Truth | None], tagger: Tagger) -> list[Truth | None]:
    """True texts with their labelled entities; if no text has labels, with those that the tagger finds."""
    if any(one.spans for one in truths if one is not None):
        return list(truths)
    texts = [one.text for one in truths if one is not None]
    tagged = iter(tagger.tag(texts))
    return [None if one is None else Truth(one.text, next(tagged), one.language) for one in truths]


def _unjudged(found: Audit) -> str:
    """Why the shares say little of the store: its vectors are strange to the attacker, or too few; empty if they do."""
    share = found.readable
    if _is_strange(found):
        return (
            "This audit says nothing of the texts: what was read, embedded again, is nowhere near the vectors (median "
            f"cosine {np.median(found.cosines):.2f}; {np.median(found.known):.2f} for the attacker's test texts). They "
            "are no vectors of text, or another embedder or a defense made them."
        )
    if share is None or share.rows >= FEWEST:
        return ""
    what = "text" if share.measured else "vector"
    return (
        f"{counted(share.rows, what)} {'is' if share.rows == 1 else 'are'} too few to judge the store by: the 95 % "
        f"interval of what is read reaches from {share.reach}. At least {FEWEST} are needed."
    )


def _is_strange(found: Audit) -> bool:
    """Whether no true text is known, and the recovered ones are much farther from the vectors than the test texts."""
    if found.measured or len(found.known) < calibration.SMALLEST:
        return False
    usual = np.median(found.known)
    return bool(usual >= USUAL and np.median(found.cosines) < NEAR * usual)


def _shift(found: Audit) -> list[str]:
    """A warning if shares are estimated and the cosines are not those of the test texts (Kolmogorov-Smirnov test)."""
    store, known = found.cosines, found.known
    if found.measured or len(known) < calibration.SMALLEST or _is_strange(found):
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
    choices = config.choices
    named = {name: str(choices[name]) for name in ("attack", "embedder", "datamodule", "defense") if name in choices}
    named["data"] = named.pop("datamodule", "")
    return {"directory": str(settings.run_as), **{name: value for name, value in named.items() if value}}


def _named(settings: DictConfig, store: str) -> tuple[str, ...]:
    """The overrides that name the store; a collection that was not chosen is the only one: ``chroma:db (notes)``."""
    collection = settings.collection or store.partition(f"{settings.vectors} (")[2].removesuffix(")")
    return (f"vectors={settings.vectors}", *([f"collection={quoted(collection)}"] if collection else []))


def _tagged(tagger: Tagger | None) -> str:
    return "their form alone (mail addresses, cards, ...)" if tagger is None else type(tagger).__name__
