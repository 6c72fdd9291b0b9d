"""Multiset: the loss against one written with loops and counters; what is named; training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import seed_everything
from torch import Tensor

from support.assembled import Texts, built, data_module, padded, quiet_trainer
from support.letters import TEXTS, FewLetters
from unembed.attacks.multiset import Multiset, multiset_loss, remaining_words
from unembed.attacks.parts.optimizers import AdamW
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.parts.vocabulary import Pieces, Vocabulary, Words


def multiset(vocabulary: Vocabulary | None = None, **options: int | bool) -> Multiset:
    return Multiset(vocabulary or Words(), AdamW(lr=2e-2), Prefix(), width=32, **options)  # type: ignore[arg-type]


def slow_loss(logits: Tensor, texts: Sequence[Sequence[int]], named: Sequence[Sequence[int]], end: bool) -> Tensor:
    """The loss in its plainest form: a counter of what is left, and a whole target distribution at every step."""
    total, steps, classes = 0 * logits.sum(), logits.shape[1], logits.shape[2]
    for text, scores, names in zip(texts, logits, named, strict=True):
        left = Counter(text)
        for step in range(steps):
            target = [0.0] * classes
            for entry, count in left.items():
                target[entry] = count / max(left.total(), 1)
            if end and not left.total():
                target[-1] = 1.0
            probabilities = torch.softmax(scores[step], 0)
            for entry, share in enumerate(target):
                if share:
                    total = total - share * probabilities[entry].log()
            if left[names[step]] > 0:
                left[names[step]] -= 1
    return total / (len(texts) * steps)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_loss_and_gradients_agree_with_the_slow_ones(data: st.DataObject) -> None:
    size, steps, end = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7)), data.draw(st.booleans())
    entries = st.integers(0, size - 1)
    texts = data.draw(st.lists(st.lists(entries, max_size=9), min_size=1, max_size=5))
    names = st.lists(st.integers(0, size - 1 + end), min_size=steps, max_size=steps)
    named = data.draw(st.lists(names, min_size=len(texts), max_size=len(texts)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    values = 4 * torch.randn(len(texts), steps, size + end, generator=generator, dtype=torch.float64)

    fast_logits, slow_logits = values.clone().requires_grad_(), values.clone().requires_grad_()
    fast = multiset_loss(fast_logits, padded(texts), torch.tensor(named), end=end)
    slow = slow_loss(slow_logits, texts, named, end)
    fast.backward()  # type: ignore[no-untyped-call]
    slow.backward()  # type: ignore[no-untyped-call]
    assert fast.item() == pytest.approx(slow.item(), abs=1e-6)
    torch.testing.assert_close(fast_logits.grad, slow_logits.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("repeats", [False, True])
def test_loss_of_the_attack_crosses_out_what_it_would_name(tmp_path: Path, repeats: bool, end: bool) -> None:
    attack = built(multiset(steps=4, repeats=repeats, end=end), tmp_path, ["a a b", "c", "a b c d e"])
    torch.manual_seed(1)
    for parameter in attack.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    vectors, texts = torch.randn(3, 12), attack.encode(["a a b", "c", "a b c d e zoe"])
    logits, named = attack(vectors)
    for scores, row in zip(logits.tolist(), named.tolist(), strict=True):
        for step, entry in enumerate(row):
            allowed = [n for n in range(5 + end) if repeats or n == 5 or n not in row[:step]]
            assert entry == max(allowed, key=lambda n: scores[step][n])
    expected = slow_loss(logits.detach(), texts, named.tolist(), end)
    assert attack.loss(vectors, padded(texts)).item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_loss_by_hand() -> None:
    labels = torch.tensor([[7, 4, 7, -100]])
    left = remaining_words(labels, torch.tensor([[7, 5, 4, 7, 7]]))
    assert left.int().tolist() == [[[1, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
    # "b a" in either order: log 2 nats at the first step, none at the others
    logits = torch.tensor([[[0.0, 0.0, -40.0], [-40.0, 0.0, -40.0], [-40.0, -40.0, 0.0]]])
    loss = multiset_loss(logits, torch.tensor([[1, 0]]), torch.tensor([[0, 1, 2]]), end=True)
    assert loss.item() == pytest.approx(math.log(2) / 3, abs=1e-6)
    # "b a": either at the first step, log 2 nats; "b" with probability 3/4 at the second; nothing is left at the third
    logits = torch.tensor([[[0.0, 0.0], [0.0, math.log(3)], [5.0, -5.0]]], requires_grad=True)
    loss = multiset_loss(logits, torch.tensor([[1, 0]]), torch.tensor([[0, 1, 0]]), end=False)
    assert loss.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 3, abs=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad[0, 2].tolist() == [0.0, 0.0]


def test_without_an_end_it_names_as_many_words_as_it_has_steps(tmp_path: Path) -> None:
    attack = built(multiset(steps=3, end=False), tmp_path, ["a b c d"])
    torch.manual_seed(0)
    for parameter in attack.parameters():
        torch.nn.init.normal_(parameter)
    found = attack.invert(Targets(torch.randn(20, 12), torch.arange(20)), None)
    assert {len(set(prediction.tokens or ())) for prediction in found} == {3}
    with pytest.raises(ValueError, match=r"prefix\.vectors=2"):
        Multiset(Words(), AdamW(), Prefix(vectors=2))


def test_names_words_up_to_the_end_and_one_in_any_case(tmp_path: Path) -> None:
    attack = built(multiset(steps=3, repeats=True), tmp_path, ["a a a b b c"])  # a: 0, b: 1, c: 2, the end: 3
    script = {1.0: [0, 0, 2], 2.0: [1, 3, 2], 3.0: [3, 1, 0]}

    def forward(vectors: Tensor) -> tuple[Tensor, Tensor]:
        named = torch.tensor([script[float(vector[0])] for vector in vectors])
        logits = torch.nn.functional.one_hot(named, 4).float()
        logits[:, 0, 2] += 0.5  # the best word where the end comes first
        return logits, named

    attack.forward = forward  # type: ignore[method-assign]
    found = attack.invert(Targets(torch.tensor([[1.0], [2.0], [3.0]]), torch.arange(3)), None)
    assert [prediction.candidates for prediction in found] == [("a a c",), ("b",), ("c",)]
    assert [prediction.tokens for prediction in found] == [(0, 0, 2), (1,), (2,)]
    assert {prediction.kind for prediction in found} == {"set"}


@pytest.mark.parametrize(
    ("vocabulary", "options"),
    [(Words(), {}), (Pieces(limit=300), {})],
    ids=["words", "pieces"],
)
def test_it_learns_and_a_restored_one_predicts_the_same(
    tmp_path: Path, vocabulary: Vocabulary, options: dict[str, bool]
) -> None:
    seed_everything(0)
    attack = multiset(vocabulary, steps=6, **options)
    source = Texts(train=TEXTS, valid=TEXTS[3:4], test=TEXTS[3:4])
    datamodule = data_module(source, FewLetters(), tmp_path, batch_size=8, drop_repeated=False)
    attack.connect(tmp_path / "artifacts", None)
    fit = quiet_trainer(max_steps=200, default_root_dir=tmp_path)
    fit.fit(attack, datamodule)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    attack.eval()
    targets = Targets(FewLetters().embed(TEXTS), torch.arange(len(TEXTS)))
    found = attack.invert(targets, None)
    own = attack.tokens(TEXTS)
    shared = sum(
        (Counter(prediction.tokens) & Counter(row)).total() for prediction, row in zip(found, own, strict=True)
    )
    assert shared / sum(map(len, own)) > 0.75

    again = multiset(type(vocabulary)(vocabulary.limit), steps=6, **options)  # type: ignore[attr-defined, call-arg]
    again.connect(tmp_path / "artifacts", None, from_checkpoint=True)
    again.restore(tmp_path / "last.ckpt", FewLetters.dimension)
    assert again.invert(targets, None) == found
