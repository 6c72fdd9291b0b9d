"""Copying of words: what a text becomes in tokens, which words fit a vector, and what the copy head may write."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from unembed.attacks.geia_copy import WordTokens, spelled_parts
from unembed.attacks.parts.backbones import train_tokenizer
from unembed.attacks.parts.copying import CopyingDecoder, WordSpace
from unembed.attacks.parts.decoding import BeamSearch, NucleusSampling

COPIED = ["delphine", "lupus", "118", "mri", "é"]
DIMENSION, SIZE, END = 6, 11, 1


@cache
def tokens() -> WordTokens:
    return WordTokens(train_tokenizer(["my aunt has it .", "room in may ."], 300), COPIED)


def test_a_copied_word_is_one_token_in_each_of_its_cases() -> None:
    first = tokens().size
    assert tokens().encode(["Delphine delphine DELPHINE"]) == [[first + 1, first, first + 2]]
    assert tokens().encode(["118"]) == [[first + 6]]
    for text in ("DelPhine", "delphine's"[1:], "x-lupus", "lupus_"[1:], "\nlupus"):
        assert max(tokens().encode([text])[0]) < first
    assert spelled_parts(["My aunt Delphine has Lupus.", "Delphine"], frozenset(COPIED)) == ["My aunt has.", ""]


@given(st.text(alphabet=st.sampled_from("ab Dé1_.'-\n"), max_size=12) | st.lists(st.sampled_from(COPIED)).map(" ".join))
@settings(max_examples=60, deadline=None)
@example("My aunt Delphine  has Lupus, room 118.")
@example("<eos> MRI")
@example("İ ß É é")
def test_every_text_can_be_read_back(text: str) -> None:
    assert tokens().decode(tokens().encode([text])[0]) == text.strip()


def test_the_words_of_a_text_fit_its_vector_best_though_all_vectors_share_a_direction() -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.nn.functional.normalize(torch.randn(30, 16, generator=generator), dim=1) + 2
    pairs = torch.randint(30, (200, 2), generator=generator)
    texts = 5 * words[pairs].mean(1)
    space = WordSpace(16)
    space.fit(texts, words)
    fits = space.target(texts) @ space.word(words).T
    assert torch.allclose(space.word(words).norm(dim=1), torch.ones(30))
    found = fits.topk(4).indices
    assert (found[:, :, None] == pairs[:, None]).any(1).float().mean() > 0.95


def copying(count: int = 3, words: int = 7, copied: int = 5) -> CopyingDecoder:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=SIZE, n_positions=20, n_embd=12, n_layer=2, n_head=3, attn_implementation="eager")
    decoder = CopyingDecoder(GPT2LMHeadModel(config), DIMENSION, count).eval()
    rows = torch.full((SIZE,), -1)
    rows[4], rows[5] = 5, 6  # two tokens spell a whole word
    decoder.use(torch.randn(words, DIMENSION), copied, rows)
    decoder.measure(torch.randn(40, DIMENSION))
    for weight in decoder.weights.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return decoder


TARGETS = torch.randn(4, DIMENSION, generator=torch.Generator().manual_seed(1))
PREFIX = torch.randn(4, 1, 12, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_steps_of_beams_score_as_the_loss_does() -> None:
    decoder = copying()
    shortlist = decoder.shortlist(TARGETS)
    found = BeamSearch(beams=3, max_new_tokens=6, candidates=2)(
        decoder.copying(shortlist), PREFIX, eos=END, index=torch.arange(4)
    )
    texts = [[shortlist.of_target(place, ids) for ids in candidates] for place, candidates in enumerate(found)]
    assert any(token >= SIZE for candidates in texts for ids in candidates for token in ids)

    def mean_loss(place: int, ids: list[int]) -> Tensor:
        labels = torch.tensor([[*ids, END][:6]])
        one = slice(place, place + 1)
        return decoder.copying_loss(PREFIX[one], labels, 0.0, TARGETS[one])

    # Beams are ranked by mean log probability, so the loss of a better candidate is lower.
    for place, candidates in enumerate(texts):
        losses = [mean_loss(place, ids) for ids in candidates]
        assert losses == sorted(losses)
    again = [row[:1] for row in BeamSearch(beams=3, max_new_tokens=6)(
        decoder.copying(decoder.shortlist(TARGETS[2:])), PREFIX[2:], eos=END, index=torch.arange(2)
    )]  # fmt: skip
    assert again == [row[:1] for row in found[2:]]


@torch.no_grad()
def test_samples_may_be_copied_too() -> None:
    decoder = copying()
    sampling = NucleusSampling(max_new_tokens=5, candidates=4, temperature=3.0, p=1.0)
    found = sampling(decoder.copying(decoder.shortlist(TARGETS)), PREFIX, eos=END, index=torch.arange(4))
    assert max(token for candidates in found for ids in candidates for token in ids) >= SIZE


def test_the_shortlist_and_what_a_word_explains() -> None:
    decoder = copying(count=2)
    worst = [int(row) for row in decoder.shortlist_rows(TARGETS).new_tensor([[0], [1], [2], [3]]).flatten()]
    labels = torch.tensor([[3, SIZE + 3 * row + 1, END, -100] for row in worst])
    rows = decoder.shortlist_rows(TARGETS, labels)
    assert rows.shape == (4, 2)
    assert all(row in found for row, found in zip(worst, rows.tolist(), strict=True))
    assert int(copying(count=99).shortlist_rows(TARGETS).max()) == 4  # of seven words, two are spelled
    decoder = copying()
    shortlist = decoder.shortlist(TARGETS)
    first = SIZE + 3 * shortlist.rows[:, :1]
    explained = decoder.explained(torch.cat([first + 2, torch.full((4, 1), 2)], 1), shortlist)
    assert torch.allclose(explained[:, 0, 0], torch.ones(4), atol=1e-5)
    assert not explained[:, 1].any()  # a token that is no whole word


@pytest.mark.parametrize("part", ["read", "key", "expectation", "weights", "cases"])
def test_every_part_learns(part: str) -> None:
    decoder = copying()
    labels = torch.tensor([[3, SIZE + 4, 4, SIZE + 7, END], [SIZE, 2, END, -100, -100]])
    decoder.copying_loss(PREFIX[:2], labels, 0.1, TARGETS[:2]).backward()
    layer: Any = getattr(decoder, part)
    assert layer.weight.grad.abs().sum() > 0
