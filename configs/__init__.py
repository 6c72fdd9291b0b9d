"""The configurations, a folder a group; Hydra composes them.

A package adds its own, in a folder ``configs`` of the same layout, by an entry point of the group ``unembed``:

    [project.entry-points.unembed]
    mine = "unembed_mine"
"""

import functools
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

GROUP = "unembed"


@functools.cache
def folders() -> tuple[Path, ...]:
    """This folder, then those of installed packages, by the names of their entry points; no package is imported."""
    found = [Path(__file__).parent]
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        spec = find_spec(entry.value)
        places = [] if spec is None else spec.submodule_search_locations or []
        found += [folder for place in places if (folder := Path(place) / "configs").is_dir()]
    return tuple(found)
