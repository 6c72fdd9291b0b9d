"""What a run directory holds, under which names.

    config.yaml        the resolved config, plain values; written once, resuming leaves it as it is
    resumed.json       of a run that was resumed with another budget: when, and which values changed
    record.json        versions, device, embedder, queries, and how it was trained
    data.json          the files that texts were read from: path, size, SHA-256
    checkpoints/       last.ckpt; while it is trained, previous.ckpt too
    artifacts/         tokenizer, the decoder's architecture, neighbour index: what the model needs besides its weights
    predictions.jsonl  one object an example
    metrics.json       flat; baseline.json has the same keys for the nearest neighbour
    descriptions.json  titles and units of the user's own metrics, where there are any
    analyses.json      what the training text has to do with the result
    test_batches/      of a test under way or killed (batch_cache.py); removed once the metrics are written
    history.jsonl      the training curve
    report.html, log
    .lock              of the process that writes there (claims.py)

The package is not called ``runs``: the folder of that name is where trainings are written.
"""

from __future__ import annotations

import os
from pathlib import Path

from atomic_files import remove_temporary
from errors import InputError, did_you_mean

CONFIG, RESUMED = "config.yaml", "resumed.json"
RECORD, DATA, HISTORY = "record.json", "data.json", "history.jsonl"
ARTIFACTS = "artifacts"
CHECKPOINT, PREVIOUS = "checkpoints/last.ckpt", "checkpoints/previous.ckpt"
PREDICTIONS, METRICS, BASELINE, ANALYSES = "predictions.jsonl", "metrics.json", "baseline.json", "analyses.json"
DESCRIPTIONS = "descriptions.json"
CORRECTIONS, CORRECTION_ROUNDS = "corrections.json", "corrections.jsonl"
TEST_BATCHES = "test_batches"


def start(directory: Path, *, resuming: bool, key: str = "run_dir") -> None:
    """Make the directory of a new run (``key`` run_dir), or of results on a finished one (output_dir).

    Raises:
        InputError: It already holds a run, and this is not a resumption: nothing is overwritten. Results are never
            resumed in the directory of a run.
    """
    of_run = key == "run_dir"
    if (directory / CONFIG).exists() and not (resuming and (of_run or not (directory / ARTIFACTS).exists())):
        what = "a run; add ckpt_path=last to resume it, or" if of_run else "a run or finished results;"
        raise InputError(f"{key}={directory}: already holds {what} choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    remove_temporary(directory)


def check_links(directory: Path) -> None:
    """Whether what is read from, copied from or written into a run lies in it: an untrusted one may hold links.

    Raises:
        InputError: Something in the run is a link that leads out of it, or no file, which could be waited for without
            end. The directory of Weights & Biases is left out: it has such links, and is not read.
    """
    inside = directory.resolve()
    for path in directory.rglob("*"):
        if path.relative_to(directory).parts[0] == "wandb" and not (path.is_symlink() and path.parent == directory):
            continue
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):  # resolve() fails in a circle
            raise InputError(f"{path}: a link that leads out of the run, to {path.readlink()}; copy what it leads to")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"{path}: neither a file nor a directory, such as a pipe or a device; a run holds none")


def missing_directory(directory: Path) -> str:
    """Which part of a path is no directory, and the nearest name beside it, for a message."""
    missing = next(path for path in (*reversed(directory.parents), directory) if not path.is_dir())
    beside = [path.name for path in missing.parent.iterdir() if path.is_dir()]
    return f"no directory {missing}, {did_you_mean(missing.name, beside) if beside else 'no directories stand there'}"
