"""Grids of presets: the values under ``hydra.sweeper.params`` of an experiment, as overrides of a multirun.

python train.py -m experiment=geia/table3                        # all cells of the grid
python train.py -m experiment=geia/table3 embedder=sroberta      # the cells with this embedder
python train.py experiment=geia/table3                           # one cell: the preset's own values
python train.py -m experiment=access                             # a grid over experiments: all presets that it lists
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from unembed.core.errors import InputError
from unembed.launch.overrides import Given, elements, key_of, without
from unembed.launch.sources import loading

PARAMS = "hydra.sweeper.params"


def grid_of(config_name: str, words: Sequence[str]) -> dict[str, str]:
    """The swept values of the chosen experiment by key; empty if it is no grid or cannot be composed."""
    given = Given(words)
    chosen = [str(o.input_line) for o in given.groups if o.key_or_group == "experiment" and not o.is_sweep_override()]
    if not chosen or given.wrong_options():
        return {}
    with loading() as loader:
        try:
            composed = loader.load_configuration(config_name, [*given.search, *chosen], RunMode.RUN, from_shell=False)
            params = OmegaConf.select(composed, PARAMS)
            return {str(key): str(value) for key, value in (params or {}).items()}
        except (HydraException, OmegaConfBaseException):  # reported by survey
            return {}


def spread_out(config_name: str, words: Sequence[str]) -> list[str]:
    """The overrides of a multirun with the grid of its experiment; a key on the command line replaces the grid's.

    Raises:
        InputError: Several experiments are swept, and one of them is a grid.
    """
    given = Given(words)
    swept = [o for o in given.groups if o.key_or_group == "experiment" and o.is_sweep_override()]
    for line in (line for o in swept for line in elements(o)):
        if grid_of(config_name, [line, *given.search]):
            raise InputError(f"{line}: a grid of its own, so it cannot be swept; run one such experiment at a time")
    grid = grid_of(config_name, words)
    if "experiment" in grid:  # its cells are experiments themselves, in the place of the one that lists them
        words = without(words, "experiment")
    typed = {key_of(word) for word in words}
    cells = [f"{key}={value}" for key, value in grid.items() if key_of(f"{key}=") not in typed]
    # Hydra's sweeper would add the values of the preset again.
    return [*words, *cells, f"{PARAMS}=null"] if grid else list(words)
