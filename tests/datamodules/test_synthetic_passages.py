"""Passages of the built-in corpus: lengths, exact spans, one person, disjoint splits, the same text everywhere."""

from __future__ import annotations

import re

import pytest

from unembed import launch
from unembed.core.errors import InputError
from unembed.core.examples import Example, Split
from unembed.datamodules.sources.base import END, folded
from unembed.datamodules.sources.synthetic import Grammar, SyntheticPassages, entity_values

Corpus = dict[Split, list[Example]]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return SyntheticPassages(300, 40, 60).load()


@pytest.fixture(scope="module")
def everything(corpus: Corpus) -> list[Example]:
    return [example for examples in corpus.values() for example in examples]


def test_sizes_lengths_repeats_and_unseen_entities(corpus: Corpus, everything: list[Example]) -> None:
    assert {split: len(examples) for split, examples in corpus.items()} == {"train": 200, "valid": 40, "test": 60}
    for examples in corpus.values():
        assert [example.index for example in examples] == list(range(len(examples)))
    lengths = [len(example.text.split()) for example in everything]
    assert (min(lengths) >= 40, max(lengths) <= 128) == (True, True)
    assert max(lengths) > 100
    assert {example.attributes["genre"] for example in everything} == {"chat", "clinical", "support"}
    # An abbreviation ends no sentence: its part is put back.
    texts = [re.sub(r"\b(Mrs?|Ms|Dr)\.", r"\1", example.text) for example in everything]
    sentences = [folded(one) for text in texts for one in END.split(text)]
    assert len(set(sentences)) == len(sentences) > 1500
    train, test = ({one for row in corpus[split] for one in entity_values(row)} for split in ("train", "test"))
    assert len(test - train) / len(test) > 0.19


def test_spans_point_at_their_words_and_a_passage_is_about_one_person(everything: list[Example]) -> None:
    grammar = Grammar()
    values = {(grammar.labels[slot], one) for slot in grammar.labels for one in grammar.columns[slot].values}
    for example in everything:
        assert len(example.spans) > 2
        assert list(example.spans) == sorted(example.spans, key=lambda span: span.start)
        assert {(span.label, example.text[span.start : span.end]) for span in example.spans} <= values
    for example in everything:
        if example.attributes["genre"] == "clinical":
            assert len(set(re.findall(r"\b(Mr|Mrs|Ms)\.", example.text))) <= 1
            assert len(set(re.findall(r"\b(?:Mr|Mrs|Ms)\. (\w+) (?!and)", example.text))) <= 2  # and another's name


def test_the_same_seed_gives_the_same_texts_of_up_to_192_tokens(corpus: Corpus) -> None:
    assert SyntheticPassages(300, 40, 60).load() == corpus
    assert SyntheticPassages(300, 40, 60, seed=1).load()["test"][0].text != corpus["test"][0].text
    config = launch.compose("train", ["datamodule=synthetic_passages"])
    assert config.datamodule.max_tokens == 192


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"passages": 20_000}, "gives 10000 passages"),
        ({"passages": 1_500}, "ask for at least 1502"),
        ({"most": 60}, "most=60: with least=40, from 68 to 200 words"),
    ],
)
def test_what_the_grammar_cannot_give(given: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        SyntheticPassages(**given)
