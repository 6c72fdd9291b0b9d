"""An unknown embedder behind an API, and nothing trained for it: embeddings are bought, and a map is fitted to them.

python train.py attack=zero_shot embedder=openai embedder.max_queries=20000 attack.public_file=more.jsonl
    datamodule=files datamodule.train=public.jsonl datamodule.limit_train=1000 datamodule.test=store.jsonl

target --map fitted to bought texts--> own space --decoder--> ten texts --API--> their vectors --> the map, fitted again

Two kinds of texts are bought: public ones once (the training texts), and those that are written for a target. A
text that is written is a known pair close to the target, as in Zero2Text (arXiv 2602.01757), whose attacker begins
with none. At last, refiners change the closest texts; what a change does to a vector is predicted in the own space.

The victim's vectors are compared in whitened coordinates, since those of many embedders lie in a narrow cone, and their
cosines would only compare the few coordinates of most variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.writing import Writer
from unembed.attacks.refine.lexicon.language import Units
from unembed.attacks.refine.lexicon.refiner import WordRefiner
from unembed.attacks.refine.lexicon.surrogate import Surrogate
from unembed.attacks.refine.refining import FOUND, Refiner, embedded
from unembed.attacks.transfer.aligned import ABOUT, START, Paired
from unembed.attacks.transfer.aligners import AffineMap, Known, LeaveOneOut, Map, gaussian, interpolated, whitening_of
from unembed.core.atomic_files import read_json, write_file
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder, Purpose

KNOWN = "known.safetensors"  # among the artifacts
WHITENING = 0.5  # power of the covariance; 0 and 1 read less
NOISE = 0.1  # of the residual of one text, where 1 is the variance of residuals around a target
TINY = 1e-6  # least distance to a text: that of the target itself is 0
AT_ONCE = 256  # texts that the own encoder embeds at a time
SEED = 0  # of the order of known pairs: the map has anchors among the first


class ZeroShot(Paired):
    """A trained decoder of another embedder, behind a map that is fitted again to what the decoder writes."""

    asks_embedder = True
    at_once = Refiner.at_once  # whatever its refiners ask for: the targets of a batch share their pairs
    option = "zero_shot"

    def __init__(
        self,
        aligner: LeaveOneOut,
        rounds: NonNegativeInt = 4,
        texts: PositiveInt = 10,
        words: Literal["mapped", "bought"] = "mapped",
        **paired: Any,
    ) -> None:
        super().__init__(**paired)
        self.aligner, self.rounds, self.texts, self.words = aligner, rounds, texts, words
        for refiner in self.refiners.named.values():
            if isinstance(refiner, WordRefiner):
                refiner.surrogate_steps = 0  # the own encoder and a map predict vectors

    @property
    def decoded(self) -> int:
        return self.texts

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Buy the public texts, fit the map, and keep the pairs, without their texts, for the next fits."""
        source, public = self.source(), self.public_texts(self.public)
        known = self.known(source, public)
        fitted = self.aligner.fit(known)
        known = replace(known, store=known.store[: self.public])
        write_known(artifacts / KNOWN, known)
        self.write(artifacts, {START: fitted.map}, {**fitted.about, "encoder": source.fingerprint}, "aligned")
        bought = self.data.examples("train").texts
        self._training_texts = lambda: [*bought, *public]  # the refiners' words and word order: no text of the store

    def build(self, dimension: int) -> None:
        super().build(dimension)
        self._known = read_known(self.artifacts / KNOWN)
        about = read_json(self.artifacts / ABOUT)
        self._again = replace(self.aligner, whitening=[about["whitening"]], widths=[about["width"]])
        vectors = torch.cat([self._known.store, self._known.victim])
        center = vectors.mean(0)
        weight = whitening_of(vectors - center, WHITENING)
        self._white = AffineMap(weight, -center @ weight)

    @property
    def writer(self) -> Writer:
        return Writer(lambda: self.decoder)

    @cached_property
    def _surrogate(self) -> Surrogate | None:
        """That of the decoder's run: it predicts vectors of the own space in a small part of the encoder's time."""
        stored = self.surrogates(self.artifacts)
        return Surrogate.read(stored[0], self.encoder.dimension) if stored else None

    def _leads_home(self, oracle: CachedEmbedder | None) -> bool:
        """No: refiners see whitened vectors, also of the decoder's own embedder."""
        return False

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """The texts bought for each target, closest first; all of a batch are pairs for the next fit of the map."""
        assert oracle is not None  # checked
        return [one.prediction() for one in self._search(targets, oracle)[0]]

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        self.check_refining(targets.vectors.shape[1], oracle)
        assert oracle is not None
        found, known = self._search(targets, oracle)
        predictions = [one.prediction() for one in found]
        if not self.refiners.named:
            return predictions
        forth = self._again.fit(known.reversed()).plain
        bought = self.words == "bought"
        view = WhitenedEmbedder(oracle, self._white, self.encoder, forth, bought, self._surrogate)
        white = self._white(targets.vectors)
        directions = functional.normalize(white, dim=1)

        @cache  # most refiners never ask
        def places() -> Tensor:
            back = self._again.fit(known).plain
            return torch.stack([one.places(back)[0] for one in found])

        def own(whitened: Tensor) -> Tensor:
            """Where in the own space the targets lie that a search gives by their direction in whitened coordinates."""
            return places()[(whitened.double() @ directions.T).argmax(1)].to(whitened)

        self.refiners.check(view.dimension, view, Writer(lambda: self.decoder, own, view.predict))
        return self.refiners.refine(replace(targets, vectors=white.to(targets.vectors)), predictions, view)

    def _search(self, targets: Targets, oracle: CachedEmbedder) -> tuple[list[Bought], Known]:
        vectors = targets.vectors.cpu().double()
        found = [Bought(target, white) for target, white in zip(vectors, self._white(vectors), strict=True)]
        known, wanted = self._known, [start[None] for start in self._maps[START](vectors)]
        for number in range(self.rounds + 1):
            self._buy(targets, found, wanted, oracle)
            known = self._with(found)
            if number < self.rounds:
                back = self._again.fit(known).plain
                wanted = [one.aims(back) for one in found]
        return found, known

    def _buy(self, targets: Targets, found: list[Bought], wanted: list[Tensor], oracle: CachedEmbedder) -> None:
        """Write texts for the vectors (w, k) that are wanted of each target, and embed those that are new to it."""
        rows = [row for row, some in enumerate(wanted) for _ in some]
        if not rows:
            return
        mapped = torch.cat(wanted).to(targets.vectors)
        written = self.decoder.propose(replace(targets, vectors=mapped, index=targets.index[rows]), None)
        ranked: list[list[tuple[int, str]]] = [[] for _ in found]
        for row, prediction in zip(rows, written, strict=True):
            ranked[row] += enumerate(prediction.candidates)
        new = []
        for one, some in zip(found, ranked, strict=True):
            best_first = dict.fromkeys(text for _, text in sorted(some, key=lambda place: place[0]))
            new.append([text for text in best_first if text not in one.texts][: self.texts])
        distinct = list(dict.fromkeys(text for texts in new for text in texts))
        victim = embedded(distinct, oracle)
        own = dict(zip(distinct, self.encoder.embed(distinct).double(), strict=True)) if distinct else {}
        for one, texts in zip(found, new, strict=True):
            for text in texts:
                one.receive(text, victim.get(text), own[text], self._white)

    def _with(self, found: list[Bought]) -> Known:
        """All known pairs: those bought once, and those bought for the targets."""
        pairs = {text: pair for one in found for text, pair in one.texts.items() if pair is not None}
        if not pairs:
            return self._known
        victim = torch.cat([self._known.victim, torch.stack([victim for victim, _ in pairs.values()])])
        own = torch.cat([self._known.own, torch.stack([own for _, own in pairs.values()])])
        order = torch.randperm(len(own), generator=torch.Generator().manual_seed(SEED))
        return replace(self._known, victim=victim[order], own=own[order])


@dataclass(slots=True)
class Bought:
    """The texts that were written for one target.

    Attributes:
        target: (d,).
        white: The same in whitened coordinates.
        texts: Each with its vectors by the victim, (d,), and by the own encoder, (k,); None: a limit was reached.
        cosines: Of each text that has vectors with the target, in whitened coordinates.
    """

    target: Tensor
    white: Tensor
    texts: dict[str, tuple[Tensor, Tensor] | None] = field(default_factory=dict)
    cosines: dict[str, float] = field(default_factory=dict)

    def receive(self, text: str, victim: Tensor | None, own: Tensor, white: Map) -> None:
        self.texts[text] = None if victim is None else (victim.double(), own)
        if victim is not None:
            self.cosines[text] = float(torch.cosine_similarity(white(victim[None])[0], self.white, dim=0))

    def aims(self, back: Map) -> Tensor:
        """Two vectors of the own space to decode next, (2, k); none where the text was found or a limit reached."""
        if None in self.texts.values() or not self.cosines or max(self.cosines.values()) > FOUND:
            return torch.empty(0, back.dimensions[1], dtype=torch.float64)
        return self.places(back)

    def places(self, back: Map) -> Tensor:
        """Where in the own space the target may lie, (2, k); (1, k) while no text has a vector.

        The map errs on the texts nearby as it errs on the target. To what it gives for the target is added a mean of
        its errors on all texts, a kernel regression as wide as the target is far, and its error on the closest text.
        """
        pairs = [pair for pair in self.texts.values() if pair is not None]
        if not pairs:
            return back(self.target[None])
        victim, own = (torch.stack(side) for side in zip(*pairs, strict=True))
        return back(self.target[None]) + local(self.target, victim, own - back(victim))

    def prediction(self) -> Prediction:
        ordered = sorted(self.cosines, key=lambda text: -self.cosines[text])
        rest = [text for text in self.texts if text not in self.cosines]
        return Prediction((*ordered, *rest), partial=bool(rest))


def local(target: Tensor, vectors: Tensor, errors: Tensor) -> Tensor:
    """A mean of all ``errors`` (n, k) at ``vectors`` (n, d), then the error at the closest of them: (2, k)."""
    scale = torch.cdist(target[None], vectors)[0].min().clamp_min(TINY) * 2**0.5
    here, there = target[None] / scale, vectors / scale
    mean = interpolated(here, there, errors, NOISE)
    nearest = errors[gaussian(here, there)[0].argmax()]
    return torch.cat([mean, nearest[None]])


class WhitenedEmbedder(CachedEmbedder):
    """The victim's embedder as refiners see it: in whitened coordinates, with vectors of words by the own encoder.

    Args:
        behind: The victim's.
        white: To whitened coordinates.
        encoder: The attacker's own; its tokenizer has the words of the lexicon.
        forth: From the own space to the victim's.
        words_bought: Whether the victim embeds single words (purpose ``lexicon``), too; else they are mapped.
        surrogate: Of the own encoder; None: that itself predicts vectors.
    """

    def __init__(
        self,
        behind: CachedEmbedder,
        white: Map,
        encoder: CachedEmbedder,
        forth: Map,
        words_bought: bool = False,
        surrogate: Surrogate | None = None,
    ) -> None:
        self._behind, self._white, self._encoder, self._forth = behind, white, encoder, forth
        self._words_bought, self._surrogate = words_bought, surrogate
        self.embedder, self.queries = encoder.embedder, behind.queries

    @property
    def dimension(self) -> int:
        return self._white.dimensions[1]

    def embed(self, texts: Sequence[str], purpose: Purpose = "attack") -> Tensor:
        """See CachedEmbedder."""
        if purpose == "lexicon" and not self._words_bought:
            return self._white(self._forth(self._encoder.embed(texts, purpose))).float()
        try:
            return self._white(self._behind.embed(texts, purpose)).float()
        except QueryLimitError as error:
            raise QueryLimitError(str(error), error.done, self._white(error.vectors).float()) from error

    def predict(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors of texts, (n, d), in whitened coordinates, for nothing: those of the own space, mapped."""
        if self._surrogate is not None:
            own = self._surrogate.predict([Units.of(text).words for text in texts], self._own_words)
        else:
            parts = [self.embedder.embed(texts[begin : begin + AT_ONCE]) for begin in range(0, len(texts), AT_ONCE)]
            own = torch.cat([torch.empty(0, self._encoder.dimension), *parts])
        return functional.normalize(self._white(self._forth(own)).float(), dim=1)

    def _own_words(self, words: Sequence[str]) -> Tensor:
        return functional.normalize(self._encoder.embed(words, "lexicon"), dim=1)


def write_known(path: Path, known: Known) -> None:
    from safetensors.torch import save

    tensors = {"victim": known.victim, "own": known.own, "store": known.store, "public": known.public}
    write_file(path, lambda file: file.write(save({name: one.float().contiguous() for name, one in tensors.items()})))


def read_known(path: Path) -> Known:
    from safetensors.torch import load_file

    return Known(**{name: tensor.double() for name, tensor in load_file(path).items()})
