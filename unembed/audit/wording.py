"""What an audit says in the terminal, in audit.md and on its page: the answer, what to do next, and tables.

audit.html.jinja has the words that only the page needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unembed.audit.exposure import FREE, NAMES
from unembed.audit.results import AttackerResult, Audit, DataClass, DefenseResult, Share
from unembed.core.commands import command, quoted
from unembed.reports.numbers import DASH, counted, shown
from unembed.reports.tables import Cell, Line, Table

_SPACE = "\u00a0"  # non-breaking space between a number and its unit
_NAMED = 10  # parts of a class from which the summary names its share
_CALLED = {"e-mail": "e-mail addresses", "phone": "phone numbers", "other": "other entities"}
MOST, ACCEPTED = 95, 5  # percent: the largest threshold that is proposed, and the one proposed above it


# -- the answer --------------------------------------------------------------------------------------------------------


def answer(audit: Audit) -> str:
    """The result in one sentence, or why there is none, for readers who do not know the method."""
    return audit.unjudged or _headline(audit)


def _headline(audit: Audit) -> str:
    share = audit.readable
    if share is None:
        return (
            f"{counted(audit.sampled, 'vector')} of this store {_were(audit.sampled)} turned back into text. "
            "How much of that is right is not known."
        )
    said = share.shown if share.measured else f"an estimated {share.shown}"
    how = f"measured on {counted(share.rows, 'text')}, " if share.measured else ""
    known = [(one.readable.value, one) for one in audit.attackers if one.readable is not None]
    best = max(known, key=lambda pair: pair[0])[1] if known else None
    who = "the attacker" if best is None else best.label or f"the {best.name}"
    who, reads, this = f"{who[0].upper()}{who[1:]}", "reads", "this one"
    if best is not None and best.name == "closest":
        who, reads, this = "The attackers together", "read", "these"
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
        parts = [f"Read means that nearly all words came back{exact}.", bound, *parts]
        if audit.unjudged:
            parts.insert(0, _headline(audit))
        alone = [
            f"{one.title}: {one.readable.shown}"
            for one in audit.attackers
            if one.name != "closest" and one.readable is not None
        ]
        if len(alone) > 1:
            parts.append(f"Each attacker by itself: {'; '.join(alone)}. The largest share counts.")
    known = [
        (_CALLED.get(one.name, one.name), one.share.shown)
        for one in audit.classes
        if one.name != FREE and one.total >= _NAMED and one.share is not None
    ]
    if known:
        (name, share), *rest = known
        begin = f"Of the {name} in these texts" if audit.measured else f"By estimate, of the {name} in these texts"
        parts.append(
            ", ".join([f"{begin} {share} come back", *(f"of the {name} {share}" for name, share in rest)]) + "."
        )
    return " ".join(parts)


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def insider(one: AttackerResult) -> str:
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


def least_read(tried: Sequence[DefenseResult]) -> DefenseResult | None:
    """The defense that leaves its best attacker least; of several, the one that keeps most neighbours."""
    known = [(one.worst.value, -one.neighbours, one) for one in tried if one.worst is not None]
    return min(known, key=lambda one: one[:2])[2] if known else None


# -- what to do next ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: its title, the reason, and commands."""

    title: str
    text: str
    commands: tuple[str, ...] = ()


def steps(audit: Audit, values: Path | None = None) -> list[Step]:
    """What the owner should do, most important first; ``values`` is audit.json, for comparing the next audit with."""
    run = audit.run.get("directory")
    words = (*([f"run={quoted(run)}"] if run else []), *audit.named)
    if audit.unjudged and audit.readable is None:
        return [
            Step(
                "Find out what made these vectors",
                "Compare the model, its pooling and what the store does to vectors with the attacker's embedder "
                f"({audit.run.get('embedder', 'minilm')}). Vectors of another embedder, or of a defense, take an "
                "attacker that is trained on such; true texts of some rows (texts=<file>) show whether they belong.",
            )
        ]
    every = [
        Step(
            "Treat the vectors as the text itself",
            "Give them the access control, encryption, protected backups and deletion dates of the texts. A copied "
            "vector is a copied text: a low share here is no proof of safety, since a better attacker reads more.",
        )
    ]
    if audit.rows:
        every.append(
            Step(
                f"Look at the most exposed {'row' if len(audit.rows) == 1 else 'rows'} first",
                f"The {counted(len(audit.rows), 'row')} that the page and audit.json list came back most surely. Take "
                "out what search does not need, such as names and numbers, before a text is embedded: what is not in "
                "the text is not in the vector.",
            )
        )
    every.append(Step("Choose defenses by what an informed attacker still reads", *_defenses(audit)))
    if run:
        every.append(
            Step(
                "Test with an attacker who knows text like yours",
                "Train this attacker further on a sample of your own text that is not in the store, and audit again: "
                "most attackers can guess what kind of text a store holds, and find more of it.",
                (_training(audit, "run_dir=runs/own"), command("audit", "run=runs/own", *audit.named)),
            )
        )
    if not audit.measured:
        every.append(
            Step(
                "Measure instead of estimating",
                "Give the true texts of some rows, and the shares are counted instead of estimated.",
                (command("audit", *words, "texts=<file>"),),
            )
        )
    if audit.readable is not None and not audit.unjudged:
        every.append(_threshold(audit, words, values))
    return every


def _defenses(audit: Audit) -> tuple[str, tuple[str, ...]]:
    """What was tried, what an informed attacker still reads behind it, and the command that trains such an attacker."""
    fitting = [one for one in audit.tried[1:] if one.width == audit.width]  # the attacker's weights fit
    best, tried = best_defense(audit), least_read(fitting) or least_read(audit.tried[1:])
    if not best or tried is None:
        return "None was tried with a result; the key defenses= names those to try.", ()
    known = [(one.name, one.worst) for one in audit.tried[1:] if one.lookup is not None]
    still = "; ".join(f"{name} {share.shown}" for name, share in known if share is not None)
    said = f"{best} Still read, by the better of the attackers tried: {still}." if still else best
    if not audit.run.get("directory"):
        return said, ()
    # The name of a defense in tables, as unembed/launch/points.py makes it: ``noise level=0.01``.
    parts = [part for part in tried.name.split(" ") if part != "+"]
    options = [part for part in parts if "=" not in part]
    choice = options[0] if len(options) == 1 else f"[{','.join(options)}]"
    words = [f"defense={choice}", *(f"defense.{part}" for part in parts if "=" in part)]
    how = "trains an attacker on defended vectors of a sample of your own text; its report says what it reads."
    return f"{said} This command, here with {tried.name}, {how}", (
        _training(audit, *words, "defense.adaptive=true", "run_dir=runs/defended", anew=tried.width != audit.width),
    )


def _training(audit: Audit, *words: str, anew: bool = False) -> str:
    """A command that trains on a sample of the owner's text: from the weights of the audit's attacker, or ``anew``."""
    embedder = audit.run.get("embedder", "minilm")
    if not anew:  # init_from= takes over the embedder, with what its option leaves open, such as the model
        begin = [f"init_from={quoted(audit.run['directory'])}"]
    else:
        begin = [] if embedder == "minilm" else [f"embedder={embedder}"]
    return command("train", *begin, "datamodule=files", "datamodule.path=<file>", *words)


def _threshold(audit: Audit, words: Sequence[str], values: Path | None) -> Step:
    """A threshold that this store keeps today."""
    shares = [audit.readable, *(one.readable for one in audit.attackers)]
    percent = max(math.ceil(100 * one.high) for one in shares if one is not None)
    keeps = f"This store keeps {percent} % today; lower it as you improve."
    if percent > MOST:  # a threshold that nearly nothing exceeds is none
        percent, keeps = ACCEPTED, "This store exceeds it today: lower the share, or set what you accept."
    earlier = {} if values is None else {"baseline": values}
    return Step(
        "Let the build fail when it gets worse",
        f"The exit code is 3 where the upper end of an interval is above the threshold. {keeps}",
        (command("audit", *words, f"fail_on=readable>{percent}", **earlier),),
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def classes_table(audit: Audit, title: str = "") -> Table:
    """Exposure by class."""
    columns = ("Exposure by class", "Comes back", "In the true texts" if audit.measured else "In recovered texts")
    rows = [(class_name(one), share_cell(one.share), Cell(f"{one.total:,}")) for one in audit.classes]
    return Table(title, columns, tuple(Line(name, "", tuple(cells)) for name, *cells in rows))


def attackers_table(audit: Audit, title: str = "") -> Table:
    """What each attacker reads."""
    lines = tuple(
        Line(one.title, one.cost, (share_cell(one.readable), share_cell(one.exact), Cell(shown("cosine", one.cosine))))
        for one in audit.attackers
    )
    return Table(title, ("Attacker", "Readable", "Word for word", "Cosine"), lines)


def tried_table(audit: Audit, title: str = "") -> Table:
    """What each defense changes."""
    # Patterns find few kinds of entities: their share would be taken for that of the names and numbers of the classes.
    by_form = all(one.found == "form" for one in audit.classes)
    entities = not by_form and any(one.entities is not None for one in audit.tried)
    lookup = any(one.lookup is not None for one in audit.tried)
    columns = (
        "Defense",
        "Readable",
        *(("By lookup",) * lookup),
        "Word for word",
        *(("Entities read",) * entities),
        "Cosine",
        "Neighbours kept",
    )
    lines = []
    for one in audit.tried:
        unread = one.readable is None and one.cosine is None
        cells = (
            Cell("not by this attacker", ("the vectors are longer",)) if unread else share_cell(one.readable),
            *((share_cell(one.lookup),) * lookup),
            share_cell(one.exact),
            *((share_cell(one.entities),) * entities),
            Cell(shown("cosine", one.cosine)),
            Cell(shown("share", one.neighbours)),
        )
        lines.append(Line(one.name, "", cells))
    return Table(title, columns, tuple(lines))


def class_name(one: DataClass) -> str:
    """A class of data, and that its names were found by their form alone where they were."""
    return f"{one.name} (by form)" if one.found == "form" and one.name == NAMES else one.name


def share_cell(share: Share | None) -> Cell:
    """A share with its interval below it; a dash for None."""
    return Cell(DASH) if share is None else Cell(share.shown, (share.reach,))
