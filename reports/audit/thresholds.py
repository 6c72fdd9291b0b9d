"""Thresholds of an audit: the shares above which a pipeline fails.

    conditions = parse("readable>5,entities.first_name>1")        # in percent
    [outcome.passed for outcome in judge(conditions, audit)]

A condition is compared with the upper end of the 95 % interval, so a small sample does not pass by luck.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from errors import InputError, did_you_mean
from reports.audit.findings import Audit, AuditedShare
from reports.numbers import shown

KEY = "fail_on"
SHARES = ("readable", "exact", "entities")
KIND = "entities."
_FORM = re.compile(r"\s*([\w.\- ]+?)\s*>\s*(\d+(?:\.\d+)?)\s*%?\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A share, and the percentage that its interval must not exceed."""

    name: str
    percent: float

    @property
    def text(self) -> str:
        return f"{self.name}>{self.percent:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A condition, the share that it was compared with (None: nothing of the kind was found), and a sentence."""

    condition: Condition
    share: AuditedShare | None
    passed: bool
    said: str


def parse(text: str | None) -> list[Condition]:
    """The conditions of ``fail_on``; none for null.

    Raises:
        InputError: Not ``name>percent``, an unknown name, or a percentage above 100.
    """
    found = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        match = _FORM.fullmatch(part)
        if match is None:
            raise InputError(f"{KEY}={part.strip()}: write name>percent, such as readable>5 or entities.EMAIL>1")
        name, percent = match[1], float(match[2])
        if name not in SHARES and not name.startswith(KIND):
            raise InputError(
                f"{KEY}={part.strip()}: {name!r} is no share, {did_you_mean(name, [*SHARES, f'{KIND}<kind>'])}"
            )
        if percent > 100:
            raise InputError(f"{KEY}={part.strip()}: {percent:g} percent is more than all")
        found.append(Condition(name, percent))
    return found


def judge(conditions: Sequence[Condition], audit: Audit) -> list[Outcome]:
    """Compare each condition with the audit.

    Raises:
        InputError: A share that was neither measured nor estimated, or an unknown kind of entity.
    """
    return [_judged(one, _share(one, audit)) for one in conditions]


def _judged(one: Condition, share: AuditedShare | None) -> Outcome:
    if share is None:
        return Outcome(one, None, True, f"{one.text}: none was found")
    passed = 100 * share.high <= one.percent
    said = f"{one.text}: {share.shown} (95 % interval {share.reach})"
    return Outcome(one, share, passed, said if passed else f"{said}: its upper end is above {one.percent:g} %")


def _share(one: Condition, audit: Audit) -> AuditedShare | None:
    if one.name.startswith(KIND):
        kinds = {kind.label: kind for kind in (*audit.held_out, *audit.kinds)}
        label = one.name.removeprefix(KIND)
        if label not in kinds:
            raise InputError(f"{KEY}={one.text}: no entity of kind {label!r}, {did_you_mean(label, kinds)}")
        counted = {kind.label: kind.share for kind in audit.kinds}
        if label in counted and counted[label] is None:
            raise InputError(f"{KEY}={one.text}: it was neither measured nor estimated; give texts=<file>")
        return counted.get(label)
    share = {"readable": audit.readable, "exact": audit.exact, "entities": audit.entities}[one.name]
    if share is None and one.name == "entities" and audit.measured:
        raise InputError(
            f"{KEY}={one.text}: no entity is known in the true texts; give spans in them, or scoring/tagger"
        )
    if share is None:
        raise InputError(f"{KEY}={one.text}: it was neither measured nor estimated; give texts=<file>")
    return share


def summary(outcomes: Sequence[Outcome]) -> str:
    """One sentence: how many thresholds are exceeded, and by how much the first."""
    failed = [one for one in outcomes if not one.passed]
    if not outcomes:
        return ""
    if not failed:
        return f"All {len(outcomes)} thresholds hold." if len(outcomes) > 1 else "The threshold holds."
    first = failed[0]
    high = shown("share", first.share.high if first.share is not None else None)
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"FAILED: {first.condition.text}, since the interval reaches {high}{more}."
