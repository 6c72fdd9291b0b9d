"""Invert a file of vectors with a finished run and write the recovered texts.

    unembed invert run=<dir> vectors=mine.npy            # writes mine.npy.texts.jsonl: index, text, cosine
    unembed invert run=minilm vectors=mine.npy experiment=strongest   # the run's search, with 300 queries a vector

The cosine compares the re-embedded text with the given vector: close to 1, the text is probably right.
Vectors whose lengths or directions do not match the run's embedder are refused, since the attack would turn them into
fluent but meaningless text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unembed import launch
from unembed.core.errors import printable

if TYPE_CHECKING:
    from omegaconf import DictConfig


def invert(settings: DictConfig, config: DictConfig) -> None:
    """Open the run -> invert the vectors -> embed the texts again -> write."""
    from unembed.api import Attacker
    from unembed.core.atomic_files import write_json_lines

    output, attacker = Path(settings.output), Attacker(settings, config)
    read = attacker.read(
        Path(settings.vectors),
        settings.max_queries,
        cosines=True,
        trusted=settings.trust_vectors,
        limit=settings.limit,
    )
    write_json_lines(
        output,
        (
            {"index": index, "text": one.candidates[0], "cosine": cosine, **({"partial": True} if one.partial else {})}
            for index, (one, cosine) in enumerate(read)
        ),
    )
    for index, (one, cosine) in enumerate(read[:10]):
        text = printable(" ".join(one.candidates[0].split("\n")))
        print(f"{index:>6}  {'' if cosine is None else f'{cosine:.3f}'}  {text}")
    print(printable(f"{len(read)} texts written to {output}"))
    if (limit := attacker.session.embedder.queries.limit) is not None:
        cut = sum(one.partial for one, _ in read)
        print(f"CUT SHORT: the search for {cut} of them ended early. {limit}")


def main() -> None:
    """``unembed invert``."""
    launch.main(invert, "invert")
