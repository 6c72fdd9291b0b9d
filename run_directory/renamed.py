"""Current names of classes and settings that were renamed since earlier versions.

    current("attacks.optimizers.AdamW")        # "models.optimizers.AdamW"

A run directory keeps the old names in its config.yaml, and can still be opened.
"""

from __future__ import annotations

from typing import Any

_MODULES = {
    **{f"attacks.{name}": f"models.{name}" for name in
       ("adapters", "backbones", "decoding", "optimizers", "prefix", "sharding", "vocabulary")},
    **{f"attacks.lm_output.{name}": f"attacks.lm_inversion.{name}" for name in
       ("chunked_logits", "gcg", "logits_inverter", "losses", "soda", "soda_embedder")},
    **{f"datamodules.{name}": f"datamodules.sources.{name}" for name in
       ("files", "hub", "language_sets", "synthetic", "token_inputs")},
    **{f"datamodules.{name}": f"datamodules.collections.{name}" for name in ("beir", "clirmatrix")},
    **{f"metrics.{name}": f"scoring.{name}" for name in ("language_model", "recognisers", "taggers", "translation")},
    "callbacks.scoring_models": "scoring.models",
    "callbacks.tradeoff": "reports.tradeoff.sweep",
    "datamodules.collection_texts": "datamodules.collections.texts",
}  # fmt: skip
_CLASSES = {
    "attacks.vec2text.inverter.Inverter": "attacks.geia.GEIAEncoderDecoder",
    "embedders.language_model.LanguageModel": "embedders.language_model.LanguageModelEmbedder",
    "scoring.language_model.LanguageModel": "scoring.language_model.PerplexityModel",
}
_KEYS = {  # by class
    "defenses.product_quantization.ProductQuantization": {"pieces": "subvectors"},
    "models.alignment.translation.Translator": {"clusters": "axes"},
    **{f"attacks.lm_inversion.{name}": {"slots": "active_targets"} for name in
       ("gcg.GCG", "soda.SODA", "soda_embedder.SodaEmbedder")},
}  # fmt: skip

_REMOVED = {  # settings, by class, that have no effect any more
    "attacks.lm_inversion.discrete_steps.DiscreteSteps": {"loss", "seed"},
}


def current(target: str) -> str:
    """The current name of a class."""
    module, _, name = target.rpartition(".")
    moved = f"{_MODULES.get(module, module)}.{name}" if module else target
    return _CLASSES.get(moved, moved)


def current_key(target: str, key: str) -> str:
    """The current name of a class's setting."""
    return _KEYS.get(target, {}).get(key, key)


def with_current_names(node: Any) -> Any:
    """A configuration of plain values with current class and setting names in every node with a ``_target_``."""
    if isinstance(node, dict):
        named = {
            key: current(value) if key == "_target_" and isinstance(value, str) else with_current_names(value)
            for key, value in node.items()
        }
        target = str(named.get("_target_"))
        removed = _REMOVED.get(target, set())
        return {current_key(target, key): value for key, value in named.items() if key not in removed}
    return [with_current_names(value) for value in node] if isinstance(node, list) else node
