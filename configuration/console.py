"""What a script says on the terminal, and what its run's ``log`` keeps.

    held = hold()                  # before anything heavy is imported
    ...                            # the terminal and the log are set up
    quieten(held)                  # from here on: our own lines on the terminal, everything in the log

The terminal shows what our files and the user's own modules say, and errors, whoever reports them. The notices,
advertisements and deprecation warnings of installed packages are in the log alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import TextIO

from ranks import local_rank

_ROOT = Path(__file__).resolve().parent.parent
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
# Packages that print by themselves once they are imported, past the root logger.
_PRINTING = ("lightning", "lightning.pytorch", "lightning.fabric", "transformers", "huggingface_hub", "datasets")
_OF_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)  # not of who runs the script
_DATED = "%(asctime)s %(levelname)s %(name)s: %(message)s"  # as configs/hydra/default.yaml has it


class Held(logging.Handler):
    """Keeps what is said until there is somewhere to write it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)

    def pass_on(self, handler: logging.Handler) -> None:
        """Say again what is held."""
        for record in self.records:
            handler.handle(record)


class LaterFile(Held):
    """A log in a directory that the script makes later, if at all: until then its records are held."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.file: logging.FileHandler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or keep it."""
        super().emit(record)
        if self.file is None and self.path.parent.is_dir():
            self.file = logging.FileHandler(self.path, encoding="utf-8")
            self.file.setFormatter(logging.Formatter(_DATED))
        if self.file is not None:
            self.pass_on(self.file)
            self.records.clear()


class Terminal(logging.StreamHandler[TextIO]):
    """Shows what belongs on the terminal (:func:`is_shown`), above a progress bar that is drawn there.

    Args:
        other: Whose stream and format it takes over.
    """

    def __init__(self, other: logging.StreamHandler[TextIO]) -> None:
        super().__init__(other.stream)
        self.setFormatter(other.formatter)
        self.addFilter(is_shown)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record where a bar stood, and the bar below it."""
        drawn = sys.modules.get("tqdm")  # what has a bar has imported it
        with drawn.tqdm.external_write_mode(self.stream) if drawn is not None else contextlib.nullcontext():
            super().emit(record)


def hold() -> Held:
    """Take all warnings and log records from here on, those of imports too; pass them to :func:`quieten` later."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what C++ prints passes no logger
    held = Held()
    logging.getLogger().addHandler(held)
    warnings.showwarning = _log_warning
    return held


def show_and_log(directory: Path | None) -> None:
    """Set up logging where Hydra does not: messages on stderr, and everything in ``directory``'s log, if one is given.

    Of the processes on one machine, the first writes.
    """
    terminal = logging.StreamHandler()
    terminal.setFormatter(logging.Formatter("%(message)s"))
    handlers: list[logging.Handler] = [terminal]
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
    held.records.clear()


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
    parts = path.relative_to(_ROOT).parts if path.is_relative_to(_ROOT) else path.parts
    return bool(_INSTALLED & set(parts)) or path.is_relative_to(_STANDARD_LIBRARY) or file.startswith("<")


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """A warning as a log record of the file that it is about, in the place of ``warnings.showwarning``."""
    record = logging.LogRecord(f"{filename}:{lineno}", logging.WARNING, filename, lineno, str(message), None, None)
    record.of_developers = issubclass(category, _OF_DEVELOPERS)
    logging.getLogger("py.warnings").handle(record)
