"""True texts that were embedded in another way than the run's embedder does."""

from __future__ import annotations

from pathlib import Path

import pytest

from unembed import launch
from unembed.audit.inputs import check_truths
from unembed.audit.results import Truth
from unembed.datamodules.vector_stores.sampling import Sample
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.embedders.transformer import Pooling

TEXTS = [f"{who} lives in {city}." for who in ("Ada", "Bob", "my aunt Cleo") for city in ("Paris", "Oslo", "Lima")]


@pytest.mark.parametrize(
    ("prefix", "pooling", "said"),
    [("", "mean", None), ("query: ", "mean", "prefix 'query: '"), ("", "cls", "pooling 'cls'")],
)
def test_vectors_with_a_prefix_or_another_pooling(
    tmp_path: Path, prefix: str, pooling: Pooling, said: str | None
) -> None:
    changed = MiniLM()
    changed.prefix, changed.pooling = prefix, pooling
    rows = tuple(range(len(TEXTS)))
    sample = Sample("store.npy", len(rows), rows, tuple(map(str, rows)), changed.embed(TEXTS))
    service = CachedEmbedder(MiniLM(), tmp_path)
    truths = {row: Truth(text) for row, text in enumerate(TEXTS)}
    found, warnings = check_truths(truths, sample, service, launch.compose("train", []), trusted=False)
    assert found == truths
    assert len(warnings) == (said is not None)
    if said is not None:
        assert f"those of the texts with the {said} (median cosine 1.000; 0." in warnings[0]
        assert f"embedder.{said.split()[0]}=" in warnings[0]
