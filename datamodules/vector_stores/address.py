"""Addresses of vector stores in ``vectors=``; they are shown, stored and logged, so they must contain no password.

    chroma:folder    chroma:http://host:8000            token in CHROMA_CLIENT_AUTH_CREDENTIALS
    qdrant:folder    qdrant:https://host:6333           key in QDRANT_API_KEY
    milvus:folder.db   milvus:http://host:19530         token in MILVUS_TOKEN
    lancedb:folder
    weaviate:https://host                               key in WEAVIATE_API_KEY
    opensearch:https://host:9200                        OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD
    elasticsearch:https://host:9200                     ELASTIC_API_KEY, or ELASTIC_USERNAME and ELASTIC_PASSWORD
    pinecone:index                                      key in PINECONE_API_KEY
    postgresql://user@host:5432/database?sslmode=require      password in PGPASSWORD or ~/.pgpass

Other forms are refused, and the message does not repeat them, since a malformed address may contain a password.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from unembed.core.errors import InputError, holds_secret, secret_refused

_WEB = re.compile(
    r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._/-]*)?", re.IGNORECASE
)
_HOST = r"(?:[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]|(?:%2[Ff][A-Za-z0-9._-]+)+)(?::[0-9]{0,5})?"
_POSTGRES = re.compile(
    rf"postgres(?:ql)?://(?:[\w.%~+-]+@)?{_HOST}(?:,{_HOST})*(?:/[\w.%~+-]*)?(?:\?[\w=&.,%~+/:-]*)?", re.IGNORECASE
)
# Of libpq's parameters those that hold no secret; a value may not hide another one behind percent signs.
_PARAMETERS = {
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "gssencmode", "host",
    "hostaddr", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts",
    "options", "passfile", "port", "require_auth", "service", "sslcert", "sslcrl", "sslkey", "sslmode",
    "sslnegotiation", "sslrootcert", "target_session_attrs", "tcp_user_timeout", "user",
}  # fmt: skip
_FORMS = {
    "postgresql": ("postgresql://user@host:5432/database", "the password in PGPASSWORD or ~/.pgpass"),
    "qdrant": ("qdrant:https://host:6333 or qdrant:<folder>", "the key in QDRANT_API_KEY"),
    "milvus": ("milvus:https://host:19530 or milvus:<folder>.db", "the token in MILVUS_TOKEN"),
    "lancedb": ("lancedb:<folder>", "no password: it needs none"),
    "weaviate": ("weaviate:https://host", "the key in WEAVIATE_API_KEY"),
    "opensearch": ("opensearch:https://host:9200", "the password in OPENSEARCH_PASSWORD"),
    "elasticsearch": ("elasticsearch:https://host:9200", "the key in ELASTIC_API_KEY"),
    "pinecone": ("pinecone:<index>", "the key in PINECONE_API_KEY"),
    "chroma": ("chroma:https://host:8000 or chroma:<folder>", "the token in CHROMA_CLIENT_AUTH_CREDENTIALS"),
}
_SERVERS = {"weaviate", "opensearch", "elasticsearch"}  # they have no folders
_ALIASES = {"postgres": "postgresql"}


def split_address(vectors: str) -> tuple[str, str]:
    """The kind of a store in lower case, and the rest after the colon; the kind is empty without a colon."""
    kind, colon, place = vectors.partition(":")
    return (_ALIASES.get(kind.lower(), kind.lower()), place) if colon else ("", vectors)


def client_library(module: str, extra: str, vectors: str) -> Any:
    """Import the client library of the store that ``vectors`` names.

    Raises:
        InputError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.replace("_", "-")
        raise InputError(f"vectors={vectors}: needs the library {library}; pip install 'unembed[{extra}]'") from error


def check_address(vectors: str) -> None:
    """Refuse what may hold a password.

    Raises:
        InputError: An address that is not of its store's form; what looks like one and names no store.
    """
    if (message := address_error(vectors)) is not None:
        raise InputError(message)


def address_error(vectors: str) -> str | None:
    """Why an address is refused, without quoting it; None for files and valid addresses."""
    if Path(vectors).exists():
        return None
    kind, place = split_address(vectors)
    if kind == "postgresql":
        fits = _POSTGRES.fullmatch(vectors) is not None and _parameters_fit(vectors)
    elif kind in _FORMS:
        folder = Path(place).exists() or not re.search(r"[@?#=%]|//|^https?:", place, re.IGNORECASE)
        fits = (folder and kind not in _SERVERS) or _WEB.fullmatch(place) is not None
    else:
        return secret_refused("vectors") if holds_secret(vectors) or re.search(r":.*@", vectors, re.DOTALL) else None
    if fits:
        return None
    form, secret = _FORMS[kind]
    return (
        f"vectors={kind}:...: not of the form {form}; it is not repeated here, since it may hold a password: "
        f"leave that out, and give {secret}"
    )


def _parameters_fit(address: str) -> bool:
    query = address.partition("?")[2]
    return all(part.partition("=")[0] in _PARAMETERS for part in query.split("&") if part)
