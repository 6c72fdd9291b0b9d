"""The built-in corpus: sizes, disjoint splits, exact spans, unseen entities, variety, and the same text everywhere."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import yaml

import unembed.datamodules.sources.synthetic
from support.processes import ROOT
from unembed.core.errors import InputError
from unembed.core.examples import Example, Split
from unembed.datamodules.sources.base import folded
from unembed.datamodules.sources.synthetic import MOST_SENTENCES, SyntheticCorpus, article, entity_values

DATA = Path(unembed.datamodules.sources.synthetic.__file__).parent
SHAPES = yaml.safe_load((DATA / "synthetic_shapes.yaml").read_text(encoding="utf-8"))
WORDS = yaml.safe_load((DATA / "synthetic_words.yaml").read_text(encoding="utf-8"))
LABELS = {slot: label for label, slots in WORDS["labels"].items() for slot in slots}
LISTS = WORDS["lists"]
TABLES = {tuple(table["columns"]): table["rows"] for table in WORDS["tables"]}
Corpus = dict[Split, list[Example]]

FINGERPRINT = (
    "import hashlib; from unembed.datamodules.sources.synthetic import SyntheticCorpus; "
    "print(hashlib.sha256(repr(SyntheticCorpus(600, 50, 100, seed=3).load()).encode()).hexdigest())"
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return SyntheticCorpus().load()


@pytest.fixture(scope="module")
def everything(corpus: Corpus) -> list[Example]:
    return [example for examples in corpus.values() for example in examples]


def test_vocabulary_and_shapes_are_rich_and_no_sentence_stands_twice(everything: list[Example]) -> None:
    types = {word for example in everything for word in folded(example.text).split()}
    assert len(types) >= 3_000
    shapes = [shape for text in SHAPES.values() for shape in text.strip().splitlines()]
    assert len(set(shapes)) == len(shapes) >= 200
    # Every shape is really used: its fixed words, with anything in the slots, match some sentence.
    texts = "\n".join(example.text for example in everything)
    for shape in shapes:
        fixed = re.split(r"\{[^}]*\}", shape)
        pattern = "[^\n]+?".join(map(re.escape, fixed))
        assert re.search(f"^{pattern}$", texts, re.MULTILINE), shape
    keys = [re.sub(r"[^a-z0-9 ]", "", example.text.lower()) for example in everything]
    assert len(set(keys)) == len(keys) == 20_000
    for example in everything:
        assert re.fullmatch(r"[A-Z$0-9].*[.?]", example.text), example.text
        assert not re.search(r"[{}|\n]|  |\b(\w+) \1\b", example.text), example.text


def test_sentences_have_an_everyday_length_and_most_hold_an_entity(everything: list[Example]) -> None:
    lengths = [len(example.text.split()) for example in everything]
    assert max(lengths) <= 28
    assert sum(6 <= length <= 16 for length in lengths) > 0.9 * len(lengths)
    assert sum(bool(example.spans) for example in everything) > 0.8 * len(everything)


def test_spans_are_exact_and_in_order(everything: list[Example]) -> None:
    values: defaultdict[str, set[str]] = defaultdict(set)
    for slot, label in LABELS.items():
        cells = [LISTS[slot]] if slot in LISTS else []
        cells += [
            line.split(" | ")[names.index(slot)] for names, lines in TABLES.items() if slot in names for line in lines
        ]
        for cell in cells:
            values[label].update(" ".join(value.split()).lower() for value in re.split(r",\s+", cell.strip()))
    for example in everything:
        end = 0
        for span in example.spans:
            assert end <= span.start < span.end <= len(example.text)
            assert example.text[span.start : span.end].lower() in values[span.label], (example.text, span)
            end = span.end
    assert {span.label for example in everything for span in example.spans} == set(LABELS.values())


@pytest.mark.parametrize(
    ("sizes", "seed"), [((20_000, 1_000, 2_000), 0), ((20_000, 1_000, 2_000), 7), ((5_000, 200, 500), 1)]
)
def test_a_fifth_test_callbacks_entities_is_never_seen_in_training(sizes: tuple[int, int, int], seed: int) -> None:
    corpus = SyntheticCorpus(*sizes, seed=seed).load()
    seen = {value for example in corpus["train"] for value in entity_values(example)}
    asked = {value for example in corpus["test"] for value in entity_values(example)}
    share = len(asked - seen) / len(asked)
    assert 0.18 <= share <= 0.25
    for label, count in Counter(label for label, _ in asked).items():
        unseen = sum(label == other for other, _ in asked - seen)
        assert 0.1 <= unseen / count <= 0.35 or count < 20, label


def test_default_sizes_indices_attributes_and_skewed_entities(corpus: Corpus) -> None:
    counts = Counter(value for example in corpus["train"] for value in entity_values(example) if value[0] == "city")
    ranked = [count for _, count in counts.most_common()]
    assert sum(ranked[: len(ranked) // 10]) > 0.35 * sum(ranked)
    assert ranked[0] > 20 * ranked[-1]
    assert {split: len(examples) for split, examples in corpus.items()} == {
        "train": 17_000,
        "valid": 1_000,
        "test": 2_000,
    }
    for examples in corpus.values():
        assert [example.index for example in examples] == list(range(len(examples)))
        assert {example.language for example in examples} == {"en"}
        genres = Counter(example.attributes["genre"] for example in examples)
        assert set(genres) == {"chat", "clinical", "support"}
        assert min(genres.values()) > 0.2 * len(examples)


def test_articles_fit_the_next_sound(everything: list[Example]) -> None:
    nouns = {"an": ["engineer", "MRI of the spine", "X-ray", "hour", "80", "18", "81", "11", "umbrella"],
             "a": ["nurse", "urine test", "uniform", "19"]}  # fmt: skip
    assert all(article(noun) == expected for expected, some in nouns.items() for noun in some)
    wrong = re.compile(r"\ba (?!urine|ukulele)[aeio8]|\ban (?!hour)[bcdfgjklmnpqrstvwxyz]")
    assert [example.text for example in everything if wrong.search(example.text)] == []


def test_a_seed_gives_the_same_corpus_under_every_hash_seed() -> None:
    here = hashlib.sha256(repr(SyntheticCorpus(600, 50, 100, seed=3).load()).encode()).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # here it is a random one
    out = subprocess.run(
        [sys.executable, "-c", FINGERPRINT], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == here


def test_another_seed_and_sizes_at_the_edges() -> None:
    first, second = ({e.text for e in SyntheticCorpus(600, 50, 100, seed=seed).load()["train"]} for seed in (0, 1))
    assert len(first & second) < 30
    smallest = SyntheticCorpus(sentences=4, valid=1, test=1).load()
    assert {split: len(examples) for split, examples in smallest.items()} == {"train": 2, "valid": 1, "test": 1}
    with pytest.raises(InputError, match=r"sentences=3: valid=1 and test=1 leave 1 .* at least 4"):
        SyntheticCorpus(sentences=3, valid=1, test=1)
    with pytest.raises(InputError, match=f"sentences={MOST_SENTENCES + 1}: .* {MOST_SENTENCES} sentences"):
        SyntheticCorpus(sentences=MOST_SENTENCES + 1)


@pytest.mark.slow
def test_the_largest_corpus_that_is_promised_can_be_made() -> None:
    corpus = SyntheticCorpus(sentences=MOST_SENTENCES).load()
    keys = {folded(example.text) for examples in corpus.values() for example in examples}
    assert len(keys) == MOST_SENTENCES
