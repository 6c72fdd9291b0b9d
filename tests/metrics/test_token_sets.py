"""The metrics of the Vec2Text papers' tables and GEIA's exact match ratio: by hand, and against NLTK."""

from __future__ import annotations

import random

import pytest
from nltk.tokenize.destructive import NLTKWordTokenizer

from unembed.callbacks.scoring import subwords_of
from unembed.core.examples import Span
from unembed.metrics.scored import Scored, Sets
from unembed.metrics.scoring import score
from unembed.metrics.tokens import treebank_tokens
from unembed.reports.breakdowns import length_table
from unembed.reports.results import measure

SENTENCES = [
    "Mr. Smith can't pay $3.50 (or 3,000) at 12:30.",
    'He said "hello there", and left...',
    "'Tis the dogs' bone; I'll say it's theirs!",
    "We cannot, gonna, gimme, lemme, d'ye -- wanna go?",
    "A «quoted» word, “another” \u2013 and \u2018one\u2019 more",
    "rock 'n' roll & more'n 100% [sic] {x} <y> a@b #c *",
    "They've said she'd go and we're what I'm not, don't",
]


@pytest.mark.parametrize("text", SENTENCES)
def test_the_tokens_of_a_sentence_are_those_of_nltk(text: str) -> None:
    assert list(treebank_tokens(text)) == NLTKWordTokenizer().tokenize(text)


def test_the_tokens_of_random_sentences_are_those_of_nltk() -> None:
    chance, words = random.Random(0), [word for text in SENTENCES for word in text.split() if "." not in word]
    for _ in range(300):
        text = " ".join(chance.choices(words, k=chance.randint(1, 10)))
        assert list(treebank_tokens(text)) == NLTKWordTokenizer().tokenize(text), text
    assert treebank_tokens("She ran. (He did.) So") == ("She", "ran", ".", "(", "He", "did", ".", ")", "So")
    assert treebank_tokens("Dr. J. Hill, e.g. here") == ("Dr.", "J.", "Hill", ",", "e.g.", "here")
    assert treebank_tokens(" \n") == ()


def test_token_set_f1_and_exact_match_by_hand() -> None:
    # {I, like, cats, .} and {I, like, dogs, .}: three of four shared, although "like" is said twice.
    rows = [Scored("I like cats.", "I like like dogs."), Scored("Yes!", "yes!")]
    # {Yes, !} and {yes, !}: case counts, so one of two.
    found = score(rows)
    assert found["token_set_f1"] == pytest.approx((75 + 50) / 2)
    assert found["token_f1"] == pytest.approx((100 * 2 * 2 / 7 + 100) / 2)  # words, as often as they occur
    assert score([Scored("a b", "")])["token_set_f1"] == 0
    # Of two and of four: a mean over texts, not over tokens.
    assert score([Scored("a b", "a b"), Scored("a b c d", "a b x y")])["token_set_f1"] == 75
    rows = [
        Scored("Hi, Ada!", "Hi Ada"),  # equal in both
        Scored("Hi, Ada!", "hi ada"),  # but for case
        Scored("it's here", "its here"),  # punctuation inside a word stays where case is kept
        Scored("a - b", "a b"),  # a word of punctuation is left out
        Scored("?!", "!"),  # texts of punctuation only differ
    ]
    found = score(rows)
    assert found["exact_match"] == 0
    assert found["exact_match_no_punctuation"] == 80
    assert found["exact_match_no_punctuation_cased"] == 40


def test_numbers_of_tokens_by_hand() -> None:
    one, two = Sets(frozenset({1}), frozenset(), (3, 0)), Sets(frozenset({1}), frozenset({2}), (1, 3))
    found = score([Scored("a a a", "", subwords=one), Scored("a", "b b b", subwords=two)])
    assert (found["tokens_reference"], found["tokens_prediction"]) == (2, 1.5)
    nothing = score([Scored("a", "b")])
    assert nothing["tokens_reference"] is None
    assert nothing["tokens_prediction"] is None
    (counted,) = subwords_of(["the cat, the dog"], ["the"], "minilm")
    assert counted.lengths == (5, 1)
    assert len(counted.reference) == 4


def _of_length(tokens: int, reference: str, prediction: str, *spans: Span) -> Scored:
    return Scored(reference, prediction, spans, subwords=Sets(frozenset({1}), frozenset({1}), (tokens, 4)))


def test_metrics_by_length_by_hand() -> None:
    rows = [
        _of_length(8, "Ada lives in Rome", "Ada lives in Rome", Span(0, 3, "name")),
        _of_length(1, "Rome", "Paris"),
        _of_length(9, "Ben bought a red car", "Ben bought a blue car", Span(0, 3, "name"), Span(13, 16, "color")),
        _of_length(257, "x y", "x y"),
    ]
    found = {key: value for key, value in score(rows).items() if key.startswith("length/")}
    assert {key: found[f"length/examples/{key}"] for key in ("8", "16", "longer")} == {"8": 2, "16": 1, "longer": 1}
    assert len(found) == 3 * 6
    assert (found["length/token_f1/8"], found["length/exact_match/8"]) == (50, 50)
    assert found["length/content_word_recovery/8"] == 75  # Ada, lives, Rome; not Rome
    assert found["length/entity_recovery/8"] == 100
    assert found["length/token_f1/16"] == pytest.approx(80)
    assert (found["length/exact_match/16"], found["length/entity_recovery/16"]) == (0, 50)
    assert found["length/content_word_recovery/16"] == 75  # Ben, bought, car; not red
    assert found["length/bleu/16"] == score(rows[2:3])["bleu"]
    assert found["length/entity_recovery/longer"] is None
    assert not [key for key in score(rows[:2]) if key.startswith("length/")]  # one length
    assert measure("length/token_f1/16").title == "Word F1, up to 16 tokens"
    assert length_table(found) is None
    table = length_table(score([*rows[:3] * 20, rows[3]]))
    assert table.columns[:3] == ("Tokens of the text", "Texts", "Word F1")
    assert [(line.title, line.cells[0].text) for line in table.lines] == [
        ("1 to 8", "40"),
        ("9 to 16", "20"),
        ("257 or more", "1"),
    ]


def test_metrics_of_each_language_and_of_translations_have_both_definitions() -> None:
    ids = Sets(frozenset({1}), frozenset({1}), (2, 4))
    rows = [
        Scored("Der Hund.", "Der Hund", language="de", subwords=ids, translation="Der Hund."),
        Scored("a cat", "the cat", language="en", subwords=ids, translation="a cat"),
    ]
    found = score(rows)
    for key in ("bleu", "bleu_sentence", "rouge1", "rougeL", "token_f1", "token_set_f1", "tokens_prediction"):
        assert found[f"{key}/de"] == score(rows[:1])[key], key
    assert found["token_set_f1/de"] == 80  # {Der, Hund, .} and {Der, Hund}
    assert found["translated/token_set_f1/de"] == found["translated/rouge1"] == 100
    assert not [key for key in found if key.startswith("translated/tokens_")]  # of the attack's own text only
