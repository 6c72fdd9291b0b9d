"""Several options of one group, in order: ``'defense=[masking,noise]'`` written as Hydra composes it.

    defense=chain +defense@defense.masking=masking +defense@defense.noise=noise choices.defense=masking+noise

Hydra itself would merge the options of a list into one node. A group takes a list where it has an option ``chain``.
"""

from __future__ import annotations

import functools
from collections import Counter

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from configuration.sources import options

CHAIN = "chain"


@functools.cache
def parsed(line: str) -> Override:
    """An override, read by Hydra's parser.

    Raises:
        HydraException: It is none.
    """
    return OverridesParser.create().parse_override(line)


def unrolled(override: Override, search: tuple[str, ...]) -> list[Override]:
    """The override itself, or those that stand for its list of options; ``search`` as for :func:`options`.

    Raises:
        HydraException: It sweeps over lists, which would be merged.
    """
    group, chosen = override.key_or_group, override.value()
    valid = options(group, search)
    if CHAIN not in valid:
        return [override]
    if override.is_sweep_override() and "=[" in str(override.input_line):
        raise HydraException(f"lists of {group} cannot be swept over; start a run for each")
    if not isinstance(chosen, list) or not all(option in valid for option in chosen):
        return [override]
    steps, seen = [], Counter[str]()
    for option in map(str, chosen):
        seen[option] += 1
        name = option if seen[option] == 1 else f"{option}_{seen[option]}"
        steps.append(f"+{group}@{group}.{name}={option}")
    return [*map(parsed, [f"{group}={CHAIN}", *steps, f"choices.{group}={'+'.join(map(str, chosen)) or CHAIN}"])]
