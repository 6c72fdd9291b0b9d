"""A defense together with what the attacker knows of it: the node ``defense`` of a configuration.

    threat = threat_of(config.defense)
    datamodule.connect(embedder, threat.defense, adaptive=threat.adaptive, hypotheses=threat.hypotheses)

A naive attacker was trained on undefended vectors and meets defended ones; an adaptive one was trained on defended
vectors. Whoever compares hypotheses with a vector embeds them: with the embedder itself (clean), or through the service
that the defense belongs to (defended; Morris et al. 2023 perturb the embedder).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from defenses.base import Defense

if TYPE_CHECKING:
    from omegaconf import DictConfig

Hypotheses = Literal["clean", "defended"]
KNOWLEDGE = ("adaptive", "hypotheses")  # keys of the node that go to no defense


@dataclass(frozen=True, slots=True)
class Threat:
    """What stands between vectors and attacker.

    Attributes:
        defense: Between the two.
        adaptive: Whether the attacker is trained on defended vectors.
        hypotheses: How what an attack embeds is answered.
        settings: The defense's part of the configuration, plain values: what its fitted state belongs to.
    """

    defense: Defense
    adaptive: bool
    hypotheses: Hypotheses
    settings: Mapping[str, Any]

    def dimension(self, clean: int) -> int:
        """Of the vectors that the attack was trained on, for an embedder of dimension ``clean``."""
        return self.defense.output_dimension(clean) if self.adaptive else clean


def threat_of(node: DictConfig) -> Threat:
    """Build the defense of a configuration; a run from before these keys has a naive attacker and clean hypotheses."""
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
