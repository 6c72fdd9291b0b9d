"""Measure a defense on both sides: how much text an attack recovers, and how well search works.

    sweep = TradeOff(collection=BeirCollection("scifact"), points=["defense=none", "defense=noise defense.level=0.01"])
    bench = Bench(sweep, embedder, attack, HeldOut(sweep.collection.read()), training, models)
    point, rows = bench.measure("noise", ["defense=noise"], build=Noise)        # metrics, and texts

``tradeoff.py`` runs the sweep, and stores each finished point (``Finished``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

from lightning.pytorch.utilities import rank_zero_warn
from pydantic import BaseModel, Field, PositiveInt, ValidationError

from unembed.attacks.base import Attack
from unembed.core import limits
from unembed.core.atomic_files import write_file, write_json_lines
from unembed.core.errors import InputError
from unembed.datamodules.collections.base import CollectionSource
from unembed.datamodules.collections.exact_search import Similarity
from unembed.datamodules.collections.retrieval import Defended, Searchable
from unembed.datamodules.collections.texts import HeldOut
from unembed.datamodules.embedded import DEFENSE_SAMPLE
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.base import folded
from unembed.defenses.base import Defense
from unembed.defenses.threat import Hypotheses
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.statistics import evenly
from unembed.reports.under_defense import Metrics, ZeroFilled, read_texts
from unembed.scoring.models import ScoringModels

POINTS = "points"  # folder of the output: for each finished point a .json of metrics and a .jsonl of texts


class TradeOff:
    """The settings of a sweep: the keys of ``tradeoff`` in configs/experiment/tradeoff.yaml.

    Args:
        collection: The collection that is searched and whose documents are attacked.
        points: Defenses, each as overrides of evaluate.py; ``defense=none`` is always measured.
        cuts: Numbers of tokens to which documents and queries are cut for the search; null keeps them whole.
        defended: Whether queries and documents are defended for the search (``both``) or only ``documents``.
        similarity: How the search compares vectors.
        texts: Maximum number of held-out documents to attack.
        resamples: Number of bootstrap resamples.
    """

    def __init__(
        self,
        collection: CollectionSource,
        points: Annotated[Sequence[str], Field(min_length=1)],
        cuts: Annotated[Sequence[PositiveInt | None], Field(min_length=1)] = (32, None),
        defended: Annotated[Sequence[Defended], Field(min_length=1)] = ("both", "documents"),
        similarity: Similarity = "cosine",
        texts: PositiveInt = 500,
        resamples: Annotated[int, Field(ge=1000)] = 2000,
    ) -> None:
        self.collection, self.points, self.cuts, self.defended = collection, tuple(points), tuple(cuts), tuple(defended)
        self.similarity, self.texts, self.resamples = similarity, texts, resamples

    @property
    def searches(self) -> list[str]:
        """Names of the searches of a point; the chart shows the first."""
        return [search_name(cut, defended) for cut in self.cuts for defended in self.defended]


def search_name(cut: int | None, defended: Defended) -> str:
    """The name of a search in files and tables."""
    return f"{'whole texts' if cut is None else f'{cut} tokens'}, {defended} defended"


class Point(BaseModel):
    """The measurements under one defense.

    Attributes:
        name: Name of the defense.
        overrides: Its overrides on the command line.
        width: Dimension of its vectors at the attack's cut.
        reconstruction: Metrics as in metrics.json; empty if the vectors are longer than the attack accepts.
        retrieval: Metrics of each query by name of the search; None if the dimensions differ.
    """

    name: str
    overrides: list[str]
    width: int
    reconstruction: dict[str, float | int | None]
    retrieval: dict[str, dict[str, list[float]] | None]


class Finished:
    """Stored points in a folder, so that a killed sweep resumes with the next one.

    Args:
        folder: The folder.
        key: Hash of everything that can change a metric of any point.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def path(self, overrides: Sequence[str]) -> Path:
        digest = blake2b(json.dumps([self.key, *overrides]).encode(), digest_size=8).hexdigest()
        return self.folder / f"{digest}.json"

    def find(self, overrides: Sequence[str]) -> tuple[Point, list[dict[str, Any]]] | None:
        """The stored point and its text rows; None if it is not finished."""
        path = self.path(overrides)
        if not path.exists():
            return None
        try:
            rows = [json.loads(line) for _, line in limits.lines(path.with_suffix(".jsonl")) if line.strip()]
            return Point.model_validate_json(limits.content(path, limits.LARGEST_JSON)), rows
        except (ValidationError, ValueError, OSError) as error:
            rank_zero_warn(f"{path}: {error}; measured again")
            return None

    def keep(self, point: Point, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store a point; the metrics are written last, so that a point is never stored without its texts."""
        path = self.path(point.overrides)
        write_json_lines(path.with_suffix(".jsonl"), rows)
        write_file(path, point.model_dump_json(indent=1) + "\n")


class Bench:
    """The objects shared by all points of a sweep: the collection, its vectors, the texts to attack.

    Args:
        sweep: The settings.
        embedder: The embedder with its cache.
        attack: Built by ``Attack.restore``.
        held_out: Held-out documents of the collection, unseen by an attack that was trained on such a collection.
        training: The attack's training data: held-out documents that are also training texts are not attacked, and the
            others are cut like the training texts.
        models: Additional models for scoring.

    Raises:
        InputError: No document is left to attack.
    """

    def __init__(
        self,
        sweep: TradeOff,
        embedder: CachedEmbedder,
        attack: Attack,
        held_out: HeldOut,
        training: InversionDataModule,
        models: ScoringModels,
    ) -> None:
        self.sweep, self.embedder, self.attack, self.models = sweep, embedder, attack, models
        self.collection, self.cut = held_out.collection, training.max_tokens
        found = _cut(held_out, training).examples("test")
        trained = _training_texts(training)
        unseen = [example for example in found if folded(example.text) not in trained]
        self.known = len(found) - len(unseen)
        if not unseen:
            raise InputError(
                f"collection: all {len(found)} held-out documents stand in the attack's training text; train it with "
                "datamodule=collection, which holds some out"
            )
        chosen = evenly(unseen, sweep.texts)
        attacked = frozenset(example.group for example in chosen if example.group is not None)
        self.texts = _cut(held_out.only(attacked), training)
        cuts = dict.fromkeys([*sweep.cuts, self.cut])
        self.indexes = {cut: Searchable(self.collection, embedder, cut, training.tokenizer) for cut in cuts}
        self._others = [place for place, name in enumerate(self.collection.document_ids) if name not in attacked]

    def embed(self) -> None:
        """Embed the texts that are not in the cache."""
        for index in self.indexes.values():
            index.embed()

    def measure(
        self, name: str, overrides: Sequence[str], build: Callable[[], Defense], hypotheses: Hypotheses = "clean"
    ) -> tuple[Point, list[dict[str, Any]]]:
        """Attack and search under a defense; return the point and its text rows.

        For each cut, the defense is fitted anew to the documents that are not attacked, which a defender has too.
        ``hypotheses`` says whether texts that the attack embeds get clean or defended vectors.
        """
        defenses = {cut: build() for cut in self.indexes}
        for cut, index in self.indexes.items():
            index.fit(defenses[cut], self._others[:: math.ceil(len(self._others) / DEFENSE_SAMPLE) or 1])
        retrieval: dict[str, dict[str, list[float]] | None] = {}
        for cut in self.sweep.cuts:
            for defended in self.sweep.defended:
                measured = self.indexes[cut].retrieve(defenses[cut], defended, self.sweep.similarity)
                known = None if measured is None else {key: values.tolist() for key, values in measured.items()}
                retrieval[search_name(cut, defended)] = known
        naive = ZeroFilled(defenses[self.cut], self.attack.dimension)
        rows: list[dict[str, Any]] = []
        reconstruction: Metrics = {}
        if naive.fits(self.embedder.dimension):
            rows, reconstruction = read_texts(
                self.attack, self.texts, naive, self.embedder, self.models, name, hypotheses
            )
        width = naive.defense.output_dimension(self.embedder.dimension)
        point = Point(
            name=name, overrides=list(overrides), width=width, reconstruction=reconstruction, retrieval=retrieval
        )
        return point, rows


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
