"""The user's additions to scoring: own metrics, and the models that some metrics need.

    models = scoring_models(config)        # checks before hours of training that every model can be loaded
    models.entities(references), models.cosines(references, predictions), models.likelihoods(predictions)

The models are a tagger, a second embedder, a language model and a translator. All are None by default, and the metrics
that need them are then null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_only

from unembed.core.errors import InputError
from unembed.core.examples import Span
from unembed.embedders.base import Embedder
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.base import ExampleMetric
from unembed.metrics.scored import Likelihood
from unembed.metrics.scoring import TextMetric, text_metrics
from unembed.metrics.vectors import cosine_rows
from unembed.scoring.language_model import PerplexityModel
from unembed.scoring.taggers import Tagger
from unembed.scoring.translation import Translator

if TYPE_CHECKING:
    from omegaconf import DictConfig

BLOCK = 4096  # rows of vectors held in memory at once
PROBE = "My name is Ada and I live in Paris."


class ScoringModels:
    """The models and own metrics of ``config.scoring``; see configs/scoring.

    Args:
        tagger: Finds the entities of the references, replacing the entity labels of the data.
        second_embedder: Compares predictions with references in another embedding space than the attacked one.
        language_model: Gives the log probability of predictions.
        translation: Translates predictions into the language of their reference.
        metrics: The user's own metrics by name; computed in addition to the built-in ones.
    """

    def __init__(
        self,
        tagger: Tagger | None = None,
        second_embedder: Embedder | None = None,
        language_model: PerplexityModel | None = None,
        translation: Translator | None = None,
        metrics: Mapping[str, TextMetric] | None = None,
    ) -> None:
        self.tagger, self.second_embedder, self.language_model = tagger, second_embedder, language_model
        self.translation = translation
        self.metrics = own_metrics(metrics or {})
        self._tagged: dict[str, tuple[Span, ...]] = {}
        self._cache_dir: Path | None = None

    def connect(self, cache_dir: Path) -> None:
        """Set the cache folder of the second embedder."""
        self._cache_dir = cache_dir

    def check(self, languages: Sequence[str] = ()) -> None:
        """Load each model and run it on one text.

        Args:
            languages: Languages of the test texts, if known: which models a translator needs may depend on them.

        Raises:
            InputError: A library or a model is missing or unusable; names the key.
        """
        self.entities([PROBE])
        self.cosines([PROBE], [PROBE])
        self.likelihoods([PROBE])
        if self.translation is not None:
            targets = self.translation.languages(languages)
            self.translations([PROBE] * len(targets), targets)

    def entities(self, texts: Sequence[str]) -> list[tuple[Span, ...]] | None:
        """The tagger's entities of each text; None without a tagger. Each text is tagged once."""
        if self.tagger is None:
            return None
        unseen = [text for text in dict.fromkeys(texts) if text not in self._tagged]
        self._tagged.update(zip(unseen, self.tagger.tag(unseen), strict=True))
        return [self._tagged[text] for text in texts]

    def cosines(self, references: Sequence[str], predictions: Sequence[str]) -> list[float] | None:
        """Cosine of the second embedder's vectors of each pair, -1..1; None without such an embedder."""
        if self.second_embedder is None:
            return None
        if self._cache_dir is None:
            raise RuntimeError("call ScoringModels.connect before cosines")
        cosines: list[float] = []
        try:
            cached = CachedEmbedder(self.second_embedder, self._cache_dir)
            cached.fill([*references, *predictions], "scoring")
            for begin in range(0, len(references), BLOCK):
                block = slice(begin, begin + BLOCK)
                wanted, offered = (cached.embed(texts[block], "scoring") for texts in (references, predictions))
                cosines += cosine_rows(offered, wanted).tolist()
        except InputError as error:
            raise InputError(f"scoring.second_embedder: {error}") from error
        return cosines

    def likelihoods(self, texts: Sequence[str]) -> list[Likelihood] | None:
        """Log probability of each text under the language model; None without one."""
        return None if self.language_model is None else self.language_model.likelihoods(texts)

    def translations(self, texts: Sequence[str], languages: Sequence[str | None]) -> list[str | None] | None:
        """Each text translated to the given language, None without a model for it; None without a translator."""
        return None if self.translation is None else self.translation.translate(texts, languages)


def own_metrics(named: Mapping[str, object]) -> list[TextMetric]:
    """The metrics of ``scoring.metrics``, checked."""
    taken = {metric.description.key for metric in text_metrics()}
    found: list[TextMetric] = []
    for name, metric in named.items():
        if not isinstance(metric, ExampleMetric):
            raise InputError(
                f"scoring.metrics.{name}: {type(metric).__name__} is no unembed.metrics.base.ExampleMetric"
            )
        key = metric.description.key
        if key in taken or not re.fullmatch(r"\w+", key):
            reason = "another metric has that key" if key in taken else "a key has letters, digits and _ only"
            raise InputError(f"scoring.metrics.{name}: description.key={key!r}: {reason}")
        taken.add(key)
        found.append(metric)
    return found


def scoring_models(config: DictConfig) -> ScoringModels:
    """The models of ``config.scoring``, unloaded, after checking a temporary copy of each with one text.

    The copy is discarded, so that no model takes memory while an attack trains.
    """
    from hydra.utils import instantiate

    models: list[ScoringModels] = []
    for _ in range(2):
        models.append(instantiate(config.scoring, _convert_="all") or ScoringModels())
        models[-1].connect(Path(config.cache_dir))
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        data = config.get("datamodule") or {}
        models[0].check(data.get("test_languages") or data.get("languages") or ())
    return models[1]
