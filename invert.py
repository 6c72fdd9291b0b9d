"""Invert a file of vectors with a finished run and write the recovered texts.

    python invert.py run=<dir> vectors=mine.npy            # writes mine.npy.texts.jsonl: index, text, cosine

The cosine compares the re-embedded text with the given vector: close to 1, the text is probably right.
Vectors whose lengths or directions do not match the run's embedder are refused, since the attack would turn them into
fluent but meaningless text.
"""

from __future__ import annotations

if __name__ == "__main__":
    from unembed.core import stopping

    stopping.begin()

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from unembed import launch
from unembed.core.errors import printable

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("invert")


def invert(settings: DictConfig, config: DictConfig) -> None:
    """Open the run -> invert the vectors -> embed the texts again -> write."""
    from unembed.core.atomic_files import write_json_lines
    from unembed.datamodules.vector_stores.vector_files import read_vectors
    from unembed.embedders.base import QueryLimitError
    from unembed.embedders.language_model import LanguageModelEmbedder
    from unembed.reports.reading import Reader, known_rows
    from unembed.reports.vector_space import check_reading, check_space, dimension_explained, reference_space
    from unembed.session import Session

    run, output = Path(settings.run), Path(settings.output)
    session = Session.open(run, config)
    oracle = session.oracle
    # Outputs of a language model are not text embeddings, and a defense without its fitted state cannot be applied.
    of_texts = not isinstance(session.embedder.embedder, LanguageModelEmbedder)
    known = known_rows(run) if of_texts and (session.is_fitted or not session.threat.adaptive) else []
    references, space = [row.reference for row in known], None
    try:
        space = reference_space(session, references)
    except QueryLimitError as error:
        log.warning("vectors=%s: not compared with the run's test texts. %s", settings.vectors, error)
    with dimension_explained(space, session):
        vectors = read_vectors(Path(settings.vectors), session.dimension, limit=settings.limit)
    for warning in check_space(settings.vectors, vectors, space, session, references, settings.trust_vectors):
        log.warning(warning)

    vectors = session.denoised(vectors)
    attack = session.restored_attack(oracle, session.dimension, settings.ckpt_path)
    reader = Reader(attack, oracle, settings.batch_size, partial=True)
    cosines = [row.cosine for row in known]
    for warning in check_reading(settings.vectors, vectors, reader, cosines, settings.trust_vectors):
        log.warning(warning)
    predictions = reader.read(vectors)
    read = list(zip(predictions, reader.cosines(predictions, vectors), strict=True))
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
    if session.embedder.queries.limit is not None:
        cut = sum(one.partial for one in predictions)
        print(f"CUT SHORT: the search for {cut} of them ended early. {session.embedder.queries.limit}")


if __name__ == "__main__":
    launch.main_on_run(invert, "invert")
