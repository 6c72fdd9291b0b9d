"""What a command says: terminal, log file, and one message at its end for what the user can correct.

    begin()                        # before anything heavy is imported: our own lines on the terminal
    quieten()                      # after the imports
    log_to(directory)              # everything in the log
    with ending(config): ...       # exit codes: 2 for a user error, 130 for Ctrl-C, 143 for SIGTERM

The terminal shows records of our files and of the user's own modules, and all errors. Notices, advertisements and
deprecation warnings of installed packages go to the log only. File names and texts in records may be untrusted:
terminal control characters are replaced by U+FFFD, in tracebacks too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import sys
import sysconfig
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from hydra.errors import InstantiationException
from omegaconf import DictConfig

from unembed.core.commands import arguments
from unembed.core.commands import command as proposed
from unembed.core.errors import REDACTED, InputError, holds_secret, printable, redacted
from unembed.core.ranks import local_rank
from unembed.core.stopping import FAILED, INTERRUPTED, TERMINATED, WORDS, Terminated, is_spawned, raising, received
from unembed.runs import layout

_OURS = Path(__file__).resolve().parent.parent  # unembed/, also where it is installed
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
# Packages that print to the terminal at import, bypassing the root logger.
_PRINTING = ("lightning", "lightning.pytorch", "lightning.fabric", "transformers", "huggingface_hub", "datasets")
_OF_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)  # warnings for developers of a package
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # full, quota, ulimit -f; these may come without a file name
UNREAD = 141  # a shell's exit code for a program that ended because its output pipe was closed


class Printable(logging.Formatter):
    """The formatter of all handlers: it removes terminal control characters, in the log file too.

    In dated formats, continuation lines of a record are indented, so that none can imitate another record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, its traceback included."""
        said = printable(redacted(super().format(record)))
        return said.replace("\n", "\n    ") if self.usesTime() else said


class LogFile(logging.FileHandler):
    """A log file in a directory that is made later; on a full disk it ends, and the command goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(Printable("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record if the directory is there."""
        with contextlib.suppress(OSError):
            if Path(self.baseFilename).parent.is_dir():
                super().emit(record)

    def close(self) -> None:
        """Close the file; buffered lines may be lost."""
        with contextlib.suppress(OSError):
            super().close()


class Terminal(logging.StreamHandler[TextIO]):
    """Shows the records that belong on the terminal (:func:`is_shown`), above a progress bar if there is one."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.setFormatter(Printable("%(message)s"))
        self.addFilter(is_shown)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record in place of the progress bar, and redraw the bar below it."""
        bars = sys.modules.get("tqdm")  # anything that shows a bar has imported it
        with bars.tqdm.external_write_mode(self.stream) if bars is not None else contextlib.nullcontext():
            super().emit(record)


def begin() -> None:
    """Set what heavy libraries read when they are imported, and show messages on stderr; the log file comes later."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # C++ code prints without a logger
    # Threads that wait for each other spin for about a millisecond, not for ten: the one that is waited for may
    # need that core, where the machine does other work too (docs/benchmarks.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    logging.raiseExceptions = False  # a full disk, or a terminal that was closed, ends no command
    logging.basicConfig(level=logging.INFO, handlers=[Terminal()], force=True)
    warnings.showwarning = _log_warning
    sys.excepthook = _show_traceback


def quieten() -> None:
    """Take away the handlers that libraries have added when they were imported."""
    for name in _PRINTING:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def log_to(directory: Path) -> None:
    """Write all records from here on to ``directory``'s log, in place of that of the job before.

    On each machine, only local rank 0 writes the log.
    """
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, LogFile)]:
        handler.close()
        root.removeHandler(handler)
    if local_rank() == 0:
        root.addHandler(LogFile(directory / "log"))


def is_shown(record: logging.LogRecord) -> bool:
    """Whether a record belongs on the terminal: errors, the jobs of a multirun, our own lines and the user's."""
    if record.levelno >= logging.ERROR or record.name.partition(".")[0] == "hydra":
        return True
    if getattr(record, "of_developers", False) or getattr(record, "for_log_alone", False):
        return False
    path = Path(record.pathname)
    in_library = path.is_relative_to(_STANDARD_LIBRARY) or record.pathname.startswith("<")
    return path.is_relative_to(_OURS) or not (in_library or _INSTALLED & set(path.parts))


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Replacement of ``sys.excepthook``: log an uncaught error."""
    sys.stderr.write(printable(redacted("".join(traceback.format_exception(kind, error, trace)))))


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Replacement of ``warnings.showwarning``: log the warning under the file that caused it."""
    record = logging.LogRecord(f"{filename}:{lineno}", logging.WARNING, filename, lineno, str(message), None, None)
    record.of_developers = issubclass(category, _OF_DEVELOPERS)
    logging.getLogger("py.warnings").handle(record)


# -- the end of a command ---------------------------------------------------------------------------------------------


class Ended(SystemExit):
    """Raised to end the process after the user was told why."""


@contextlib.contextmanager
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
    interrupted = functools.partial(_interrupted, config, training, words)
    try:
        with raising():
            yield
            sys.stdout.flush()  # at exit, a closed pipe would be an error that nothing handles
    except Ended:
        raise
    except Terminated as error:
        _end(interrupted(TERMINATED, error.saved), TERMINATED)
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich has caught it first
            raise Ended(UNREAD) from None
        # After Ctrl-C, Lightning cleans up and exits with code 1; the interrupt is the exception's context.
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__context__, KeyboardInterrupt):
            raise
        _end(interrupted(INTERRUPTED), INTERRUPTED)
    except BrokenPipeError:  # such as after ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout at exit
        raise Ended(UNREAD) from None
    except (InputError, InstantiationException, OSError, RuntimeError) as error:
        if received():  # other ranks have ended, and a collective operation with them has failed
            _end(interrupted(TERMINATED), TERMINATED)
        hint = "" if config is None else f"; resume with: {_command(config, training, words)}"
        message = user_message(error, "a file" if config is None else str(config.run_dir), hint)
        if message is None:
            raise
        _end(message, FAILED)


def user_message(error: BaseException, place: str = "a file", hint: str = "") -> str | None:
    """The message for the user, or None if only a traceback helps.

    ``place`` is named where a disk is full and the error names no file; ``hint`` follows where one cannot be written.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        # The files that a user names are known to exist: a missing one is a bug.
        if isinstance(cause, OSError) and (cause.errno in _DISK or (cause.filename and cause.errno != errno.ENOENT)):
            return f"{cause.filename or place}: {cause.strerror}{hint}"
        # Constraints between values are checked by constructors, and by Lightning, whose import takes seconds.
        if isinstance(error, InstantiationException) and (
            isinstance(cause, ValueError) or type(cause).__name__ == "MisconfigurationException"
        ):
            key = re.search(r"full_key: (\S+)", str(error))
            reason = " ".join(str(cause).split())
            return f"{key.group(1)}: {reason}" if key else reason
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def check_writable(path: Path, *, is_file: bool = False) -> None:
    """Check that a directory or a file can be made at ``path``, before the work.

    Raises:
        OSError: It cannot.
    """
    if is_file and path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    whole = (path.parent if is_file else path).absolute()
    folder = next(one for one in (whole, *whole.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):  # permissions do not show a read-only file system
            pass
    except OSError as error:
        number = errno.EACCES if isinstance(error, FileNotFoundError) else error.errno or errno.EIO  # as in /proc
        raise OSError(number, os.strerror(number), str(path)) from error


def _interrupted(
    config: DictConfig | None, training: bool, words: Sequence[str], code: int, saved: int | None = None
) -> str:
    if config is None:
        return f"{WORDS[code]}: nothing had begun"
    checkpoints, none = Path(config.run_dir) / "checkpoints", ""
    if saved is not None or (training and any(checkpoints.glob("*.ckpt"))):
        what = f"{checkpoints} is saved" if saved is None else f"step {saved:,} is saved in {checkpoints}"
        return f"{WORDS[code]}: {what}; resume with: {_command(config, training, words)}"
    if training and code == TERMINATED:
        none = " and there is no checkpoint yet"
    again = _command(config, training, words)
    return f"{WORDS[code]}: vectors that were embedded are kept{none}; start again with: {again}"


def _command(config: DictConfig, training: bool, words: Sequence[str]) -> str:
    """The command that resumes this; a training with a config.yaml needs only its directory.

    Secrets are replaced by ``***``, since terminal output may be logged.
    """
    if training and (Path(str(config.get("run_dir"))) / layout.CONFIG).is_file():
        from unembed.runs.trust import foreign

        trust = config.get("trust", [])
        names = dict.fromkeys([*([trust] if isinstance(trust, str) else trust), *foreign(config)])
        trusted = [f"trust=[{','.join(names)}]"] if names else []
        return proposed(None, *trusted, run_dir=config.run_dir, ckpt_path="last")
    kept = [word.partition("=") for word in words if not (training and word.startswith("ckpt_path="))]
    again = [
        f"{key}={REDACTED}" if holds_secret(value) else redacted(key + equal + value) for key, equal, value in kept
    ]
    return proposed(None, *again, *(["ckpt_path=last"] if training else []))


def _end(message: str, code: int) -> None:
    if local_rank() == 0:  # once per machine
        print(printable(redacted(message)), file=sys.stderr)
    # Lightning kills rank 0 when another rank ends with an error; rank 0 may still be writing.
    raise Ended(0 if code == TERMINATED and is_spawned() else code)
