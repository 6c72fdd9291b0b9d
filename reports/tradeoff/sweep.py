"""A defense measured at both ends: what an attack reads of defended documents, and what a search still finds.

    sweep = TradeOff(collection=BeirCollection("scifact"), points=["defense=none", "defense=noise defense.level=0.01"])
    bench = Bench(sweep, embedder, attack, HeldOut(sweep.collection.read()), training, models)
    point, rows = bench.measure("noise", ["defense=noise"], build=Noise)        # metrics, and texts

``tradeoff.py`` runs the sweep, and keeps each point that is finished (``Finished``).
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

import limits
from atomic_files import write_file, write_json_lines
from attacks.base import Attack
from datamodules.collections.base import CollectionSource
from datamodules.collections.exact_search import Similarity
from datamodules.collections.retrieval import Defended, Searchable
from datamodules.collections.texts import HeldOut
from datamodules.inversion import DEFENSE_SAMPLE, InversionDataModule
from datamodules.sources.base import folded
from defenses.base import Defense
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from reports.numbers import evenly
from reports.under_defense import Metrics, ZeroFilled, read_texts
from scoring.models import ScoringModels

POINTS = "points"  # a folder of the output, for each finished point a .json of metrics and a .jsonl of texts


class TradeOff:
    """What is swept; the keys of ``tradeoff`` in configs/experiment/tradeoff.yaml.

    Args:
        collection: What is searched, and whose documents are attacked.
        points: Defenses, each as it would be given to evaluate.py; ``defense=none`` is measured in any case.
        cuts: Tokens at which documents and queries are cut for the search; null leaves them whole.
        defended: Whether the search meets defended queries and documents (``both``) or defended ``documents`` alone.
        similarity: How the search compares vectors.
        texts: Held-out documents that are attacked, at most.
        resamples: Of the bootstrap.
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
        """Names of the searches of a point, the one that is drawn first."""
        return [search_name(cut, defended) for cut in self.cuts for defended in self.defended]


def search_name(cut: int | None, defended: Defended) -> str:
    """What a search is called in files and tables."""
    return f"{'whole texts' if cut is None else f'{cut} tokens'}, {defended} defended"


class Point(BaseModel):
    """What was measured under one defense.

    Attributes:
        name: Of the defense.
        overrides: As on the command line.
        width: Of its vectors at the attack's cut.
        reconstruction: Metrics as in metrics.json; empty where the vectors are longer than the attack takes.
        retrieval: Metrics of each query by the name of the search; None where nothing could be compared.
    """

    name: str
    overrides: list[str]
    width: int
    reconstruction: dict[str, float | int | None]
    retrieval: dict[str, dict[str, list[float]] | None]


class Finished:
    """Points that are measured, in a folder; a sweep that was killed begins with the next one.

    Args:
        folder: Where they are kept.
        key: Hash of all that can change a metric of any point.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def path(self, overrides: Sequence[str]) -> Path:
        digest = blake2b(json.dumps([self.key, *overrides]).encode(), digest_size=8).hexdigest()
        return self.folder / f"{digest}.json"

    def find(self, overrides: Sequence[str]) -> tuple[Point, list[dict[str, Any]]] | None:
        """The point and its rows of texts; None where it is not finished."""
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
        """Write a point; its metrics last, so that a point is there with its texts or not at all."""
        path = self.path(point.overrides)
        write_json_lines(path.with_suffix(".jsonl"), rows)
        write_file(path, point.model_dump_json(indent=1) + "\n")


class Bench:
    """Everything that the points of a sweep share: the collection, its vectors, the texts to attack.

    Args:
        sweep: What is measured.
        embedder: The black box behind its cache.
        attack: Built by ``Attack.restore``.
        held_out: Documents of the collection, of which the attack has seen none if it was trained on such a collection.
        training: The data that the attack was trained on: held-out documents that stand among its training texts are
            not attacked, and the others are cut as those were.
        models: What scoring asks besides.

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
        """Embed what is not in the cache yet."""
        for index in self.indexes.values():
            index.embed()

    def measure(
        self, name: str, overrides: Sequence[str], build: Callable[[], Defense]
    ) -> tuple[Point, list[dict[str, Any]]]:
        """Attack and search under a defense: the point, and the rows of texts.

        The defense is built anew for each cut, and fitted to the documents that are not attacked: a defender has them.
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
            rows, reconstruction = read_texts(self.attack, self.texts, naive, self.embedder, self.models, name)
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
    """Folded; none where they cannot be read any more, with a warning."""
    try:
        return frozenset(folded(example.text) for example in training.examples("train"))
    except InputError as error:
        rank_zero_warn(f"the run's training text cannot be read, so its documents may be attacked too: {error}")
        return frozenset()
