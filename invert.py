"""Read vectors back: a run and a file of vectors in, texts out.

    python invert.py run=<dir> vectors=mine.npy            # writes mine.npy.texts.jsonl: index, text, cosine

The cosine is that of the text, embedded again, with the vector: close to 1 says that the text is probably right.
Vectors that the run's embedder cannot have made, by their lengths and directions, are refused: they would be read as
fluent nonsense.
"""

from __future__ import annotations

if __name__ == "__main__":
    import stopping

    stopping.begin()

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import configuration
from atomic_files import write_json_lines
from errors import InputError, printable
from run_directory import layout
from run_directory.checkpoints import finished_checkpoint

if TYPE_CHECKING:
    from omegaconf import DictConfig


log = logging.getLogger("invert")


def invert(settings: DictConfig, config: DictConfig) -> None:
    """Read vectors -> invert in batches -> embed again -> write."""
    import torch
    from hydra.utils import instantiate
    from lightning import seed_everything
    from rich.progress import track

    from datamodules.defended import DefendedEmbedder, FittedDefense
    from datamodules.vector_stores.vector_files import read_vectors
    from defenses.base import Fitted
    from defenses.threat import threat_of
    from embedders.base import QueryLimitError
    from embedders.cache.cached import CachedEmbedder
    from embedders.language_model import LanguageModelEmbedder
    from metrics.vectors import cosine_rows
    from models.predictions import Targets
    from reports.audit.reading import known_rows
    from reports.vector_space import check_space

    run, output = Path(settings.run), Path(settings.output)
    embedder = CachedEmbedder(instantiate(config.embedder, _convert_="all"), Path(config.cache_dir))
    threat, oracle = threat_of(config.defense), embedder
    width = threat.defense.output_dimension(embedder.dimension) if threat.adaptive else embedder.dimension
    kept = FittedDefense(run / layout.ARTIFACTS, threat.settings, embedder.fingerprint)
    ready = not isinstance(threat.defense, Fitted) or kept.restore(threat.defense)
    if threat.hypotheses == "defended":
        if not ready:
            raise InputError(
                f"defense.hypotheses=defended: {run} keeps no state of this defense with these settings; take the "
                "defense that it was trained with, or defense.hypotheses=clean"
            )
        oracle = DefendedEmbedder(embedder, threat.defense)
    vectors = read_vectors(Path(settings.vectors), width, limit=settings.limit)
    # Rows of a language model's output are no embeddings of texts, and a defense without its state makes no vectors.
    if not isinstance(embedder.embedder, LanguageModelEmbedder) and (ready or not threat.adaptive):
        made = DefendedEmbedder(embedder, threat.defense) if threat.adaptive else embedder
        known = [row.reference for row in known_rows(run)]
        try:
            for warning in check_space(settings.vectors, vectors, known, made, settings.trust_vectors):
                log.warning(warning)
        except QueryLimitError as error:
            log.warning("vectors=%s: not compared with the run's test texts. %s", settings.vectors, error)

    seed_everything(config.seed, workers=True, verbose=False)
    attack = instantiate(config.attack, _convert_="all")
    attack.connect(run / layout.ARTIFACTS, oracle, from_checkpoint=True)
    attack.restore(finished_checkpoint(run, settings.ckpt_path) if attack.trainable else None, width)
    device = torch.device("cuda" if torch.cuda.is_available() and config.trainer.accelerator != "cpu" else "cpu")
    attack.to(device)

    texts: list[str] = []
    queries: list[str] = []
    partial: list[bool] = []
    for begin in track(range(0, len(vectors), settings.batch_size), "inverting"):
        block = vectors[begin : begin + settings.batch_size]
        targets = Targets(block.to(device), torch.arange(begin, begin + len(block)))
        predictions = attack.invert(targets, oracle)
        texts += [prediction.candidates[0] for prediction in predictions]
        queries += [attack.query(prediction) for prediction in predictions]
        partial += [prediction.partial for prediction in predictions]
    done = list(range(len(texts)))
    try:
        again = oracle.embed(queries, "scoring")
    except QueryLimitError as error:
        done, again = list(error.done), error.vectors
    cosines: list[float | None] = [None] * len(texts)
    if again.shape[-1] == vectors.shape[-1]:
        for row, cosine in zip(done, cosine_rows(again, vectors[done]).tolist(), strict=True):
            cosines[row] = cosine
    write_json_lines(
        output,
        (
            {"index": index, "text": text, "cosine": cosine, **({"partial": True} if cut else {})}
            for index, (text, cosine, cut) in enumerate(zip(texts, cosines, partial, strict=True))
        ),
    )
    for index in range(min(10, len(texts))):
        cosine, text = cosines[index], printable(" ".join(texts[index].split("\n")))
        print(f"{index:>6}  {'' if cosine is None else f'{cosine:.3f}'}  {text}")
    print(printable(f"{len(texts)} texts written to {output}"))
    if embedder.queries.limit is not None:
        print(f"CUT SHORT: the search for {sum(partial)} of them ended early. {embedder.queries.limit}")


if __name__ == "__main__":
    configuration.main_on_run(invert, "invert")
