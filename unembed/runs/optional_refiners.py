"""Leave out the refiners that a run can do without where they cannot work or would cost money.

leave_out(config, cached_embedder, threat_of(config.defense))   # deletes config.attack.refine.lexicon, and says why

The default attack refines its texts by lexicon search, with ``required: false``. A refiner that the user names is
required: where it cannot work, its own ``check`` says so.
"""

from __future__ import annotations

import logging

from omegaconf import DictConfig, open_dict

from unembed.defenses.base import perturbs
from unembed.defenses.threat import Threat
from unembed.embedders.base import Remote
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.core.ranks import is_first

log = logging.getLogger("train")


def optional(config: DictConfig) -> list[str]:
    """The names of the attack's refiners with ``required: false``."""
    refine = config.attack.get("refine") or {}
    return [str(name) for name, node in refine.items() if not node.get("required", True)]


def leave_out(config: DictConfig, embedder: CachedEmbedder, threat: Threat) -> None:
    """Delete the optional refiners from ``config`` where there is a reason, and log it."""
    reason, names = reason_against(embedder, threat), optional(config)
    if reason is None:
        return
    with open_dict(config):
        for name in names:
            del config.attack.refine[name]
    if is_first():
        log.info("attack/refine=[%s] is left out: %s", ",".join(names), reason)


def reason_against(embedder: CachedEmbedder, threat: Threat) -> str | None:
    """Why texts are not compared with the attacked vectors unless the user asks for it; None without a reason."""
    if isinstance(embedder.embedder, Remote):
        return "each text that is sent to a server may cost money; to have it, name it"
    if isinstance(embedder.embedder, LanguageModelEmbedder):
        return "the targets are outputs of a language model, not vectors of texts"
    if threat.adaptive and threat.hypotheses == "clean" and not perturbs(threat.defense):
        return "texts embedded without the defense lie elsewhere than defended ones; add defense.hypotheses=defended"
    return None
