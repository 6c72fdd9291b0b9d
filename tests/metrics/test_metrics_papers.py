"""Metrics of GEIA and of the LLM attackers: by hand, against scikit-learn, sacrebleu, NLTK and rouge-score."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import nltk
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from rouge_score import rouge_scorer
from sklearn.metrics import precision_recall_fscore_support
from sklearn.preprocessing import MultiLabelBinarizer

from support.scored import check_scores, spans_of
from unembed.core.examples import Span
from unembed.metrics.entities import entity_words, names, recovered_entity_pieces, recovered_entity_words
from unembed.metrics.fluency import StopWordDifference, StopWordRate
from unembed.metrics.rouge import ClippedBleu1, ClippedRouge1
from unembed.metrics.scored import Likelihood, Scored, Sets
from unembed.metrics.scoring import score
from unembed.metrics.stop_words import STOP_WORDS, content_words, geia_stop_words, stop_words
from unembed.metrics.tokens import words
from unembed.metrics.word_overlap import MicroOverlap, Part


def pairs(rows: int, seed: int) -> list[tuple[str, str]]:
    """References and predictions with repeated words, some of them empty or perfect."""
    chance = random.Random(seed)
    vocabulary = ["the", "The", "cat", "sat", "mat,", "mat", "on", "3.5", "i", "my", "don't", "Zürich"]
    made = []
    for _ in range(rows):
        reference = chance.choices(vocabulary, k=chance.randint(1, 12))
        kept = chance.choice([0.0, 0.5, 1.0])
        prediction = [word if chance.random() < kept else chance.choice(vocabulary) for word in reference]
        made.append((" ".join(reference), " ".join(prediction[: chance.randint(0, len(prediction))])))
    return made


BY_HAND: dict[str, tuple[list[Scored], dict[str, float | None]]] = {
    # Shared a and b; predicted a, b, x; in the references nine words. The means over examples are 75 and 56.25.
    "micro sums over examples before it divides": (
        [Scored("a", "a"), Scored("b c d e f g h i", "b x")],
        {"micro_precision": 200 / 3, "micro_recall": 200 / 9, "micro_f1": 100 * 4 / 12},
    ),
    # Of tokens, as often as they occur.
    "micro counts a word once an example": (
        [Scored("No no yes", "no NO no maybe")],
        {"micro_precision micro_recall micro_f1": 50, "token_recall": 200 / 3},
    ),
    "micro over pieces and tokens": (
        [Scored("a", "b", subwords=Sets(frozenset({1, 2, 3}), frozenset({3, 4})),
                tokens=Sets(frozenset({7}), frozenset()))],
        {"micro_piece_precision": 50, "micro_piece_recall": 100 / 3, "micro_piece_f1": 40,
         "micro_token_precision micro_token_recall micro_token_f1 micro_f1": 0},
    ),
    "micro without ids": ([Scored("a", "b")], {"micro_piece_f1": None}),
    "micro of nothing": (
        [Scored("a", "b", subwords=Sets(frozenset(), frozenset({1})))], {"micro_piece_precision": None}
    ),
    "clipped scores are means, BLEU-1 is summed first": (
        [Scored("a", "a"), Scored("a b c d", "x y z d e f g h")],
        {"clipped_bleu1": (100 + 100 / 8) / 2, "clipped_rouge1": (100 + 25) / 2, "bleu1": 100 * 2 / 9},
    ),
    # i, don't of five words; the, the, of, not, it of eight.
    "stop word rates are of all words together": (
        [Scored("I don't like dogs", "the the of"), Scored("Ada", "dogs like ada not it")],
        {"stop_word_rate_reference": 40, "stop_word_rate": 62.5, "stop_word_rate_difference": 22.5},
    ),
    "stop words of an empty prediction": (
        [Scored("the dog", "")], {"stop_word_rate stop_word_rate_difference": None, "stop_word_rate_reference": 50}
    ),
    # dog, not likes; 2010, not paris.
    "content words are distinct and need no spans": (
        [Scored("My dog likes the other dog", "a dog"), Scored("Paris in 2010!", "2010 in Rome")],
        {"content_word_recovery": 50},
    ),
    "no content words": ([Scored("it is what it is", "it")], {"content_word_recovery": None}),
    "stop words are of English": (
        [Scored("was ist das", "was ist das", language="de")], {"stop_word_rate content_word_recovery": None}
    ),
    "English among others": (
        [Scored("was ist das", "was ist das", language="de"), Scored("the dog", "the", language="en")],
        {"stop_word_rate_reference": 50},
    ),
    "a second embedder": (
        [Scored("a", "a", cosine_second=1.0), Scored("b", "c", cosine_second=-0.5)], {"cosine_second": 0.25}
    ),
    "perplexity is over all tokens": (
        [Scored("a", "b c", likelihood=Likelihood(2 * math.log(1 / 2), 2)),
         Scored("d", "e", likelihood=Likelihood(math.log(1 / 16), 1)),
         Scored("f", "", likelihood=Likelihood(0.0, 0))],
        {"perplexity": (2 * 2 * 16) ** (1 / 3)},
    ),
    "perplexity of nothing": ([Scored("f", "", likelihood=Likelihood(0.0, 0))], {"perplexity": None}),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_by_hand(rows: list[Scored], expected: dict[str, float | None]) -> None:
    check_scores(rows, expected)


def test_micro_tokens_of_geia_count_the_end_of_each_text() -> None:
    parts: Sequence[Part] = ("precision", "recall", "f1")
    own = [MicroOverlap(part, "tokens_and_end") for part in parts]
    rows = [
        Scored("a", "b", tokens=Sets(frozenset({1, 2, 3}), frozenset({3, 4}))),
        Scored("a", "b", tokens=Sets(frozenset({7}), frozenset())),
    ]
    got = score(rows, own=own)
    # Shared 3 and two ends; predicted 3, 4 and two ends; in the references four tokens and two ends.
    assert [got[f"micro_token_end_{part}"] for part in parts] == pytest.approx([75, 50, 60])
    assert got["micro_token_f1"] == pytest.approx(100 * 2 / 6)
    sets = score([replace(row, kind="set") for row in rows], own=own)  # nobody predicts the end of a set
    assert [sets[f"micro_token_end_{part}"] for part in parts] == [sets[f"micro_token_{part}"] for part in parts]
    assert score([Scored("a", "b")], own=own)["micro_token_end_f1"] is None


@pytest.mark.parametrize("seed", range(3))
def test_micro_agrees_with_scikit_learn(seed: int) -> None:
    rows = pairs(60, seed)
    got = score([Scored(*row) for row in rows])
    cut = [([words(text) for text in row]) for row in rows]
    binarizer = MultiLabelBinarizer().fit([text for row in cut for text in row])
    wanted, offered = (binarizer.transform([row[side] for row in cut]) for side in (0, 1))
    theirs = precision_recall_fscore_support(wanted, offered, average="micro")
    assert [got["micro_precision"], got["micro_recall"], got["micro_f1"]] == pytest.approx(
        [100 * value for value in theirs[:3]]
    )


def clipped_bleu1(reference: str, prediction: str) -> float:
    return ClippedBleu1().of_example(Scored(reference, prediction))


def clipped_rouge1(reference: str, prediction: str) -> float:
    return ClippedRouge1().of_example(Scored(reference, prediction))


def test_clipped_counts_by_hand() -> None:
    reference, prediction = "a a b c", "a b b"
    assert clipped_bleu1(reference, prediction) == pytest.approx(100 * math.exp(1 - 4 / 3) * 2 / 3)
    assert clipped_rouge1(reference, prediction) == 50
    assert clipped_bleu1(prediction, reference) == 50  # longer than the original: no penalty
    assert clipped_rouge1(prediction, reference) == pytest.approx(200 / 3)
    assert clipped_bleu1(reference, "") == clipped_rouge1(reference, "") == 0


@pytest.mark.parametrize("seed", range(3))
def test_clipped_scores_agree_with_sacrebleu_nltk_and_rouge_score(seed: int) -> None:
    class Spaces:
        def tokenize(self, text: str) -> list[str]:
            return text.split()

    bleu = sacrebleu.BLEU(tokenize="none", max_ngram_order=1, smooth_method="none", effective_order=True)
    rouge = rouge_scorer.RougeScorer(["rouge1"], tokenizer=Spaces())
    for reference, prediction in pairs(80, seed):
        wanted, offered = reference.split(), prediction.split()
        got = clipped_bleu1(reference, prediction)
        assert got == pytest.approx(bleu.sentence_score(prediction, [reference]).score)
        if set(wanted) & set(offered):
            theirs = nltk.translate.bleu_score.sentence_bleu([wanted], offered, weights=(1,))
            assert got == pytest.approx(100 * theirs)
        recall = rouge.score(reference, prediction)["rouge1"].recall
        assert clipped_rouge1(reference, prediction) == pytest.approx(100 * recall)


def test_the_list_of_stop_words_is_cut_as_texts_are() -> None:
    assert content_words(words("?!")) == frozenset()
    assert {word for word in STOP_WORDS if words(word) != [word]} == set()
    assert stop_words("I don't think so, Ada.") == (3, 5)
    assert {"i", "the", "don't", "not"} <= STOP_WORDS
    assert STOP_WORDS.isdisjoint({"dog", "ada", "love", "work", "think", "two"})


def test_stop_words_as_geia_counts_them() -> None:
    rows = [Scored("i love my two dogs and my cat .", "i love dogs"), Scored("Ada likes it !", "it it The it")]
    metrics = [StopWordRate("prediction", "geia"), StopWordRate("reference", "geia"), StopWordDifference("geia")]
    got = score(rows, own=metrics)
    # All but love, two, dogs, cat of nine words, and all but Ada, likes of four: 7 of 13.
    assert got["stop_word_rate_reference_geia"] == pytest.approx(100 * 7 / 13)
    # i of three words; it three times, and not "The", whose case is kept: 4 of 7.
    assert got["stop_word_rate_geia"] == pytest.approx(100 * 4 / 7)
    assert got["stop_word_rate_difference_geia"] == pytest.approx(100 * (4 / 7 - 7 / 13))
    assert got["stop_word_rate_difference"] != got["stop_word_rate_difference_geia"]
    assert score([Scored("was ist das", "was", language="de")], own=metrics)["stop_word_rate_geia"] is None


SOME = ["the", "not", "mustn't", "-ly", ".", "?", "dog", "Dog", "like", "two"]


@given(st.lists(st.lists(st.sampled_from(SOME)), min_size=1, max_size=6))
def test_the_rate_of_geia_is_one_less_the_distinct_words_outside_the_list(texts: list[list[str]]) -> None:
    outside = sum(len({word for word in text if word in SOME[-4:]}) for text in texts)
    found = [geia_stop_words(" ".join(text)) for text in texts]
    total = sum(map(len, texts))
    assert sum(one.words for one in found) == total
    assert sum(one.stop for one in found) == total - outside


def test_words_of_entities_as_geia_counts_them() -> None:
    reference, prediction = "New York is not New Jersey, says Ada's Bo", "ada knows New York and Bo"
    wanted = entity_words(
        reference, spans_of(reference, ("New York", "GPE"), ("New Jersey", "GPE"), ("Ada's Bo", "PERSON"))
    )
    assert wanted == ["New", "York", "New", "Jersey", "Ada", "'s", "Bo"]
    tagged = entity_words(prediction, spans_of(prediction, ("ada", "PERSON"), ("New York", "GPE")))
    # New and York, each once; case counts, and what is not tagged, as Bo, does not.
    assert recovered_entity_words(wanted, tagged) == (2, 7)
    # Of a set: its tokens 5 and 9 among the distinct 5, 6, 7, 9 of the words.
    assert recovered_entity_pieces([[5, 6], [7], [5, 9]], (1, 5, 9)) == (2, 4)


def test_recovery_by_label_and_names_labelled_twice() -> None:
    reference = "Ada and Bo moved to Paris"
    spans = spans_of(reference, ("Ada", "first_name"), ("Bo", "first_name"), ("Paris", "city"))
    got = score([Scored(reference, "ada in paris", spans), Scored("no entity", "")])
    assert got["entity_recovery/first_name"] == 50
    assert got["entity_recovery/city"] == 100
    assert got["entity_recovery"] == pytest.approx(200 / 3)
    assert "entity_recovery/last_name" not in got
    text = "Ada Byron"
    spans = (Span(0, 9, "person"), Span(0, 3, "first_name"), Span(4, 9, "last_name"))
    assert names(text, spans) == (["Ada"], ["Byron"], ["Ada Byron"])


NAMES: list[tuple[str, list[tuple[str, str]], tuple[list[str], list[str], list[str]]]] = [
    ("Ada Lovelace met Grace, and Hopper called",
     [("Ada", "first_name"), ("Lovelace", "last_name"), ("Grace", "first_name"), ("Hopper", "surname")],
     (["Ada", "Grace"], ["Lovelace", "Hopper"], ["Ada Lovelace"])),
    ("Mary Ann Evans met Grace", [("Mary Ann Evans", "PERSON"), ("Grace", "PERSON")],  # nobody says which name Grace is
     (["Mary"], ["Evans"], ["Mary Ann Evans"])),
    ("Ada Byron", [("Ada Byron", "Full-Name")], (["Ada"], ["Byron"], ["Ada Byron"])),
    *((text, [("Ada", "first_name"), ("Byron", "last_name")], (["Ada"], ["Byron"], []))
      for text in ("Ada, Byron", "AdaByron", "Ada and Byron")),  # not side by side
    ("Ada Corp in Paris", [("Ada Corp", "organisation"), ("Paris", "city")], ([], [], [])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "spans", "expected"), NAMES)
def test_names(text: str, spans: list[tuple[str, str]], expected: tuple[list[str], list[str], list[str]]) -> None:
    assert names(text, spans_of(text, *spans)) == expected


def test_recovery_of_names() -> None:
    text, spans, _ = NAMES[0]
    keys = ("name_first_recovery", "name_last_recovery", "name_full_recovery")
    check_scores([Scored(text, "Lovelace, Ada met Grace", spans_of(text, *spans))],
                 dict(zip(keys, (100, 50, 0), strict=True)))  # fmt: skip
    text = "Ada Byron left"
    in_any_order = Scored(text, "byron left ada", spans_of(text, ("Ada Byron", "name")), kind="set")
    check_scores([in_any_order], {" ".join(keys): 100})


@pytest.mark.parametrize(
    ("field", "value"), [("subwords", Sets(frozenset({1}), frozenset())), ("likelihood", Likelihood(-1.0, 1))]
)
def test_what_only_some_rows_have_cannot_be_scored(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"row 1 has no {field} and row 0 has one"):
        score([Scored("a", "a", **{field: value}), Scored("b", "b")])  # type: ignore[arg-type]
