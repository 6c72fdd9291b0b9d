"""What a script says on the terminal, and what its run's ``log`` keeps.

    held = hold()                  # before anything heavy is imported
    ...                            # the terminal and the log are set up
    quieten(held)                  # from here on: our own lines on the terminal, everything in the log

The terminal shows what our files and the user's own modules say, and errors, whoever reports them. The notices,
advertisements and deprecation warnings of installed packages are in the log alone. Names of files and texts in these
lines may be somebody else's: what a terminal would obey is shown as U+FFFD, in tracebacks too.
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

from errors import printable, redacted
from ranks import local_rank

_ROOT = Path(__file__).resolve().parent.parent
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
# What lies beside this package and is ours: after an installation, other packages lie there too.
OURS = frozenset(
    [
        "atomic_files",
        "attack_tests",
        "attacks",
        "audit",
        "callbacks",
        "claims",
        "commands",
        "compare",
        "configuration",
        "datamodules",
        "defenses",
        "embedders",
        "errors",
        "evaluate",
        "examples",
        "invert",
        "limits",
        "metrics",
        "models",
        "ranks",
        "reports",
        "run_directory",
        "scoring",
        "stopping",
        "temporary_map",
        "tensor_files",
        "train",
    ]
)
# Packages that print by themselves once they are imported, past the root logger.
_PRINTING = ("lightning", "lightning.pytorch", "lightning.fabric", "transformers", "huggingface_hub", "datasets")
_OF_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)  # not of who runs the script
_DATED = "%(asctime)s %(levelname)s %(name)s: %(message)s"  # as configs/hydra/default.yaml has it


class Printable(logging.Formatter):
    """The formatter of every handler: nothing in a record is obeyed by a terminal, that of a log's reader included.

    Lines of a record after its first are indented where records are dated, so that none looks like another record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a record, a traceback included."""
        said = printable(redacted(super().format(record)))
        return said.replace("\n", "\n    ") if self.usesTime() else said


class LogFile(logging.FileHandler):
    """A log that says once that it cannot be written, as on a full disk, and not a traceback for each record."""

    failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless an earlier one failed."""
        if self.failed:
            return
        try:
            super().emit(record)
        except OSError:  # it could not be opened
            self.handleError(record)

    def close(self) -> None:
        """Close the file, whose last lines may not be written."""
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say what is wrong with the file; what is wrong with the record is ours, and logging's to say."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.failed:
            self.failed = True
            with contextlib.suppress(OSError):
                print(printable(f"{self.baseFilename}: {error.strerror}: the log ends here"), file=sys.stderr)


class Held(MemoryHandler):
    """Keeps what is said until there is somewhere to write it; where there never is, the terminal gets its part."""

    def __init__(self) -> None:
        super().__init__(capacity=0)

    def shouldFlush(self, record: logging.LogRecord) -> bool:  # noqa: N802
        """Never."""
        return False

    def pass_on(self, handler: logging.Handler) -> None:
        """Say again what is held."""
        for record in self.buffer:
            handler.handle(record)

    def close(self) -> None:
        """Show what is left when the script ends, by a message before anything is set up."""
        if self.buffer and local_rank() == 0:
            self.pass_on(Terminal(_plain_stream()))
        self.buffer.clear()
        super().close()


class LaterFile(MemoryHandler):
    """A log in a directory that the script makes later, if at all: until then its records are held."""

    def __init__(self, path: Path) -> None:
        super().__init__(capacity=0)
        self.path = path

    def shouldFlush(self, record: logging.LogRecord) -> bool:  # noqa: N802
        """Whether the directory exists by now."""
        return self._is_there()

    def close(self) -> None:
        """Write what is left, where the directory was made after the last record; the terminal has its part."""
        self._is_there()
        super().close()

    def _is_there(self) -> bool:
        if self.target is None and self.path.parent.is_dir():
            file = LogFile(self.path, encoding="utf-8", delay=True)
            file.setFormatter(Printable(_DATED))
            self.setTarget(file)
        return self.target is not None


class Terminal(logging.StreamHandler[TextIO]):
    """Shows what belongs on the terminal (:func:`is_shown`), above a progress bar that is shown there.

    Args:
        other: Whose stream and format it takes over.
    """

    def __init__(self, other: logging.StreamHandler[TextIO]) -> None:
        super().__init__(other.stream)
        self.setFormatter(other.formatter)
        self.addFilter(is_shown)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record where a bar stood, and the bar below it."""
        shown = sys.modules.get("tqdm")  # what has a bar has imported it
        with shown.tqdm.external_write_mode(self.stream) if shown is not None else contextlib.nullcontext():
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Leave out what cannot be written: stderr may lead to a full disk, or to a reader that has ended."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def hold() -> Held:
    """Take all warnings and log records from here on, those of imports too; pass them to :func:`quieten` later."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what C++ prints passes no logger
    held = Held()
    logging.getLogger().addHandler(held)
    warnings.showwarning = _log_warning
    sys.excepthook = _show_traceback
    return held


def show_and_log(directory: Path | None) -> None:
    """Set up logging where Hydra does not: messages on stderr, and everything in ``directory``'s log, if one is given.

    Of the processes on one machine, the first writes.
    """
    handlers: list[logging.Handler] = [_plain_stream()]
    if directory is not None and local_rank() == 0:
        handlers.append(LaterFile(directory / "log"))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)


def quieten(held: Held) -> None:
    """Leave the lines of installed packages to the log, and pass on what is held."""
    for name in _PRINTING:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    root = logging.getLogger()
    root.removeHandler(held)
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
            root.addHandler(Terminal(handler))
    for handler in root.handlers:
        held.pass_on(handler)
    held.buffer.clear()


def is_shown(record: logging.LogRecord) -> bool:
    """Whether a record belongs on the terminal."""
    if record.levelno >= logging.ERROR or record.name.partition(".")[0] == "hydra":  # which names a multirun's jobs
        return True
    if getattr(record, "of_developers", False) or getattr(record, "for_log_alone", False):
        return False
    return not _is_installed(record.pathname)


def _is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package, rather than to us or to a module of the user's."""
    path = Path(file)
    if path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0].removesuffix(".py") in OURS:
        return False  # also where we are installed beside others
    return bool(_INSTALLED & set(path.parts)) or path.is_relative_to(_STANDARD_LIBRARY) or file.startswith("<")


def _plain_stream() -> logging.StreamHandler[TextIO]:
    """Messages on stderr."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(Printable("%(message)s"))
    return terminal


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error that nobody caught, in the place of ``sys.excepthook``."""
    sys.stderr.write(printable(redacted("".join(traceback.format_exception(kind, error, trace)))))


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """A warning as a log record of the file that it is about, in the place of ``warnings.showwarning``."""
    record = logging.LogRecord(f"{filename}:{lineno}", logging.WARNING, filename, lineno, str(message), None, None)
    record.of_developers = issubclass(category, _OF_DEVELOPERS)
    logging.getLogger("py.warnings").handle(record)
