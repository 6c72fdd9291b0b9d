"""Tables of an audit, for the terminal, audit.md and the details of its page."""

from __future__ import annotations

from unembed.audit.exposure import NAMES
from unembed.audit.findings import Audit, AuditedShare, Class, Kind
from unembed.reports.numbers import DASH, shown
from unembed.reports.tables import Cell, Line, Table


def classes_table(audit: Audit) -> Table:
    """Exposure by class."""
    columns = ("Exposure by class", "Comes back", "In the true texts" if audit.measured else "In recovered texts")
    lines = []
    for one in audit.classes:
        lines.append(Line(class_name(one), "", (share_cell(one.share), Cell(f"{one.total:,}"))))
    return Table("", columns, tuple(lines))


def kinds_table(columns: tuple[str, ...], kinds: list[Kind]) -> Table:
    """Kinds of entities, how many there are, and the share of them."""
    lines = []
    for kind in kinds:
        lines.append(Line(kind.label, "", (Cell(f"{kind.total:,}"), share_cell(kind.share))))
    return Table("", columns, tuple(lines))


def attackers_table(audit: Audit) -> Table:
    """What each attacker reads."""
    lines = tuple(
        Line(
            one.label or one.name,
            one.cost,
            (share_cell(one.readable), share_cell(one.exact), Cell(shown("cosine", one.cosine))),
        )
        for one in audit.attackers
    )
    return Table("", ("Attacker", "Readable", "Word for word", "Cosine"), lines)


def tried_table(audit: Audit) -> Table:
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
        cells = [
            Cell("not by this attacker", ("the vectors are longer",)) if unread else share_cell(one.readable),
            *([share_cell(one.lookup)] if lookup else []),
            share_cell(one.exact),
            *([share_cell(one.entities)] if entities else []),
            Cell(shown("cosine", one.cosine)),
            Cell(shown("share", one.neighbours)),
        ]
        lines.append(Line(one.name, "", tuple(cells)))
    return Table("", columns, tuple(lines))


def class_name(one: Class) -> str:
    """A class of data, and that its names were found by their form alone where they were."""
    return f"{one.name} (by form)" if one.found == "form" and one.name == NAMES else one.name


def share_cell(share: AuditedShare | None) -> Cell:
    """A share with its interval below it; a dash for None."""
    return Cell(DASH) if share is None else Cell(share.shown, (share.reach,))


def held(passed: bool, share: AuditedShare | None) -> str:
    """The outcome of a threshold; one that does not hold for want of a share was not judged."""
    return "holds" if passed else "NOT JUDGED" if share is None else "EXCEEDED"
