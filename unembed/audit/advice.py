"""What the owner of a store should do after an audit: steps with their commands, chosen by what was found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unembed.audit.findings import Audit
from unembed.audit.words import best_defense, least_read
from unembed.core.commands import command, quoted
from unembed.reports.numbers import counted

MOST, ACCEPTED = 95, 5  # percent: the largest threshold that is proposed, and the one proposed above it


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: its title, the reason, and commands."""

    title: str
    text: str
    commands: tuple[str, ...] = ()


def steps(audit: Audit, values: Path | None = None) -> list[Step]:
    """The steps, most important first.

    Args:
        audit: The results.
        values: The path of audit.json, for comparing the next audit with this one.
    """
    run = [f"run={quoted(audit.run['directory'])}"] if audit.run.get("directory") else []
    given = (*run, *audit.named)
    if audit.unjudged and audit.readable is None:
        return [
            Step(
                "Find out what made these vectors",
                "Compare the model, its pooling and what the store does to vectors with the attacker's embedder "
                f"({audit.run.get('embedder', 'minilm')}). Vectors of another embedder, or of a defense, take an "
                "attacker that is trained on such; true texts of some rows (texts=<file>) show whether they belong.",
            )
        ]
    return [
        Step(
            "Treat the vectors as the text itself",
            "Give them the access control, encryption, protected backups and deletion dates of the texts. A copied "
            "vector is a copied text: a low share here is no proof of safety, since a better attacker reads more.",
        ),
        *_rows(audit),
        Step("Choose defenses by what an informed attacker still reads", *_defenses(audit)),
        *_own_text(audit),
        *_truth(audit, given),
        *_pipeline(audit, given, values),
    ]


def _rows(audit: Audit) -> list[Step]:
    if not audit.rows:
        return []
    return [
        Step(
            f"Look at the most exposed {'row' if len(audit.rows) == 1 else 'rows'} first",
            f"The {counted(len(audit.rows), 'row')} that the page and audit.json list came back most surely. Take out "
            "what search does not need, such as names and numbers, before a text is embedded: what is not in the "
            "text is not in the vector.",
        )
    ]


def _defenses(audit: Audit) -> tuple[str, tuple[str, ...]]:
    """What was tried, what an informed attacker still reads behind it, and the command that trains such an attacker."""
    same = [one for one in audit.tried[1:] if one.dimension == audit.dimension]  # the attacker's weights fit
    best, tried = best_defense(audit), least_read(same) or least_read(audit.tried[1:])
    if not best or tried is None:
        return "None was tried with a result; the key defenses= names those to try.", ()
    known = [one for one in audit.tried[1:] if one.lookup is not None and one.worst is not None]
    still = "; ".join(f"{one.name} {one.worst.shown}" for one in known if one.worst is not None)
    said = f"{best} Still read, by the better of the attackers tried: {still}." if still else best
    if not audit.run.get("directory"):
        return said, ()
    how = "trains an attacker on defended vectors of a sample of your own text; its report says what it reads."
    words = (*_overrides(tried.name), "defense.adaptive=true", "run_dir=runs/defended")
    return f"{said} This command, here with {tried.name}, {how}", (
        _training(audit, *words, anew=tried.dimension != audit.dimension),
    )


def _overrides(name: str) -> list[str]:
    """The overrides of a defense by its name in tables (unembed/launch/points.py): ``noise level=0.01``."""
    parts = [part for part in name.split(" ") if part != "+"]
    options = [part for part in parts if "=" not in part]
    choice = options[0] if len(options) == 1 else f"[{','.join(options)}]"
    return [f"defense={choice}", *(f"defense.{part}" for part in parts if "=" in part)]


def _training(audit: Audit, *words: str, anew: bool = False) -> str:
    """A command that trains on a sample of the owner's text: from the weights of the audit's attacker, or ``anew``."""
    embedder = audit.run.get("embedder", "minilm")
    if not anew:  # init_from= takes over the embedder, with what its option leaves open, such as the model
        begin = [f"init_from={quoted(audit.run['directory'])}"]
    else:
        begin = [] if embedder == "minilm" else [f"embedder={embedder}"]
    return command("train", *begin, "datamodule=files", "datamodule.path=<file>", *words)


def _own_text(audit: Audit) -> list[Step]:
    """Train the attacker further on text like the store's."""
    if not audit.run.get("directory"):
        return []
    return [
        Step(
            "Test with an attacker who knows text like yours",
            "Train this attacker further on a sample of your own text that is not in the store, and audit again: most "
            "attackers can guess what kind of text a store holds, and find more of it.",
            (
                _training(audit, "run_dir=runs/own"),
                command("audit", "run=runs/own", *audit.named),
            ),
        )
    ]


def _truth(audit: Audit, given: Sequence[str]) -> list[Step]:
    if audit.measured:
        return []
    return [
        Step(
            "Measure instead of estimating",
            "Give the true texts of some rows, and the shares are counted instead of estimated.",
            (command("audit", *given, "texts=<file>"),),
        )
    ]


def _pipeline(audit: Audit, given: Sequence[str], values: Path | None) -> list[Step]:
    """A threshold that this store keeps today."""
    shares = [audit.readable, *(one.readable for one in audit.attackers)]
    if audit.readable is None or audit.unjudged:
        return []
    percent = max(math.ceil(100 * one.high) for one in shares if one is not None)
    keeps = f"This store keeps {percent} % today; lower it as you improve."
    if percent > MOST:  # a threshold that nearly nothing exceeds is none
        percent, keeps = ACCEPTED, "This store exceeds it today: lower the share, or set what you accept."
    earlier = {} if values is None else {"baseline": values}
    return [
        Step(
            "Let the build fail when it gets worse",
            f"The exit code is 3 where the upper end of an interval is above the threshold. {keeps}",
            (command("audit", *given, f"fail_on=readable>{percent}", **earlier),),
        )
    ]
