"""Every metric against a value worked out by hand, an independent implementation, and what must hold for any text."""

from __future__ import annotations

import dataclasses
import math
import random
import subprocess
import sys

import nltk
import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score import rouge_scorer
from sklearn.metrics.pairwise import cosine_similarity

from support.scored import check_scores, spans_of
from unembed.core.examples import Span
from unembed.metrics.entities import entity_keys, recovered_entities, unseen_entities
from unembed.metrics.scored import Likelihood, Scored
from unembed.metrics.scoring import score
from unembed.metrics.text import edit_distance, exact_match, without_punctuation
from unembed.metrics.tokens import overlap, recovered_words, rouge_words, token_overlap, words
from unembed.metrics.vectors import cosine_rows

KEYS = {
    *("bleu", "bleu_sentence", "bleu1", "bleu2", "bleu4", "rouge1", "rouge2", "rougeL"),
    *("token_precision", "token_recall", "token_f1", "token_set_f1", "tokens_reference", "tokens_prediction"),
    *("exact_match", "exact_match_no_punctuation", "exact_match_no_punctuation_cased"),
    *("edit_distance_mean", "edit_distance_median", "cosine", "entity_recovery", "entity_recovery_unseen", "examples"),
    *("clipped_bleu1", "clipped_rouge1", "micro_precision", "micro_recall", "micro_f1", "content_word_recovery"),
    *("stop_word_rate", "stop_word_rate_reference", "stop_word_rate_difference"),
    *("cosine_clean", "cosine_second", "perplexity"),
    *("name_first_recovery", "name_last_recovery", "name_full_recovery"),
    *(f"micro_{kind}_{name}" for kind in ("piece", "token") for name in ("precision", "recall", "f1")),
}
# Null unless a row brings what they are made of: spans, vectors, ids, a likelihood.
WHERE_GIVEN = {
    *("cosine", "cosine_clean", "cosine_second", "perplexity", "entity_recovery", "entity_recovery_unseen"),
    *("tokens_reference", "tokens_prediction"),
    *(key for key in KEYS if key.startswith(("name_", "micro_piece", "micro_token"))),
}
# Percentages that are 100 for a perfect prediction and 0 for an empty one, where they are not null.
SHARES = KEYS - {
    *("edit_distance_mean", "edit_distance_median", "cosine", "cosine_clean", "cosine_second", "perplexity"),
    *("examples", "tokens_reference", "tokens_prediction"),
}
SHARES -= {"content_word_recovery", *(key for key in KEYS if key.startswith(("stop_word", "name_")))}
SHARES -= {key for key in WHERE_GIVEN if key.startswith("micro_")}
OF_ORDER = {k for k in KEYS if k.startswith(("bleu", "exact_match", "edit_distance", "clipped"))} | {"rouge2", "rougeL"}

not_blank = st.text(min_size=1, max_size=60).filter(lambda text: text.strip())
# The machine may be busy, and a test that fails must fail again.
any_text = settings(deadline=None, derandomize=True)
scored = st.builds(Scored, reference=not_blank, prediction=st.text(max_size=60))


def one(reference: str, prediction: str, **more: object) -> dict[str, float | int | None]:
    return score([Scored(reference, prediction, **more)])  # type: ignore[arg-type]


def corpus(rows: int, seed: int = 0, shortest: int = 5) -> list[Scored]:
    """English-like rows with capitals, punctuation, numbers and repeated words, of every degree of closeness."""
    chance = random.Random(seed)
    vocabulary = "the The a cat sat on mat, don't 3.5 U.S. well-known (yes) & $5".split()  # noqa: SIM905
    made = []
    for _ in range(rows):
        reference = chance.choices(vocabulary, k=chance.randint(shortest, 20))
        kept = chance.random()
        prediction = [word if chance.random() < kept else chance.choice(vocabulary) for word in reference]
        prediction = prediction[: chance.randint(shortest, len(prediction))]
        made.append(Scored(" ".join(reference) + ".", " ".join(prediction) + chance.choice([".", " .", ""])))
    return made


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_keys_sets_and_empty_predictions() -> None:
    assert set(one("a b", "a c")) == KEYS
    assert one("a b", "a c")["examples"] == 1
    assert score([Scored("a", "a", cosine=0.5), Scored("b", "b", cosine=-1.0)])["cosine"] == -0.25
    assert one("a", "a")["cosine"] is None
    got = score([Scored("the cat sat", "cat the", kind="set"), Scored("a dog", "dog a", kind="set")])
    assert {key for key in KEYS if got[key] is None} == OF_ORDER | WHERE_GIVEN
    assert got["token_precision"] == 100
    assert got["token_recall"] == pytest.approx((100 * 2 / 3 + 100) / 2)
    assert got["rouge1"] == pytest.approx((80 + 100) / 2)
    for reference in ("one two three four five", "hi", "?!", "我"):
        got = one(reference, "", spans=(Span(0, 1, "x"),), cosine=0.1)
        assert {got[key] for key in SHARES - {"entity_recovery_unseen"}} == {0}
        assert got["edit_distance_mean"] == len(reference)


BY_HAND: dict[str, tuple[list[tuple[str, str]], dict[str, float | None]]] = {
    # Matches of order 1-4: 5/6, 3/5, 2/4, 1/3; equal lengths; every white-space token is a 13a token here.
    "one word wrong": (
        [("the cat sat on the mat", "the cat sat on a mat")],
        {"bleu bleu4 bleu_sentence": 100 * (1 / 12) ** 0.25, "bleu2 rouge2": 60, "edit_distance_mean": 3,
         "bleu1 rouge1 rougeL token_precision token_recall token_f1": 100 * 5 / 6,
         "exact_match exact_match_no_punctuation": 0},
    ),
    # No match of order 4: 1/2 of 2.
    "the module's example": (
        [("Ada lives in Paris.", "Ada lives in Rome.")],
        {"bleu": 100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** 0.25, "token_f1": 75},
    ),
    "precision is of the prediction": (
        [("i love dogs", "i love my two dogs")], {"token_precision": 60, "token_recall": 100, "token_f1": 75}
    ),
    "recall is of the reference": (
        [("i love my two dogs", "i love dogs")], {"token_precision": 100, "token_recall": 60, "token_f1": 75}
    ),
    # Summed over both they would be 2/3, 2/9 and 1/3.
    "token metrics are means": (
        [("a", "a"), ("b c d e f g h i", "b x")], {"token_precision": 75, "token_recall": 56.25, "token_f1": 60}
    ),
    "order": ([("a b c d", "d a b c")], {"rouge1": 100, "rougeL": 75, "rouge2": 200 / 3}),
    "brevity": ([("a b c d e f g h", "a b c d")], {"bleu bleu1 bleu2 bleu4": 100 * math.exp(1 - 8 / 4)}),
    # 3/4, 1/3, then 1/2 of 2 and 1/4 of 1.
    "orders without a match": (
        [("a b c d", "a b x d")], {"bleu_sentence": 100 * (3 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** 0.25, "bleu4": 0}
    ),
    # BLEU-1: we, met, in, of five.
    "punctuation is apart in bleu": (
        [("we met in Paris.", "we met in Paris !")],
        {"bleu1": 60, "bleu": 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25},
    ),
    "bleu is no mean": (
        [("a b c d", "a b c d"), ("e f g h i j k l", "m n o p q r s t")],
        {"bleu_sentence": 50, "bleu bleu4": 100 * (4 / 12 * 3 / 10 * 2 / 8 * 1 / 6) ** 0.25},
    ),
    "case": (
        [("Ada Is In Rome", "ada is in rome")],
        {"bleu bleu1 bleu_sentence": 0, "token_f1 rouge1 rouge2 rougeL": 100},
    ),
    "edit distance": (
        [("kitten", "sitting"), ("abc", "abc"), ("abcdefghij", ""), ("ab", "ba")],
        {"edit_distance_mean": 15 / 4, "edit_distance_median": 2.5, "exact_match": 25},
    ),
    "cyrillic": ([("я живу в Москве", "я живу в Киеве")], {"rouge1 token_f1 rougeL": 75, "rouge2": 200 / 3}),
    "chinese": ([("我住在北", "我住在南")], {"rouge1 token_f1 rougeL": 75, "rouge2": 200 / 3}),
    # What is too short for an order is none, and not zero.
    "two words": ([("yes sir", "yes sir")], {"bleu bleu4": None, "bleu1 bleu2 bleu_sentence rouge2": 100}),
    "one word": ([("yes", "yes")], {"bleu2 rouge2": None}),
    "one wrong word": ([("yes", "no")], {"rouge2 bleu bleu2": 0}),
    "one word and more": ([("yes", "yes"), ("a b c d", "a b c d")], {"bleu bleu1 bleu2 bleu4 rouge2": 100}),
}  # fmt: skip


@pytest.mark.parametrize(("pairs", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_by_hand(pairs: list[tuple[str, str]], expected: dict[str, float | None]) -> None:
    check_scores([Scored(*pair) for pair in pairs], expected)


def test_words_count_as_often_as_they_occur_in_both() -> None:
    assert token_overlap("no no yes", "No no NO no") == (50, pytest.approx(200 / 3), pytest.approx(400 / 7))
    with pytest.raises(ValueError, match="empty reference"):
        overlap([], ["a"])


@pytest.mark.parametrize(
    ("reference", "prediction", "exact", "bare"),
    [
        (" Hi, Ada!\n", "Hi, Ada!", True, True),
        ("Hi, Ada!", "hi ada", False, True),
        ("Hi,  Ada!", "Hi, Ada!", False, True),
        ("i don't know .", "I don\u2019t know.", False, True),
        ("it costs $5", "it costs 5", False, True),
        ("¿Qué tal?", "que tal", False, False),
        ("¿Qué tal?", "qué tal", False, True),
        ("„Grüß Gott“", "grüß gott", False, True),
        ("Caf\u00e9", "Cafe\u0301", False, True),
        ("wi-fi", "wi fi", False, False),
        ("?!", "", False, False),
        ("?!", "...", False, False),
        ("? !", "?  !", False, True),
    ],
)
def test_exact_match(reference: str, prediction: str, exact: bool, bare: bool) -> None:
    assert exact_match(reference, prediction) is exact
    assert (without_punctuation(reference) == without_punctuation(prediction)) is bare
    got = one(reference, prediction)
    assert (got["exact_match"], got["exact_match_no_punctuation"]) == (100 * exact, 100 * bare)
    assert (edit_distance(reference, prediction) == 0) is exact
    assert edit_distance("kitten", "sitting") == 3


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ada's 2 dogs, o'clock 'quoted'", ["ada's", "2", "dogs", "o'clock", "quoted"]),
        ("don\u2019t", ["don't"]),
        ("snake_case wi-fi 3.5", ["snake", "case", "wi", "fi", "3", "5"]),
        ("Zürich, ÉCOLE", ["zürich", "école"]),
        ("Cafe\u0301", ["caf\u00e9"]),
        ("Привет, мир", ["привет", "мир"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("서울에 살아요", ["서울에", "살아요"]),
        ("我在Paris工作。", ["我", "在", "paris", "工", "作"]),
        ("ラーメン2杯", ["ラ", "ー", "メ", "ン", "2", "杯"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("مرحبا بك", ["مرحبا", "بك"]),
        ("?! :)", ["?", "!", ":", ")"]),
        ("❤️ ok", ["ok"]),
        ("the cat and the other cat", ["the", "cat", "and", "the", "other", "cat"]),
        (" \n", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_recovered_words() -> None:
    latin = [("Hi", True), (", ", False), ("hi", False), (" ", False), ("Ada", True), ("!", False)]
    assert recovered_words("Hi, hi Ada!", "ada says hi") == latin
    chinese = [("  ", False), ("我", False), ("们", True), (", ", False), ("ok", True)]
    assert recovered_words("  我们, ok", "们 OK") == chinese
    assert recovered_words("a", "") == [("a", False)]
    assert recovered_words("", "a") == []


@any_text
@given(reference=st.text(max_size=60), prediction=st.text(max_size=60))
def test_recovered_words_are_the_reference_and_its_recall(reference: str, prediction: str) -> None:
    parts = recovered_words(reference, prediction)
    assert "".join(part for part, _ in parts) == reference
    assert all(parts)
    if words(reference):
        assert 100 * sum(hit for _, hit in parts) / len(words(reference)) == pytest.approx(
            token_overlap(reference, prediction).recall
        )


# -- entities ---------------------------------------------------------------------------------------------------------


def test_entities_by_hand() -> None:
    reference = "Ada moved to Paris; Ada likes it."
    spans = spans_of(reference, ("Ada", "name"), ("Paris", "city"), ("Ada", "name"))
    for prediction, found in [("ada, PARIS", 2), ("Ada and Ada", 2), ("Ada Ada Ada Paris", 3), ("Adam, Parisian", 0)]:
        assert one(reference, prediction, spans=spans)["entity_recovery"] == pytest.approx(100 * found / 3)
    first, second = "Ada", "Bob Carl Dan"
    rows = [
        Scored(first, "Ada", spans_of(first, ("Ada", "name"))),
        Scored(second, "nobody", spans_of(second, ("Bob", "name"), ("Carl", "name"), ("Dan", "name"))),
        Scored("no entity", "no entity"),
    ]
    assert score(rows)["entity_recovery"] == 25
    assert score(rows[2:])["entity_recovery"] is None
    reference = "Ada left New York"
    spans = spans_of(reference, ("Ada", "name"), ("New York", "city"))
    assert one(reference, "york ada the new", spans=spans, kind="set")["entity_recovery"] == 100
    assert one(reference, "york ada the", spans=spans, kind="set")["entity_recovery"] == 50


@pytest.mark.parametrize(
    ("value", "prediction", "found"),
    [
        ("Ada", "Ada's dog", True),
        ("Ada", "(ada)", True),
        ("Ada", "adage", False),
        ("Ada", "canada", False),
        ("Ada", "adage of Ada", True),
        ("New York", "in new  york", True),
        ("New York", "york new", False),
        ("O'Brien", "o\u2019brien", True),
        ("$50", "US$50.", True),
        ("50", "it is 50.", True),
        ("50", "50, then", True),
        ("50", "1,250", False),
        ("250", "1,250", False),
        ("3", "3.5", False),
        ("5:30", "at 5:30", True),
        ("30", "at 5:30", False),
        ("José", "Jose", False),
        ("José", "JOSE\u0301", True),
        ("北京", "我在北京工作", True),
        ("北京", "我在南京工作", False),
        ("हिन्द", "हिन्दी", False),
    ],
)
def test_entities_are_whole_words(value: str, prediction: str, found: bool) -> None:
    assert recovered_entities([value], prediction) == found


def test_unseen_entities_and_occurrences_that_do_not_overlap() -> None:
    assert recovered_entities(["Walla Walla"] * 2, "walla walla walla") == 1
    assert recovered_entities(["Walla Walla"] * 2, "walla walla walla walla") == 2
    reference = "Ada met Paris in Paris"
    spans = spans_of(reference, ("Ada", "name"), ("Paris", "name"), ("Paris", "city"))
    training = frozenset(entity_keys("ADA in PARIS", [Span(0, 3, "name"), Span(7, 12, "city")]))
    assert training == {("name", "ada"), ("city", "paris")}
    row = Scored(reference, "ada in paris", spans, unseen=unseen_entities(reference, spans, training))
    got = score([row])
    assert got["entity_recovery"] == pytest.approx(200 / 3)
    assert got["entity_recovery_unseen"] == 100  # Paris as a name: the label counts
    assert score([dataclasses.replace(row, unseen=None)])["entity_recovery_unseen"] is None
    everything = unseen_entities(reference, spans, training | {("name", "paris")})
    assert score([dataclasses.replace(row, unseen=everything)])["entity_recovery_unseen"] is None
    missed = dataclasses.replace(row, prediction="ada")
    assert score([missed])["entity_recovery_unseen"] == 0


# -- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows"),
        ([Scored("a", "a"), Scored(" \n", "a")], "row 1: the reference is empty"),
        ([Scored("a", "a"), Scored("b", "b", kind="set")], "row 1 is a set and row 0 a sequence"),
        ([Scored("a", "a", cosine=0.0), Scored("b", "b")], "row 1 has no cosine and row 0 has one"),
        ([Scored("a", "a"), Scored("b", "b", cosine=0.0)], "row 0 has no cosine and row 1 has one"),
        ([Scored("a", "a", cosine=float("nan"))], "row 0: cosine nan"),
        ([Scored("a", "a", cosine=1.1)], "row 0: cosine 1.1"),
        ([Scored("a", "a", (Span(0, 2, "x"),))], "row 0: span 0-2"),
        ([Scored("a b", "a", (Span(1, 2, "x"),))], "row 0: span 1-2"),
    ],
)
def test_rows_that_cannot_be_scored(rows: list[Scored], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(rows)


# -- against other implementations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "shortest"), [(1, 5), (2, 1)])
def test_bleu_agrees_with_sacrebleu(seed: int, shortest: int) -> None:
    rows = corpus(80, seed, shortest)
    references, predictions = [r.reference for r in rows], [r.prediction for r in rows]
    got = score(rows)
    assert got["bleu"] == pytest.approx(sacrebleu.corpus_bleu(predictions, [references]).score, abs=1e-10)
    each = [sacrebleu.sentence_bleu(p, [r]).score for r, p in zip(references, predictions, strict=True)]
    assert got["bleu_sentence"] == pytest.approx(sum(each) / len(each), abs=1e-10)
    spaced = sacrebleu.corpus_bleu(predictions, [references], tokenize="none", smooth_method="none")
    assert got["bleu4"] == pytest.approx(spaced.score, abs=1e-10)
    assert 0 < got["bleu4"] < 100


def test_bleu_1_2_4_agree_with_the_calls_that_geia_makes() -> None:
    rows = corpus(80, 3)  # five words and more: NLTK counts one n-gram too many for a text shorter than the order
    references, predictions = [[r.reference.split()] for r in rows], [r.prediction.split() for r in rows]
    got = score(rows)
    for key, weights in [("bleu1", (1, 0, 0, 0)), ("bleu2", (0, 1, 0, 0)), ("bleu4", (0.25,) * 4)]:
        theirs = nltk.translate.bleu_score.corpus_bleu(references, predictions, weights=weights)
        assert got[key] == pytest.approx(100 * theirs, abs=1e-9)
    assert got["bleu4"] != pytest.approx(got["bleu"], abs=0.1)


@pytest.mark.parametrize("ascii_words", [True, False])
def test_rouge_agrees_with_rouge_score(ascii_words: bool) -> None:
    """On plain English with its own words, and on other scripts given ours."""

    class Tokenizer:
        def tokenize(self, text: str) -> list[str]:
            return rouge_words(text)

    chance = random.Random(5)
    alphabet = ["\u0430\u0431", "да", "éü", "北京", "東", "का", "ที่", "L'été", "don\u2019t"]
    rows = [Scored(" ".join(chance.choices(alphabet, k=9)), " ".join(chance.choices(alphabet, k=7))) for _ in range(60)]
    if ascii_words:
        rows = corpus(80, 4, shortest=2)
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=None if ascii_words else Tokenizer())
    each = [scorer.score(r.reference, r.prediction) for r in rows]
    got = score(rows)
    for key in ("rouge1", "rouge2", "rougeL"):
        assert got[key] == pytest.approx(100 * sum(e[key].fmeasure for e in each) / len(rows), abs=1e-10)


@any_text
@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=60).filter(lambda t: any(c.isalnum() for c in t)))
def test_rouge_words_of_ascii_are_those_of_rouge_score(text: str) -> None:
    from rouge_score.tokenize import tokenize

    assert rouge_words(text) == tokenize(text, None)


@any_text
@given(st.text(alphabet="ab c", max_size=12), st.text(alphabet="ab c", max_size=12))
def test_edit_distance_agrees_with_nltk(a: str, b: str) -> None:
    assert edit_distance(a, b) == nltk.edit_distance(a.strip(), b.strip())


@any_text
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9), st.lists(st.sampled_from("abcd"), max_size=9))
def test_overlap_agrees_with_crossing_out(reference: list[str], prediction: list[str]) -> None:
    left, shared = list(reference), 0
    for item in prediction:
        if item in left:
            left.remove(item)
            shared += 1
    precision = 100 * shared / len(prediction) if prediction else 0
    recall = 100 * shared / len(reference)
    f1 = 2 * precision * recall / (precision + recall) if shared else 0
    assert overlap(reference, prediction) == pytest.approx((precision, recall, f1))


# -- what holds for any text ------------------------------------------------------------------------------------------


@any_text
@given(st.lists(not_blank, min_size=1, max_size=5))
def test_a_perfect_prediction_scores_100(texts: list[str]) -> None:
    got = score([Scored(text, text, (Span(0, len(text), "all"),)) for text in texts])
    assert all(got[key] is None or got[key] == pytest.approx(100) for key in SHARES)
    for key in SHARES - {"bleu", "bleu2", "bleu4", "rouge2", "entity_recovery_unseen"}:
        assert got[key] == pytest.approx(100)
    assert got["edit_distance_mean"] == got["edit_distance_median"] == 0


@any_text
@given(st.lists(scored, min_size=1, max_size=6))
def test_shares_lie_between_0_and_100(rows: list[Scored]) -> None:
    got = score(rows)
    assert all(got[key] is None or 0 <= got[key] <= 100 for key in SHARES)
    assert got["edit_distance_mean"] >= 0
    assert got["exact_match"] <= got["exact_match_no_punctuation"]


@any_text
@given(not_blank, not_blank)
def test_swapping_both_texts_swaps_precision_and_recall(a: str, b: str) -> None:
    there, back = token_overlap(a, b), token_overlap(b, a)
    assert (there.precision, there.recall, there.f1) == (back.recall, back.precision, back.f1)


@any_text
@given(not_blank, st.text(max_size=60))
def test_without_punctuation_is_done_once(text: str, other: str) -> None:
    assert without_punctuation(without_punctuation(text)) == without_punctuation(text)
    assert not exact_match(text, other) or without_punctuation(text) == without_punctuation(other)


@settings(any_text, max_examples=25)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_bit(shuffle: random.Random) -> None:
    rows = [
        dataclasses.replace(
            row,
            cosine=shuffle.uniform(-1, 1),
            cosine_second=shuffle.uniform(-1, 1),
            likelihood=Likelihood(shuffle.uniform(-50, 0), shuffle.randint(1, 9)),
        )
        for row in corpus(30, shuffle.randint(0, 99), 1)
    ]
    expected = score(rows)
    shuffle.shuffle(rows)
    assert score(rows) == expected


def test_words_start_without_heavy_libraries() -> None:
    heavy = "{'torch', 'sacrebleu', 'nltk', 'rouge_score', 'transformers'}"
    code = f"import sys, unembed.metrics.text, unembed.metrics.tokens; print(*{heavy}.intersection(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == ""


# -- vectors ----------------------------------------------------------------------------------------------------------


def test_cosine_rows_by_hand_and_as_sklearn() -> None:
    a = torch.tensor([[1.0, 0.0], [3.0, 4.0], [1.0, 1.0], [2.0, 0.0]])
    b = torch.tensor([[0.0, 2.0], [6.0, 8.0], [-1.0, -1.0], [1.0, 1.0]])
    got = cosine_rows(a, b)
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx([0, 1, -1, 0.5**0.5], abs=1e-15)
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(50, 384, generator=generator), torch.randn(50, 384, generator=generator)
    expected = cosine_similarity(a.double().numpy(), b.double().numpy()).diagonal()
    assert cosine_rows(a, b).tolist() == pytest.approx(expected.tolist(), abs=1e-14)
    assert cosine_rows(a, a * 7).max() <= 1
    assert cosine_rows(a * 1e-30, b * 1e30).tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert cosine_rows(a[:0], b[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.ones(2, 2), "row 1 of the first vectors is a zero vector"),
        (torch.ones(2, 2), torch.tensor([[0.0, 0.0], [0.0, 1.0]]), "row 0 of the second vectors is a zero vector"),
        (torch.tensor([[1.0, float("nan")]]), torch.ones(1, 2), "row 0 of the first vectors is not finite"),
        (torch.ones(1, 2), torch.tensor([[1.0, float("inf")]]), "row 0 of the second vectors is not finite"),
        (torch.ones(2, 2), torch.ones(2, 3), r"\(2, 2\) and \(2, 3\)"),
        (torch.ones(2), torch.ones(2), r"\(2,\)"),
    ],
)
def test_vectors_without_a_direction(a: torch.Tensor, b: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cosine_rows(a, b)
