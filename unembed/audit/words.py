"""The texts of an audit report: the summary, and the method with its limits."""

from __future__ import annotations

from collections.abc import Sequence

from unembed.audit.exposure import FREE
from unembed.audit.findings import Attacker, Audit, Tried
from unembed.core.commands import command
from unembed.reports.numbers import counted, shown

_SPACE = "\u00a0"  # non-breaking space between a number and its unit
_NAMED = 10  # parts of a class from which the summary names its share
_CALLED = {"e-mail": "e-mail addresses", "phone": "phone numbers", "other": "other entities"}


def answer(audit: Audit) -> str:
    """The result in one sentence, or why there is none, for readers who do not know the method."""
    return audit.unjudged or _result(audit)


def _result(audit: Audit) -> str:
    share = audit.readable
    if share is None:
        return (
            f"{counted(audit.sampled, 'vector')} of this store {_were(audit.sampled)} turned back into text. "
            "How much of that is right is not known."
        )
    said = share.shown if share.measured else f"an estimated {share.shown}"
    how = f"measured on {counted(share.rows, 'text')}, " if share.measured else ""
    who, reads, this = _strongest(audit)
    return (
        f"{who} {reads} {said} of the texts behind these vectors ({how}95{_SPACE}% interval {share.reach}); attackers "
        f"trained longer, or on text more like yours, read more than {this}."
    )


def more(audit: Audit) -> str:
    """What belongs to the answer: what read and bound mean, how many vectors, other attackers, kinds of data."""
    drawn = "" if audit.sampled == audit.size else f" of {audit.size:,}, sampled at random,"
    parts = [f"{counted(audit.sampled, 'vector')}{drawn} {_were(audit.sampled)} read back."]
    if audit.readable is not None:
        exact = "" if audit.exact is None else f"; {audit.exact.shown} came back word for word"
        bound = "The share is a lower bound of what can be read; its interval says how exactly it is known."
        if not audit.measured:
            bound += " The estimate holds as far as the store resembles the attacker's test texts."
        parts = [f"Read means that nearly all words came back{exact}.", bound, *parts, _alone(audit)]
        if audit.unjudged:
            parts.insert(0, _result(audit))
    return " ".join(filter(None, [*parts, _parts(audit)]))


def chosen(audit: Audit) -> str:
    """How the examples were chosen."""
    measured = any(one.reading.f1 is not None for one in audit.examples)
    if measured and any(one.is_readable for one in audit.examples):
        return (
            f"Their true texts are known: with a word F1 of {audit.threshold:g}{_SPACE}% or more they are readable. Of "
            "all readable ones, these have most names, numbers and other entities right, and then most words."
        )
    if measured:
        return "None of the texts whose truth is known is readable: these came nearest."
    if any(one.is_readable for one in audit.examples):
        return "Of those that are more likely readable than not, these have most entities, and then most words."
    return "None is more likely readable than not: these are the likeliest, and may be wrong."


def _strongest(audit: Audit) -> tuple[str, str, str]:
    """The attacker whose share is the headline: its name, its verb, and its pronoun."""
    known = [one for one in audit.attackers if one.readable is not None]
    best = max(known, key=lambda one: one.readable.value if one.readable else 0.0, default=None)
    if best is not None and best.name == "closest":
        return "The attackers together", "read", "these"
    name = "the attacker" if best is None else best.label or f"the {best.name}"
    return name[0].upper() + name[1:], "reads", "this one"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _alone(audit: Audit) -> str:
    """What each attacker reads by itself, if there are several."""
    shares = [(one.label or one.name, one.readable) for one in audit.attackers if one.name != "closest"]
    said = [f"{name}: {share.shown}" for name, share in shares if share is not None]
    return f"Each attacker by itself: {'; '.join(said)}. The largest share counts." if len(said) > 1 else ""


def _parts(audit: Audit) -> str:
    """What comes back of names, numbers and other data, with the shares of the table."""
    known = [
        (_CALLED.get(one.name, one.name), one.share.shown)
        for one in audit.classes
        if one.name != FREE and one.total >= _NAMED and one.share is not None
    ]
    if not known:
        return ""
    (name, share), *rest = known
    begin = f"Of the {name} in these texts" if audit.measured else f"By estimate, of the {name} in these texts"
    return ", ".join([f"{begin} {share} come back", *(f"of the {name} {share}" for name, share in rest)]) + "."


def insider(one: Attacker) -> str:
    """What somebody reads who knows the other texts of the store."""
    share = "" if one.readable is None else f"{one.readable.shown} ({one.readable.reach})"
    return (
        f"Whoever knows the other texts of the store, such as an earlier copy of it, reads {share} by the nearest of "
        f"them alone ({one.label}); the headline does not count this."
    )


def best_defense(audit: Audit) -> str:
    """The defense that leaves its best attacker least, if the difference is significant and one attacker knows it."""
    if audit.unjudged and audit.readable is None:
        return ""
    best, plain = least_read(audit.tried[1:]), audit.tried[0].worst if audit.tried else None
    if best is None or best.worst is None or plain is None:
        return ""
    if any(one.lookup is None for one in audit.tried[1:] if one.worst is not None):
        return "No defense is recommended: no attacker here knew of them, and one who does reads more."
    if best.worst.high >= plain.low:
        return "None of the defenses tried leaves the attackers less to read beyond chance."
    return (
        f"Of the defenses tried, {best.name} leaves them least: {best.worst.shown} instead of "
        f"{plain.shown} of {counted(audit.tried_on, 'row')}, with {shown('share', best.neighbours)} of each row's "
        "nearest neighbours kept. An attack that is trained on such vectors may read more (defense.adaptive=true)."
    )


def least_read(tried: Sequence[Tried]) -> Tried | None:
    """The defense that leaves its best attacker least; of several, the one that keeps most neighbours."""
    known = [one for one in tried if one.worst is not None]
    return min(known, key=lambda one: (_value(one), -one.neighbours), default=None)


def _value(one: Tried) -> float:
    return 1.0 if one.worst is None else one.worst.value


def limits(audit: Audit) -> list[str]:
    """Notes on the method and its limits, one item each."""
    known = counted(len(audit.known), "test text")
    items = [
        "In short words: a vector is the list of numbers that an embedder makes of a text. The cosine compares two "
        "vectors; 1 is equal. Word F1 is the share of words that two texts have in common. Word for word means all "
        "words in their order; case, punctuation and spaces do not count, which many embedders ignore. A 95 % "
        "interval is made so that it holds the true share for 95 of 100 samples, as far as only chance is at work.",
        "Each vector was read back by the attack of the run, without knowing its text. The recovered text "
        "was embedded again; the cosine of the two vectors is a measure of how near it came.",
        f"A text counts as readable where its word F1 with the truth is {audit.threshold:g} % or more: nearly all its "
        "words, in whatever order. All words count alike: a text may be readable while the one name or number in it is "
        "wrong. “What kinds of data leak” shows how many of those come back.",
    ]
    if len(audit.attackers) > 1:
        items.append(
            f"{len(audit.attackers)} attackers: “Who reads how much” names them. The largest share counts; rows are "
            "listed with the last one's text. The one that takes the closest text of all compares each text's own "
            "vector with the stored one."
        )
    if all(one.name != "lookup" for one in audit.attackers):
        items.append(
            "No attacker looked up the nearest text of a collection: a shipped attacker comes without its training "
            "text, or lookup=0 was set. Whoever has text like the store's may find more by that alone."
        )
    if audit.measured and audit.readable is not None:
        items.append(
            f"The shares of readable texts were measured on the {counted(audit.readable.rows, 'row')} whose true text "
            "was given, with Wilson's 95 % interval: for the whole store as far as these rows are a random part of it."
        )
        if "readable" in audit.estimated:
            guess = audit.estimated["readable"]
            items.append(
                f"Without the true texts, {guess.shown} ({guess.reach}) would have been estimated to be "
                f"readable, over all {counted(guess.rows, 'row')}: how far such estimates can be trusted here."
            )
    elif audit.readable is not None:
        items.append(
            f"The truth of this store is not known. For {known} of the attacker it is: what cosine and length of a "
            "recovered text meant for them (logistic regression) was applied to the store's rows. This is an estimate "
            "if the store resembles the attacker's test texts. The interval covers chance, and that domains of text "
            "differ: as the attacker's test texts of several domains do, or, where all are of one, as measured "
            "elsewhere and by how unlike the cosines and lengths are."
        )
    items += [
        "Attackers give a lower bound. More training, text more like the store's, a larger model or more search "
        "read more; no experiment can rule out a better attacker.",
        "The run's attack was trained without the defenses; the lookup compares with training vectors that are "
        "defended alike, or with undefended ones where these are nearer. An attack that is trained on defended vectors "
        "(defense.adaptive=true) may read more than either.",
        "Kept neighbours stand in for search quality; with queries, it is measured by "
        f"{command('evaluate', 'run=<dir>', 'experiment=tradeoff', 'collection=<dir>')}.",
    ]
    return items
