"""What refiners that change words share: the words, the counts of the training text, and the surrogate."""

# No "from __future__ import annotations": subclasses in other files inherit the fields, whose types must be resolved.
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt
from torch import Tensor

from unembed.attacks.refine.lexicon.language import Language
from unembed.attacks.refine.lexicon.surrogate import Surrogate, fit
from unembed.attacks.refine.lexicon.words import Lexicon, WordSources, digest_of, known_words, merged, word_parts
from unembed.attacks.refine.refining import Refiner
from unembed.embedders.cache.cached import CachedEmbedder

_LANGUAGE, SURROGATES = "language.json", "surrogate-*.pt"


@dataclass
class WordRefiner(WordSources, Refiner):
    """A refiner with a lexicon and, where ``surrogate_steps`` is not 0, a surrogate of the embedder."""

    training: bool = True
    required: bool = True
    surrogate_steps: NonNegativeInt = 0

    def __post_init__(self) -> None:
        self.language = Language({}, {})
        self.surrogate: Surrogate | None = None
        self._lexicon: Lexicon | None = None

    def check_sources(self) -> None:
        self.public(None)
        _ = self.listed

    def all_weights(self) -> dict[str, Tensor]:
        """The surrogate's weights, and a hash of the user's own entries: with others, the texts are others."""
        weights = {} if self.surrogate is None else self.surrogate.state_dict()
        if self.path is not None:
            weights["entries"] = digest_of(self.listed)
        return weights

    def prepare(self, texts: Sequence[str], artifacts: Path, oracle: CachedEmbedder | None) -> None:
        Language.count(texts).save(artifacts / _LANGUAGE)
        if self.surrogate_steps and not (artifacts / self._stored).is_file():
            assert oracle is not None  # checked
            fit(texts, oracle, self.surrogate_steps, key=f"{self.key}.surrogate_steps").save(artifacts / self._stored)

    def prepared(self, artifacts: Path) -> bool:
        wanted = [_LANGUAGE, self._stored] if self.surrogate_steps else [_LANGUAGE]
        return all((artifacts / name).is_file() for name in wanted)

    def load(self, artifacts: Path, dimension: int) -> None:
        self.language, self._lexicon = Language.read(artifacts / _LANGUAGE), None
        if self.surrogate_steps:
            self.surrogate = Surrogate.read(artifacts / self._stored, dimension)

    @property
    def _stored(self) -> str:
        return SURROGATES.replace("*", str(self.surrogate_steps))

    def lexicon(self, oracle: CachedEmbedder) -> Lexicon:
        if self._lexicon is None:
            embedder = oracle.source.embedder
            own = known_words(self.listed, Path(self.path or ""), embedder) if self.listed else []
            entries = merged(
                own,
                self.language.words if self.training else [],
                *self.public(embedder),
                [*self.language.beginnings, *self.language.joined] if self.training else [],
            )
            parts = word_parts(embedder) if self.vocabulary else {}
            self._lexicon = Lexicon(entries, self.language, oracle, parts)
        return self._lexicon

    def in_lexicon(self, texts: Sequence[str], oracle: CachedEmbedder) -> list[bool]:
        lexicon = self.lexicon(oracle)
        return [lexicon.has(text) for text in texts]
