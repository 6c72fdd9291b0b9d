"""Settings that may change when a run is resumed: its budget, and whatever changes neither weights nor metrics.

is_free("trainer.max_steps", saved, amended, trained=True)         # True
is_free("attack.backbone.layers", saved, amended, trained=True)    # False
"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

_BUDGETS = {"trainer.max_steps", "trainer.max_epochs", "trainer.min_steps", "trainer.min_epochs", "trainer.max_time",
            "embedder.max_queries"}  # fmt: skip
_PROCESSES = ("trainer.devices", "trainer.num_nodes", "trainer.accumulate_grad_batches")
# Settings that change neither weights nor metrics: paths, speed, display, descriptions.
_FREE = {"run_dir", "ckpt_path", "cache_dir", "trust", "attack.gradient_checkpointing"} | _BUDGETS
_FREE |= {f"trainer.{name}" for name in (
    "accelerator", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "log_every_n_steps",
    "num_sanity_val_steps", "check_val_every_n_epoch", "val_check_interval", "limit_val_batches", "profiler",
    "detect_anomaly", "deterministic", "benchmark", "inference_mode", "default_root_dir",
)}  # fmt: skip
_FREE |= {f"embedder.{name}" for name in (
    "device", "batch_size", "concurrency", "timeout", "retries", "backoff", "price_per_million_tokens", "api_key_env",
)}  # fmt: skip
_FREE_NODES = ("logger", "trainer.strategy", "access")
FREE_CHOICES = ("logger", "callbacks", "trainer")  # compared by their values instead of their names
_WATCHING = {
    "unembed.callbacks.pace.TerminalBar", "unembed.callbacks.pace.Pace", "unembed.callbacks.history.History",
    "unembed.callbacks.iterative_correction.IterativeCorrection", "lightning.pytorch.callbacks.ModelCheckpoint",
    "lightning.pytorch.callbacks.LearningRateMonitor", "lightning.pytorch.callbacks.RichProgressBar",
    "lightning.pytorch.callbacks.TQDMProgressBar", "lightning.pytorch.callbacks.DeviceStatsMonitor",
}  # fmt: skip
NOTED = {*_BUDGETS, *_PROCESSES}  # recorded in resumed.json, since they describe the training


def is_free(key: str, saved: DictConfig, amended: DictConfig, *, trained: bool) -> bool:
    """Whether a value may change when a run is resumed; ``trained`` says whether it has a checkpoint."""
    if key in _FREE or key.startswith(tuple(f"{node}." for node in _FREE_NODES)) or key in _FREE_NODES:
        return True
    root, _, rest = key.partition(".")
    if root == "callbacks":
        nodes = [config.callbacks.get(rest.partition(".")[0]) for config in (saved, amended)]
        return all(node is None or node.get("_target_") in _WATCHING for node in nodes)
    if key in _PROCESSES:
        counts = [_batches_a_step(config) for config in (saved, amended)]
        return not trained or (counts[0] is not None and counts[0] == counts[1])
    return root in ("embedder", "scoring") and rest.rpartition(".")[2] == "device"


def _batches_a_step(config: DictConfig) -> int | None:
    """Batches per optimizer step over all processes; None if the number of processes depends on the machine."""
    product = 1
    for key in _PROCESSES:
        value = OmegaConf.select(config, key, default=1)
        if not isinstance(value, int) or value < 1:
            return None
        product *= value
    return product
