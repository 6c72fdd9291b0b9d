"""Several options of one group, in order: ``'defense=[masking,noise]'`` written as Hydra composes it.

    defense=chain +defense@defense.masking=masking +defense@defense.noise=noise choices.defense=masking+noise

Hydra itself would merge the options of a list into one node. A group takes a list where it has an option ``chain``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from configuration.sources import options

CHAIN = "chain"


def unrolled(lines: Sequence[str]) -> list[str]:
    """``lines`` with each list of known options in the place of which Hydra's own lines stand; others as they are."""
    search = tuple(line for line in lines if line.startswith("hydra.searchpath"))
    return [new for line in lines for new in (_unrolled(line, search) if "=[" in line else [line])]


def swept_chains(lines: Sequence[str]) -> list[str]:
    """A message for each sweep over lists, which would be merged."""
    parser = OverridesParser.create()
    errors = []
    for line in (line for line in lines if "=[" in line):
        try:
            parsed = parser.parse_override(line)
        except HydraException:
            continue  # reported where it is parsed in earnest
        if parsed.is_sweep_override() and CHAIN in options(parsed.key_or_group):
            errors.append(f"{line}: lists of {parsed.key_or_group} cannot be swept over; start a run for each")
    return errors


def _unrolled(line: str, search: tuple[str, ...]) -> list[str]:
    try:
        parsed = OverridesParser.create().parse_override(line)
    except HydraException:
        return [line]
    group, valid = parsed.key_or_group, options(parsed.key_or_group, search)
    chosen = parsed.value()
    if CHAIN not in valid or not isinstance(chosen, list) or not all(option in valid for option in chosen):
        return [line]
    steps, seen = [], Counter[str]()
    for option in map(str, chosen):
        seen[option] += 1
        name = option if seen[option] == 1 else f"{option}_{seen[option]}"
        steps.append(f"+{group}@{group}.{name}={option}")
    return [f"{group}={CHAIN}", *steps, f"choices.{group}={'+'.join(map(str, chosen)) or CHAIN}"]
