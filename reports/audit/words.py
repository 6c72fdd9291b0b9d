"""The texts of an audit report: the summary, and the method with its limits."""

from __future__ import annotations

from reports.audit.findings import Audit, Tried
from reports.numbers import counted, shown

_SPACE = "\u00a0"  # non-breaking space between a number and its unit


def lead(audit: Audit) -> str:
    """A summary in a few sentences for readers who do not know the method."""
    rows = counted(audit.sampled, "vector")
    if audit.readable is None:
        return f"This attacker turned {rows} of the store back into text. How much of that is right is not known."
    how = "" if audit.measured else "an estimated "
    exact = ""
    if audit.exact is not None:
        exact = f", and {audit.exact.shown} come back word for word"
    texts = (
        f" of the {counted(audit.readable.rows, 'text')} whose truth is known" if audit.measured else " of the texts"
    )
    drawn = "" if audit.sampled == audit.size else ", sampled at random"
    like = "attackers like these" if len(audit.attackers) > 1 else "an attacker like this one"
    first = (
        f"This is a lower bound: whoever copies this store and has {like} recovers nearly all words of "
        f"{how}{audit.readable.shown}{texts} (95{_SPACE}% interval {audit.readable.reach}){exact}. {rows} "
        f"{'was' if audit.sampled == 1 else 'were'} read back{drawn}."
    )
    return " ".join(filter(None, [first, _alone(audit), _entities(audit), _best(audit)]))


def _alone(audit: Audit) -> str:
    """What each attacker reads by itself, if there are several."""
    shares = {one.name: one.readable for one in audit.attackers}
    attack, lookup = shares.get("attack"), shares.get("lookup")
    if attack is None or lookup is None:
        return ""
    return (
        f"The run's attack reads {attack.shown}, a lookup of the nearest training text {lookup.shown}; the largest "
        "share counts."
    )


def _entities(audit: Audit) -> str:
    entities = audit.entities
    if entities is None:
        return ""
    worst = max(
        (kind for kind in audit.kinds if kind.share is not None and kind.total >= 10),
        key=lambda kind: kind.share.value if kind.share is not None else 0.0,
        default=None,
    )
    named = ""
    if worst is not None and worst.share is not None and worst.share.value > 0:
        named = f", most of all {worst.label} ({worst.share.shown})"
    return f"Of the names, numbers and other entities in them, {entities.shown} come back{named}."


def _best(audit: Audit) -> str:
    """The defense that leaves its best attacker least, if the difference is significant and one attacker knows it."""
    others = [one for one in audit.tried[1:] if one.worst is not None]
    plain = audit.tried[0].worst if audit.tried else None
    if not others or plain is None:
        return ""
    if any(one.lookup is None for one in others):
        return (
            "No defense is recommended: the only attacker knew nothing of them, and one who does reads more "
            "(defense.adaptive=true)."
        )
    best = min(others, key=lambda one: (_value(one), -one.neighbours))
    if best.worst is None or best.worst.high >= plain.low:
        return "None of the defenses tried leaves the attackers less to read beyond chance."
    return (
        f"Of the defenses tried, {best.name} leaves them least: {best.worst.shown} instead of "
        f"{plain.shown} of {counted(audit.tried_on, 'row')}, with {shown('share', best.neighbours)} of each row's "
        "nearest neighbours kept. An attack that is trained on such vectors may read more (defense.adaptive=true)."
    )


def _value(one: Tried) -> float:
    return 1.0 if one.worst is None else one.worst.value


def limits(audit: Audit) -> list[str]:
    """Notes on the method and its limits, one item each."""
    known = counted(len(audit.known), "test text")
    items = [
        "Each vector was read back by the attack of the run, without knowing its text. The recovered text "
        "was embedded again; the cosine of the two vectors says how near it came.",
        f"A text counts as readable where its word F1 with the truth is {audit.threshold:g} % or more: nearly all its "
        "words, in whatever order. All words count alike: a text may be readable while the one name or number in it is "
        "wrong. “What leaks” says how many of those are right.",
    ]
    if len(audit.attackers) > 1:
        items.append(
            "Three attackers: the run's attack, a lookup of the nearest training text of that run, and one who has "
            "both and takes the text whose vector is nearer to the stored one. The largest share of each kind counts; "
            "rows are listed with the last one's text."
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
        "The run's attack has never seen the defenses; the lookup knows them and compares with defended training "
        "vectors, or with undefended ones where these are nearer. An attack that learns from defended vectors "
        "(defense.adaptive=true) may read more than either.",
        "Kept neighbours stand in for search quality. evaluate.py experiment=tradeoff measures it with queries.",
    ]
    return items
