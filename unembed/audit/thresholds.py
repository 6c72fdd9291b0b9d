"""Thresholds of an audit: the shares above which a pipeline fails.

    conditions = parse("readable>5,entities.first_name>1,classes.names>10")        # in percent
    [outcome.passed for outcome in judge(conditions, audit)]

A condition is compared with the upper end of the 95 % interval, measured or estimated, so a small sample does not pass
by luck. It passes where the upper end is equal to the percentage.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from unembed.audit.exposure import OTHER, shown_classes
from unembed.audit.findings import Audit, AuditedShare
from unembed.core.errors import InputError, did_you_mean
from unembed.reports.numbers import shown

KEY = "fail_on"
SHARES = ("readable", "exact", "entities")
KIND, CLASS = "entities.", "classes."
_NAMES = (*SHARES, *(f"{CLASS}{name}" for name in shown_classes({OTHER})))
_CHOICES = (*SHARES, f"{KIND}<kind>", f"{CLASS}<class>")
_DIGITS = 9  # of a percentage, so that .07 is 7 % and not 7.000000000000001 %
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
        InputError: Not ``name>percent``, an unknown name or class, or a percentage above 100.
    """
    found = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        match = _FORM.fullmatch(part)
        if match is None:
            raise InputError(f"{KEY}={part.strip()}: write name>percent, such as readable>5 or classes.names>10")
        name, percent = match[1], float(match[2])
        if name not in _NAMES and not name.startswith(KIND):
            near = [one for one in _NAMES if one.startswith(CLASS)] if name.startswith(CLASS) else _CHOICES
            raise InputError(f"{KEY}={part.strip()}: {name!r} is no share, {did_you_mean(name, near)}")
        if percent > 100:
            raise InputError(f"{KEY}={part.strip()}: {percent:g} percent is more than all")
        found.append(Condition(name, percent))
    return found


def check_kinds(conditions: Sequence[Condition], kinds: Collection[str], *, any_kind: bool) -> None:
    """Refuse kinds of entities that cannot be counted in this audit, before anything is read.

    Args:
        conditions: The thresholds.
        kinds: Kinds in the true texts, and those that the tagger finds.
        any_kind: Whether the tagger may find others, which are not known before.

    Raises:
        InputError: A condition on another kind, which would hold whatever leaks.
    """
    for one in conditions:
        label = one.name.removeprefix(KIND)
        if one.name.startswith(KIND) and label not in kinds and not any_kind:
            raise InputError(
                f"{KEY}={one.text}: entities of kind {label!r} are not counted here, {did_you_mean(label, kinds)}; "
                "true texts with spans (texts=<file>) or scoring/tagger add others"
            )


def judge(conditions: Sequence[Condition], audit: Audit) -> list[Outcome]:
    """Compare each condition with the audit; none passes if the audit says little of the store."""
    outcomes = [_compared(one, audit) for one in conditions]
    if not audit.unjudged:
        return outcomes
    said = f"cannot be judged. {audit.unjudged.removesuffix('.')}"
    return [
        Outcome(one.condition, None, False, f"{KEY}={one.condition.text}: {said}") if one.passed else one
        for one in outcomes
    ]


def _compared(one: Condition, audit: Audit) -> Outcome:
    parts = {f"{KIND}{kind.label}": kind.share for kind in audit.kinds}
    parts |= {f"{CLASS}{each.name}": each.share for each in audit.classes if each.total}
    if audit.kinds:
        parts["entities"] = audit.entities
    if one.name not in ("readable", "exact") and one.name not in parts:
        where = "in the true texts" if audit.measured else "in the recovered texts"
        return Outcome(one, None, True, f"{one.text}: none was found {where}")
    share = parts[one.name] if one.name in parts else _largest(one.name, audit)
    if share is None:
        said = f"{KEY}={one.text}: cannot be judged, since it was neither measured nor estimated; give texts=<file>"
        return Outcome(one, None, False, said)
    upper = round(100 * share.high, _DIGITS)
    said = f"{one.text}: {share.shown} (95 % interval {share.reach})"
    if upper <= one.percent:
        return Outcome(one, share, True, said)
    return Outcome(one, share, False, f"{said}: its upper end, {upper:.6g} %, is above {one.percent:g} %")


def _largest(name: str, audit: Audit) -> AuditedShare | None:
    """The share of the attacker whose interval reaches highest; ``name`` is readable or exact."""
    shares = [audit.readable, *(one.readable for one in audit.attackers)]
    if name == "exact":
        shares = [audit.exact, *(one.exact for one in audit.attackers)]
    return max((one for one in shares if one is not None), key=lambda one: one.high, default=None)


def summary(outcomes: Sequence[Outcome]) -> str:
    """One sentence: how many thresholds are exceeded, and by how much the first."""
    failed = [one for one in outcomes if not one.passed]
    if not outcomes:
        return ""
    if not failed:
        return f"All {len(outcomes)} thresholds hold." if len(outcomes) > 1 else "The threshold holds."
    first = failed[0]
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    if first.share is None:
        return f"FAILED: {first.condition.text} could not be judged{more}."
    return f"FAILED: {first.condition.text}, since the interval reaches {shown('share', first.share.high)}{more}."
