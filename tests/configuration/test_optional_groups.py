"""Groups that a run need not have chosen, such as ``denoiser``, are added, changed and left out again."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from unembed.core.errors import InputError
from unembed.launch.composing import amend

RUN = OmegaConf.create({"choices": {"defense": "none"}, "seed": 0})


def test_a_denoiser_is_added_and_left_out_again() -> None:
    chosen = amend(RUN, ["denoiser=gaussian", "denoiser.level=0.1"])
    assert (chosen.choices.denoiser, chosen.denoiser.level) == ("gaussian", 0.1)
    without = amend(chosen, ["denoiser=null"])
    assert (without.denoiser, without.choices.denoiser) == (None, None)


@pytest.mark.parametrize("run", [RUN, OmegaConf.merge(RUN, {"denoiser": None})])
def test_a_key_of_a_denoiser_that_is_not_chosen_names_the_group(run: object) -> None:
    with pytest.raises(InputError, match="denoiser is not chosen, add denoiser=<option>; valid: gaussian"):
        amend(run, ["denoiser.level=0.1"])  # type: ignore[arg-type]
