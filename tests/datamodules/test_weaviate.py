"""Weaviate: its own client, and a stand-in for the server, which is on no package index.

The stand-in speaks both interfaces that the client needs: the schema over HTTP, objects over gRPC with the client's
own definitions of the messages.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.http_stand_in import serving
from support.stores import ROWS, TEXTS, TITLES, VECTORS, check_store, refusal, refused_field
from unembed.datamodules.vector_stores import servers

pytest.importorskip("weaviate")
import grpc
from weaviate.proto.v1 import base_pb2, properties_pb2, search_get_pb2, weaviate_pb2_grpc

KEY = "tied-with-string"
IDS = [str(uuid.UUID(int=(7919 * (row + 1)) % 65_537)) for row in range(ROWS)]


def schema(name: str, vectors: list[str]) -> dict[str, Any]:
    index = {"distance": "cosine", "ef": -1, "efConstruction": 128, "maxConnections": 32, "cleanupIntervalSeconds": 300,
             "dynamicEfMin": 100, "dynamicEfMax": 500, "dynamicEfFactor": 8, "vectorCacheMaxObjects": 10**12,
             "flatSearchCutoff": 40_000, "skip": False, "filterStrategy": "sweeping"}  # fmt: skip
    one = {"vectorizer": {"none": {}}, "vectorIndexType": "hnsw", "vectorIndexConfig": index}
    return {
        "class": name,
        **({"vectorConfig": dict.fromkeys(vectors, one)} if vectors else {
            "vectorizer": "none", "vectorIndexType": "hnsw", "vectorIndexConfig": index}),
        "properties": [{"name": "text", "dataType": ["text"], "tokenization": "word", "indexFilterable": True,
                        "indexSearchable": True}],
        "invertedIndexConfig": {"bm25": {"b": 0.75, "k1": 1.2}, "cleanupIntervalSeconds": 60,
                                "stopwords": {"preset": "en", "additions": None, "removals": None}},
        "multiTenancyConfig": {"enabled": False}, "replicationConfig": {"factor": 1, "asyncEnabled": False},
        "shardingConfig": {"virtualPerPhysical": 128, "desiredCount": 1, "actualCount": 1, "desiredVirtualCount": 128,
                           "actualVirtualCount": 128, "key": "_id", "strategy": "hash", "function": "murmur3"},
    }  # fmt: skip


class Server(weaviate_pb2_grpc.WeaviateServicer):
    """Collections Docs, with a vector without a name; Two, with a and b; Empty."""

    def __init__(self) -> None:
        self.pages = list[int]()

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: Any, headers: dict[str, str]
    ) -> tuple[int, Any]:
        if path.endswith("/openid-configuration"):
            return 404, {}
        if headers.get("authorization") != f"Bearer {KEY}":
            return 401, {"error": [{"message": "anonymous access not enabled"}]}
        if path == "/v1/meta":
            return 200, {"version": "1.32.0", "modules": {}, "hostname": "", "grpcMaxMessageSize": 104_858_000}
        assert path == "/v1/schema", path
        return 200, {"classes": [schema("Docs", []), schema("Two", ["a", "b"]), schema("Empty", [])]}

    def Search(self, request: Any, context: Any) -> Any:  # noqa: N802
        if dict(context.invocation_metadata()).get("authorization") != f"Bearer {KEY}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "anonymous access not enabled")
        ids = [] if request.collection == "Empty" else sorted(IDS)
        if request.HasField("filters"):
            assert len(request.filters.value_text_array.values) <= request.limit
            ids = [one for one in ids if one in set(request.filters.value_text_array.values)]
        else:
            assert not request.metadata.vector
            ids = [one for one in ids if one > request.after][: request.limit]
            self.pages.append(len(ids))
        return search_get_pb2.SearchReply(results=[self.found(request, one) for one in ids])

    def found(self, request: Any, one: str) -> Any:
        row = IDS.index(one)
        metadata = search_get_pb2.MetadataResult(id=one, id_as_bytes=uuid.UUID(one).bytes)
        if request.metadata.vector and request.collection == "Docs":
            metadata.vector_bytes = VECTORS[row].astype("<f4").tobytes()
        for name in request.metadata.vectors if request.collection == "Two" else ():
            vector = VECTORS[row] if name == "b" else -VECTORS[row]
            metadata.vectors.append(base_pb2.Vectors(name=name, vector_bytes=vector.astype("<f4").tobytes()))
        text, inner = properties_pb2.Value(text_value=TEXTS[row]), properties_pb2.Value(text_value=TITLES[row])
        deep = properties_pb2.Value(object_value=properties_pb2.Properties(fields={"title": inner}))
        fields = {"text": text, "meta": deep} if not request.HasField("properties") else {}
        held = search_get_pb2.PropertiesResult(non_ref_props=properties_pb2.Properties(fields=fields))
        return search_get_pb2.SearchResult(metadata=metadata, properties=held)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, str]]:
    """The stand-in and its address."""
    monkeypatch.setattr(servers, "LISTED_TOGETHER", 8)
    monkeypatch.setenv("WEAVIATE_API_KEY", KEY)
    made, objects = Server(), grpc.server(ThreadPoolExecutor(2))
    weaviate_pb2_grpc.add_WeaviateServicer_to_server(made, objects)
    monkeypatch.setenv("WEAVIATE_GRPC_PORT", str(objects.add_insecure_port("127.0.0.1:0")))
    objects.start()
    try:
        with serving(made.answer) as address:
            yield made, f"weaviate:{address}"
    finally:
        objects.stop(0).wait()


def test_rows_texts_and_choices(server: tuple[Server, str]) -> None:
    there, address = server
    check_store(address, IDS, "Docs")
    check_store(address, IDS, "Two/b")
    assert there.pages[:5] == [8, 8, 8, 6, 0]
    _, address = server
    assert "which collection? give collection=<one of Docs, Empty, Two>" in refusal(address)
    assert "no collection Dogs; did you mean Docs?" in refusal(address, "Dogs")
    assert "collection Two has the vectors a, b; give collection=Two/<one of them>" in refusal(address, "Two")
    assert "holds no vectors" in refusal(address, "Empty")
    assert "no such text; did you mean text?" in refused_field(address, "txt", "Docs")


def test_what_is_refused(server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, address = server
    monkeypatch.setenv("WEAVIATE_API_KEY", "another-string")
    message = refusal(address, "Docs")
    assert "cannot be read" in message
    assert "another-string" not in message
    assert "vectors=weaviate:http://127.0.0.1:9: cannot be read" in refusal("weaviate:http://127.0.0.1:9")
    assert "w0rd" not in refusal("weaviate:http://w0rd@host:8080")
    monkeypatch.setitem(sys.modules, "weaviate", None)
    assert "pip install 'unembed[weaviate]'" in refusal(address, "Docs")
