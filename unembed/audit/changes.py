"""What changed since an earlier audit of the same or another store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unembed.audit.file import AuditFile, ShareIn
from unembed.audit.findings import Audit, AuditedShare
from unembed.reports.numbers import interval, shown


@dataclass(frozen=True, slots=True)
class Change:
    """A share in both audits, and whether their intervals are apart."""

    name: str
    before: AuditedShare
    after: AuditedShare

    @property
    def apart(self) -> bool:
        return self.after.low > self.before.high or self.after.high < self.before.low

    @property
    def said(self) -> str:
        """One sentence."""
        ends = interval("share", (self.before.low, self.before.high))
        moved = "changed" if self.apart else "did not change beyond chance"
        before = f"{shown('share', self.before.value)} ({ends}) before"
        return f"{self.name} {moved}: {self.after.shown} ({self.after.reach}), {before}."


def changes(audit: Audit, before: AuditFile) -> list[Change]:
    """The shares that both audits have, those of kinds of entities included, where they mean the same in both."""
    now = {"readable": audit.readable, "exact": audit.exact} | _kinds(audit)
    then = {"readable": before.readable, "exact": before.exact}
    then |= {f"entities.{kind.label}": kind.share for kind in before.kinds}
    return [
        Change(name, _plain(then[name]), share)
        for name, share in now.items()
        if share is not None and then.get(name) is not None
    ]


def warned(audit: Audit, before: AuditFile) -> list[str]:
    """Why the two may not be comparable."""
    found = []
    directories = [Path(run.get("directory", "")).expanduser().resolve() for run in (before.run, audit.run)]
    if before.threshold != audit.threshold:
        found.append(
            f"Texts counted as readable from a word F1 of {before.threshold:g} % in the baseline, and of "
            f"{audit.threshold:g} % here."
        )
    then, now = ([(one.name, one.label) for one in attackers] for attackers in (before.attackers, audit.attackers))
    if sorted(then) != sorted(now):
        found.append("The baseline had other attackers (lookup=, also=, search=), so a change may come from those.")
    if directories[0] != directories[1]:
        found.append(
            f"The baseline was read by another attacker ({before.run.get('directory', 'unknown')}): a change may come "
            "from the attacker and not from the store."
        )
    measured = [one.measured for one in (before.readable, audit.readable) if one is not None]
    if len(set(measured)) > 1:
        found.append("Only one of the two audits was measured on true texts; the other one estimates.")
    return found


def _kinds(audit: Audit) -> dict[str, AuditedShare | None]:
    return {f"entities.{kind.label}": kind.share for kind in audit.kinds}


def _plain(share: ShareIn | None) -> AuditedShare:
    assert share is not None  # chosen so
    return AuditedShare(share.value, share.low, share.high, share.rows, share.measured)


def summary(found: Sequence[Change]) -> str:
    """The sentence of the first share."""
    return f"Since the baseline: {found[0].said}" if found else ""
