"""The search over corrections, on a rewriter of strings whose every move is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unembed.attacks.vec2text.search import Accept, CorrectionSearch, Proposal, Round

LETTERS = "abcd"


def vector(text: str) -> Tensor:
    """Counts of letters, the later ones in a word a little heavier: other texts have other directions."""
    counts = [sum(1 + 0.1 * place for place, own in enumerate(text) if own == letter) for letter in LETTERS]
    return torch.tensor([*counts, 0.5])


class Embedder:
    """Remembers all that it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> Tensor:
        self.asked += texts
        return torch.stack([vector(text) for text in texts])


class Neighbours:
    """Rewrites a text to those that differ in one letter, the ones that are closer to the target first, but blind to
    the last letter's alternatives: some targets cannot be reached."""

    def project(self, targets: Tensor) -> Tensor:
        return targets.clone()

    def rewrite(
        self, projected: Tensor, targets: Tensor, hypotheses: Sequence[Proposal], vectors: Tensor, beams: int
    ) -> list[list[Proposal]]:
        assert projected.shape == targets.shape
        rows = []
        for target, hypothesis, own in zip(targets, hypotheses, vectors, strict=True):
            assert torch.equal(own, vector(hypothesis.text))
            near = [
                hypothesis.text[:place] + letter + hypothesis.text[place + 1 :]
                for place in range(len(hypothesis.text))
                for letter in LETTERS
            ]
            near.sort(key=lambda text: (float((vector(text)[:3] - target[:3]).norm()), text))
            rows.append([Proposal(text, tuple(map(ord, text))) for text in near[:beams]])  # repeats and all
        return rows


class Fixed:
    """Says the same whatever it is given."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def project(self, targets: Tensor) -> Tensor:
        return targets

    def rewrite(
        self, projected: Tensor, targets: Tensor, hypotheses: Sequence[Proposal], vectors: Tensor, beams: int
    ) -> list[list[Proposal]]:
        return [[Proposal(text, ()) for text in self.texts[:beams]] for _ in hypotheses]


def start(*texts: str) -> list[Proposal]:
    return [Proposal(text, ()) for text in texts]


def targets(*texts: str) -> Tensor:
    return torch.stack([vector(text) for text in texts])


def cosine(one: str, other: str) -> float:
    return float(torch.nn.functional.cosine_similarity(vector(one), vector(other), dim=0))


def said(rounds: list[list[Round]]) -> list[list[tuple[str, int]]]:
    return [[(one.text, one.queries) for one in row] for row in rounds]


def published(first: str, wanted: str, steps: int, beams: int) -> list[str]:
    """The published loop, written out for one target: the closest of each round, embedding everything each time."""
    rewriter, target = Neighbours(), vector(wanted)
    frontier, best = [first], [first]
    for _ in range(steps):
        newest: list[str] = []
        for text in frontier:
            found = rewriter.rewrite(
                target[None], target[None], [Proposal(text, ())], vector(text)[None], beams
            )  # fmt: skip
            newest += [proposal.text for proposal in found[0]]
        distinct = list(dict.fromkeys(newest))
        cosines = torch.nn.functional.cosine_similarity(targets(*distinct), target[None])
        order = sorted(range(len(distinct)), key=lambda row: -round(float(cosines[row]), 6))
        frontier = [distinct[row] for row in order[:beams]]
        best.append(frontier[0])
    return best


words = st.text(LETTERS, min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(first=words, wanted=words, steps=st.integers(0, 4), beams=st.integers(1, 5))
def test_accepting_the_newest_does_what_the_published_loop_does(
    first: str, wanted: str, steps: int, beams: int
) -> None:  # fmt: skip
    search = CorrectionSearch(steps=steps, beams=beams, accept="newest")
    rounds = search(Neighbours(), targets(wanted), start(first), Embedder())[0]
    assert [cosine(one.text, wanted) for one in rounds] == pytest.approx(
        [cosine(text, wanted) for text in published(first, wanted, steps, beams)], abs=1e-5
    )


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(words, words), min_size=1, max_size=5),
    steps=st.integers(0, 5),
    beams=st.integers(1, 5),
    accept=st.sampled_from(["best", "newest", "closer"]),
    rows=st.integers(1, 7),
)
def test_a_target_is_searched_alike_alone_and_among_others(
    pairs: list[tuple[str, str]], steps: int, beams: int, accept: Accept, rows: int
) -> None:
    together = CorrectionSearch(steps, beams, accept=accept, rows=rows)
    alone = CorrectionSearch(steps, beams, accept=accept)
    first, wanted = zip(*pairs, strict=True)
    embedder = Embedder()
    rounds = together(Neighbours(), targets(*wanted), start(*first), embedder)
    assert len(embedder.asked) == len(set(embedder.asked)), "a text was embedded twice"
    for row, (text, target) in zip(rounds, pairs, strict=True):
        assert said([row]) == said(alone(Neighbours(), targets(target), start(text), Embedder()))


@settings(max_examples=60, deadline=None)
@given(first=words, wanted=words, beams=st.integers(1, 5), accept=st.sampled_from(["best", "closer"]))
def test_a_later_round_is_never_farther(first: str, wanted: str, beams: int, accept: Accept) -> None:
    rounds = CorrectionSearch(6, beams, accept=accept)(Neighbours(), targets(wanted), start(first), Embedder())[0]
    cosines = [one.cosine for one in rounds]
    assert cosines == sorted(cosines)
    assert cosines == pytest.approx([cosine(one.text, wanted) for one in rounds], abs=1e-6)
    assert rounds[-1].cosine >= cosine(first, wanted) - 1e-6


def test_no_step_and_no_target() -> None:
    embedder = Embedder()
    rounds = CorrectionSearch(steps=0, beams=3)(Neighbours(), targets("abc", "ddd"), start("aaa", "bcd"), embedder)
    assert said(rounds) == [[("aaa", 1)], [("bcd", 1)]]
    assert embedder.asked == ["aaa", "bcd"]
    assert CorrectionSearch()(Fixed("a"), torch.empty(0, 5), [], Embedder()) == []


def test_a_solved_target_and_one_at_a_fixed_point_are_left_alone() -> None:
    embedder = Embedder()
    search = CorrectionSearch(steps=50, beams=1)
    rounds = search(Fixed("bbb"), targets("bbb", "ccc"), start("aaa", "aaa"), embedder)
    assert embedder.asked == ["aaa", "bbb"]  # after it, one is found, and the other would only say the same again
    assert [len(row) for row in rounds] == [51, 51]
    assert [row[-1].text for row in rounds] == ["bbb", "bbb" if cosine("bbb", "ccc") > cosine("aaa", "ccc") else "aaa"]
    assert rounds[0][1].cosine == pytest.approx(1.0, abs=1e-6)


def test_few_proposals_and_settings_of_a_call() -> None:
    rounds = CorrectionSearch(steps=3, beams=8)(Fixed("ab", "ab", "ba"), targets("ba"), start("cc"), Embedder())[0]
    assert [(one.text, one.queries) for one in rounds] == [("cc", 1), ("ba", 3), ("ba", 3), ("ba", 3)]
    embedder = Embedder()
    search = CorrectionSearch(steps=1, beams=1)
    rounds = search(Fixed("ab", "ba", "bb"), targets("cc"), start("aa"), embedder, steps=2, beams=3)
    assert len(rounds[0]) == 3
    assert embedder.asked == ["aa", "ab", "ba", "bb"]


class Script:
    """Says what stands for each text, and remembers what it read."""

    def __init__(self, **after: str) -> None:
        self.after, self.read = after, list[str]()

    def project(self, targets: Tensor) -> Tensor:
        return targets

    def rewrite(
        self, projected: Tensor, targets: Tensor, hypotheses: Sequence[Proposal], vectors: Tensor, beams: int
    ) -> list[list[Proposal]]:
        self.read += [one.text for one in hypotheses]
        return [[Proposal(text, ()) for text in self.after[one.text].split()] for one in hypotheses]


GREEDY = {"aaa": "add", "add": "aad", "aad": "ddd", "ddd": "ddd"}
BEAM = {"aaa": "add abd", "add": "aad abd", "abd": "dad aaa", "dad": "bbb ddb", "aad": "ddd bbb", "ddb": "ddb dad"}


@pytest.mark.parametrize(
    ("accept", "script", "texts", "read"),
    [
        ("best", GREEDY, "aaa add add ddd ddd", "aaa add aad"),  # goes on from "aad", although "add" is closer
        ("newest", GREEDY, "aaa add aad ddd ddd", "aaa add aad ddd"),
        ("closer", GREEDY, "aaa add add add add", "aaa add"),  # what would come of "add" is known now
        ("best", BEAM, "aaa add add ddd ddd", "aaa add abd dad aad"),
        ("newest", BEAM, "aaa add dad dad dad", "aaa add abd dad abd dad ddb"),
        ("closer", BEAM, "aaa add add add add", "aaa add abd add dad"),  # "dad" replaces "abd", nothing replaces "add"
    ],
)
def test_what_is_accepted(accept: Accept, script: dict[str, str], texts: str, read: str) -> None:
    """To "ddd", the cosine of add is .92, of dad .90, ddb .87, abd .64, aad .51, of aaa and bbb .02."""
    rewriter, beams = Script(**script), 1 if script is GREEDY else 2
    (rounds,) = CorrectionSearch(4, beams, accept=accept)(rewriter, targets("ddd"), start("aaa"), Embedder())
    assert [one.text for one in rounds] == texts.split()
    assert rewriter.read == read.split()
