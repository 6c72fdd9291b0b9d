"""The end of a script: one message for an error that the user can correct, a traceback for any other."""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import InstantiationException
from omegaconf import DictConfig

from unembed.core.commands import arguments
from unembed.core.commands import command as proposed
from unembed.core.errors import BLOTTED, InputError, holds_secret, printable, redacted
from unembed.core.ranks import local_rank
from unembed.core.stopping import FAILED, INTERRUPTED, TERMINATED, WORDS, Terminated, is_spawned, raising, received
from unembed.runs import layout

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # full, quota, ulimit -f; these may come without a file name
UNREAD = 141  # a shell's exit code for a program that ended because its output pipe was closed


class Ended(SystemExit):
    """Raised to end the process after the user was told why."""


@contextmanager
def ending(
    config: DictConfig | None = None, *, training: bool = False, command: Sequence[str] | None = None
) -> Iterator[None]:
    """Turn errors that the user can correct into exit code 2, Ctrl-C into 130, and SIGTERM into 143.

    Args:
        config: The running configuration, for the command that resumes it.
        training: Whether the run can be resumed from a checkpoint.
        command: Arguments that resume the script in the same directory; by default those typed.
    """
    words = arguments() if command is None else command
    try:
        with raising():
            yield
            sys.stdout.flush()  # at exit, a closed pipe would be an error that nothing handles
    except KeyboardInterrupt:
        _end(_interrupted(config, training, words), INTERRUPTED)
    except Ended:
        raise
    except Terminated as error:
        _end(_interrupted(config, training, words, TERMINATED, error.saved), TERMINATED)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich has caught it first
            raise Ended(UNREAD) from None
        # After Ctrl-C, Lightning cleans up and exits with code 1; the interrupt is the exception's context.
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        _end(_interrupted(config, training, words), INTERRUPTED)
    except BrokenPipeError:
        if not _is_unread():
            raise
        raise Ended(UNREAD) from None
    except (InputError, InstantiationException, OSError, RuntimeError) as error:
        if received():  # other ranks have ended, and a collective operation with them has failed
            _end(_interrupted(config, training, words, TERMINATED), TERMINATED)
        message = said_of(error, config, training, words)
        if message is None:
            raise
        _end(message, FAILED)


def _is_unread() -> bool:
    """Whether the reader of stdout has closed it, as after ``| head``; if so, redirect stdout to nowhere."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in pipe.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout at exit
    return True


def said_of(
    error: BaseException, config: DictConfig | None = None, training: bool = False, words: Sequence[str] = ()
) -> str | None:
    """The message for the user, or None if only a traceback helps."""
    for cause in _chain(error):
        if isinstance(cause, InputError):
            return str(cause)
        # The files that a user names are known to exist: a missing one is a bug.
        if (
            isinstance(cause, OSError)
            and not isinstance(cause, FileNotFoundError)
            and (cause.errno in _DISK or cause.filename is not None)
        ):
            place = cause.filename or (config.run_dir if config is not None and "run_dir" in config else "a file")
            again = "" if config is None else f"; resume with: {_command(config, training, words)}"
            return f"{place}: {cause.strerror}{again}"
        # Constraints between values are checked by constructors, and by Lightning, whose import takes seconds.
        if isinstance(error, InstantiationException) and (
            isinstance(cause, ValueError) or type(cause).__name__ == "MisconfigurationException"
        ):
            key = re.search(r"full_key: (\S+)", str(error))
            reason = " ".join(str(cause).split())
            return f"{key.group(1)}: {reason}" if key else reason
    return None


def check_writable(path: Path, *, is_file: bool = False) -> None:
    """Check that a directory or a file can be made at ``path``, before the work.

    Raises:
        OSError: It cannot.
    """
    if is_file and path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    whole = (path.parent if is_file else path).absolute()
    folder = next(one for one in (whole, *whole.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):  # permissions do not show a read-only file system
            pass
    except FileNotFoundError as error:  # raised in /proc
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from error
    except OSError as error:
        error.filename = str(path)
        raise


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _interrupted(
    config: DictConfig | None, training: bool, words: Sequence[str], code: int = INTERRUPTED, saved: int | None = None
) -> str:
    why = WORDS[code]
    if config is None:
        return f"{why}: nothing had begun"
    again = _command(config, training, words)
    checkpoints = Path(config.run_dir) / "checkpoints"
    if saved is not None:
        return f"{why}: step {saved:,} is saved in {checkpoints}; resume with: {again}"
    if training and any(checkpoints.glob("*.ckpt")):
        return f"{why}: {checkpoints} is saved; resume with: {again}"
    none = " and there is no checkpoint yet" if training and code == TERMINATED else ""
    return f"{why}: vectors that were embedded are kept{none}; start again with: {again}"


def _command(config: DictConfig, training: bool, words: Sequence[str]) -> str:
    """The command that resumes this; a training with a config.yaml needs only its directory.

    Secrets are replaced by ``***``, since terminal output may be logged.
    """
    if training and (Path(str(config.get("run_dir"))) / layout.CONFIG).is_file():
        from unembed.runs.trust import foreign

        trust = config.get("trust", [])
        names = list(dict.fromkeys([*([trust] if isinstance(trust, str) else trust), *foreign(config)]))
        trusted = [f"trust=[{','.join(names)}]"] if names else []
        return proposed(None, *trusted, run_dir=config.run_dir, ckpt_path="last")
    kept = [word.partition("=") for word in words if not (training and word.startswith("ckpt_path="))]
    again = [
        f"{key}={BLOTTED}" if holds_secret(value) else redacted(key + equals + value) for key, equals, value in kept
    ]
    return proposed(None, *again, *(["ckpt_path=last"] if training else []))


def _end(message: str, code: int) -> None:
    if local_rank() == 0:  # once per machine
        print(printable(redacted(message)), file=sys.stderr)
    # Lightning kills rank 0 when another rank ends with an error; rank 0 may still be writing.
    raise Ended(0 if code == TERMINATED and is_spawned() else code)
