"""What a reader is to the fuzzer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .broken import Inputs, inputs
from .inside import Read


@dataclass(frozen=True, slots=True)
class Reader:
    """Something of ours that reads what others wrote.

    Attributes:
        read: Reads bytes, given a directory to put them into.
        good: Makes sound bytes; in a process of its own, since it may start threads.
        inputs: Strategy of broken ones, given the sound ones.
        share: Of the inputs that the others get, since some take long.
        libraries: Modules to import before a process is forked, that take long.
    """

    read: Read
    good: Callable[[], bytes]
    inputs: Callable[[bytes], Inputs] = inputs
    share: float = 1.0
    libraries: tuple[str, ...] = ()
