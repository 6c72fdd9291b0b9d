"""The attribute inference attack: which value of an attribute the recovered texts disclose.

    python train.py experiment=attributes datamodule.path=bios.jsonl 'datamodule.attributes=[birthPlace,birthDate]'

Each known value is embedded, and the one nearest to a text is the guess (Zhu et al. 2023, sections 2.3 and 4.3). There
are three guesses per text: from the recovered text, from the attacked vector, and from the original text, which is an
upper bound for any attack. They are written to ``attributes.jsonl``:

    {"index": 3, "attribute": "birthPlace", "value": "Dallas", "reconstructed": "Dallas", "target": "Texas", ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from pydantic import Field

from unembed.attacks.base import Attack
from unembed.callbacks.results import Predictions, Testing
from unembed.core.atomic_files import write_json, write_json_lines
from unembed.core.errors import InputError, did_you_mean
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.base import SPLITS
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.attributes import (
    PREFIX,
    SOURCES,
    Guessed,
    MacroAccuracy,
    Majority,
    StandardError,
    TopK,
    ranks,
    similarities,
)
from unembed.metrics.base import ExampleMetric, Values
from unembed.runs import layout

PLACE = "{value}"
GUESSES = "attributes.jsonl"


class AttributeAttack(Testing):
    """Adds metrics ``attribute/<name>/...`` to metrics.json for each of ``datamodule.attributes``; must come after
    Predictions in the list of callbacks.

    For each source (reconstructed, target and original): ``_top1``, ``_top<k>``, ``_macro`` (mean of the accuracies of
    the single values) and ``_standard_error`` (of top1), in percent. ``target_`` metrics are null if a defense changes
    the dimension. Also ``texts``, ``skipped`` (texts without a value), ``values`` (distinct true values in the texts),
    ``candidates`` (values to choose from) and ``majority`` (share of the most frequent value, percent).

    configs/callbacks/default.yaml says what the settings are. A second embedder is for an attacker who cannot query the
    attacked one for short texts; attacked vectors are always compared with values in their own space.
    """

    def __init__(
        self,
        template: str | Mapping[str, str] = PLACE,
        k: Annotated[int, Field(ge=2)] = 3,
        candidates: Literal["data", "test"] = "data",
        embedder: Literal["target", "second"] = "target",
        cache_dir: str = "~/.cache/unembed",
    ) -> None:
        for written in [template] if isinstance(template, str) else template.values():
            if PLACE not in written:
                raise InputError(
                    f"callbacks.attributes.template={written}: should hold {PLACE}, as in 'born in {PLACE}'"
                )
        self.template, self.k, self.candidates = template, k, candidates
        self.embedder, self.cache_dir = embedder, Path(cache_dir).expanduser()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings against the data's attributes, before training."""
        assert isinstance(pl_module, Attack)
        known = pl_module.data.attributes
        if not known:
            return
        if self.embedder == "second" and _scored(trainer).models.second_embedder is None:
            raise InputError(
                "callbacks.attributes.embedder=second: add one, such as embedder@scoring.second_embedder=mpnet"
            )
        for name in self.template if isinstance(self.template, Mapping) else ():
            if name not in known:
                raise InputError(
                    f"callbacks.attributes.template.{name}: datamodule.attributes does not name it; "
                    f"{did_you_mean(name, known)}"
                )

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Infer the attributes of the predictions on rank 0, after they were scored."""
        assert isinstance(pl_module, Attack)
        data = pl_module.data
        if not trainer.is_global_zero or not data.attributes:
            return
        scored = _scored(trainer)
        second = scored.models.second_embedder if self.embedder == "second" else None
        embedder = data.embedder if second is None else CachedEmbedder(second, self.cache_dir)
        texts = {row["index"]: str(row["prediction"]) for row in scored.rows}
        metrics: Values = {}
        guesses: list[dict[str, Any]] = []
        for name in data.attributes:
            metrics |= self._attack(name, texts, data, embedder, guesses)
        scored.metrics |= metrics
        write_json(scored.directory / layout.METRICS, scored.metrics)
        write_json_lines(scored.directory / GUESSES, guesses)
        shown = {f"test/{key}": value for key, value in metrics.items() if value is not None}
        for logger in trainer.loggers:
            logger.log_metrics(shown, step=trainer.global_step)

    def _attack(
        self,
        name: str,
        predicted: Mapping[int, str],
        data: InversionDataModule,
        embedder: CachedEmbedder,
        guesses: list[dict[str, Any]],
    ) -> Values:
        """The metrics of an attribute; the guesses are appended to ``guesses``."""
        test, key = data.examples("test"), f"{PREFIX}{name}"
        labelled = [index for index in sorted(predicted) if name in test[index].attributes]
        metrics: Values = {f"{key}/texts": len(labelled), f"{key}/skipped": len(predicted) - len(labelled)}
        if not labelled:  # a subset of the test texts was predicted, and none has a value
            return metrics
        splits = SPLITS if self.candidates == "data" else ("test",)
        labels = (example.attributes.get(name) for split in splits for example in data.examples(split))
        values = sorted({label for label in labels if label is not None})
        column = {value: place for place, value in enumerate(values)}
        truth = [column[test[index].attributes[name]] for index in labelled]
        majority = Majority().of([Guessed(value, 0, len(values)) for value in truth])
        metrics |= {f"{key}/values": len(set(truth)), f"{key}/candidates": len(values), f"{key}/majority": majority}
        rows = [{"index": index, "attribute": name, "value": test[index].attributes[name]} for index in labelled]
        phrases = [self._phrase(name, value) for value in values]
        bare = data.embedder.embed(phrases, "scoring")
        compared = bare if embedder is data.embedder else embedder.embed(phrases, "scoring")
        attacked = data.vectors("test", labelled)
        recovered = embedder.embed([predicted[index] for index in labelled], "scoring")
        original = embedder.embed([test[index].text for index in labelled], "scoring")
        cosines = {
            "reconstructed": similarities(recovered, compared),
            "target": similarities(attacked, bare) if attacked.shape[1] == bare.shape[1] else None,
            "original": similarities(original, compared),
        }
        kinds: list[ExampleMetric[Guessed]] = [TopK(1), TopK(self.k), MacroAccuracy(), StandardError()]
        for source in SOURCES:
            own = cosines[source]
            places = () if own is None else zip(truth, ranks(truth, own), strict=True)
            guessed = [Guessed(value, place, len(values)) for value, place in places]
            for metric in kinds:
                metrics[f"{key}/{source}_{metric.description.key}"] = None if own is None else metric.of(guessed)
            nearest = [None] * len(rows) if own is None else [values[place] for place in own.argmax(dim=1).tolist()]
            for row, value in zip(rows, nearest, strict=True):
                row[source] = value
        guesses += rows
        macros = [f"{value:.1f} % {one}" for one in SOURCES if (value := metrics[f"{key}/{one}_macro"]) is not None]
        rank_zero_info(
            f"{name}: macro accuracy {', '.join(macros)}; {len(rows)} texts, {len(set(truth))} values of "
            f"{len(values)}, the commonest {majority:.1f} %"
        )
        return metrics

    def _phrase(self, name: str, value: str) -> str:
        template = self.template if isinstance(self.template, str) else self.template.get(name, PLACE)
        return template.replace(PLACE, value)


def _scored(trainer: Trainer) -> Predictions:
    """The Predictions callback of the trainer."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return next(callback for callback in callbacks if isinstance(callback, Predictions))
