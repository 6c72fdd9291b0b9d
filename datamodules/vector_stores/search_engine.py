"""Vectors of an OpenSearch or Elasticsearch index: ``opensearch:https://host:9200``, ``elasticsearch:https://host:9200``.

    OPENSEARCH_USERNAME, OPENSEARCH_PASSWORD
    ELASTIC_API_KEY, or ELASTIC_USERNAME (elastic) and ELASTIC_PASSWORD

SSL_CERT_FILE names the certificates of one's own authority. Fields of type knn_vector and dense_vector are read; an
index with several needs ``collection=<index>/<field>``. Ids are those of the documents that have the field, as of the
moment when their list was begun (a scroll); behind an alias of several indexes they begin with the index. Both engines
are asked the same questions, each by its own client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.base import KeyedStore, chosen_vector, client_library, reading

LISTED_TOGETHER = 10_000  # the most that both engines give at once
_KEPT_ALIVE = "2m"  # for which a server keeps the list of ids between two pages
_TIMEOUT = 60.0  # seconds
Ask = Callable[[str, str, Mapping[str, Any] | None], Any]  # method, path and body -> the answer's JSON


class SearchEngineStore(KeyedStore):
    """An index under the ids of its documents."""

    def __init__(self, name: str, ask: Ask, index: str, vector: str) -> None:
        self.name, self._ask, self._index, self._vector = name, ask, quote(index, safe=""), vector
        super().__init__(name, keys := self._listed())
        several = len(dict(keys)) > 1  # indexes behind an alias, whose documents may have the same ids
        self.ids = [f"{index}/{one}" if several else one for index, one in keys]

    def _listed(self) -> list[tuple[str, str]]:
        """Index and id of each document."""
        documents: list[tuple[str, str]] = []
        query = {"size": LISTED_TOGETHER, "_source": False, "sort": ["_doc"],
                 "query": {"exists": {"field": self._vector}}}  # fmt: skip
        page = self._ask("POST", f"/{self._index}/_search?scroll={_KEPT_ALIVE}", query)
        try:
            while hits := self._complete(page)["hits"]["hits"]:
                documents += [(str(hit["_index"]), str(hit["_id"])) for hit in hits]
                page = self._ask("POST", "/_search/scroll", {"scroll": _KEPT_ALIVE, "scroll_id": page["_scroll_id"]})
        finally:  # also where a shard fails, since a server keeps only so many; else it ends by itself
            with suppress(InputError):
                self._ask("DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]})
        return documents

    def _vectors(self, keys: list[tuple[str, str]]) -> Mapping[Any, Any]:
        # By "fields", since Elasticsearch leaves vectors out of "_source" from 9.2 on.
        hits = self._documents(keys, {"_source": False, "fields": [self._vector]})
        return {key: hit.get("fields", {}).get(self._vector) for key, hit in hits.items()}

    def _payloads(self, keys: list[tuple[str, str]], field: str | None) -> Mapping[Any, Any]:
        wanted = {"excludes": [self._vector]} if field is None else [field]
        return {key: hit.get("_source") for key, hit in self._documents(keys, {"_source": wanted}).items()}

    def _documents(self, keys: list[tuple[str, str]], wanted: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
        hits: dict[tuple[str, str], Any] = {}
        for index in dict(keys):  # by the name that was given: the right to read an alias is none to read its indexes
            ids = [one for named, one in keys if named == index]
            among = [{"ids": {"values": ids}}, {"term": {"_index": index}}]
            query = {"size": len(ids), "query": {"bool": {"filter": among}}, **wanted}
            for hit in self._complete(self._ask("POST", f"/{self._index}/_search", query))["hits"]["hits"]:
                hits[index, str(hit["_id"])] = hit
        return hits

    def _complete(self, answer: Any) -> Any:
        """An answer of all shards: a search succeeds although some do not answer, without what they hold."""
        shards = answer.get("_shards", {})
        if shards.get("failed") or answer.get("timed_out"):
            failures = shards.get("failures") or [{}]
            reason = (failures[0].get("reason") or {}).get("reason") or "too late"
            raise InputError(
                f"vectors={self.name}: {shards.get('failed', 0)} of {shards.get('total', 0)} shards did not answer "
                f"({' '.join(str(reason).split())[:200]}), and what they hold is missing; read it again"
            )
        return answer


def open_opensearch(place: str, collection: str | None) -> SearchEngineStore:
    """Open an index of an OpenSearch server."""
    name = f"opensearch:{place}"
    library = client_library("opensearchpy", "opensearch", name)
    user = os.environ.get("OPENSEARCH_USERNAME")
    client = library.OpenSearch(
        hosts=[_with_port(place)], timeout=_TIMEOUT, **_certificates(place),
        http_auth=(user, os.environ.get("OPENSEARCH_PASSWORD", "")) if user else None,
    )  # fmt: skip

    def ask(method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        with reading(name, library.exceptions.OpenSearchException):
            return client.transport.perform_request(method, path, body=body)

    return _open(name, ask, collection)


def open_elasticsearch(place: str, collection: str | None) -> SearchEngineStore:
    """Open an index of an Elasticsearch server."""
    name = f"elasticsearch:{place}"
    library = client_library("elasticsearch", "elasticsearch", name)
    key, password = os.environ.get("ELASTIC_API_KEY"), os.environ.get("ELASTIC_PASSWORD")
    user = os.environ.get("ELASTIC_USERNAME", "elastic")
    client = library.Elasticsearch(
        [_with_port(place)], request_timeout=_TIMEOUT, api_key=key, **_certificates(place),
        basic_auth=(user, password) if password and not key else None,
    )  # fmt: skip
    # Servers of the version before the client's refuse the content type that it would send.
    headers = {"accept": "application/json", "content-type": "application/json"}

    def ask(method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        with reading(name, library.ApiError, library.TransportError):
            return client.perform_request(method, path, headers=headers, body=body).body

    return _open(name, ask, collection)


def _with_port(place: str) -> str:
    """The address with the port that it means; Elasticsearch's client has none of its own."""
    server = urlsplit(place)
    if server.port is not None:
        return place
    port = 443 if server.scheme.lower() == "https" else 9200
    return server._replace(scheme=server.scheme.lower(), netloc=f"{server.netloc}:{port}").geturl()


def _certificates(place: str) -> dict[str, str]:
    """The certificates of one's own authority, as both clients take them; they refuse them for http."""
    file = os.environ.get("SSL_CERT_FILE")
    return {"ca_certs": file} if file and place.lower().startswith("https:") else {}


def _open(name: str, ask: Ask, collection: str | None) -> SearchEngineStore:
    named = (collection or "").partition("/")[0]
    mappings = {}
    if named:  # the rights to see this one suffice
        mappings = ask("GET", f"/{quote(named, safe='')}/_mapping?ignore_unavailable=true", None)
    if mappings:  # of an alias those of each index behind it
        fields = {named: sorted({one for mapping in mappings.values() for one in _vectors_of(mapping["mappings"])})}
    else:
        every = {index: _vectors_of(mapping["mappings"]) for index, mapping in ask("GET", "/_mapping", None).items()}
        fields = {index: vectors for index, vectors in every.items() if vectors}
    chosen, vector = chosen_vector(name, collection, fields, fields.__getitem__)
    return SearchEngineStore(f"{name} ({chosen})", ask, chosen, vector or "")


def _vectors_of(mapping: Mapping[str, Any], within: str = "") -> list[str]:
    """The dotted names of the fields of vectors."""
    names = []
    for name, field in mapping.get("properties", {}).items():
        if field.get("type") in ("knn_vector", "dense_vector"):
            names.append(within + name)
        elif field.get("type", "object") == "object":
            names += _vectors_of(field, f"{within}{name}.")
    return sorted(names)
