"""OpenSearch and Elasticsearch: their own clients, and a stand-in for the server that knows what the reader asks for.

Neither server is on a package index. The stand-in answers as the documentation of both says: scrolls in pages, vectors
by "fields" only, as Elasticsearch has it from 9.2 on, and at most 10,000 documents at once.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.http_stand_in import serving
from support.stores import DIMENSION, ROWS, TEXTS, TITLES, VECTORS, check_store, refusal, refused_field
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores import search_engine
from unembed.datamodules.vector_stores.sampling import open_store

KINDS = ["opensearch", "elasticsearch"]
IDS = [f"{'a' if row % 2 else 'b'}/{row}" for row in range(ROWS)]


class Engine:
    """Three indexes: docs and two have vectors, logs has none; docs and the alias mail are the same.

    The alias all is of two indexes, docs and more, whose documents have the same ids.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.scrolls, self.rights, self.pages = kind, dict[str, list[dict[str, Any]]](), "", list[int]()
        self.shards: dict[str, Any] = {"total": 3, "successful": 3, "failed": 0}
        vector = {"type": "knn_vector" if kind == "opensearch" else "dense_vector"}
        texts = {"text": {"type": "text"}, "meta": {"properties": {"title": {"type": "keyword"}}}}
        self.mappings: dict[str, Any] = {
            "docs": {"mappings": {"properties": {**texts, "deep": {"properties": {"vector": vector}}}}},
            "two": {"mappings": {"properties": {"a": vector, "b": vector, "body": {"type": "text"}}}},
            "logs": {"mappings": {"properties": {"line": {"type": "text"}}}},
        }
        self.documents = {
            one: {"fields": {"deep.vector": VECTORS[row].tolist()},
                  "_source": {"text": TEXTS[row], "meta": {"title": TITLES[row]}, "n": row}}
            for row, one in enumerate(IDS)
        }  # fmt: skip

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: Any, headers: dict[str, str]
    ) -> tuple[int, Any]:
        if headers.get("authorization", "") != self.rights:
            return 401, {"error": {"type": "security_exception", "reason": "missing credentials"}, "status": 401}
        if path == "/":
            return 200, {"version": {"number": "3.0.0", "distribution": "opensearch"}, "tagline": ""}
        if path.endswith("/_mapping"):
            name = path[1:].removesuffix("/_mapping").removesuffix("_mapping")
            docs = self.mappings["docs"]
            found = {"mail": {"docs": docs}, "all": {"docs": docs, "more": docs}, "": self.mappings}.get(name)
            if found is None:
                assert query["ignore_unavailable"] == ["true"]
                found = {name: self.mappings[name]} if name in self.mappings else {}
            return 200, found
        if path == "/_search/scroll":
            if method == "DELETE":
                return 200, {"succeeded": self.scrolls.pop(body["scroll_id"][0]) is not None}
            return 200, self.page(body["scroll_id"])
        assert method == "POST"
        assert path in ("/docs/_search", "/mail/_search", "/two/_search", "/all/_search")
        if "scroll" in query:
            assert body["_source"] is False
            assert body["query"] == {"exists": {"field": "a" if "two" in path else "deep.vector"}}
            self.scrolls["s1"] = [
                {"_index": index, "_id": one}
                for index in (("docs", "more") if "all" in path else ("docs",))
                for one in ([] if "two" in path else self.documents)
            ]
            self.size = body["size"]
            return 200, self.page("s1")
        return 200, self.found(body)

    def page(self, scroll: str) -> dict[str, Any]:
        left = self.scrolls[scroll]
        taken, self.scrolls[scroll] = left[: self.size], left[self.size :]
        self.pages.append(len(taken))
        return {"_scroll_id": scroll, "hits": {"hits": taken}, "_shards": self.shards}

    def found(self, body: Any) -> dict[str, Any]:
        among, of_index = body["query"]["bool"]["filter"]
        wanted, index = among["ids"]["values"], of_index["term"]["_index"]
        assert len(wanted) <= body["size"] <= 10_000
        hits = []
        for one in sorted(wanted):  # in an order of its own
            document = self.documents[one]
            hit: dict[str, Any] = {"_index": index, "_id": one}
            if "fields" in body:
                sign = -1 if index == "more" else 1
                hit["fields"] = {name: [sign * one for one in document["fields"][name]] for name in body["fields"]}
            if isinstance(body["_source"], list):
                (name,) = body["_source"]
                source = document["_source"]
                hit["_source"] = {"meta": source["meta"]} if name == "meta.title" else {name: source.get(name)}
            elif body["_source"]:
                hit["_source"] = document["_source"]
            hits.append(hit)
        return {"hits": {"hits": hits[: body["size"]]}, "_shards": self.shards}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Engine, str]]:
    """The stand-in and its address."""
    pytest.importorskip({"opensearch": "opensearchpy"}.get(request.param, request.param))
    monkeypatch.setattr(search_engine, "LISTED_TOGETHER", 8)
    made = Engine(request.param)
    with serving(made.answer, {"x-elastic-product": "Elasticsearch"}) as address:
        yield made, f"{request.param}:{address}"


def test_rows_texts_and_choices(engine: tuple[Engine, str]) -> None:
    there, address = engine
    check_store(address, IDS, "docs")
    assert there.pages == [8, 8, 8, 6, 0]
    assert not there.scrolls  # ended, as a server keeps only so many
    check_store(address, IDS, "mail")
    _, address = engine
    assert "which collection? give collection=<one of docs, two>" in refusal(address)
    assert "no collection dogs; did you mean docs?" in refusal(address, "dogs")
    assert "collection two has the vectors a, b; give collection=two/<one of them>" in refusal(address, "two")
    assert "collection logs has the vectors none" in refusal(address, "logs")
    assert "holds no vectors" in refusal(address, "two/a")
    assert "no such text; did you mean text?" in refused_field(address, "txt", "docs")


def test_indexes_behind_an_alias_and_shards_that_do_not_answer(engine: tuple[Engine, str]) -> None:
    _, address = engine
    store = open_store(address, DIMENSION, "all")
    assert len(set(store.ids)) == len(store.ids) == 2 * ROWS
    assert list(store.ids) == [f"{index}/{one}" for index in ("docs", "more") for one in IDS]
    positions = [3, ROWS + 3, 0, ROWS + 5]
    expected = np.stack([VECTORS[3], -VECTORS[3], VECTORS[0], -VECTORS[5]])
    assert store.fetch(positions) == pytest.approx(expected, abs=1e-6)
    there, address = engine
    store = open_store(address, DIMENSION, "docs")
    failure = {"reason": {"type": "node_not_connected_exception", "reason": "node b is gone"}}
    there.shards = {"total": 3, "successful": 2, "failed": 1, "failures": [failure]}
    expected = r"1 of 3 shards did not answer \(node b is gone\), and what they hold is missing"
    for asked in (lambda: open_store(address, DIMENSION, "docs"), lambda: store.fetch([0])):
        with pytest.raises(InputError, match=expected):
            asked()
        assert not there.scrolls


def test_credentials_come_from_the_environment(engine: tuple[Engine, str], monkeypatch: pytest.MonkeyPatch) -> None:
    there, address = engine
    word = base64.b64encode(b"ada:tied-with-string").decode()
    there.rights = f"Basic {word}"
    assert "cannot be read" in refusal(address, "docs")
    prefix = {"opensearch": "OPENSEARCH", "elasticsearch": "ELASTIC"}[there.kind]
    monkeypatch.setenv(f"{prefix}_USERNAME", "ada")
    monkeypatch.setenv(f"{prefix}_PASSWORD", "tied-with-string")
    check_store(address, IDS, "docs")
    there.rights = "ApiKey other"
    message = refusal(address, "docs")
    assert "tied-with-string" not in message
    assert word not in message
    monkeypatch.setenv("ELASTIC_API_KEY", "other")
    if there.kind == "elasticsearch":
        check_store(address, IDS, "docs")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = {"opensearch": "opensearchpy"}.get(kind, kind)
    pytest.importorskip(module)
    assert f"vectors={kind}:http://127.0.0.1:9: cannot be read" in refusal(f"{kind}:http://127.0.0.1:9")
    assert "w0rd" not in refusal(f"{kind}:https://ada:w0rd@127.0.0.1:9")
    assert f"not of the form {kind}:https://host:9200" in refusal(f"{kind}:folder")
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'unembed[{kind}]'" in refusal(f"{kind}:http://127.0.0.1:9")
