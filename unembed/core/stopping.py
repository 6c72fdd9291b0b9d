"""Handling of Ctrl-C and SIGTERM during the whole life of a script.

    if __name__ == "__main__":
        from unembed.core import stopping

        stopping.begin()        # from here on: one line and exit code 130 or 143, even during imports
    ...
    with stopping.raising():    # inside, they raise KeyboardInterrupt and Terminated, so that files are cleaned up
        ...

During training, callbacks/termination.py handles SIGTERM and saves a checkpoint first. Nothing heavy is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

FAILED, INTERRUPTED, TERMINATED = 2, 130, 143
WORDS = {INTERRUPTED: "interrupted", TERMINATED: "stopped by SIGTERM"}
_STARTER = "UNEMBED_STARTER"  # environment variable: process id of the script that started this rank


class Terminated(SystemExit):
    """Raised on SIGTERM to end the process.

    Args:
        saved: Step of the checkpoint saved because of it; None if none was saved.
    """

    def __init__(self, saved: int | None = None) -> None:
        super().__init__(TERMINATED)
        self.saved = saved


class _State:
    """Signal state of this process."""

    said = "nothing had begun"  # printed when a signal ends the process at once
    received = False
    starter = 0  # process id


def begin() -> None:
    """Let SIGTERM and Ctrl-C end this process with one line; a signal that is ignored (nohup) stays ignored."""
    if os.environ.get(_STARTER) == str(os.getppid()):
        _State.starter = os.getppid()
    os.environ[_STARTER] = str(os.getpid())
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _leave)
            # At interpreter exit Python removes its handlers; ignore signals then, since all work is done.
            atexit.register(signal.signal, number, signal.SIG_IGN)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Inside, the signals raise exceptions if :func:`begin` was called; otherwise nothing changes."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _raise}
    taken = [number for number in handlers if signal.getsignal(number) is _leave]
    for number in taken:
        signal.signal(number, handlers[number])
    said = ""  # the exception carries the message
    try:
        yield
        said = "everything was written"
    finally:
        for number in taken:  # only the interpreter's shutdown remains
            _State.said = said
            signal.signal(number, _leave)


def receive() -> bool:
    """Record a SIGTERM; return whether it is the first, since scheduler, torchrun and rank 0 may each send one."""
    first, _State.received = not _State.received, True
    # A signal to one rank is for all: the process that started this one forwards it to the others.
    if first and _State.starter and os.getppid() == _State.starter:
        os.kill(_State.starter, signal.SIGTERM)
    return first


def received() -> bool:
    """Whether SIGTERM was received."""
    return _State.received


def is_spawned() -> bool:
    """Whether this process is a rank that one of our scripts started with its own command line."""
    return bool(_State.starter)


def _raise(number: int, frame: FrameType | None) -> None:
    if receive():
        raise Terminated


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: an exception raised during an import may be swallowed or converted."""
    with contextlib.suppress(RuntimeError, OSError, ValueError):  # the signal came during a write to this stream
        sys.stdout.flush()
    code = INTERRUPTED if number == signal.SIGINT else TERMINATED
    if _State.said:
        os.write(2, f"{WORDS[code]}: {_State.said}\n".encode())
    os._exit(code)
