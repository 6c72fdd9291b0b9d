"""The trade-off of defenses: ``python evaluate.py run=<dir> experiment=tradeoff collection=<dir>``.

A finished attack inverts unseen documents under each defense of a list, and a search over the same collection is
evaluated under the same defense. The output is tradeoff.json, .md and .html. Finished points are stored in points/, so
the same command with output_dir=<directory> resumes a killed sweep. configs/experiment/tradeoff.yaml has the list of
defenses.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lightning.pytorch.utilities import rank_zero_warn
from pydantic import BaseModel, Field, PositiveInt

from unembed.attacks.base import Attack
from unembed.attacks.transfer.aligners import Known, LeaveOneOut
from unembed.callbacks.scoring import score_predictions
from unembed.core import limits
from unembed.core.atomic_files import read_json, write_json, write_json_lines
from unembed.core.errors import InputError, printable
from unembed.datamodules.collections import CollectionSource, HeldOut
from unembed.datamodules.embedded import DEFENSE_SAMPLE
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.retrieval import Defended, Searchable, Similarity
from unembed.datamodules.sources.base import folded
from unembed.datamodules.usefulness import matched
from unembed.defenses.base import Defense
from unembed.defenses.threat import Hypotheses, threat_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.statistics import evenly
from unembed.reports.output import paragraphs
from unembed.reports.reading import Reader, Seen
from unembed.reports.tradeoff_page import NAME, with_intervals, write_results
from unembed.runs import layout
from unembed.runs.config_file import write_config
from unembed.runs.files import data_of
from unembed.runs.stored_attack import settings_key
from unembed.scoring.models import ScoringModels
from unembed.session import Session

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from unembed.launch.finished_run import DefensePoint

log = logging.getLogger("tradeoff")
UNDEFENDED = "defense=none"
DEFENDED = "defense.hypotheses=defended"
ALIGNED = 5000  # documents, at most, from which an adaptive attacker learns the way back
POINTS = "points"  # folder of the output: for each finished point a .json of metrics and a .jsonl of texts


def trade_off(session: Session, settings: DictConfig, points: Sequence[DefensePoint]) -> None:
    """Restore -> embed -> measure point by point, the undefended one first -> write; ``settings`` of evaluate.py."""
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    if session.denoiser is not None:
        raise InputError("denoiser: experiment=tradeoff compares defenses without one; leave it out")
    output = Path(settings.output_dir)
    sweep: TradeOff = instantiate(settings.tradeoff, _convert_="all")
    trained = threat_of(session.trained.defense)
    attack = session.restored_attack(
        session.embedder, trained.dimension(session.embedder.dimension), settings.ckpt_path
    )
    collection = sweep.collection.read()
    training = session.training_data(data_of(session.run))
    source = session.trained.datamodule.get("source") or {}
    split = {key: source[key] for key in ("valid_fraction", "test_fraction", "split_seed") if key in source}
    prepares = sweep.adaptive and not trained.adaptive  # which knows its defense already
    bench = Bench(sweep, session.embedder, attack, HeldOut(collection, **split), training, session.models, prepares)
    finished = Finished(output / POINTS, _key(session, settings, bench))
    layout.start(output, resuming=finished.folder.is_dir(), key="output_dir")
    write_config(output, {**session.values, "tradeoff": OmegaConf.to_container(settings.tradeoff, resolve=True)})
    for index in bench.indexes.values():
        index.embed()
    measured = []
    for number, point in enumerate(points):
        log.info("%d of %d: %s", number + 1, len(points), point.name)
        overrides, hypotheses = _with_hypotheses(point, session)
        done = finished.load(overrides)
        if done is None:
            done = bench.measure(point.name, overrides, point.config.defense, hypotheses)
            finished.save(*done)
        measured.append(done)
    attacked = len(bench.texts.examples("test"))
    notes = paragraphs(
        "tradeoff_notes",
        trained=str(session.trained.choices.defense) if trained.adaptive else "none",
        aligned=ALIGNED if prepares else 0,
        texts=attacked,
        cut=bench.cut,
        collection=collection,
        similarity=sweep.similarity,
        known=bench.known,
        hypotheses=any(DEFENDED in point.overrides for point, _ in measured),
    )
    facts = {
        "run": str(session.run),
        "attack": session.config.choices.attack,
        "embedder": session.config.choices.embedder,
        "documents": len(collection.documents),
        "queries": len(collection.queries),
        "texts attacked": attacked,
        "similarity": sweep.similarity,
        "left_out": dict(collection.left_out),
    }
    print(printable(write_results(output, with_intervals(measured, sweep.resamples), facts, notes, sweep.searches)))
    print(printable(f"Written: {output / NAME}.html, .md and .json"))


def _with_hypotheses(point: DefensePoint, session: Session) -> tuple[list[str], Hypotheses]:
    """The overrides of a point, and whether the attacker's texts are defended: as the point says, or else as the run's
    configuration does. Without a defense there is no difference."""
    own: Hypotheses = point.config.defense.get("hypotheses", "clean")
    overrides = list(point.overrides)
    if UNDEFENDED in overrides or any(word.startswith("defense.hypotheses=") for word in overrides):
        return overrides, own
    defended = session.threat.hypotheses == "defended"
    return ([*overrides, DEFENDED], "defended") if defended else (overrides, own)


def _key(session: Session, settings: DictConfig, bench: Bench) -> str:
    """Hash of everything that can change a metric of a point, apart from its defense."""
    from omegaconf import OmegaConf

    values = {name: value for name, value in session.values.items() if name != "defense"}
    texts = blake2b(digest_size=16)
    for example in (*bench.collection.documents, *bench.collection.queries):
        texts.update(example.text.encode("utf-8", "surrogatepass") + b"\0")
    sweep = OmegaConf.to_container(settings.tradeoff, resolve=True)
    assert isinstance(sweep, dict)
    sweep = {key: value for key, value in sweep.items() if key not in ("points", "resamples")}
    relevance = json.dumps(bench.collection.relevance)
    parts = [settings_key(values, bench.embedder.fingerprint), sweep, texts.hexdigest(), relevance]
    return blake2b(json.dumps([*parts, str(settings.ckpt_path)], sort_keys=True).encode(), digest_size=16).hexdigest()


class TradeOff:
    """The settings of a sweep: the keys of ``tradeoff`` in configs/experiment/tradeoff.yaml.

    The collection is searched, and its held-out documents are attacked; ``defense=none`` is always measured. An
    ``adaptive`` attacker has some documents with their defended vectors.
    """

    def __init__(
        self,
        collection: CollectionSource,
        points: Annotated[Sequence[str], Field(min_length=1)],
        cuts: Annotated[Sequence[PositiveInt | None], Field(min_length=1)] = (32, None),
        defended: Annotated[Sequence[Defended], Field(min_length=1)] = ("both", "documents"),
        similarity: Similarity = "cosine",
        adaptive: bool = True,
        texts: PositiveInt = 500,
        resamples: Annotated[int, Field(ge=1000)] = 2000,
    ) -> None:
        self.collection, self.points, self.cuts, self.defended = collection, tuple(points), tuple(cuts), tuple(defended)
        self.similarity, self.adaptive, self.texts, self.resamples = similarity, adaptive, texts, resamples

    @property
    def searches(self) -> list[str]:
        """Names of the searches of a point; the chart shows the first."""
        return [search_name(cut, defended) for cut in self.cuts for defended in self.defended]


def search_name(cut: int | None, defended: Defended) -> str:
    """The name of a search in files and tables."""
    return f"{'whole texts' if cut is None else f'{cut} tokens'}, {defended} defended"


class Point(BaseModel):
    """The measurements under one defense, given by ``overrides`` on the command line.

    ``width`` is the dimension of its vectors at the attack's cut. ``reconstruction`` has metrics as in metrics.json,
    none if the vectors are longer than the attack accepts; ``retrieval`` those of each query by name of the search, or
    None if the dimensions differ.
    """

    name: str
    overrides: list[str]
    width: int
    reconstruction: dict[str, float | int | None]
    retrieval: dict[str, dict[str, list[float]] | None]


class Finished:
    """Stored points in a folder, so that a killed sweep resumes with the next one.

    ``key`` is a hash of everything that can change a metric of any point.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def path(self, overrides: Sequence[str]) -> Path:
        digest = blake2b(json.dumps([self.key, *overrides]).encode(), digest_size=8).hexdigest()
        return self.folder / f"{digest}.json"

    def load(self, overrides: Sequence[str]) -> tuple[Point, list[dict[str, Any]]] | None:
        """The stored point and its text rows; None if it is not finished."""
        path = self.path(overrides)
        if not path.exists():
            return None
        return Point(**read_json(path)), [json.loads(line) for _, line in limits.lines(path.with_suffix(".jsonl"))]

    def save(self, point: Point, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store a point; the metrics are written last, so that a point is never stored without its texts."""
        path = self.path(point.overrides)
        write_json_lines(path.with_suffix(".jsonl"), rows)
        write_json(path, point.model_dump())


class Bench:
    """The objects shared by all points of a sweep: the collection, its vectors, the texts to attack.

    ``held_out`` documents were not seen by an attack that was trained on such a collection; those that are training
    texts all the same are not attacked, and the others are cut like the training texts. An attacker who ``prepares``
    learns the way back from defended vectors.
    """

    def __init__(
        self,
        sweep: TradeOff,
        embedder: CachedEmbedder,
        attack: Attack,
        held_out: HeldOut,
        training: InversionDataModule,
        models: ScoringModels,
        prepares: bool,
    ) -> None:
        self.sweep, self.embedder, self.attack, self.models, self.prepares = sweep, embedder, attack, models, prepares
        self.collection, self.cut = held_out.collection, training.max_tokens
        documents = _cut(held_out, training).examples("test")
        trained = _training_texts(training)
        unseen = [example for example in documents if folded(example.text) not in trained]
        self.known = len(documents) - len(unseen)
        if not unseen:
            raise InputError(
                f"collection: all {len(documents)} held-out documents stand in the attack's training text; train it "
                "with datamodule=collection, which holds some out"
            )
        chosen = evenly(unseen, sweep.texts)
        attacked = frozenset(example.group for example in chosen if example.group is not None)
        self.texts = _cut(held_out.only(attacked), training)
        cuts = dict.fromkeys([*sweep.cuts, self.cut])
        self.indexes = {cut: Searchable(self.collection, embedder, cut, training.tokenizer) for cut in cuts}
        names = self.collection.document_ids
        self._others = [place for place, name in enumerate(names) if name not in attacked]
        self._attacked = [place for place, name in enumerate(names) if name in attacked]

    def measure(
        self, name: str, overrides: Sequence[str], defense: DictConfig, hypotheses: Hypotheses = "clean"
    ) -> tuple[Point, list[dict[str, Any]]]:
        """Attack and search under a defense; return the point and its text rows.

        For each cut, the defense is fitted anew to the documents that are not attacked, which a defender has too.
        ``hypotheses`` says whether texts that the attack embeds get clean or defended vectors. A point with
        ``defense.recall`` gets the strength that leaves the search so much.
        """
        from omegaconf import OmegaConf

        if (wanted := defense.get("recall")) is not None:
            found = matched(threat_of(defense).settings, self.indexes[self.cut], wanted)
            settings: dict[Any, Any] = {**defense, **found.settings}
            defense = OmegaConf.create(settings)
            name = f"{name}: {found.strength}"
        defenses = {cut: threat_of(defense).defense for cut in self.indexes}
        for cut, index in self.indexes.items():
            index.fit(defenses[cut], self._others[:: math.ceil(len(self._others) / DEFENSE_SAMPLE) or 1])
        retrieval: dict[str, dict[str, list[float]] | None] = {}
        for cut in self.sweep.cuts:
            for defended in self.sweep.defended:
                measured = self.indexes[cut].retrieve(defenses[cut], defended, self.sweep.similarity)
                known = None if measured is None else {key: values.tolist() for key, values in measured.items()}
                retrieval[search_name(cut, defended)] = known
        seen = self._seen(defenses[self.cut], overrides)
        rows: list[dict[str, Any]] = []
        reconstruction: dict[str, float | int | None] = {}
        if seen.fits(self.embedder.dimension):
            self.texts.connect(self.embedder, seen, hypotheses=hypotheses)
            self.texts.setup("test")
            places = range(len(self.texts.examples("test")))
            reader = Reader(self.attack, self.texts.oracle, self.texts.eval_batch_size)
            predictions = reader.read(self.texts.vectors("test", list(places)), description=name)
            by_place = dict(zip(places, predictions, strict=True))
            rows, reconstruction = score_predictions(
                by_place, self.texts, self.embedder, None, self.attack, self.models
            )
        width = defenses[self.cut].output_dimension(self.embedder.dimension)
        point = Point(
            name=name, overrides=list(overrides), width=width, reconstruction=reconstruction, retrieval=retrieval
        )
        return point, rows

    def _seen(self, defense: Defense, overrides: Sequence[str]) -> Seen:
        """The vectors that the attack reads. An attacker who prepares learns the map back from documents of its own,
        which the service defends like any other."""
        if not self.prepares or UNDEFENDED in overrides:
            return Seen(defense, self.attack.dimension)
        index = self.indexes[self.cut]
        plain, own = index.stored(evenly(self._others, ALIGNED))
        store = defense(*index.stored(self._attacked), "document")
        victim = defense(plain, own, "train")
        known = Known(*(vectors.double() for vectors in (victim, plain, store, plain)))
        back = LeaveOneOut(whitening=[0.5], widths=[0.15]).fit(known).map
        return Seen(defense, self.attack.dimension, back)


def _cut(source: HeldOut, training: InversionDataModule) -> InversionDataModule:
    return InversionDataModule(
        source, training.max_tokens, training.tokenizer, eval_batch_size=training.eval_batch_size
    )


def _training_texts(training: InversionDataModule) -> frozenset[str]:
    """The normalised training texts; empty, with a warning, if they can no longer be read."""
    try:
        return frozenset(folded(example.text) for example in training.examples("train"))
    except InputError as error:
        rank_zero_warn(f"the run's training text cannot be read, so its documents may be attacked too: {error}")
        return frozenset()
