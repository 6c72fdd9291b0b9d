"""embedder.max_queries reached in the middle of a search: what was found is kept, marked, and resumed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from pydantic import PositiveInt
from torch import Tensor

from support import tiny_settings
from support.files import load, read_lines, rows_of, write_lines
from support.letters import TEXTS, LettersAndSigns
from support.places import Place
from unembed import launch, train
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.refining import Rerank
from unembed.attacks.vec2text.search import Accept, CorrectionSearch, Proposal
from unembed.commands import compare, invert
from unembed.embedders.base import QueryLimitError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs import layout
from unembed.runs.trust import trusting

SHORT = [*tiny_settings.FILES, "datamodule.batch_size=6", "datamodule.eval_batch_size=3"]
INVERTER = [
    *tiny_settings.INVERTER, "attack.decoding.max_new_tokens=12", "attack.decoding.beams=1",
]  # fmt: skip
CORRECTOR = [
    *tiny_settings.CORRECTOR, "attack.max_new_tokens=12", "attack.search.steps=3",
    "attack.search.beams=3", "attack.hypotheses.noise=[0.0]",
]  # fmt: skip


class Counted(LettersAndSigns):
    """The embedder above, of as many texts as are allowed."""

    sent = 0  # by the one that was made last

    def __init__(self, max_queries: PositiveInt | None = None) -> None:
        super().__init__()
        self.max_queries = max_queries
        Counted.sent = 0

    def embed(self, texts: Sequence[str]) -> Tensor:
        allowed = len(texts) if self.max_queries is None else min(len(texts), self.max_queries - Counted.sent)
        Counted.sent += allowed
        if allowed < len(texts):
            message = f"embedder.max_queries={self.max_queries} is reached"
            raise QueryLimitError(message, list(range(allowed)), super().embed(texts[:allowed]))
        return super().embed(texts)


class LimitedPlace(Place):
    """A corrector, trained on the vectors above without a limit, and its cache."""

    def __init__(self, base: Path) -> None:
        splits = ["test" if n % 2 == 0 else "valid" if n == 7 else "train" for n in range(len(TEXTS))]
        rows = [{"text": text, "split": split} for text, split in zip(TEXTS, splits, strict=True)]
        embedder = {"_target_": f"{__name__}.Counted", "max_queries": None}
        super().__init__(base, write_lines(base / "data.jsonl", rows), SHORT, embedder)
        self.inverter = self.train("inverter", *INVERTER, steps=20)
        given = [*CORRECTOR, f"attack.inverter_run={self.inverter}"]
        given += ["attack.search.steps=0", "attack.initial=constant"]  # its test would fill the cache
        self.corrector = self.train("corrector", *given, steps=2)

    def evaluate_with(self, cache: str, run: Path, name: str, *overrides: str) -> Path:
        """With a cache of its own, which begins as training left it."""
        if not (self.base / cache).exists():
            shutil.copytree(self.cache, self.base / cache)
        return self.evaluate(run, name, f"cache_dir={self.base / cache}", *overrides)


SEARCH = [
    "attack.search.steps=3", "attack.initial=inverter", "callbacks=iterative_correction",
    "callbacks.iterative_correction.steps=[0,1,3]", "callbacks.iterative_correction.beams=[1,3]",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> LimitedPlace:
    return LimitedPlace(tmp_path_factory.mktemp("limit"))


@pytest.fixture(scope="module")
def whole(place: LimitedPlace) -> Path:
    """Without a limit."""
    out = place.evaluate_with("cache_of_whole", place.corrector, "whole", *SEARCH)
    (out / "sent").write_text(str(Counted.sent))
    return out


def part(whole: Path, share: float) -> int:
    """A share of the texts that the whole evaluation sent; at least one."""
    return max(1, int(share * int((whole / "sent").read_text())))


def without_seconds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_limit_in_the_middle_of_correction(
    place: LimitedPlace, whole: Path, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two sessions: one that is cut short, and one that resumes it and ends as if there had been no limit."""
    limit, name = part(whole, share), f"limited_{share}"
    out = place.evaluate_with(name, place.corrector, name, *SEARCH, f"embedder.max_queries={limit}")
    assert Counted.sent == limit
    rows, metrics = rows_of(out), load(out / layout.METRICS)
    assert [row["index"] for row in rows] == list(range(8))
    cut = [row for row in rows if row.get("partial")]
    assert 0 < len(cut) == metrics["partial"]
    assert "embedder.max_queries" in metrics["partial_reason"]
    assert (metrics["cosine"] is None) == any(row["cosine"] is None for row in rows)
    assert all(row["cosine"] is not None for row in rows if row not in cut)
    paths = {(line["index"], line["beams"]): line["rounds"] for line in read_lines(out / "corrections.jsonl")}
    for row in cut:  # the best so far: never farther than the first guess
        first = paths[row["index"], 3][0]
        assert first["cosine"] is None or row["cosine"] >= first["cosine"] - 1e-6
    table = load(out / "corrections.json")
    assert table["partial"] == metrics["partial_reason"]
    assert table["table"][-1]["partial"] >= len(cut)
    said = " ".join(capsys.readouterr().out.split())
    assert f"CUT SHORT: the search for {len(cut)} of the texts ended early" in said
    page = (out / "report.html").read_text()
    assert "CUT SHORT" in page
    assert f"{table['table'][-1]['partial']} cut short" in page

    compare.compare(compare.read_settings([str(whole), str(out), f"output={tmp_path / 'table'}"]))
    assert f"CUT SHORT: a limit of queries ended {name} early" in " ".join(capsys.readouterr().out.split())

    kept, searched = len(list((out / layout.TEST_BATCHES).glob("*.json"))), list[int]()
    assert (kept > 0) == (share > 0)
    search = CorrectionSearch.__call__

    def noted(self: CorrectionSearch, rewriter: Any, targets: Tensor, *others: Any, **named: Any) -> Any:
        searched.append(len(targets))
        return search(self, rewriter, targets, *others, **named)

    monkeypatch.setattr(CorrectionSearch, "__call__", noted)
    again = place.evaluate_with(name, place.corrector, name, *SEARCH, "embedder.max_queries=1000")
    assert len(searched) == 3 * 3 - kept  # three batches: predictions, and two widths of correction
    assert (again / layout.PREDICTIONS).read_bytes() == (whole / layout.PREDICTIONS).read_bytes()
    one, other = (load(path / layout.METRICS) for path in (again, whole))
    assert {**one, "seconds": 0} == {**other, "seconds": 0}
    tables = [without_seconds(load(path / "corrections.json")["table"]) for path in (again, whole)]
    assert tables[0] == tables[1]
    assert not (again / layout.TEST_BATCHES).exists()
    assert "CUT SHORT" not in (again / "report.html").read_text() + capsys.readouterr().out


def test_a_limit_in_the_middle_of_reranking(place: LimitedPlace) -> None:
    lines_given = ["attack.decoding.rerank=4", "callbacks=default"]
    free = place.evaluate_with("free", place.inverter, "free", *lines_given)
    out = place.evaluate_with("reranked", place.inverter, "reranked", *lines_given, "embedder.max_queries=5")
    assert Counted.sent == 5
    assert 0 < load(out / layout.METRICS)["partial"] <= 8
    place.evaluate_with("reranked", place.inverter, "reranked", *lines_given)
    assert (out / layout.PREDICTIONS).read_bytes() == (free / layout.PREDICTIONS).read_bytes()


def test_vectors_that_are_read_back_say_it_too(
    place: LimitedPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "mine.npy", LettersAndSigns().embed(TEXTS[:5]).numpy())
    shutil.copytree(place.base / "cache", tmp_path / "cache")
    given = [
        f"run={place.corrector}", f"vectors={tmp_path / 'mine.npy'}", f"cache_dir={tmp_path / 'cache'}",
        "embedder.max_queries=2", "attack.initial=inverter", "attack.search.steps=2",
    ]  # fmt: skip
    with trusting(__name__):
        invert.invert(*launch.on_run("invert", [*given, f"trust={__name__}"]))
    rows = read_lines(tmp_path / "mine.npy.texts.jsonl")
    assert len(rows) == 5
    assert any(row.get("partial") for row in rows)
    assert all(row["cosine"] is not None or row["partial"] for row in rows)
    assert "CUT SHORT: the search for" in capsys.readouterr().out


def test_the_limit_of_training_ends_it_as_before(place: LimitedPlace, tmp_path: Path) -> None:
    """Vectors that training needs are no search: nothing can be made of half of them."""
    config = OmegaConf.load(place.inverter / layout.CONFIG)
    assert OmegaConf.is_dict(config)
    config.embedder.max_queries, config.cache_dir, config.run_dir = 3, str(tmp_path / "c"), str(tmp_path / "run")
    with pytest.raises(QueryLimitError, match="max_queries=3 is reached"):
        train.train(config)  # type: ignore[arg-type]


def test_the_cache_says_which_of_its_texts_have_a_vector(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counted(max_queries=3), tmp_path)
    cached.embed(["b"])
    with pytest.raises(QueryLimitError) as caught:
        cached.embed(["aaaa", "b", "cc", "b", "aaa"])
    assert caught.value.done == [1, 2, 3, 4]  # the shortest are sent first
    assert torch.equal(caught.value.vectors, LettersAndSigns().embed(["b", "cc", "b", "aaa"]))
    assert cached.queries.asked["attack"] == 3
    assert cached.queries.limit == "embedder.max_queries=3 is reached"
    assert cached.embed(["cc", "aaa"]).shape == (2, Counted.dimension)


def test_reranking_orders_what_has_a_vector_and_leaves_the_rest_behind(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counted(max_queries=3), tmp_path)
    proposed = [Prediction(texts) for texts in (("bb", "b a", "cccc"), ("a", "bb"), ("dddddd",))]
    found = Rerank().refine(Targets(LettersAndSigns().embed(["b a", "a", "d"]), torch.arange(3)), proposed, cached)
    assert [one.candidates for one in found] == [("b a", "bb", "cccc"), ("a", "bb"), ("dddddd",)]
    assert [one.partial for one in found] == [True, False, True]


class Script:
    """Says what stands for each text."""

    def __init__(self, **after: list[str]) -> None:
        self.after = after

    def project(self, targets: Tensor) -> Tensor:
        return targets

    def rewrite(
        self, projected: Tensor, targets: Tensor, hypotheses: Sequence[Proposal], own: Tensor, beams: int
    ) -> list[list[Proposal]]:
        return [[Proposal(text, ()) for text in self.after[one.text]] for one in hypotheses]


@pytest.mark.parametrize("accept", ["best", "newest", "closer"])
def test_the_search_uses_what_arrived_and_marks_who_was_still_searched(tmp_path: Path, accept: Accept) -> None:
    """Of four targets the first is found in the last round that is paid for, two were going on, one never began."""
    cached = CachedEmbedder(Counted(max_queries=6), tmp_path)
    script = Script(a=["ab"], c=["cd", "cdcdcd"], e=["ef"], ef=["efgh"])
    search = CorrectionSearch(steps=3, beams=2, accept=accept)
    start = [Proposal(text, ()) for text in ("a", "c", "e", "xyzxyz")]
    targets = LettersAndSigns().embed(["ab", "cdd", "efg", "xyz"])
    first = search(script, targets[:3], start[:3], lambda texts: cached.embed(texts))
    assert [[one.text for one in rounds] for rounds in first] == [
        ["a", "ab", "ab", "ab"], ["c", "cd", "cd", "cd"], ["e", "ef", "ef", "ef"],
    ]  # fmt: skip
    assert [[one.partial for one in rounds] for rounds in first] == [
        [False, False, accept != "best", accept != "best"], [False, True, True, True], [False, False, True, True],
    ]  # fmt: skip
    assert [rounds[-1].queries for rounds in first] == [2, 2, 2]
    (never,) = search(script, targets[3:], start[3:], lambda texts: cached.embed(texts))
    assert [(one.text, one.cosine, one.queries, one.partial) for one in never] == [("xyzxyz", None, 0, True)] * 4
