"""A defense and the attacker's knowledge of it: the node ``defense`` of a configuration.

    threat = threat_of(config.defense)
    datamodule.connect(embedder, threat.defense, adaptive=threat.adaptive, hypotheses=threat.hypotheses)

A naive attacker is trained on undefended vectors and attacks defended ones; an adaptive attacker is trained on defended
vectors. To compare hypotheses with a vector, an attacker embeds them: with the embedder itself (clean), or through the
defended service (defended; Morris et al. 2023 perturb the embedder).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unembed.defenses.base import Defense

if TYPE_CHECKING:
    from omegaconf import DictConfig

Hypotheses = Literal["clean", "defended"]
KNOWLEDGE = ("adaptive", "hypotheses", "recall")  # keys of the node that are not arguments of the defense


@dataclass(frozen=True, slots=True)
class Threat:
    """A defense with the attacker's knowledge; ``settings`` are the defense's own values, which identify its state."""

    defense: Defense
    adaptive: bool
    hypotheses: Hypotheses
    settings: Mapping[str, Any]

    def dimension(self, clean: int) -> int:
        """Dimension of the vectors that the attack was trained on, for an embedder of dimension ``clean``."""
        return self.defense.output_dimension(clean) if self.adaptive else clean


def threat_of(node: DictConfig) -> Threat:
    """Build the defense of a configuration; without these keys the attacker is naive and the hypotheses are clean."""
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    settings = {str(name): value for name, value in plain.items() if name not in KNOWLEDGE}
    return Threat(
        instantiate(settings, _convert_="all"),
        plain.get("adaptive", False),
        plain.get("hypotheses", "clean"),
        settings,
    )
