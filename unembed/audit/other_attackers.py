"""More attackers of an audit: those of other runs (``also=``), and each with lexicon search (``search=true``).

They read the store's rows, and some of the run's test texts, so that their estimates are their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from unembed.audit.contenders import Contender
from unembed.audit.estimates import Estimator, read_scored, scored
from unembed.audit.findings import Truth
from unembed.audit.reading import StoreReader, services
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.sampling import Sample
from unembed.defenses.denoisers.base import ADAPTIVE
from unembed.runs.layout import TEST_BATCHES
from unembed.session import Session

TESTED, SEARCHED = 1000, 200  # of the run's test texts that each reads; with search, which takes seconds for each


def check_same(session: Session, other: Session) -> None:
    """Check that the attackers of two runs read the same vectors: of one embedder, and all through a denoiser or none.

    Raises:
        InputError: They do not; names the key ``also``.
    """
    if session.denoiser is not None and other.threat.adaptive:
        raise InputError(f"also={other.run}: {ADAPTIVE}")
    if (other.embedder.fingerprint, other.dimension) != (session.embedder.fingerprint, session.dimension):
        raise InputError(
            f"also={other.run}: reads vectors of embedder={other.config.choices.embedder} (dimension "
            f"{other.dimension}), but run={session.run} those of embedder={session.config.choices.embedder} "
            f"({session.dimension})"
        )


def read_by(
    name: str,
    label: str,
    session: Session,
    output: Path,
    settings: DictConfig,
    sample: Sample,
    truth: Sequence[Truth | None],
    known: Sequence[Truth],
) -> Contender:
    """What an attacker recovers of the store and of the ``known`` test texts, with its seconds and queries.

    Args:
        name: See ``findings.Attacker``.
        label: What a reader calls it.
        session: Of its run.
        output: Of the audit; finished batches are kept in a folder of its own.
        settings: Those of configs/audit.yaml.
        sample: The rows of the store.
        truth: Their true texts, as far as they are known.
        known: Test texts of the audit's run.
    """
    service, oracle = services(session)
    attack = session.restored_attack(oracle, session.dimension)
    attack.batch_cache = session.batch_cache(output / TEST_BATCHES / "".join(c if c.isalnum() else "_" for c in label))
    attack.batch_cache.create()
    attack.batch_cache.open(attack.all_weights())
    reader, asked = StoreReader(attack, oracle, settings.batch_size), oracle.queries.asked["attack"]
    texts = reader.texts("store", sample.vectors, sample.positions)
    seconds, queries = reader.seconds, oracle.queries.asked["attack"] - asked
    cost = f"{seconds:,.0f} s" + (f", {queries:,} texts embedded" if queries else "")
    readings = reader.readings(texts, sample.vectors, truth)
    tested = []
    if known:
        vectors = service.embed([one.text for one in known], "scoring")
        tested = reader.readings(reader.texts("test texts", vectors, range(len(known))), vectors, known)
    own = [] if name == "search" else read_scored(session.run)
    return Contender(name, label, readings, tested, Estimator([*own, *scored(tested)]), cost)
