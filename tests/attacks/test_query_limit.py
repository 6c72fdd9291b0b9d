"""embedder.max_queries reached in the middle of a search: what was found is kept, marked, and gone on with."""

from __future__ import annotations

import json
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

import compare
import configuration
import evaluate
import invert
import train
from attacks.vec2text.search import CorrectionSearch, Proposal
from embedders.base import QueryLimitError, fingerprint_of
from embedders.cache.cached import CachedEmbedder
from models.predictions import Prediction, Targets
from models.reranking import Rerank
from run_directory import layout
from run_directory.trust import trusting
from support import tiny_vec2text

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
TEXTS = [
    f"{who} lives in {city} ." for who in ("ada", "bob", "cleo", "dan") for city in ("paris", "rome", "oslo", "lima")
]
SHORT = [*tiny_vec2text.FILES, "datamodule.batch_size=6", "datamodule.eval_batch_size=3"]
INVERTER = [
    *tiny_vec2text.INVERTER, "attack.decoding.max_new_tokens=12", "attack.decoding.beams=1", "trainer.max_steps=20",
]  # fmt: skip
CORRECTOR = [
    *tiny_vec2text.CORRECTOR, "attack.max_new_tokens=12", "attack.search.steps=3",
    "attack.search.beams=3", "attack.hypotheses.noise=[0.0]", "trainer.max_steps=2",
]  # fmt: skip


def vectors(*texts: str) -> Tensor:
    """Counts of letters, (n, d)."""
    counts = [[0.1 + text.count(letter) for letter in LETTERS] for text in texts]
    return torch.tensor(counts).reshape(-1, len(LETTERS))


class Counted:
    """The vectors above, of as many texts as are allowed."""

    dimension = len(LETTERS)
    max_tokens = 64
    fingerprint = fingerprint_of(kind="letters", used="test_query_limit")
    sent = 0  # by the one that was made last

    def __init__(self, max_queries: PositiveInt | None = None) -> None:
        self.max_queries = max_queries
        Counted.sent = 0

    def embed(self, texts: Sequence[str]) -> Tensor:
        allowed = len(texts) if self.max_queries is None else min(len(texts), self.max_queries - Counted.sent)
        Counted.sent += allowed
        if allowed < len(texts):
            message = f"embedder.max_queries={self.max_queries} is reached"
            raise QueryLimitError(message, list(range(allowed)), vectors(*texts[:allowed]))
        return vectors(*texts)


class Place:
    """A corrector, trained on the vectors above without a limit, and its cache."""

    def __init__(self, base: Path) -> None:
        self.base, data = base, base / "data.jsonl"
        splits = ["test" if n % 2 == 0 else "valid" if n == 7 else "train" for n in range(len(TEXTS))]
        rows = [{"text": text, "split": split} for text, split in zip(TEXTS, splits, strict=True)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name, lines in (
            ("inverter", INVERTER),
            ("corrector", [*CORRECTOR, f"attack.inverter_run={base}/inverter"]),
        ):
            place = [f"run_dir={base / name}", f"datamodule.path={data}", f"cache_dir={base / 'cache'}"]
            config = configuration.compose("train", [*SHORT, *lines, *place])
            config.embedder = OmegaConf.create({"_target_": f"{__name__}.Counted", "max_queries": None})
            assert configuration.check(config) == []
            if name == "corrector":  # its test would fill the cache
                config.attack.search.steps = 0
                config.attack.initial = "constant"
            with trusting(__name__):
                train.train(config)
        self.corrector, self.inverter = base / "corrector", base / "inverter"

    def evaluate(self, run: Path, name: str, *overrides: str, cache: str) -> Path:
        """With a cache of its own, which begins as training left it."""
        if not (self.base / cache).exists():
            shutil.copytree(self.base / "cache", self.base / cache)
        lines = [f"run={run}", f"output_dir={self.base / name}", f"cache_dir={self.base / cache}", *overrides]
        with trusting(__name__):
            evaluate.evaluate(*configuration.on_run("evaluate", [*lines, f"trust={__name__}"]))
        return self.base / name


SEARCH = [
    "attack.search.steps=3", "attack.initial=inverter", "callbacks=iterative_correction",
    "callbacks.iterative_correction.steps=[0,1,3]", "callbacks.iterative_correction.beams=[1,3]",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("limit"))


@pytest.fixture(scope="module")
def whole(place: Place) -> Path:
    """Without a limit."""
    out = place.evaluate(place.corrector, "whole", *SEARCH, cache="cache_of_whole")
    (out / "sent").write_text(str(Counted.sent))
    return out


def part(whole: Path, share: float) -> int:
    """A share of the texts that the whole evaluation sent; at least one."""
    return max(1, int(share * int((whole / "sent").read_text())))


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_seconds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_limit_in_the_middle_of_correction(
    place: Place, whole: Path, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two sessions: one that is cut short, and one that goes on with it and ends as if there had been no limit."""
    limit, name = part(whole, share), f"limited_{share}"
    out = place.evaluate(place.corrector, name, *SEARCH, f"embedder.max_queries={limit}", cache=name)
    assert Counted.sent == limit
    rows, metrics = lines(out / layout.PREDICTIONS), load(out / layout.METRICS)
    assert [row["index"] for row in rows] == list(range(8))
    cut = [row for row in rows if row.get("partial")]
    assert 0 < len(cut) == metrics["partial"]
    assert "embedder.max_queries" in metrics["partial_reason"]
    assert (metrics["cosine"] is None) == any(row["cosine"] is None for row in rows)
    assert all(row["cosine"] is not None for row in rows if row not in cut)
    paths = {(line["index"], line["beams"]): line["rounds"] for line in lines(out / "corrections.jsonl")}
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
    again = place.evaluate(place.corrector, name, *SEARCH, "embedder.max_queries=1000", cache=name)
    assert len(searched) == 3 * 3 - kept  # three batches: predictions, and two widths of correction
    assert (again / layout.PREDICTIONS).read_bytes() == (whole / layout.PREDICTIONS).read_bytes()
    one, other = (load(path / layout.METRICS) for path in (again, whole))
    assert {**one, "seconds": 0} == {**other, "seconds": 0}
    tables = [without_seconds(load(path / "corrections.json")["table"]) for path in (again, whole)]
    assert tables[0] == tables[1]
    assert not (again / layout.TEST_BATCHES).exists()
    assert "CUT SHORT" not in (again / "report.html").read_text() + capsys.readouterr().out


def test_a_limit_in_the_middle_of_reranking(place: Place) -> None:
    lines_given = ["attack.decoding.rerank=4", "callbacks=default"]
    free = place.evaluate(place.inverter, "free", *lines_given, cache="free")
    out = place.evaluate(place.inverter, "reranked", *lines_given, "embedder.max_queries=5", cache="reranked")
    assert Counted.sent == 5
    assert 0 < load(out / layout.METRICS)["partial"] <= 8
    place.evaluate(place.inverter, "reranked", *lines_given, cache="reranked")
    assert (out / layout.PREDICTIONS).read_bytes() == (free / layout.PREDICTIONS).read_bytes()


def test_vectors_that_are_read_back_say_it_too(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "mine.npy", vectors(*TEXTS[:5]).numpy())
    shutil.copytree(place.base / "cache", tmp_path / "cache")
    given = [
        f"run={place.corrector}", f"vectors={tmp_path / 'mine.npy'}", f"cache_dir={tmp_path / 'cache'}",
        "embedder.max_queries=2", "attack.initial=inverter", "attack.search.steps=2",
    ]  # fmt: skip
    with trusting(__name__):
        invert.invert(*configuration.on_run("invert", [*given, f"trust={__name__}"]))
    rows = lines(tmp_path / "mine.npy.texts.jsonl")
    assert len(rows) == 5
    assert any(row.get("partial") for row in rows)
    assert all(row["cosine"] is not None or row["partial"] for row in rows)
    assert "CUT SHORT: the search for" in capsys.readouterr().out


def test_the_limit_of_training_ends_it_as_before(place: Place, tmp_path: Path) -> None:
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
    assert torch.equal(caught.value.vectors, vectors("b", "cc", "b", "aaa"))
    assert cached.queries.asked["attack"] == 3
    assert cached.queries.limit == "embedder.max_queries=3 is reached"
    assert cached.embed(["cc", "aaa"]).shape == (2, len(LETTERS))


def test_reranking_orders_what_has_a_vector_and_leaves_the_rest_behind(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counted(max_queries=3), tmp_path)
    proposed = [Prediction(texts) for texts in (("bb", "b a", "cccc"), ("a", "bb"), ("dddddd",))]
    found = Rerank().refine(Targets(vectors("b a", "a", "d"), torch.arange(3)), proposed, cached)
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


@pytest.mark.parametrize("faithful", [False, True])
def test_the_search_uses_what_arrived_and_marks_who_was_still_searched(tmp_path: Path, faithful: bool) -> None:
    """Of four targets the first is found in the last round that is paid for, two were going on, one never began."""
    cached = CachedEmbedder(Counted(max_queries=6), tmp_path)
    script = Script(a=["ab"], c=["cd", "cdcdcd"], e=["ef"], ef=["efgh"])
    search = CorrectionSearch(steps=3, beams=2, faithful=faithful)
    start = [Proposal(text, ()) for text in ("a", "c", "e", "xyzxyz")]
    targets = vectors("ab", "cdd", "efg", "xyz")
    first = search(script, targets[:3], start[:3], lambda texts: cached.embed(texts))
    assert [[one.text for one in rounds] for rounds in first] == [
        ["a", "ab", "ab", "ab"], ["c", "cd", "cd", "cd"], ["e", "ef", "ef", "ef"],
    ]  # fmt: skip
    assert [[one.partial for one in rounds] for rounds in first] == [
        [False, False, faithful, faithful], [False, True, True, True], [False, False, True, True],
    ]  # fmt: skip
    assert [rounds[-1].queries for rounds in first] == [2, 2, 2]
    (never,) = search(script, targets[3:], start[3:], lambda texts: cached.embed(texts))
    assert [(one.text, one.cosine, one.queries, one.partial) for one in never] == [("xyzxyz", None, 0, True)] * 4
