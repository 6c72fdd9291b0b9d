"""Pinecone: its own client, and a stand-in for the service, whose emulator is a container image only.

The stand-in answers the paths of its HTTP interface that the reader needs: ids in pages, vectors by ids.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.http_stand_in import serving
from support.stores import DIMENSION, ROWS, TEXTS, TITLES, VECTORS, check_store, refusal, refused_field

pytest.importorskip("pinecone")

IDS = [f"doc#{row}" for row in range(ROWS)]
KEY = "tied-with-string"


class Service:
    """An index with the namespaces "" and "mail", or whichever are given."""

    def __init__(self) -> None:
        self.namespaces: dict[str, list[str]] = {"": IDS}
        self.address, self.asked = "", 0

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: Any, headers: dict[str, str]
    ) -> tuple[int, Any]:
        if headers.get("api-key") != KEY:
            return 401, {"error": {"code": "UNAUTHENTICATED", "message": "Invalid API Key"}, "status": 401}
        if path == "/describe_index_stats":
            counts = {name: {"vectorCount": len(ids)} for name, ids in self.namespaces.items()}
            return 200, {"dimension": DIMENSION, "indexFullness": 0, "totalVectorCount": ROWS, "namespaces": counts}
        (name,) = query.get("namespace", [""])
        ids = self.namespaces[name]
        if path == "/vectors/list":
            begin = int(query.get("paginationToken", ["0"])[0])
            part = ids[begin : begin + 8]
            more = {"pagination": {"next": str(begin + 8)}} if begin + 8 < len(ids) else {}
            return 200, {"vectors": [{"id": one} for one in part], "namespace": name, **more}
        assert path == "/vectors/fetch", path
        self.asked = max(self.asked, len(query["ids"]))
        return 200, {"namespace": name, "vectors": {one: self.row(one) for one in sorted(query["ids"]) if one in ids}}

    def row(self, one: str) -> dict[str, Any]:
        row = IDS.index(one)
        return {"id": one, "values": VECTORS[row].tolist(), "metadata": {"text": TEXTS[row], "title": TITLES[row]}}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Service, str]]:
    """The stand-in and its address."""
    monkeypatch.setenv("PINECONE_API_KEY", KEY)
    made = Service()
    with serving(made.answer) as address:
        yield made, f"pinecone:{address}"


def test_rows_texts_and_namespaces(service: tuple[Service, str]) -> None:
    _, address = service
    check_store(address, IDS, title="title")
    assert "no such text; did you mean text?" in refused_field(address, "txt")
    there, address = service
    there.namespaces["mail"] = IDS[:20]
    assert "which collection? give collection=<one of __default__, mail>" in refusal(address)
    assert "no collection male; did you mean mail?" in refusal(address, "male")
    check_store(address, IDS, "__default__", title="title")
    there.namespaces.clear()
    there.namespaces[""] = []
    assert "holds no vectors" in refusal(address)


def test_what_is_refused(service: tuple[Service, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, address = service
    monkeypatch.setenv("PINECONE_API_KEY", "another-string")
    message = refusal(address)
    assert "cannot be read" in message
    assert "another-string" not in message
    assert "cannot be read" in refusal("pinecone:http://127.0.0.1:9")
    assert "PINECONE_API_KEY" in refusal("pinecone:https://index?api_key=w0rd")
    monkeypatch.delenv("PINECONE_API_KEY")
    assert "give the key in PINECONE_API_KEY" in refusal(address)
    monkeypatch.setitem(sys.modules, "pinecone", None)
    assert "pip install 'unembed[pinecone]'" in refusal(address)
