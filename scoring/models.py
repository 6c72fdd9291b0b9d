"""What the user adds to scoring: metrics, and the models that some metrics need.

    models = scoring_models(config)        # before hours of training: what cannot be loaded is found out
    models.entities(references), models.cosines(references, predictions), models.likelihoods(predictions)

Models are a tagger, a second embedder, a language model and a translator. All are None by default, and the metrics that
need them null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_only

from embedders.base import Embedder
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from examples import Span
from metrics.base import ExampleMetric
from metrics.scored import Likelihood
from metrics.scoring import TextMetric, text_metrics
from metrics.vectors import cosine_rows
from scoring.language_model import PerplexityModel
from scoring.taggers import Tagger
from scoring.translation import Translator

if TYPE_CHECKING:
    from omegaconf import DictConfig

BLOCK = 4096  # rows of vectors held in memory at once
PROBE = "My name is Ada and I live in Paris."


class ScoringModels:
    """What is asked beside the attacked embedder; see configs/scoring.

    Args:
        tagger: Finds the entities of the references, in the place of those that the data labels.
        second_embedder: Compares predictions with references in another space than the attacked one.
        language_model: Says how likely predictions are.
        translation: Translates predictions into the language of their reference.
        metrics: The user's own, by a name of their choice; computed beside the built-in ones.

    Raises:
        InputError: One of ``metrics`` is no metric, or has a key that another has.
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
        """Set the cache of the second embedder: that of the attacked one."""
        self._cache_dir = cache_dir

    def check(self) -> None:
        """Load each model and ask it for one text.

        Raises:
            InputError: A library or a model is missing, or cannot be used; names the key.
        """
        self.entities([PROBE])
        self.cosines([PROBE], [PROBE])
        self.likelihoods([PROBE])
        if self.translation is not None:
            targets = list(self.translation.models)
            self.translations([PROBE] * len(targets), targets)

    def entities(self, texts: Sequence[str]) -> list[tuple[Span, ...]] | None:
        """The tagger's entities of each text; None without a tagger. A text is tagged once, for attack and baseline."""
        if self.tagger is None:
            return None
        unseen = [text for text in dict.fromkeys(texts) if text not in self._tagged]
        self._tagged.update(zip(unseen, self.tagger.tag(unseen), strict=True))
        return [self._tagged[text] for text in texts]

    def cosines(self, references: Sequence[str], predictions: Sequence[str]) -> list[float] | list[None]:
        """Cosine of the second embedder's vectors of each pair, -1..1; None for each without such an embedder.

        Raises:
            InputError: The embedder cannot be loaded.
        """
        if self.second_embedder is None:
            return [None] * len(references)
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

    def likelihoods(self, texts: Sequence[str]) -> list[Likelihood] | list[None]:
        """Of each text under the language model; None for each without one.

        Raises:
            InputError: The model cannot be loaded.
        """
        return [None] * len(texts) if self.language_model is None else self.language_model.likelihoods(texts)

    def translations(self, texts: Sequence[str], languages: Sequence[str | None]) -> list[str | None]:
        """Each text in the language given beside it; None for each without a translator, or that it does not do.

        Raises:
            InputError: A model cannot be loaded.
        """
        return [None] * len(texts) if self.translation is None else self.translation.translate(texts, languages)


def own_metrics(named: Mapping[str, object]) -> list[TextMetric]:
    """The metrics of ``scoring.metrics``.

    Raises:
        InputError: See ``ScoringModels``.
    """
    taken = {metric.description.key for metric in text_metrics()}
    found: list[TextMetric] = []
    for name, metric in named.items():
        if not isinstance(metric, ExampleMetric):
            raise InputError(f"scoring.metrics.{name}: {type(metric).__name__} is no metrics.base.ExampleMetric")
        key = metric.description.key
        if key in taken or not re.fullmatch(r"\w+", key):
            reason = "another metric has that key" if key in taken else "a key has letters, digits and _ only"
            raise InputError(f"scoring.metrics.{name}: description.key={key!r}: {reason}")
        taken.add(key)
        found.append(metric)
    return found


def scoring_models(config: DictConfig) -> ScoringModels:
    """The models of ``config.scoring``, not loaded yet, after a copy of each was loaded and asked for one text.

    The copy is thrown away, so that no model takes up memory while an attack trains. A run that was trained before
    there was such a key has none.

    Raises:
        InputError: See ``ScoringModels.check``.
    """
    from hydra.utils import instantiate

    models: list[ScoringModels] = []
    for _ in range(2):
        models.append(instantiate(config.get("scoring"), _convert_="all") or ScoringModels())
        models[-1].connect(Path(config.cache_dir))
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        models[0].check()
    return models[1]
