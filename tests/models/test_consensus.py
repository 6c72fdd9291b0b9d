"""The order by consensus computed by hand, its weights, and what it asks the embedder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.letters import LettersAndSigns as Letters
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.consensus import Consensus, Expected, recombined
from unembed.core.errors import InputError
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.tokens import words


def test_order_and_recombination_by_hand() -> None:
    # F1: ab with abc 4/5, ab with d 0, abc with d 0; sums with themselves: 1.8, 1.8, 1
    assert Expected(["ab", "abc", "d"], [1, 1, 1]).order() == [0, 1, 2]
    # d with weight 3: ab 1.8, abc 1.8, d 3
    assert Expected(["ab", "abc", "d"], [1, 1, 3]).order() == [2, 0, 1]
    # abc with weight 2: ab 1 + 1.6, abc .8 + 2
    assert Expected(["ab", "abc", "d"], [1, 2, 1]).order() == [1, 0, 2]
    assert Expected(["", "a", ""], [1, 1, 1]).order() == [1, 0, 2]  # a text without words agrees with none
    assert Expected([], []).order() == []
    texts = ["a b. x y.", "a b. c d.", "u v. c d."]
    # equally probable: the second text shares half of its words with each of the others, and no mixture shares more
    assert by_words(texts[0], texts, [1, 1, 1]) == "a b. c d."
    # F1 of "a. f. c." with the three texts is 2/7, 4/5 and 4/5: .63; of "a." .58, of "a. c." .61
    assert by_words("a. c.", ["a. b d e.", "a. c.", "f. a."], [1, 1, 1]) in ("a. c. f.", "a. f. c.")
    # adding and leaving out change nothing: "a." and "a. b. c." have 2/3, as the start has
    texts = ["a. b.", "a. c.", "d. a."]
    assert by_words(texts[0], texts, [1, 1, 1]) == "a. b."
    # a text that is certain is the result, wherever the search starts
    assert by_words("d. a.", texts, [0, 1, 0]) == "c. a."
    texts = ["a b. \U0001f642", "c d."]
    assert by_words(texts[1], texts, [3, 1]).startswith("a b.")


def by_words(start: str, texts: list[str], weights: list[float]) -> str:
    return recombined(start, texts, Expected([words(text) for text in texts], weights))


def refined(tmp_path: Path, temperature: float, embedder: Letters) -> Prediction:
    target = embedder.embed(["abcd"])
    embedder.asked.clear()
    given = [Prediction(("wx wx", "ab cd", "wx wy", "wx wx", "wx wz"))]
    oracle = CachedEmbedder(embedder, tmp_path / "cache")
    return Consensus(temperature=temperature).refine(Targets(target, torch.arange(1)), given, oracle)[0]


def test_the_temperature_goes_from_consensus_to_the_highest_cosine(tmp_path: Path) -> None:
    assert refined(tmp_path / "a", 100.0, Letters()).candidates == ("wx wx", "wx wy", "wx wz", "ab cd")
    assert refined(tmp_path / "b", 0.001, Letters()).candidates[0] == "ab cd"
    embedder = Letters()
    refined(tmp_path, 0.05, embedder)
    assert sorted(embedder.asked) == ["ab cd", "wx wx", "wx wy", "wx wz"]


class OneText(Letters):
    """Embeds one text, and no more."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        room = 1 - len(self.asked)
        found = super().embed(texts[:room])
        if room < len(texts):
            raise QueryLimitError("the limit is reached.", list(range(room)), found)
        return found


def test_texts_beyond_the_limit_have_no_weight_and_no_embedder_is_refused(tmp_path: Path) -> None:
    target, embedder = Letters().embed(["abcd"]), OneText()
    given = [Prediction(("yz", "wx wy", "ab", "wx wy"))]
    (found,) = Consensus().refine(Targets(target, torch.arange(1)), given, CachedEmbedder(embedder, tmp_path / "cache"))
    assert found.partial
    assert sorted(found.candidates) == ["ab", "wx wy", "yz"]
    assert [found.candidates[0]] == embedder.asked  # the others have nothing in common with the one that has a vector
    with pytest.raises(InputError, match="needs the embedder"):
        Consensus().check(28, None)
