"""Audit a vector store with a finished run: how much of its text can be recovered, as a page for the store's owner.

    unembed audit run=<dir> vectors=mine.npy                      # <run>/audits/<time>/audit.html and audit.json
    unembed audit run=<dir> vectors=chroma:db texts=truth.jsonl   # measured where true texts are known
    unembed audit run=<dir> vectors=mine.npy 'defenses=["defense=noise defense.level=0.02"]' --show-text
    unembed audit run=<dir> vectors=mine.npy also=minilm max_queries=300  # several attackers, and each with a search
    unembed audit run=<dir> vectors=mine.npy fail_on='readable>5'  # exit code 3 if the interval reaches above 5 %
    unembed audit run=<dir> vectors=mine.npy --json       # audit.json on standard output, all else on standard error
    torchrun --nproc-per-node 2 -m unembed audit run=<dir> vectors=mine.npy limit=null output_dir=<dir>  # all vectors

It estimates what share of the store this attacker reads, which kinds of entities leak, which rows are most exposed, and
what defenses would change. Beside the page stand audit.sarif, audit.junit.xml and audit.md for
pipelines. Recovered texts are masked unless --show-text. The same command with the output_dir of an
audit that was killed resumes it. docs/audit.md says how the metrics are made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unembed import launch
from unembed.core.errors import InputError
from unembed.core.ranks import ALONE, Ranks, ranks_of_torchrun
from unembed.launch import locations
from unembed.launch.overrides import as_list

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from unembed.audit.results import Audit, Truth
    from unembed.datamodules.vector_stores.sampling import Sample, VectorStore
    from unembed.session import Session

EXCEEDED = 3  # exit code where a threshold is exceeded; 1 is an error, 2 bad input


def check_given(settings: DictConfig) -> None:
    """Check what needs no attacker, before torch is imported: thresholds, and whatever lies on this machine."""
    from unembed.audit.results import VALUES, read_audit
    from unembed.audit.thresholds import parse
    from unembed.core.limits import existing
    from unembed.datamodules.vector_stores.base import split_address
    from unembed.datamodules.vector_stores.sampling import held_by_store, open_store
    from unembed.datamodules.vector_stores.vector_files import check_file
    from unembed.runs import layout

    output, vectors = Path(settings.output_dir), Path(settings.vectors).expanduser()
    if (output / VALUES).exists() and not (output / layout.TEST_BATCHES).exists():
        raise InputError(f"output_dir={output}: already holds an audit; choose another directory")
    parse(settings.fail_on)
    if settings.baseline is not None:
        read_audit(Path(settings.baseline).expanduser())
    for named in as_list(settings.also):
        launch.find_run(named, "also")
    if settings.texts is not None and not held_by_store(settings.texts):
        existing(settings.texts, "texts")
    kind, place = split_address(settings.vectors)
    is_file = (not kind or vectors.is_file()) and vectors.suffix != ".faiss"
    is_remote = kind == "pinecone" or "//" in place
    if is_file and settings.collection is None:
        check_file(vectors)
    elif is_file or not (is_remote or Path(place).expanduser().exists()):
        open_store(settings.vectors, 0, settings.collection)  # says what is wrong


def audit(settings: DictConfig, config: DictConfig) -> None:
    """Audit the store -> write -> say it, by the exit code too."""
    from unembed.audit.report import print_audit, write_audit
    from unembed.audit.results import VALUES
    from unembed.reports.output import terminal
    from unembed.runs import layout

    output, ranks = Path(settings.output_dir), ranks_of_torchrun()
    if ranks.rank > 0:
        _read_along(settings, config, ranks)
        return
    result = audited(settings, config, ranks=ranks)
    write_audit(output, result)
    shutil.rmtree(output / layout.TEST_BATCHES, ignore_errors=True)  # it holds unmasked recovered text
    print_audit(output, result, terminal(stderr=settings.json))
    if settings.json:
        print((output / VALUES).read_text(encoding="utf-8"), end="")
    if unjudged := [one.said for one in result.thresholds if not one.passed and one.share is None]:
        raise InputError("\n".join(unjudged))
    if not all(one.passed for one in result.thresholds):
        raise SystemExit(EXCEEDED)


def audited(
    settings: DictConfig, config: DictConfig, opened: Callable[[int], VectorStore] | None = None, ranks: Ranks = ALONE
) -> Audit:
    """Open the run and the store -> check -> defend -> read back -> evaluate.

    Args:
        settings: Those of configs/audit.yaml.
        config: The run's configuration with overrides.
        opened: The store of vectors of a dimension, where ``settings.vectors`` is no address.
        ranks: Share the reading of the store; the others than this, the first, are in ``_read_along``.
    """
    from unembed.audit.attackers import (
        SEARCHED,
        TESTED,
        AttackerReadings,
        AuditedRows,
        StoreReader,
        by_lookup,
        check_same,
        closest_of,
        held_out,
        read_by,
        reader_of,
        same_attack,
        services,
        training_lookup,
        truths_of,
    )
    from unembed.audit.defenses import prepare
    from unembed.audit.estimates import Estimator, read_scored, scored
    from unembed.audit.evaluation import evaluate
    from unembed.audit.inputs import check_truths, stored_truths
    from unembed.audit.results import read_audit
    from unembed.audit.thresholds import changes, check_kinds, incomparable, judge, parse
    from unembed.datamodules.vector_stores.sampling import held_by_store
    from unembed.defenses.threat import threat_of
    from unembed.metrics.statistics import evenly
    from unembed.reports.reading import known_rows
    from unembed.reports.vector_space import check_reading, check_space, dimension_explained, reference_space
    from unembed.runs import layout
    from unembed.scoring.recognisers import Recognisers
    from unembed.session import Session

    run, output = Path(settings.run), Path(settings.output_dir)
    conditions = parse(settings.fail_on)
    before = None if settings.baseline is None else read_audit(Path(settings.baseline).expanduser())
    points = launch.defense_points(config, settings.defenses, "defenses", settings.config_dir)
    tried = {point.name: threat_of(point.config.defense).defense for point in points}
    session = Session.open(run, config)
    others = _others(settings, config)
    for _, _, other in others:
        check_same(session, other)
    service, oracle = services(session)
    for one in tried.values():
        one.output_dimension(session.dimension)
    rows = known_rows(run)
    references = [row.reference for row in rows]
    space = reference_space(session, references)
    models = session.models
    with dimension_explained(space, session):
        store, sample, truths = _sampled(settings, config, session, opened)
    warnings: list[str] = []
    if held_by_store(settings.texts):
        truths, warnings = stored_truths(settings.texts, store, sample.positions)
    del store  # also ends the process that read it
    warnings += check_space(sample.name, sample.vectors, space, session, references, settings.trust_vectors)
    if truths:
        truths, more = check_truths(truths, sample, service, config, settings.trust_vectors)
        warnings += more
    spans = {span.label for truth in truths.values() for span in truth.spans}
    finder = models.tagger or Recognisers()
    by_form = finder.labels if isinstance(finder, Recognisers) else ()
    check_kinds(conditions, spans or set(by_form), any_kind=not spans and not by_form)
    trials = prepare(tried, sample, truths, settings.defense_limit)
    stored = sample.vectors
    if session.denoiser is not None:
        sample = replace(sample, vectors=session.denoised(sample.vectors))
        report = session.denoiser.report()
        warnings.append(f"{report}. Cosines are with the denoised vectors; defenses are tried without.")

    attack = session.restored_attack(oracle, session.dimension, settings.ckpt_path)
    first = StoreReader(attack, oracle, settings.batch_size)
    warnings += check_reading(sample.name, sample.vectors, first, [row.cosine for row in rows], settings.trust_vectors)
    attack.batch_cache = cache = session.batch_cache(output)
    layout.start(output, resuming=cache.exists(), key="output_dir")
    cache.create()
    cache.open(attack.all_weights())
    reader = StoreReader(attack, oracle, settings.batch_size)
    reader.ranks = ranks
    unchanged = same_attack(config, session, settings.ckpt_path)
    known = held_out(rows, unchanged, reader, lambda: service.embed(references, "scoring"))
    ranks.meet()
    texts = reader.store_texts(sample)
    most = (SEARCHED if settings.max_queries else TESTED) if others else len(rows)
    tested = evenly(range(len(rows)), most)
    truth = [truths.get(place) for place in sample.positions]
    audited_rows = AuditedRows(sample, stored, truth, truths_of([rows[place] for place in tested]))
    own = [
        AttackerReadings(
            "attack",
            _label(run, config),
            reader.readings(texts, sample.vectors, truth),
            [known[place] for place in tested],
            Estimator([*(read_scored(run) if unchanged else []), *scored(known)]),
        )
    ]
    lookup, more = training_lookup(session, service, settings.lookup)
    warnings += more
    if lookup is not None:
        own.append(by_lookup(lookup, reader, audited_rows))
    for name, label, other in others:
        own.append(read_by(name, label, other, audited_rows, reader_of(label, other, settings, ranks)))
    if len(own) > 1:
        own.append(closest_of(own))
    result = evaluate(settings, config, audited_rows, own, models.tagger, trials, reader, lookup)
    result.warnings = warnings + result.warnings
    result.thresholds = judge(conditions, result)
    if before is not None:
        result.warnings += incomparable(result, before)
        result.changes = changes(result, before)
    return result


def _read_along(settings: DictConfig, config: DictConfig, ranks: Ranks) -> None:
    """What another rank than the first does: with each attacker in turn, read its part of the store."""
    from unembed.audit.attackers import reader_of
    from unembed.session import Session

    session = Session.open(Path(settings.run), config)
    others = _others(settings, config)
    sample = _sampled(settings, config, session)[1]
    if session.denoiser is not None:
        sample = replace(sample, vectors=session.denoised(sample.vectors))
    for _, label, one in [("", "", session), *others]:
        ranks.meet()  # the first has checked what is given, and embedded what the attack needs
        reader_of(label, one, settings, ranks).store_texts(sample)


def _sampled(
    settings: DictConfig, config: DictConfig, session: Session, opened: Callable[[int], VectorStore] | None = None
) -> tuple[VectorStore, Sample, dict[int, Truth]]:
    """The store, the rows of it that are audited, and those true texts by position that are not beside the vectors."""
    from unembed.audit.inputs import read_truths
    from unembed.datamodules.vector_stores.sampling import held_by_store, open_store, sample_store

    store = (opened or partial(open_store, settings.vectors, collection=settings.collection))(session.dimension)
    in_file = settings.texts is not None and not held_by_store(settings.texts)
    truths = read_truths(settings.texts, store) if in_file else {}
    return store, sample_store(store, session.dimension, settings.limit, config.seed, truths), truths


def _others(settings: DictConfig, config: DictConfig) -> list[tuple[Literal["other", "search"], str, Session]]:
    """Name, label and session of the attackers of ``also``, and of all with a search if that is wanted."""
    from hydra.utils import get_class

    from unembed.session import Session

    runs = [(_label(Path(settings.run), config), Path(settings.run), config)]
    trust = [f"trust={as_list(settings.trust)}"] if settings.trust else []
    for named in as_list(settings.also):
        found, other = launch.on_run("audit", [f"run={named}", f"vectors={settings.vectors}", *trust])
        run = Path(found.run)
        if run.resolve() in [taken.resolve() for _, taken, _ in runs]:
            raise InputError(f"also={named}: takes part already")
        runs.append((_label(run, other, named), run, other))
    others: list[tuple[Literal["other", "search"], str, Session]] = [
        ("other", label, Session.open(run, other)) for label, run, other in runs[1:]
    ]
    for label, run, other in runs if settings.max_queries else []:
        name = launch.search_of(other, run)
        attack: Any = get_class(other.attack["_target_"])
        if name in (other.attack.get("refine") or {}) or attack.asks_embedder:
            continue  # it searches already
        amended = launch.with_queries(other, run, settings.max_queries)
        title = "lexicon search" if name == "lexicon" else "a search over sentences"
        others.append(("search", f"{label}, with {title}", Session.open(run, amended)))
    return others


def _label(run: Path, config: DictConfig, named: str = "") -> str:
    """What a reader calls the attack of a run; ``named`` as it was given, empty for that of ``run=``."""
    if run.resolve().parent == locations.SHIPPED.resolve():
        whose = f"the shipped attacker {run.name}"
    else:
        whose = f"the attack of {named}" if named else "the run's attack"
    return f"{whose} ({config.choices.attack})"


def main() -> None:
    """``unembed audit``."""
    launch.main(audit, "audit", {"--show-text": "show_text=true", "--json": "json=true"}, check_given)
