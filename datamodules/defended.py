"""Apply a defense to cached vectors, store its fitted state, and embed an attacker's texts behind it.

defended(defense, vectors, examples, "test")                     # (n, output_dimension), checked
FittedDefense(run / "artifacts", settings, fingerprint).restore(defense)
DefendedEmbedder(cached, defense).embed(["my name is ada ."])    # what the defended service answers
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.defenses.base import Defense, Fitted, Role
from unembed.embedders.base import Embedder, QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors, Purpose, Queries
from unembed.embedders.cache.shards import Positions
from unembed.runs.layout import DEFENSE


def defended(
    defense: Defense, vectors: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None
) -> Tensor:
    """``vectors`` (n, d) of ``examples`` behind the defense, (n, output_dimension).

    Raises:
        InputError: A defended vector is all zeros, NaN or infinite.
    """
    try:
        changed = defense(vectors, examples, role, epoch)
    except RuntimeError as error:
        if not isinstance(defense, Fitted):
            raise
        raise InputError(
            f"defense: what it has estimated does not fit vectors of dimension {vectors.shape[1]}: {error}"
        ) from error
    # Rows that were zero before the defense are valid outputs of a language model (embedders/base.py, LogitsEmbedder).
    sound = changed.isfinite().all(dim=1) & (changed.any(dim=1) | ~vectors.any(dim=1))
    if not sound.all():
        row = int(sound.int().argmin())
        what = "all zeros" if changed[row].isfinite().all() else "NaN or infinite"
        raise InputError(
            f"defense: what it makes of {role} text {examples[row].index}, and of {int((~sound).sum())} of these "
            f"{len(sound)}, is {what}; take a weaker setting"
        )
    return changed


class FittedDefense:
    """The fitted state of a defense, stored in a run's artifacts.

    Args:
        folder: The artifacts.
        settings: The defense's configuration, plain values.
        fingerprint: Fingerprint of the embedder whose vectors the defense was fitted to.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], fingerprint: str) -> None:
        self.path = folder / DEFENSE
        self._about = {"settings": json.dumps(settings, sort_keys=True), "embedder": fingerprint}

    def write(self, defense: Defense) -> None:
        """Store the state of ``defense``, if it has any."""
        from safetensors.torch import save

        state = defense.state() if isinstance(defense, Fitted) else {}
        if state:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.path, save({name: t.contiguous() for name, t in state.items()}, self._about))

    def restore(self, defense: Defense) -> bool:
        """Restore the state of ``defense``; False if none is stored for these settings and this embedder.

        Raises:
            InputError: The file is damaged.
        """
        from safetensors import SafetensorError, safe_open

        if not isinstance(defense, Fitted) or not self.path.is_file():
            return False
        try:
            with safe_open(self.path, framework="pt") as file:
                if file.metadata() != self._about:
                    return False
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise InputError(f"{self.path}: the fitted defense cannot be read: {error}") from error
        wrong = [name for name, tensor in state.items() if tensor.is_complex() or not tensor.isfinite().all()]
        if wrong:
            raise InputError(f"{self.path}: {wrong[0]} holds NaN or infinite numbers")
        try:
            defense.restore(state)
        except LookupError as error:
            raise InputError(f"{self.path}: {error} is missing from what the defense has estimated") from error
        return True


class DefendedVectors(CachedVectors):
    """The defended vectors of a fixed list of hypotheses, read when they are indexed."""

    def __init__(self, clean: CachedVectors, texts: Sequence[str], change: Callable[[Sequence[str], Tensor], Tensor]):
        self._clean, self._texts, self._change = clean, texts, change

    def __len__(self) -> int:
        return len(self._clean)

    def __getitem__(self, indices: slice | Positions | Tensor | list[int]) -> Tensor:
        """Vectors at ``indices``, (m, output_dimension) float32."""
        rows = range(len(self._texts))[indices] if isinstance(indices, slice) else [int(i) for i in indices]
        return self._change([self._texts[row] for row in rows], self._clean[indices])


class DefendedEmbedder(CachedEmbedder):
    """A defended embedding service: an attacker who embeds a hypothesis gets its defended vector, always the same one.

    The underlying cache stores undefended vectors and counts queries.

    Args:
        source: The underlying cache.
        defense: Fitted before the first call.
        language: Language of the attacker's texts, if known.
    """

    def __init__(
        self, source: CachedEmbedder, defense: Defense, language: Callable[[], str | None] = lambda: None
    ) -> None:
        self._behind, self._defense, self._language = source, defense, language

    @property
    def source(self) -> CachedEmbedder:
        return self._behind

    @property
    def embedder(self) -> Embedder:
        """See CachedEmbedder."""
        return self._behind.embedder

    @property
    def dimension(self) -> int:
        """Dimension of a defended vector."""
        return self._defense.output_dimension(self._behind.dimension)

    @property
    def max_tokens(self) -> int:
        return self._behind.max_tokens

    @property
    def fingerprint(self) -> str:
        return self._behind.fingerprint

    @property
    def queries(self) -> Queries:
        """The fingerprint of the underlying cache."""
        return self._behind.queries

    @queries.setter
    def queries(self, queries: Queries) -> None:
        self._behind.queries = queries

    def embed(self, texts: Sequence[str], purpose: Purpose = "attack") -> Tensor:
        """Defended vectors of ``texts``, (n, dimension) float32.

        Raises:
            QueryLimitError: See CachedEmbedder; its vectors are defended, too.
        """
        try:
            return self._change(texts, self._behind.embed(texts, purpose))
        except QueryLimitError as error:
            known = self._change([texts[row] for row in error.done], error.vectors)
            raise QueryLimitError(str(error), error.done, known) from error

    def fill(
        self,
        texts: Sequence[str],
        purpose: Purpose,
        *,
        rank: int = 0,
        world_size: int = 1,
        barrier: Callable[[], None] = lambda: None,
    ) -> None:
        """See CachedEmbedder."""
        self._behind.fill(texts, purpose, rank=rank, world_size=world_size, barrier=barrier)

    def view(self, texts: Sequence[str]) -> CachedVectors:
        """See CachedEmbedder; the vectors are defended when they are read."""
        return DefendedVectors(self._behind.view(texts), texts, self._change)

    def flush(self) -> None:
        """See CachedEmbedder."""
        self._behind.flush()

    def _change(self, texts: Sequence[str], vectors: Tensor) -> Tensor:
        if not len(texts):
            return torch.empty(0, self.dimension)
        # Index 0 for all, so that the noise of a text does not depend on the call.
        examples = [Example(0, text, language=self._language()) for text in texts]
        return defended(self._defense, vectors, examples, "hypothesis")
