"""Discrete steps on a tiny encoder: what is tried, in which order, and that texts of unknown length are found."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from support.tiny_models import tiny_sentence_encoder
from unembed.attacks.lm_inversion.discrete_steps import DiscreteSteps, TextSearch, search
from unembed.attacks.lm_inversion.edits import EDGE, Encoder, Entries, RankedEdits, TokenLanguage
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.lexicon.language import Language
from unembed.attacks.refine.refining import FOUND
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.transformer import RelaxedEncoder, TransformerEmbedder

TRAINING = ["Ada has a dog .", "ada has dogs .", "we feed a cat .", "Zorbal has a cat .", "a dog bites !"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> TransformerEmbedder:
    folder = tiny_sentence_encoder(tmp_path_factory.mktemp("encoder"))
    return TransformerEmbedder(str(folder), pooling="mean", normalize=True, device="cpu")


@pytest.fixture(scope="module")
def encoder(embedder: TransformerEmbedder) -> Encoder:
    return Encoder(RelaxedEncoder(embedder))


@pytest.fixture(scope="module")
def language() -> Language:
    return Language.count(TRAINING)


def refiner(folder: Path, **settings: int) -> DiscreteSteps:
    found = DiscreteSteps(**settings)
    found.prepare(TRAINING, folder, None)
    assert found.prepared(folder)
    found.load(folder, 32)
    return found


def known(encoder: Encoder, language: Language, folder: Path) -> tuple[Entries, TokenLanguage]:
    oracle = CachedEmbedder(encoder.model.embedder, folder / "entries")
    words = [*language.words, *language.beginnings]
    return Entries(encoder, words, oracle), TokenLanguage.of(language, encoder)


def ids(encoder: Encoder, text: str) -> tuple[int, ...]:
    return encoder.ids([text])[0]


def test_vectors_and_texts_as_the_tokenizer_writes_them(encoder: Encoder, embedder: TransformerEmbedder) -> None:
    zor, bal, dog, plural = (ids(encoder, text) for text in ("zor", "zorbal", "dog", "dogs"))
    assert encoder.canonical([dog + bal[1:], zor + bal[1:], zor]) == [dog + bal[1:], bal, zor]
    # "cat", "##s" is no other way to write "cats"
    (cat,) = ids(encoder, "cat")
    (suffix,) = encoder.model.embedder.tokenizer.convert_tokens_to_ids(["##s"])
    assert encoder.canonical([(cat, suffix), (dog[0], suffix)]) == [(cat, suffix), plural]
    assert encoder.canonical([(encoder.model.embedder.tokenizer.mask_token_id,)]) == [()]
    assert encoder.control.sum() == 6  # five special tokens and [unused0]
    assert encoder.spans(ids(encoder, "zorbal has dogs")) == [(0, 1), (1, 2), (2, 3), (3, 4), (0, 2)]
    texts = ["we feed a cat .", "dogs", "ada has a dog .", "zorbal has a dog !"]
    vectors = encoder.vectors([ids(encoder, text) for text in texts])
    torch.testing.assert_close(vectors, embedder.embed(texts), atol=1e-6, rtol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        assert torch.equal(encoder.vectors([ids(encoder, text)])[0], vector)


def test_bigrams_by_hand(encoder: Encoder, language: Language) -> None:
    order = TokenLanguage.of(language, encoder)
    has, a, dog, zor = (ids(encoder, text)[0] for text in ("has", "a", "dog", "zor"))
    bal = ids(encoder, "zorbal")[1]
    tokens = encoder.model.inputs
    total = sum(len(ids(encoder, text)) + 1 for text in TRAINING) + 0.01 * (tokens + 1)
    # "has a" twice, "has" three times, "a" five times among all tokens and ends
    assert order.follows(has, a) == pytest.approx(math.log((2 + 5 * 4.01 / total) / (3 + 5)), abs=1e-5)
    assert order.follows(zor, bal) == pytest.approx(math.log((1 + 5 * 1.01 / total) / (1 + 5)), abs=1e-5)
    assert order.follows(bal, zor) == pytest.approx(math.log((0 + 5 * 1.01 / total) / (1 + 5)), abs=1e-5)
    for left, right in itertools.product((has, a, EDGE, zor), (dog, a, bal)):
        assert float(order.after(left)[right]) == pytest.approx(order.follows(left, right), abs=1e-5)
    for left, right in itertools.product((has, a, zor), (dog, EDGE, bal)):
        assert float(order.before(right)[left]) == pytest.approx(order.follows(left, right), abs=1e-5)
    assert set(order.between(has, dog).tolist()) == {a, *ids(encoder, "dogs")}
    nothing = TokenLanguage.of(Language({}, {}), encoder)
    assert nothing.follows(has, a) == 0
    assert not nothing.after(has).any()
    assert not nothing.before(has).any()
    assert not len(nothing.between(has, a))


def test_words_of_several_tokens_are_entries(encoder: Encoder, language: Language, tmp_path: Path) -> None:
    entries, _ = known(encoder, language, tmp_path)
    assert len(entries.ids) == int((~encoder.control).sum()) + 1
    assert entries.ids[-1] == ids(encoder, "zorbal")
    torch.testing.assert_close(entries.vectors, encoder.vectors(entries.ids))  # through the cache or not
    found = entries.vectors_of([ids(encoder, "a dog"), ids(encoder, "zorbal")])
    torch.testing.assert_close(found, encoder.vectors([ids(encoder, "a dog"), ids(encoder, "zorbal")]))
    rows = entries.rows_of_tokens(torch.tensor([0, ids(encoder, "dog")[0]]))  # the first is [PAD]
    assert [entries.ids[row] for row in rows.tolist()] == [ids(encoder, "dog")]


def test_changes_of_a_text(encoder: Encoder, language: Language, tmp_path: Path) -> None:
    """Every other entry at every place, and before and behind each; a word of two tokens at once."""
    entries, order = known(encoder, language, tmp_path)
    text, target = ids(encoder, "zorbal has a dog"), ids(encoder, "ada has a dog")
    spans = encoder.spans(text)
    rest = [text[:begin] + text[end:] for begin, end in spans]
    vector, wanted = encoder.vectors([text, target])
    ranked = RankedEdits(text, vector, spans, encoder.vectors(rest), wanted, entries, order)
    found = [edit.of(text) for edit in ranked]
    assert len(set(found)) >= len(found) - len(spans) - 10  # itself at each place, and orders of equal tokens
    replaced = {text[:begin] + entry + text[end:] for begin, end in spans for entry in entries.ids}
    inserted = {text[:place] + entry + text[place:] for place in range(6) for entry in entries.ids}
    ordered = {tuple(text[place] for place in order) for order in itertools.permutations(range(5))}
    assert set(found) <= replaced | inserted | ordered
    assert (replaced - {text}) | inserted <= set(found)
    assert target in found
    swapped = ids(encoder, "zorbal a has dog")
    assert swapped in found


def test_a_text_of_unknown_length_is_found(encoder: Encoder, language: Language, tmp_path: Path) -> None:
    entries, order = known(encoder, language, tmp_path)
    pairs = [
        ("ada has", "ada has a dog ."),
        ("we feed a dogs !", "we feed dogs !"),
        ("a zorbal cats", "a zorbal feed cats"),
    ]
    targets = encoder.vectors([ids(encoder, text) for _, text in pairs])

    def searches() -> list[TextSearch]:
        starts = [[ids(encoder, start), ids(encoder, "a cat")] for start, _ in pairs]
        return [TextSearch(one, own, DiscreteSteps(60, 96, 2)) for one, own in zip(targets, starts, strict=True)]

    together = searches()
    search(together, entries, order, encoder)
    for one, (_, text) in zip(together, pairs, strict=True):
        assert one.texts[0].ids == ids(encoder, text)
        assert one.found
        assert one.texts[0].cosine > FOUND
        assert len(one.tried) <= one.passes <= 2 + one.steps * (96 + 2 + 2 * 16)
    for number, one in enumerate(searches()):
        search([one], entries, order, encoder)
        assert (one.passes, one.steps) == (together[number].passes, together[number].steps)
        assert [text.ids for text in one.texts] == [text.ids for text in together[number].texts]


def test_a_search_ends_where_its_budget_ends(encoder: Encoder, tmp_path: Path) -> None:
    (nowhere,) = torch.nn.functional.normalize(-encoder.vectors([ids(encoder, "dogs bite")]))
    nothing = TokenLanguage({}, encoder.model.inputs)
    one = TextSearch(nowhere, [ids(encoder, "dog")], DiscreteSteps(3, 4, 2))
    search([one], known(encoder, Language({}, {}), tmp_path)[0], nothing, encoder)
    assert one.steps == 3
    assert not one.found


def test_the_refiner_writes_as_the_training_text_does(
    embedder: TransformerEmbedder, encoder: Encoder, tmp_path: Path
) -> None:
    oracle = CachedEmbedder(embedder, tmp_path / "cache")
    (tmp_path / "own").mkdir()
    one = refiner(tmp_path / "own", steps=60, candidates=24)
    one.check(32, oracle)
    truths = ["zorbal has a dog .", "we feed dogs !", "a dog bites"]
    given = [("Zorbal HAS a cat.",), ("we feed!", "We  feed DOGS!"), ("a dog",)]
    targets = Targets(embedder.embed(truths), torch.arange(3))
    found = one.refine(targets, [Prediction(texts) for texts in given], oracle)
    # capital letters of the training text or of the attack; spaces too, where the attack writes these tokens
    assert [prediction.candidates[0] for prediction in found] == ["Zorbal has a dog .", "We  feed DOGS!", "a dog bites"]
    assert [len(prediction.candidates) for prediction in found] == [1, 2, 1]
    assert oracle.queries.asked["attack"] == 0
    for row, prediction in enumerate(found):
        assert prediction.search.verified
        assert prediction.search.passes >= 1
        alone = Targets(targets.vectors[row : row + 1], targets.index[row : row + 1])
        assert one.refine(alone, [Prediction(given[row])], oracle) == [prediction]
    assert (found[1].search.iterations, found[1].search.passes) == (0, 2)


def test_words_in_no_order_become_a_text(embedder: TransformerEmbedder, tmp_path: Path) -> None:
    one = refiner(tmp_path, steps=30, candidates=24)
    targets = Targets(embedder.embed(["ada has dogs ."]), torch.arange(1))
    before = Prediction(("dogs ada",), kind="set", tokens=(1, 2))
    (found,) = one.refine(targets, [before], CachedEmbedder(embedder, tmp_path / "cache"))
    assert found.candidates[0].lower() == "ada has dogs ."
    assert (found.kind, found.tokens) == ("sequence", None)


def test_only_known_weights_can_be_run(tmp_path: Path) -> None:
    class Remote:
        dimension, max_tokens, fingerprint = 3, 5, "ab"

        def embed(self, texts: object) -> torch.Tensor:
            return torch.zeros(1, 3)

    with pytest.raises(InputError, match="Remote gives none"):
        DiscreteSteps().check(3, CachedEmbedder(Remote(), tmp_path))
