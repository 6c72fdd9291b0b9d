"""Storage for the hypotheses of an inverter: one text per example of a split, written in parts by all ranks.

    store = HypothesisStore(cache / "hypotheses" / key, count=len(examples))
    store.fill(write, rank=0, world_size=1)       # write(range(0, 1024)) -> 1024 texts
    store.read()                                  # all of them, in the order of the examples

A part is one file, written atomically and only once, so a killed job resumes with the missing parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from unembed.core import limits
from unembed.core.atomic_files import remove_temporary, write_file
from unembed.core.errors import InputError
from unembed.core.progress import Progress
from unembed.datamodules.arrow_examples import Encode, TokenIds
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors
from unembed.embedders.cache.shards import ABANDONED_SECONDS, make_private_folder


class HypothesisStore:
    """One text for each of ``count`` examples, in files of ``part`` texts.

    The folder's name is derived from the inverter, its examples and its decoding settings.
    """

    def __init__(self, folder: Path, count: int, part: int = 1024) -> None:
        self.folder, self.count, self.part = folder, count, part

    def fill(
        self,
        write: Callable[[range], Sequence[str]],
        *,
        rank: int = 0,
        world_size: int = 1,
        barrier: Callable[[], object] = lambda: None,
    ) -> None:
        """Write the parts that are missing; every rank calls this, and each writes its share."""
        make_private_folder(self.folder)
        remove_temporary(self.folder, older_than=ABANDONED_SECONDS)
        missing = [part for part in self._parts() if not self._file(part).is_file()]
        barrier()  # all ranks have seen the same missing parts
        mine = missing[rank::world_size]
        with Progress(sum(map(len, mine)), "hypotheses", shown=rank == 0) as progress:
            for part in mine:
                texts = write(part)
                lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
                write_file(self._file(part), lines)
                progress.advance(len(part))
        barrier()

    def read(self) -> list[str]:
        """All texts."""
        texts: list[str] = []
        for part in self._parts():
            path = self._file(part)
            try:
                rows = [json.loads(line) for _, line in limits.lines(path)]
                part_texts = [row["text"] for row in rows if isinstance(row["text"], str)]
            except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
                raise InputError(
                    f"{path}: hypotheses cannot be read ({error}); delete the file to make it again"
                ) from error
            if len(part_texts) != len(part):
                raise InputError(f"{path}: holds {len(part_texts)} texts, not {len(part)}; delete it to make it again")
            texts += part_texts
        return texts

    def _parts(self) -> list[range]:
        return [range(begin, min(begin + self.part, self.count)) for begin in range(0, self.count, self.part)]

    def _file(self, part: range) -> Path:
        return self.folder / f"{part.start:09d}.jsonl"


class Hypotheses:
    """A hypothesis for each example of a split, with vectors and token ids.

    Args:
        texts: In the order of the examples.
        embedder: Has the vectors of all ``texts``.
        encode: Token ids of a hypothesis as the corrector reads it.
    """

    def __init__(self, texts: Sequence[str], embedder: CachedEmbedder, encode: Encode) -> None:
        self.texts = texts
        self.vectors: CachedVectors = embedder.view(texts)
        self.ids = TokenIds(texts, encode)


class HypothesisMixture:
    """Several hypotheses per example; each batch samples one of them for each of its examples."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.sets: list[Hypotheses] = []

    def sample(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """For examples ``index`` (B,): ids (B, T) padded with -100, vectors (B, d), on the CPU."""
        examples = index.cpu()
        sampled = torch.randint(len(self.sets), examples.shape) if len(self.sets) > 1 else torch.zeros_like(examples)
        vectors = torch.empty(len(examples), self.dimension)
        ids = [torch.empty(0, dtype=torch.long)] * len(examples)
        for number, hypotheses in enumerate(self.sets):
            rows = (sampled == number).nonzero()[:, 0]
            if len(rows):
                chosen = examples[rows].numpy()
                vectors[rows] = hypotheses.vectors[chosen.tolist()]
                for row, line in zip(rows.tolist(), hypotheses.ids.padded(chosen), strict=True):
                    ids[row] = line
        return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100), vectors


def texts_key(texts: Sequence[str]) -> str:
    """A hash of texts and their order."""
    digest = blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()
