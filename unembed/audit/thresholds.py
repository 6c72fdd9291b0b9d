"""Thresholds of an audit, the shares above which a pipeline fails; and what changed since an earlier audit.

    conditions = parse("readable>5,entities.first_name>1,classes.names>10")        # in percent
    [threshold.passed for threshold in judge(conditions, audit)]
    changes(audit, read_audit(Path("audits/may/audit.json")))

A condition is compared with the upper end of the 95 % interval, measured or estimated, so a small sample does not pass
by luck. It passes where the upper end is equal to the percentage.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from unembed.audit.exposure import OTHER, shown_classes
from unembed.audit.results import Audit, Change, Condition, Threshold
from unembed.core.errors import InputError, did_you_mean

KEY = "fail_on"
SHARES = ("readable", "exact", "entities")
KIND, CLASS = "entities.", "classes."
_NAMES = (*SHARES, *(f"{CLASS}{name}" for name in shown_classes({OTHER})))
_CHOICES = (*SHARES, f"{KIND}<kind>", f"{CLASS}<class>")
_DIGITS = 9  # of a percentage, so that .07 is 7 % and not 7.000000000000001 %
_FORM = re.compile(r"\s*([\w.\- ]+?)\s*>\s*(\d+(?:\.\d+)?)\s*%?\s*")


def parse(text: str | None) -> list[Condition]:
    """The conditions of ``fail_on``; none for null."""
    conditions = []
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
        conditions.append(Condition(name=name, percent=percent))
    return conditions


def check_kinds(conditions: Sequence[Condition], kinds: Collection[str], *, any_kind: bool) -> None:
    """Refuse kinds of entities that cannot be counted in this audit, before anything is read.

    Args:
        conditions: The thresholds.
        kinds: Kinds in the true texts, and those that the tagger finds.
        any_kind: Whether the tagger may find others, which are not known before.
    """
    for one in conditions:
        label = one.name.removeprefix(KIND)
        if one.name.startswith(KIND) and label not in kinds and not any_kind:
            raise InputError(
                f"{KEY}={one.text}: entities of kind {label!r} are not counted here, {did_you_mean(label, kinds)}; "
                "true texts with spans (texts=<file>) or scoring/tagger add others"
            )


def judge(conditions: Sequence[Condition], audit: Audit) -> list[Threshold]:
    """Compare each condition with the audit; none passes if the audit says little of the store."""
    thresholds = [_compared(one, audit) for one in conditions]
    for one in thresholds:
        if audit.unjudged and one.passed:
            one.passed, one.share = False, None
            one.said = f"{KEY}={one.text}: cannot be judged. {audit.unjudged.removesuffix('.')}"
    return thresholds


def _compared(one: Condition, audit: Audit) -> Threshold:
    shares = {f"{KIND}{kind.label}": kind.share for kind in audit.kinds}
    shares |= {f"{CLASS}{each.name}": each.share for each in audit.classes if each.total}
    if audit.kinds:
        shares["entities"] = audit.entities
    for name in ("readable", "exact"):  # of the attacker whose interval reaches highest
        known = (share for each in (audit, *audit.attackers) if (share := getattr(each, name)) is not None)
        shares[name] = max(known, key=lambda share: share.high, default=None)
    share, passed = shares.get(one.name), False
    if one.name not in shares:
        passed, said = True, f"{one.text}: none was found in the {'true' if audit.measured else 'recovered'} texts"
    elif share is None:
        said = f"{KEY}={one.text}: cannot be judged, since it was neither measured nor estimated; give texts=<file>"
    else:
        upper = round(100 * share.high, _DIGITS)
        passed, said = upper <= one.percent, f"{one.text}: {share.shown} (95 % interval {share.reach})"
        if not passed:
            said += f": its upper end, {upper:.6g} %, is above {one.percent:g} %"
    return Threshold(name=one.name, percent=one.percent, passed=passed, said=said, share=share)


# -- since an earlier audit --------------------------------------------------------------------------------------------


def changes(audit: Audit, before: Audit) -> list[Change]:
    """The shares that both audits have, those of kinds of entities included."""
    then = before.shares()
    return [
        Change(name=name, before=then[name], after=now, apart=now.low > then[name].high or now.high < then[name].low)
        for name, now in audit.shares().items()
        if name in then
    ]


def incomparable(audit: Audit, before: Audit) -> list[str]:
    """Why the two may not be comparable."""
    warnings = []
    directories = [Path(run.get("directory", "")).expanduser().resolve() for run in (before.run, audit.run)]
    if before.threshold != audit.threshold:
        warnings.append(
            f"Texts counted as readable from a word F1 of {before.threshold:g} % in the baseline, and of "
            f"{audit.threshold:g} % here."
        )
    then, now = (sorted((one.name, one.label) for one in either.attackers) for either in (before, audit))
    if then != now:
        warnings.append("The baseline had other attackers (lookup=, also=, search=), so a change may come from those.")
    if directories[0] != directories[1]:
        warnings.append(
            f"The baseline was read by another attacker ({before.run.get('directory', 'unknown')}): a change may come "
            "from the attacker and not from the store."
        )
    if audit.readable is not None and before.readable is not None and audit.measured != before.measured:
        warnings.append("Only one of the two audits was measured on true texts; the other one estimates.")
    return warnings
