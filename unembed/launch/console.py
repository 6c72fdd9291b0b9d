"""Terminal output and log file of a script.

    begin()                        # before anything heavy is imported: our own lines on the terminal
    quieten()                      # after the imports
    log_to(directory)              # everything in the log

The terminal shows records of our files and of the user's own modules, and all errors. Notices, advertisements and
deprecation warnings of installed packages go to the log only. File names and texts in records may be untrusted:
terminal control characters are replaced by U+FFFD, in tracebacks too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import sysconfig
import traceback
import warnings
from logging.handlers import MemoryHandler
from pathlib import Path
from types import TracebackType
from typing import TextIO

from unembed.core.errors import printable, redacted
from unembed.core.ranks import local_rank

_OURS = Path(__file__).resolve().parent.parent  # unembed/, also where it is installed
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
# Packages that print to the terminal at import, bypassing the root logger.
_PRINTING = ("lightning", "lightning.pytorch", "lightning.fabric", "transformers", "huggingface_hub", "datasets")
_OF_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)  # warnings for developers of a package
_DATED = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Printable(logging.Formatter):
    """The formatter of all handlers: it removes terminal control characters, in the log file too.

    In dated formats, continuation lines of a record are indented, so that none can imitate another record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, its traceback included."""
        said = printable(redacted(super().format(record)))
        return said.replace("\n", "\n    ") if self.usesTime() else said


class LogFile(logging.FileHandler):
    """A log file that reports a write error, such as a full disk, once and without a traceback for each record."""

    failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless an earlier write failed."""
        if self.failed:
            return
        try:
            super().emit(record)
        except OSError:  # it could not be opened
            self.handleError(record)

    def close(self) -> None:
        """Close the file; buffered lines may be lost."""
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Report a failed file; errors in a record itself are left to logging."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.failed:
            self.failed = True
            with contextlib.suppress(OSError):
                print(printable(f"{self.baseFilename}: {error.strerror}: the log ends here"), file=sys.stderr)


class LaterFile(MemoryHandler):
    """A log file in a directory that the script may create later; until then its records are buffered."""

    def __init__(self, path: Path) -> None:
        super().__init__(capacity=0)
        self.path = path

    def shouldFlush(self, record: logging.LogRecord) -> bool:  # noqa: N802
        """Whether the directory exists by now."""
        return self._is_there()

    def close(self) -> None:
        """Write the remaining records if the directory was created after the last record."""
        self._is_there()
        super().close()

    def _is_there(self) -> bool:
        if self.target is None and self.path.parent.is_dir():
            file = LogFile(self.path, encoding="utf-8", delay=True)
            file.setFormatter(Printable(_DATED))
            self.setTarget(file)
        return self.target is not None


class Terminal(logging.StreamHandler[TextIO]):
    """Shows the records that belong on the terminal (:func:`is_shown`), above a progress bar if there is one.

    Args:
        other: Handler whose stream and formatter are reused.
    """

    def __init__(self, other: logging.StreamHandler[TextIO]) -> None:
        super().__init__(other.stream)
        self.setFormatter(other.formatter)
        self.addFilter(is_shown)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record in place of the progress bar, and redraw the bar below it."""
        shown = sys.modules.get("tqdm")  # anything that shows a bar has imported it
        with shown.tqdm.external_write_mode(self.stream) if shown is not None else contextlib.nullcontext():
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore write errors: stderr may lead to a full disk, or to a process that has ended."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def begin() -> None:
    """Show messages on stderr from here on, before anything heavy is imported; the log file comes later."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # C++ code prints without a logger
    stream = logging.StreamHandler()
    stream.setFormatter(Printable("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[Terminal(stream)], force=True)
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
    for handler in [handler for handler in root.handlers if isinstance(handler, LaterFile)]:
        handler.close()
        root.removeHandler(handler)
    if local_rank() == 0:
        root.addHandler(LaterFile(directory / "log"))


def is_shown(record: logging.LogRecord) -> bool:
    """Whether a record belongs on the terminal."""
    if record.levelno >= logging.ERROR or record.name.partition(".")[0] == "hydra":  # it names the jobs of a multirun
        return True
    if getattr(record, "of_developers", False) or getattr(record, "for_log_alone", False):
        return False
    return not _is_installed(record.pathname)


def _is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package, not to us or to a module of the user's."""
    path = Path(file)
    if path.is_relative_to(_OURS):
        return False
    return bool(_INSTALLED & set(path.parts)) or path.is_relative_to(_STANDARD_LIBRARY) or file.startswith("<")


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
