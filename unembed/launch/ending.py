"""The end of a script: one message for an error that the user can correct, a traceback for any other."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import InstantiationException
from omegaconf import DictConfig

from unembed.core.commands import command as proposed
from unembed.core.errors import BLOTTED, InputError, holds_secret, printable, redacted
from unembed.core.ranks import local_rank
from unembed.core.stopping import FAILED, INTERRUPTED, TERMINATED, WORDS, Terminated, is_spawned, raising, received
from unembed.runs import layout

# Reasons why a path cannot be used.
_UNUSABLE = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is a file, not a directory",
    errno.EEXIST: "a file or a broken link is in the place of a directory",
    errno.EISDIR: "a directory is in the place of a file",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "symbolic links form a cycle",
}
_CHOICE = {"run": "output_dir=<path>", "cache_dir": "cache_dir=<path> or the variable UNEMBED_CACHE"}
_KEYS = ("output_dir", "output", "run", "run_dir", "cache_dir")


UNREAD = 141  # a shell's exit code for a program that ended because its output pipe was closed


class Ended(SystemExit):
    """Raised to end the process after the user was told why.

    Attributes:
        mistake: Whether it was a user error, so that the command will be started again.
    """

    def __init__(self, code: int, *, mistake: bool = False) -> None:
        super().__init__(code)
        self.mistake = mistake


@contextmanager
def ending(
    config: DictConfig | None = None,
    *,
    training: bool = False,
    settings: DictConfig | None = None,
    command: Sequence[str] | None = None,
) -> Iterator[None]:
    """Turn user errors, full disks and unusable paths into exit code 2, Ctrl-C into 130, and SIGTERM into 143.

    Args:
        config: The running configuration, to name its directories in messages.
        training: Whether the run can be resumed from a checkpoint.
        settings: Settings of a script on a finished run; their directories are named first.
        command: Arguments that resume the script in the same directory; by default those typed.
    """
    words = sys.argv[1:] if command is None else command
    try:
        with raising():
            yield
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
        message = _message(error, config, training, words) or _unusable(error, [settings, config])
        if message is None:
            raise
        _end(message, FAILED, mistake=any(isinstance(cause, InputError) for cause in _chain(error)))


def _is_unread() -> bool:
    """Whether the reader of stdout has closed it, as after ``| head``; if so, redirect stdout to nowhere."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout at exit
        return True
    return False


def _message(error: BaseException, config: DictConfig | None, training: bool, words: Sequence[str]) -> str | None:
    """The message for the user, or None if only a traceback helps."""
    for cause in _chain(error):
        if isinstance(cause, InputError):
            return str(cause)
        again = "run the same command again" if config is None else f"resume with: {_command(config, training, words)}"
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            where = redacted(str(cause.filename or _fullest(config)))
            return f"{where}: no space left on the disk; make room and {again}"
        if isinstance(cause, OSError) and cause.errno == errno.EFBIG:
            where = cause.filename or (config.get("run_dir") if config is not None else None) or "a file"
            return f"{where}: larger than this process may write (ulimit -f); raise that and {again}"
        if isinstance(cause, ValueError) and isinstance(error, InstantiationException):
            # The constructor checks constraints between values, such as dimension and heads.
            return _of_key(error, cause)
        if isinstance(error, InstantiationException) and type(cause).__name__ == "MisconfigurationException":
            return _of_key(error, cause)  # Lightning's trainer, by name: importing the class takes seconds
    return None


def _of_key(error: BaseException, cause: BaseException) -> str:
    """One line on what a constructor refused, with its config node."""
    key = re.search(r"full_key: (\S+)", str(error))
    said = " ".join(str(cause).split())
    return redacted(f"{key.group(1)}: {said}" if key else said)


def check_writable(folder: Path) -> None:
    """Check that files can be created in ``folder``, or in its nearest existing parent.

    Raises:
        OSError: They cannot, or the name is invalid.
    """
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder)):  # permissions do not show a read-only file system
            pass
    except FileNotFoundError as error:  # raised in /proc
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder)) from error
    except OSError as error:
        error.filename = str(folder)
        raise


def check_output(file: Path) -> None:
    """Check that ``file`` can be written.

    Raises:
        OSError: It cannot.
    """
    check_writable(file.parent)
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))


def _nearest(folder: Path) -> Path:
    """``folder`` itself or its nearest existing parent."""
    for path in (folder, *folder.parents):
        try:
            path.stat()
        except FileNotFoundError:
            continue
        return path
    return Path()


def _unusable(error: BaseException, configs: Sequence[DictConfig | None]) -> str | None:
    """Which path cannot be used, why, and what to choose instead; None for any other error."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno in _UNUSABLE and cause.filename):
        cause = cause.__cause__
    if not isinstance(cause, OSError) or cause.errno is None:
        return None
    path = Path(os.fsdecode(cause.filename)).absolute()
    reason = _UNUSABLE[cause.errno]
    for key in _KEYS:
        value = next((str(config[key]) for config in configs if config is not None and config.get(key)), None)
        if value is not None and path.is_relative_to(Path(value).absolute()):
            inside = "" if path == Path(value).absolute() else f": {path}"
            return f"{key}={value}{inside}: {reason}; choose another place by {_CHOICE.get(key, f'{key}=<path>')}"
    return f"{path}: {reason}; make it usable, or choose another place{_cache_hint(path)}"


def _cache_hint(path: Path) -> str:
    """The variable that moves the Hugging Face cache, if ``path`` is in it."""
    hub = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser().absolute()
    return " by HF_HOME=<path>, the cache of the Hugging Face hub" if path.is_relative_to(hub) else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _fullest(config: DictConfig | None) -> str:
    """The directory with the least free space among those we write to, since a failed write does not name its file."""
    named = [str(config[key]) for key in ("run_dir", "cache_dir") if config is not None and key in config]
    return min([p for p in (*named, ".") if Path(p).exists()], key=lambda path: shutil.disk_usage(path).free)


def _interrupted(
    config: DictConfig | None,
    training: bool,
    words: Sequence[str],
    code: int = INTERRUPTED,
    saved: int | None = None,
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
    again = [_shown(word) for word in words if not (training and word.startswith("ckpt_path="))]
    return proposed(None, *again, *(["ckpt_path=last"] if training else []))


def _shown(word: str) -> str:
    key, equals, value = word.partition("=")
    return f"{key}{equals}{BLOTTED}" if holds_secret(value) else redacted(word)


def _end(message: str, code: int, *, mistake: bool = False) -> None:
    if local_rank() == 0:  # once per machine
        print(printable(redacted(message)), file=sys.stderr)
    # Lightning kills rank 0 when another rank ends with an error; rank 0 may still be writing.
    raise Ended(0 if code == TERMINATED and is_spawned() else code, mistake=mistake)
