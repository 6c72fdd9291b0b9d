"""A long file of JSON lines that several ranks write in parts, and that a killed command goes on with.

    parts = Parts(Path("mine.jsonl"), rows=5_000_000, step=512)
    for part in parts.begin(key, rank, size):            # those of this rank that are missing: range(0, 512), ...
        parts.write(part, ({"index": index} for index in part))
    parts.join()                                         # on rank 0: mine.jsonl, once the other ranks have ended

The parts are files in <output>.parts, which is removed at the end. A part is there in full or not at all.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unembed.core.atomic_files import read_json, write_file, write_json, write_json_lines
from unembed.core.errors import InputError

KEY = "key.json"


class Parts:
    """The parts of ``output``.

    Args:
        output: The file.
        rows: Its lines.
        step: Lines of a part.
    """

    def __init__(self, output: Path, rows: int, step: int) -> None:
        self.output, self.folder = output, output.with_name(f"{output.name}.parts")
        self._all = [range(begin, min(begin + step, rows)) for begin in range(0, rows, step)]

    def begin(self, key: str, rank: int, size: int) -> list[range]:
        """The parts that this rank has to write; ``key`` is a hash of all that the lines depend on.

        Raises:
            InputError: There are parts with another key.
        """
        path = self.folder / KEY
        if path.is_file() and read_json(path) != {"key": key}:
            raise InputError(
                f"output={self.output}: {self.folder} holds parts of an inversion of other vectors or with other "
                "settings, which was interrupted; repeat that command, remove the folder, or choose another output"
            )
        write_json(path, {"key": key})
        return [part for part in self._all[rank::size] if not self._file(part).is_file()]

    def write(self, part: range, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write one part."""
        write_json_lines(self._file(part), lines)

    def join(self) -> None:
        """Wait for all parts, and write them to one file; if another rank dies, torchrun ends this one."""
        while not all(self._file(part).is_file() for part in self._all):
            time.sleep(0.2)
        write_file(self.output, lambda file: file.writelines(self._file(part).read_bytes() for part in self._all))
        shutil.rmtree(self.folder)

    def _file(self, part: range) -> Path:
        return self.folder / f"{part.start:012d}.jsonl"
