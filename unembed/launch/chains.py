"""Lists of options of one group, in order: ``'defense=[masking,noise]'`` is rewritten to what Hydra can compose.

    defense=chain +defense@defense.masking=masking +defense@defense.noise=noise choices.defense=masking+noise

Hydra would merge the listed options into one node. A group accepts a list if it has an option ``chain``.
"""

from __future__ import annotations

import functools
from collections import Counter

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from unembed.launch.sources import options

CHAIN = "chain"


@functools.cache
def parsed(line: str) -> Override:
    """Parse an override with Hydra's parser.

    Raises:
        HydraException: It cannot be parsed.
    """
    return OverridesParser.create().parse_override(line)


def unrolled(override: Override, search: tuple[str, ...]) -> list[Override]:
    """The override itself, or those that replace its list of options; ``search`` as for :func:`options`.

    Raises:
        HydraException: It sweeps over lists, which Hydra would merge.
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
