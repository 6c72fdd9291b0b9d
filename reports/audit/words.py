"""What an audit says in plain sentences: the lead, and how the figures were made and what they leave out."""

from __future__ import annotations

from reports.audit.findings import Audit, Share, Tried

_SPACE = "\u00a0"  # a number and its unit stay on one line


def percent(value: float) -> str:
    """A share that never rounds to nothing or to all."""
    if 0 < value < 0.0005:
        return f"< 0.1{_SPACE}%"
    if 0.9995 < value < 1:
        return f"> 99.9{_SPACE}%"
    return f"{100 * value:.{0 if value >= 0.0995 or value == 0 else 1}f}{_SPACE}%"


def interval(share: Share) -> str:
    """Its 95 % interval."""
    return f"{percent(share.low).removesuffix(f'{_SPACE}%')} to {percent(share.high)}"


def shown(probability: float | None) -> str:
    """A probability, 0 to 1; a dash where it is not known."""
    return "–" if probability is None else percent(probability)  # noqa: RUF001


def counted(number: int, thing: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def lead(audit: Audit) -> str:
    """What was found, in a few sentences that a reader without the method understands."""
    rows = counted(audit.sampled, "vector")
    if audit.readable is None:
        return f"This attacker turned {rows} of the store back into text. How much of that is right is not known."
    how = "" if audit.measured else "an estimated "
    exact = ""
    if audit.exact is not None:
        exact = f", and {percent(audit.exact.value)} come back word for word"
    texts = (
        f" of the {counted(audit.readable.rows, 'text')} whose truth is known" if audit.measured else " of the texts"
    )
    drawn = "" if audit.sampled == audit.size else ", drawn at random"
    first = (
        "Whoever copies this store and has an attacker like this one recovers nearly all words of "
        f"{how}{percent(audit.readable.value)}{texts} (95{_SPACE}% interval {interval(audit.readable)}){exact}. {rows} "
        f"{'was' if audit.sampled == 1 else 'were'} read back{drawn}."
    )
    return " ".join(filter(None, [first, _entities(audit), _best(audit)]))


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
        named = f", most of all {worst.label} ({percent(worst.share.value)})"
    return f"Of the names, numbers and other entities in them, {percent(entities.value)} come back{named}."


def _best(audit: Audit) -> str:
    """The defense that leaves least to read, if it does so beyond chance."""
    others = [one for one in audit.tried[1:] if one.readable is not None]
    plain = audit.tried[0].readable if audit.tried else None
    if not others or plain is None:
        return ""
    best = min(others, key=lambda one: (_value(one), -one.neighbours))
    if best.readable is None or best.readable.high >= plain.low:
        return "None of the defenses tried leaves this attacker less to read beyond chance."
    return (
        f"Of the defenses tried, {best.name} leaves it least: {percent(best.readable.value)} instead of "
        f"{percent(plain.value)} of {counted(audit.tried_on, 'row')}, with {percent(best.neighbours)} of each row's "
        "nearest neighbours kept."
    )


def _value(one: Tried) -> float:
    return 1.0 if one.readable is None else one.readable.value


def limits(audit: Audit) -> list[str]:
    """How the figures were made, and what they leave out; one item each."""
    known = counted(len(audit.known), "test text")
    items = [
        "Each vector was read back by the attack of the run, without knowing its text. The recovered text "
        "was embedded again; the cosine of the two vectors says how near it came.",
        f"A text counts as readable where its word F1 with the truth is {audit.threshold:g} % or more: nearly all its "
        "words, in whatever order. All words count alike: a text may be readable while the one name or number in it is "
        "wrong. “What leaks” says how many of those are right.",
    ]
    if audit.measured and audit.readable is not None:
        items.append(
            f"The shares of readable texts were measured on the {counted(audit.readable.rows, 'row')} whose true text "
            "was given, with Wilson's 95 % interval: for the whole store as far as these rows are a random part of it."
        )
        if "readable" in audit.estimated:
            guess = audit.estimated["readable"]
            items.append(
                f"Without the true texts, {percent(guess.value)} ({interval(guess)}) would have been estimated to be "
                f"readable, over all {counted(guess.rows, 'row')}: how far such estimates can be trusted here."
            )
    elif audit.readable is not None:
        items.append(
            f"The truth of this store is not known. For {known} of the run it is: what a cosine meant for them "
            "(isotonic regression, Jeffreys' intervals) was applied to the store's rows. The interval covers chance, "
            "not a store whose text differs from those texts."
        )
    items += [
        "One attacker gives a lower bound. More training, text more like the store's, a larger model or more search "
        "read more; nobody can show that nobody reads more.",
        "The attacker has never seen the defenses. Some of them can be undone by one who knows of them, or learns from "
        "pairs of texts and defended vectors (defense.adaptive=true).",
        "Kept neighbours stand in for search quality. evaluate.py experiment=tradeoff measures it with queries.",
    ]
    return items
