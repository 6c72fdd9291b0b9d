"""What benchmarks share: the command line, the clock, ratios of paired rounds, files of JSON lines, a training.

Every benchmark prints a table for the eye and ends with one JSON line. Imports nothing that takes long.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from unembed.session import Session

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script of this folder finds the packages, too


def command_line(description: str | None, *, own_time: bool = False) -> argparse.ArgumentParser:
    """A parser that shows the script's docstring as it is written.

    Args:
        description: The docstring.
        own_time: Add ``--own-time``, for ``Clock``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if own_time:
        parser.add_argument(
            "--own-time", action="store_true",
            help="count processor time, waiting left out: for a machine shared with other work, with --threads 1",
        )  # fmt: skip
    return parser


class Clock:
    """Seconds; on a GPU, what was asked of it is waited for first.

    Args:
        device: ``cpu`` or ``cuda``.
        own_time: Count the processor time of this process instead of the time that passes.
    """

    def __init__(self, device: str = "cpu", own_time: bool = False) -> None:
        self._on_gpu = device.startswith("cuda")
        self._now = time.process_time if own_time else time.perf_counter

    def __call__(self) -> float:
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()
        return self._now()


def ratios(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """These over those, round by round."""
    return [one / other for one, other in zip(these, those, strict=True)]


def spread(found: Sequence[float]) -> str:
    """Median and range of the ratios of paired rounds."""
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f} in {len(found)} rounds)"


def cka(x: Tensor, y: Tensor) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019) of vectors of the same texts, (n, d) and (n, k)."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float((x.T @ y).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def read_rows(path: Path, split: str | None = None) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, which may be packed (.gz), of one ``split`` or all."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        yield from (row for row in map(json.loads, lines) if split is None or row["split"] == split)


class Rows(list[dict[str, Any]]):
    """Rows of a JSON-lines file that are written when they are known: the same command measures what is missing."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
            with suppress(json.JSONDecodeError):  # a kill cut the line short
                self.append(json.loads(line))

    def add(self, *rows: dict[str, Any]) -> None:
        self.extend(rows)
        part = self.path.with_name(f"{self.path.name}.part")
        write_rows(part, self)
        part.replace(self.path)

    def have(self, **values: Any) -> bool:
        """Whether a row has these values."""
        return any(all(row.get(key) == value for key, value in values.items()) for row in self)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark of the attack has."""
    import torch

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

    from unembed import launch
    from unembed.runs import layout
    from unembed.session import Session

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
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
