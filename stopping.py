"""What Ctrl-C and SIGTERM do to a script, from its first line to its last.

    if __name__ == "__main__":
        import stopping

        stopping.begin()        # one line and exit code 130 or 143 from here on, while the libraries are imported too
    ...
    with stopping.raising():    # in here they are exceptions, KeyboardInterrupt and Terminated: files are tidied up
        ...

SIGTERM is what a scheduler sends when a job's time is up, and SIGKILL some seconds later. While an attack is trained,
callbacks/termination.py answers it: a checkpoint first. Nothing heavy is imported here.
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
_STARTER = "UNEMBED_STARTER"  # environment variable: the script that started this one, as Lightning does with ranks


class Terminated(SystemExit):
    """SIGTERM has come and the process is to end.

    Args:
        saved: Step that a checkpoint was made of for this; None where none was made.
    """

    def __init__(self, saved: int | None = None) -> None:
        super().__init__(TERMINATED)
        self.saved = saved


class _State:
    """Of this process."""

    said = "nothing had begun"  # by a process that a signal ends at once
    received = False
    starter = 0  # process id


def begin() -> None:
    """From here on SIGTERM and Ctrl-C end this process with one line; one that is ignored (nohup) stays ignored."""
    if os.environ.get(_STARTER) == str(os.getppid()):
        _State.starter = os.getppid()
    os.environ[_STARTER] = str(os.getpid())
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _leave)
            # At last Python takes its handlers away, and a signal would end it without a line: all is done by then.
            atexit.register(signal.signal, number, signal.SIG_IGN)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Within it the signals are exceptions, once :func:`begin` was called; else nothing changes."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _raise}
    taken = [number for number in handlers if signal.getsignal(number) is _leave]
    for number in taken:
        signal.signal(number, handlers[number])
    said = ""  # an exception says why
    try:
        yield
        said = "everything was written"
    finally:
        for number in taken:  # what remains is the interpreter's own end
            _State.said = said
            signal.signal(number, _leave)


def receive() -> bool:
    """Take note of a SIGTERM; whether it is the first: a scheduler, torchrun and the first rank may each send one."""
    first, _State.received = not _State.received, True
    # A signal to one rank is one to all: the process that started this one tells the others.
    if first and _State.starter and os.getppid() == _State.starter:
        os.kill(_State.starter, signal.SIGTERM)
    return first


def received() -> bool:
    """Whether a SIGTERM has come."""
    return _State.received


def is_spawned() -> bool:
    """Whether one of our scripts started this one, with its own command line: a rank."""
    return bool(_State.starter)


def _raise(number: int, frame: FrameType | None) -> None:
    if receive():
        raise Terminated


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: an exception in the midst of an import may come out as another one, or be lost."""
    with contextlib.suppress(RuntimeError, OSError, ValueError):  # the signal came while this very stream was written
        sys.stdout.flush()
    code = INTERRUPTED if number == signal.SIGINT else TERMINATED
    if _State.said:
        os.write(2, f"{WORDS[code]}: {_State.said}\n".encode())
    os._exit(code)
