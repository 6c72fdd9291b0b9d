"""What benchmarks of the attacks share: their options, and the ordinary training path."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from measuring import command_line

from unembed import launch
from unembed.runs import layout
from unembed.session import Session


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark of the attack has."""
    parser = command_line(description, own_time=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU (default: all cores)")
    parser.add_argument("--precision", default=None, help="of our training (default: what the device is fast in)")
    parser.add_argument("--path", default=None, help="texts of your own (.jsonl, .csv, .txt ...)")
    parser.add_argument("overrides", nargs="*", help="of the configuration, as for train.py")
    return parser


def job(options: argparse.Namespace, overrides: Sequence[str], run: Path, cache: Path | None = None) -> Session:
    """What ``python train.py attack=geia run_dir=<run> <overrides>`` would train, connected."""
    from lightning import seed_everything

    config = launch.compose("train", [
        "attack=geia", "embedder=minilm", f"embedder.device={options.device}", "logger=none",
        f"trainer.accelerator={'gpu' if options.device == 'cuda' else 'cpu'}",
        *([] if options.precision is None else [f"trainer.precision={options.precision}"]),
        "trainer.enable_checkpointing=false", "trainer.enable_progress_bar=false", "trainer.limit_val_batches=0",
        # Each benchmark gives the trainer a limit of its own.
        "trainer.max_steps=-1", "trainer.max_epochs=100000", "trainer.max_time=null",
        *overrides,
        *options.overrides,
    ])  # fmt: skip
    if mistakes := launch.check(config):
        raise SystemExit("\n".join(mistakes))
    if cache is not None:
        config.cache_dir = str(cache)
    seed_everything(config.seed, workers=True, verbose=False)
    session = Session(config, run)
    session.attack.connect(run / layout.ARTIFACTS, session.datamodule.oracle)
    return session


def texts_of(options: argparse.Namespace, sentences: int, held_out: int) -> list[str]:
    """Overrides that choose the texts: ``sentences`` of the built-in corpus for training, or a file."""
    if options.path is not None:
        return ["datamodule=files", f"datamodule.path='{options.path}'", f"datamodule.limit_train={sentences}"]
    source = "++datamodule.source"  # set, whether the option has the key already or not
    total = sentences + 2 * held_out
    return [f"{source}.sentences={total}", f"{source}.valid={held_out}", f"{source}.test={held_out}"]


def quiet() -> None:
    """Leave Lightning's remarks on hardware and loaders out of the table."""
    import logging

    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
