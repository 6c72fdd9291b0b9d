"""File names and structure of a run directory.

config.yaml        the resolved config as plain values
resumed.json       when the run was resumed with another budget, and what it was before
record.json        versions, device, embedder, queries, and how it was trained
data.json          the files that texts were read from: path, size, SHA-256
checkpoints/       last.ckpt; while it is trained, previous.ckpt too
artifacts/         what the model needs besides its weights: tokenizer, decoder architecture, neighbour index
predictions.jsonl  one JSON object per example
metrics.json       flat; baseline.json has the same keys for the nearest neighbour
descriptions.json  titles and units of the user's own metrics, if there are any
analyses.json      how the training text relates to the result
test_batches/      the test batch cache (attacks/parts/batch_cache.py); removed once the metrics are written
history.jsonl      the training curve
report.html, log
calibration.jsonl  of a shipped attacker: scores of held-out texts, without the texts (unembed/attackers/README.md)
README.md          of a shipped attacker: its model card
.lock              held by the process that writes to the run

    directory = claim(Path("runs/x/2026-11-22_14-05-09"))     # or ..._14-05-09-2 if the first name is taken
    with locked(directory, "run_dir"):                        # refused while another process holds it
        ...
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from unembed.core.atomic_files import remove_temporary
from unembed.core.errors import InputError

log = logging.getLogger("runs")

CONFIG, RESUMED = "config.yaml", "resumed.json"
RECORD, DATA, HISTORY = "record.json", "data.json", "history.jsonl"
ARTIFACTS = "artifacts"
CHECKPOINT, PREVIOUS = "checkpoints/last.ckpt", "checkpoints/previous.ckpt"
PREDICTIONS, METRICS, BASELINE, ANALYSES = "predictions.jsonl", "metrics.json", "baseline.json", "analyses.json"
DESCRIPTIONS, REPORT = "descriptions.json", "report.html"
CALIBRATION, CARD = "calibration.jsonl", "README.md"
DEFENSE = "defense.safetensors"  # among the artifacts: the fitted state of a defense
CORRECTIONS, CORRECTION_ROUNDS = "corrections.json", "corrections.jsonl"
TEST_BATCHES = "test_batches"
EXPORTED = "<run>"  # run_dir in the config.yaml of an exported run; no path, replaced when the run is opened
LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def claim(directory: Path) -> Path:
    """Create ``directory``, or the first of ``<directory>-2``, ``-3``, ... that does not exist yet.

    Raises:
        OSError: It cannot be created.
    """
    number, path = 1, directory
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not path.parent.is_dir():  # the name is not taken: a parent is a broken link
                raise
            number += 1
            path = directory.with_name(f"{directory.name}-{number}")


@contextlib.contextmanager
def locked(directory: Path, key: str) -> Iterator[None]:
    """Lock ``directory`` against other writing processes; it is created if missing, and removed if it stays empty.

    The lock is a record lock: child processes that survive a killed parent do not inherit it, and NFS supports it. On a
    file system without locks, a warning is logged and no lock is taken.

    ``key`` is the config key that names it. The message about another process says which, where, and since when.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    if path.is_symlink() or (path.exists() and not (path.is_file() and path.stat().st_nlink == 1)):
        raise InputError(f"{path}: a link or not a file, so it cannot serve as a lock; remove it")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            holder = os.read(file, 300).decode(errors="replace").strip() or "another process"
            os.close(file)
            wait = "is writing there; wait until it has ended, or choose another directory"
            raise InputError(f"{key}={directory}: {holder} {wait}") from error
        log.warning("%s=%s: the file system has no locks; no other process may write there now", key, directory)
    os.ftruncate(file, 0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}, started {since},".encode())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
            directory.rmdir()  # if it is empty, as after a failed start
        os.close(file)


def start(directory: Path, *, resuming: bool, key: str = "run_dir") -> None:
    """Create the directory of a new run (``key`` run_dir) or of results on a finished run (output_dir)."""
    of_run = key == "run_dir"
    if (directory / CONFIG).exists() and not (resuming and (of_run or not (directory / ARTIFACTS).exists())):
        what = "a run; add ckpt_path=last to resume it, or" if of_run else "a run or finished results;"
        raise InputError(f"{key}={directory}: already holds {what} choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    remove_temporary(directory)


def trial_folder(output: Path, number: int) -> Path:
    """The directory of a trial of an evaluation; trial 0 is the evaluation itself."""
    return output if number == 0 else output / "trials" / str(number)


def check_links(directory: Path) -> None:
    """Refuse links in a run that lead out of it: an untrusted run may hold some."""
    inside = directory.resolve()
    for path in directory.rglob("*"):
        if path.relative_to(directory).parts[0] == "wandb" and not (path.is_symlink() and path.parent == directory):
            continue
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):  # resolve() raises on a cycle
            raise InputError(f"{path}: a link that leads out of the run, to {path.readlink()}; copy what it leads to")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"{path}: neither a file nor a directory, such as a pipe or a device; a run holds none")
