"""The attackers of an audit: the run's attack, a lookup, those of other runs, with a search, and all together.

Each reads the store's rows, and test texts of the run, so that estimates of its shares are its own. The lookup takes
for each vector the training text with the nearest vector:

    lookup = Lookup.of(session.training_texts(), service, most=50_000)
    texts = lookup.texts(vectors)                        # of the store
    texts = lookup.texts(defended, defense)              # of a defended store, by somebody who knows the defense

An attack that was trained for too short, or on other text, may read less than that. And where a defense stops an attack
that knows nothing of it, whoever has the training text may still defend that in the same way and compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from unembed.attacks.nearest_neighbor import nearest
from unembed.audit.estimates import TEST_TEXTS, Estimator, read_scored, scored
from unembed.audit.results import Reading, Truth
from unembed.core.errors import InputError
from unembed.core.examples import Example, Span
from unembed.core.ranks import ALONE, Ranks
from unembed.datamodules.vector_stores.sampling import Sample
from unembed.defenses.base import Defense
from unembed.defenses.denoisers import ADAPTIVE
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.metrics.statistics import evenly
from unembed.metrics.tokens import same_words, token_overlap
from unembed.metrics.vectors import cosine_rows
from unembed.reports.reading import Reader
from unembed.runs.files import Row, absent_data
from unembed.runs.layout import TEST_BATCHES
from unembed.session import Session

BLOCK = 16_384  # training vectors compared at once
OTHERS = 512  # rows compared with all others at once
TESTED, SEARCHED = 1000, 200  # of the run's test texts that each reads; with search, which takes seconds for each
PredictionKind = Literal["sequence", "set"]
Name = Literal["attack", "search", "other", "lookup", "closest"]


class AuditedRows(NamedTuple):
    """What the attackers read: rows of the store, behind a denoiser with denoised vectors, their vectors as ``stored``
    (n, d), their true texts as far as they are known, and test texts of the run.
    """

    sample: Sample
    stored: Tensor
    truths: Sequence[Truth | None]
    tested: Sequence[Truth]


class AttackerReadings(NamedTuple):
    """What one attacker recovers of the store's rows, and of the run's test texts (``tested``).

    ``label``: what a reader calls it; ``estimator``: of shares, from texts whose truth is known, ``tested`` and its
    own; ``cost``: its seconds and queries, empty if they are not counted.
    """

    name: Name
    label: str
    readings: list[Reading]
    tested: list[Reading]
    estimator: Estimator
    cost: str = ""


class StoreReader(Reader):
    """Inverts vectors for an audit and compares the recovered texts with the vectors and with known texts.

    ``kind`` is that of the last predictions: whether word order is meaningful. ``ranks`` share the store.
    """

    kind: PredictionKind = "sequence"
    ranks = ALONE

    def store_texts(self, sample: Sample) -> list[str]:
        """The best text for each row of the store; all ranks call this, and share the inversion and the embedding."""
        rank, size, meet = self.ranks
        rows = (sample.vectors, sample.positions)
        if size > 1:
            self.read(*rows, "reading store", shown=rank == 0, batches=slice(rank, None, size))
            self.seconds, self.attack.batch_cache.announced = 0.0, True
            meet()
        texts = self.texts("store", *rows, shown=size == 1)
        if size > 1:
            self.oracle.source.fill(texts, "scoring", rank=rank, world_size=size, barrier=meet)
        return texts

    def texts(self, part: str, vectors: Tensor, positions: Sequence[int], *, shown: bool = True) -> list[str]:
        """The best text for each vector, (n, d); ``part`` names the work, ``positions`` seed any sampling.

        Raises:
            InputError: A query limit cut the attack short; finished batches stay in the test batch cache.
        """
        predictions = self.read(vectors, positions, f"reading {part}", shown=shown)
        self.kind = predictions[-1].kind if predictions else self.kind
        return [prediction.candidates[0] for prediction in predictions]

    def readings(self, texts: Sequence[str], vectors: Tensor, truths: Sequence[Truth | None]) -> list[Reading]:
        """Recovered texts with their cosine to ``vectors``, (n, d), and their scores if the true text is known."""
        cosines = cosine_rows(self.oracle.embed(list(texts), "scoring"), vectors).tolist()
        return [
            reading(text, cosine, None if truth is None else truth.text, self.kind)
            for text, cosine, truth in zip(texts, cosines, truths, strict=True)
        ]


def reading(text: str, cosine: float, truth: str | None, kind: PredictionKind) -> Reading:
    """Score a recovered text against the true text, if known."""
    if truth is None:
        return Reading(text, cosine)
    exact = same_words(truth, text) if kind == "sequence" else None
    return Reading(text, cosine, token_overlap(truth, text).f1, exact)


def truths_of(rows: Sequence[Row]) -> list[Truth]:
    """The references of predictions.jsonl."""
    return [Truth(row.reference, tuple(Span(*span) for span in row.spans), row.language) for row in rows]


def held_out(rows: Sequence[Row], unchanged: bool, reader: StoreReader, vectors: Callable[[], Tensor]) -> list[Reading]:
    """The recovered texts of the run's test texts: from predictions.jsonl if the attack's settings are ``unchanged``.

    Otherwise ``vectors`` gives those of the references, as the attacker would receive them, (n, d).
    """
    if not unchanged:
        texts = reader.texts("test texts", vectors(), [row.index for row in rows])
        return reader.readings(texts, vectors(), truths_of(rows))
    reader.kind = rows[0].kind if rows else reader.kind
    if any(row.cosine is None for row in rows):
        return reader.readings([row.prediction for row in rows], vectors(), truths_of(rows))
    return [reading(row.prediction, row.cosine or 0.0, row.reference, reader.kind) for row in rows]


def same_attack(config: DictConfig, session: Session, ckpt_path: str | None) -> bool:
    """Whether the run's own predictions are those that the amended configuration would give for the store's vectors.

    A naive attacker's predictions may come from defended vectors, whereas the store's vectors are undefended.
    """
    original = session.trained
    alike = all(config[name] == original[name] for name in ("attack", "defense"))
    return alike and ckpt_path in (None, "last") and (session.threat.adaptive or original.choices.defense == "none")


def services(session: Session) -> tuple[CachedEmbedder, CachedEmbedder]:
    """The embedder of the store's vectors and the one that the attacker queries; without defense if trained so.

    Raises:
        InputError: The run does not attack text embeddings; it lacks the defense's fitted state; or only one of the two
            embedders is defended with another dimension, so that recovered texts have no cosine with the vectors.
    """
    if isinstance(session.embedder.embedder, LanguageModelEmbedder):
        raise InputError(
            f"run={session.run}: its attack reads what a language model wrote; an audit is of embeddings, and takes a "
            "run of an attack on those, such as attack=geia"
        )
    service, oracle = session.service, session.oracle if session.threat.adaptive else session.embedder
    if oracle.dimension != service.dimension:
        raise InputError(
            f"run={session.run}: its attacker reads vectors of dimension {service.dimension}, its embedder makes "
            f"{oracle.dimension}: for an audit to compare both, add defense.hypotheses=defended"
        )
    return service, oracle


# -- attackers of other runs, and with search --------------------------------------------------------------------------


def check_same(session: Session, other: Session) -> None:
    """Check that attackers of two runs read the same vectors: of one embedder, and both through a denoiser or none."""
    if session.denoiser is not None and other.threat.adaptive:
        raise InputError(f"also={other.run}: {ADAPTIVE}")
    if (other.embedder.fingerprint, other.dimension) != (session.embedder.fingerprint, session.dimension):
        raise InputError(
            f"also={other.run}: reads vectors of embedder={other.config.choices.embedder} (dimension "
            f"{other.dimension}), but run={session.run} those of embedder={session.config.choices.embedder} "
            f"({session.dimension})"
        )


def reader_of(label: str, session: Session, settings: DictConfig, ranks: Ranks) -> StoreReader:
    """With an attacker's batch cache in the audit's folder; the run's own attack has no label."""
    output, oracle = Path(settings.output_dir), services(session)[1]
    attack = session.restored_attack(oracle, session.dimension, None if label else settings.ckpt_path)
    folder = output / TEST_BATCHES / "".join(c if c.isalnum() else "_" for c in label) if label else output
    attack.batch_cache = session.batch_cache(folder)
    attack.batch_cache.create()
    attack.batch_cache.open(attack.all_weights())
    reader = StoreReader(attack, oracle, settings.batch_size)
    reader.ranks = ranks
    return reader


def read_by(name: Name, label: str, session: Session, rows: AuditedRows, reader: StoreReader) -> AttackerReadings:
    """What the attacker of a run recovers, by its reader."""
    service, oracle = services(session)[0], reader.oracle
    asked = oracle.queries.asked["attack"]
    reader.ranks.meet()
    texts = reader.store_texts(rows.sample)
    queries = oracle.queries.asked["attack"] - asked
    cost = f"{reader.seconds:,.0f} s" + (f", {queries:,} texts embedded" if queries else "")
    readings = reader.readings(texts, rows.sample.vectors, rows.truths)
    tested = []
    if rows.tested:
        vectors = service.embed([one.text for one in rows.tested], "scoring")
        tested = reader.readings(reader.texts("test texts", vectors, range(len(vectors))), vectors, rows.tested)
    own = [] if name == "search" else read_scored(session.run)
    return AttackerReadings(name, label, readings, tested, Estimator([*own, *scored(tested)]), cost)


# -- lookups -----------------------------------------------------------------------------------------------------------


class Lookup(NamedTuple):
    """The training texts and the embedder that has their vectors in its cache."""

    known: Sequence[str]
    service: CachedEmbedder

    @classmethod
    def of(cls, texts: Sequence[str], service: CachedEmbedder, most: int) -> Lookup | None:
        """A lookup in at most ``most`` of the texts, taken evenly; None if there are none."""
        chosen = list(dict.fromkeys(texts[place] for place in evenly(range(len(texts)), most))) if most else []
        return cls(chosen, service) if chosen else None

    def texts(self, vectors: Tensor, defense: Defense | None = None) -> list[str]:
        """The nearest training text of each vector, (n, d).

        Behind a fitted defense, the training vectors are compared as they are and defended, where both have the
        dimension of ``vectors``; the way that comes closer to the vectors on average is taken, which an attacker can
        see without a true text.
        """
        ways: list[Defense | None] = [defense]
        if defense is not None and vectors.shape[1] == self.service.dimension:
            ways.append(None)
        by_way = []
        for way in ways:
            texts = [self.known[row] for row in nearest(vectors, self._blocks(way))]
            cosines = torch.nn.functional.cosine_similarity(self._defended(texts, way), vectors, dim=1)
            by_way.append((float(cosines.mean()), texts))
        return max(by_way, key=lambda pair: pair[0])[1]

    def _blocks(self, way: Defense | None) -> Iterator[Tensor]:
        for begin in range(0, len(self.known), BLOCK):
            yield self._defended(self.known[begin : begin + BLOCK], way)

    def _defended(self, texts: Sequence[str], way: Defense | None) -> Tensor:
        vectors = self.service.embed(list(texts), "scoring")
        if way is None:
            return vectors
        # Random numbers of a hypothesis, as an attacker draws them: the store's own are not known. A text of which the
        # defense leaves nothing is near to no vector.
        examples = [Example(place, text) for place, text in enumerate(texts)]
        return way(vectors, examples, "hypothesis").nan_to_num()


def training_lookup(session: Session, service: CachedEmbedder, most: int) -> tuple[Lookup | None, list[str]]:
    """The lookup in a run's training text, and a warning where that text is gone; an exported run comes without it."""
    if most == 0 or absent_data(session.run):
        return None, []
    try:
        texts = session.training_data(None).examples("train").texts
    except InputError as error:
        return None, [f"No lookup in the training text, which cannot be read: {error}."]
    return Lookup.of(texts, service, most), []


def by_lookup(lookup: Lookup, reader: StoreReader, rows: AuditedRows) -> AttackerReadings:
    """The lookup as an attacker; what it looks up are the vectors without a denoiser.

    Of known texts, the one nearest to a noisy vector is the most probable. Cosines are with the sample's vectors.
    """
    test = lookup.service.embed([one.text for one in rows.tested], "scoring")
    tested = reader.readings(lookup.texts(test), test, rows.tested) if rows.tested else []
    readings = reader.readings(lookup.texts(rows.stored), rows.sample.vectors, rows.truths)
    label = "the lookup of the nearest training text"
    return AttackerReadings("lookup", label, readings, tested, Estimator(scored(tested)))


def closest_of(own: Sequence[AttackerReadings]) -> AttackerReadings:
    """The attacker who has them all, and takes for each vector the text whose own vector is nearest."""
    tested = closest([one.tested for one in own])
    label = f"of {'both' if len(own) == 2 else 'all'}, the text with the nearer vector"
    # What a cosine means hardly depends on who found the text, but for a search, which raises cosines by itself.
    searched = any(one.name == "search" for one in own)
    before = [score for one in own if not searched for score in one.estimator.known if score.source != TEST_TEXTS]
    estimator = Estimator([*before, *scored(tested)])
    return AttackerReadings("closest", label, closest([one.readings for one in own]), tested, estimator)


def closest(texts: Sequence[Sequence[Reading]]) -> list[Reading]:
    """Of the attackers' texts for each vector the one whose own vector is nearest, which an attacker can see."""
    return [max(of_row, key=lambda one: one.cosine) for of_row in zip(*texts, strict=True)]


def among_others(vectors: Tensor, truths: Sequence[Truth]) -> list[str]:
    """For each row the true text of the other row with the nearest vector: (n, d), n texts of at least two -> n texts.

    It is what somebody reads who knows the other texts of the store, such as an earlier copy of it.
    """
    return [truths[place].text for place in nearest_others(vectors, 1).squeeze(1).tolist()]


def nearest_others(vectors: Tensor, count: int) -> Tensor:
    """Of each row the other rows with the largest cosines: (n, d) -> (n, count)."""
    units = torch.nn.functional.normalize(vectors, dim=1)
    blocks = []
    for begin in range(0, len(units), OTHERS):
        cosines = units[begin : begin + OTHERS] @ units.T
        cosines[torch.arange(len(cosines)), torch.arange(begin, begin + len(cosines))] = -2.0  # the row itself
        blocks.append(cosines.topk(count, dim=1).indices)
    return torch.cat(blocks)
