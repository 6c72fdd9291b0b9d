"""What a vector store gives away: a sample of it and a finished run in, a page for its owner out.

    python audit.py run=<dir> vectors=mine.npy                      # <run>/audits/<time>/audit.html and audit.json
    python audit.py run=<dir> vectors=chroma:db texts=truth.jsonl   # measured where true texts are known
    python audit.py run=<dir> vectors=mine.npy 'defenses=["defense=noise defense.level=0.02"]' --show-text

It estimates what share of the store this attacker reads, which kinds of entities leak, which rows are most exposed, and
what defenses would change. Recovered texts are masked unless --show-text. The same command with the output_dir of an
audit that was killed goes on with it. docs/audit.md says how the figures are made.
"""

from __future__ import annotations

if __name__ == "__main__":
    import stopping

    stopping.begin()

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import configuration
from errors import InputError
from run_directory import layout
from run_directory.checkpoints import finished_checkpoint
from run_directory.config_file import read_config

if TYPE_CHECKING:
    from omegaconf import DictConfig


def audit(settings: DictConfig, config: DictConfig) -> None:
    """Open -> check -> defend -> read back -> judge -> write."""
    import torch
    from hydra.utils import instantiate
    from lightning import seed_everything

    from datamodules.vector_stores.sampling import open_store, sample_store
    from defenses.threat import threat_of
    from embedders.cache.cached import CachedEmbedder
    from reports.audit.defenses import Rows, prepare
    from reports.audit.evaluation import judge
    from reports.audit.inputs import check_truths, read_truths
    from reports.audit.page import VALUES, print_audit, write_audit
    from reports.audit.reading import Reader, check_embedder, held_out, known_rows, same_attack, services, truths_of
    from reports.vector_space import check_space
    from run_directory.batch_cache import BatchCache, settings_key
    from scoring.models import scoring_models

    run, output = Path(settings.run), Path(settings.output_dir)
    if (output / VALUES).exists() and not (output / layout.TEST_BATCHES).exists():
        raise InputError(f"output_dir={output}: already holds an audit; choose another directory")
    points = configuration.defense_points(config, settings.defenses, "defenses", settings.config_dir)
    tried = {point.name: threat_of(point.config.defense).defense for point in points}
    embedder = CachedEmbedder(instantiate(config.embedder, _convert_="all"), Path(config.cache_dir))
    check_embedder(run, embedder)
    threat = threat_of(config.defense)
    service, oracle = services(run, threat, embedder)
    width = service.dimension
    for one in tried.values():
        one.output_dimension(width)
    store = open_store(settings.vectors, width, settings.collection)
    truths = {} if settings.texts is None else read_truths(settings.texts, store)
    models = scoring_models(config)
    sample = sample_store(store, width, settings.limit, config.seed, truths)
    del store  # and with it the process that read it
    rows = known_rows(run)
    warnings = check_space(
        sample.name, sample.vectors, [row.reference for row in rows], service, settings.trust_vectors
    )
    if truths:
        truths, more = check_truths(truths, sample, service, config, settings.trust_vectors)
        warnings += more
    known_vectors = service.embed([row.reference for row in rows], "scoring")
    own = Rows(known_vectors, [row.index for row in rows], truths_of(rows))
    trials = prepare(tried, sample, truths, own, settings.defense_limit)

    seed_everything(config.seed, workers=True, verbose=False)
    attack = instantiate(config.attack, _convert_="all")
    attack.connect(run / layout.ARTIFACTS, oracle, from_checkpoint=True)
    attack.restore(finished_checkpoint(run, settings.ckpt_path) if attack.trainable else None, width)
    attack.to(torch.device("cuda" if torch.cuda.is_available() and config.trainer.accelerator != "cpu" else "cpu"))
    finished = BatchCache(output / layout.TEST_BATCHES, settings_key(configuration.plain(config), embedder.fingerprint))
    layout.start(output, resuming=finished.begun(), key="output_dir")
    finished.begin()
    finished.open(attack.all_weights())
    reader = Reader(attack, oracle, finished, settings.batch_size)

    unchanged = same_attack(config, read_config(run), threat, settings.ckpt_path)
    known = held_out(rows, unchanged, reader, known_vectors)
    found = judge(settings, config, sample, truths, known, reader, models.tagger, trials)
    found.warnings = warnings + found.warnings
    write_audit(output, found)
    finished.clear()  # holds recovered text in the clear
    print_audit(output, found)


if __name__ == "__main__":
    sys.argv = ["show_text=true" if word == "--show-text" else word for word in sys.argv]
    configuration.main_on_run(audit, "audit")
