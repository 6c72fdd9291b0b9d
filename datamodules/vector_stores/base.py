"""What all readers of vector stores share: addresses, folders, collections, and rows in the order asked for.

Addresses in ``vectors=`` are shown, stored and logged, so they must contain no password:

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

import fcntl
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.core.errors import InputError, did_you_mean, holds_secret, listed, missing, secret_refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
# What a folder of each kind of store holds.
MARKS = {"chroma": "chroma.sqlite3", "qdrant": "meta.json", "lancedb": "*.lance", "milvus": "collections"}
_LONGEST_MESSAGE = 400  # characters of what a library says
_DEEPEST = 8  # levels of objects within each other


def split_address(vectors: str) -> tuple[str, str]:
    """The kind of a store in lower case, and the rest after the colon; the kind is empty without a colon."""
    kind, colon, place = vectors.partition(":")
    if not colon:
        return "", vectors
    return "postgresql" if kind.lower() == "postgres" else kind.lower(), place


def check_address(vectors: str) -> None:
    """Raise InputError for an address that is not of its store's form, or what looks like one and names no store."""
    if (message := address_error(vectors)) is not None:
        raise InputError(message)


def address_error(vectors: str) -> str | None:
    """Why an address is refused, without quoting it; None for files and valid addresses."""
    if Path(vectors).exists():
        return None
    kind, place = split_address(vectors)
    if kind == "postgresql":
        names = [part.partition("=")[0] for part in vectors.partition("?")[2].split("&") if part]
        fits = _POSTGRES.fullmatch(vectors) is not None and _PARAMETERS.issuperset(names)
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


# -- opening -----------------------------------------------------------------------------------------------------------


def client_library(module: str, extra: str, vectors: str) -> Any:
    """Import the client library of the store that ``vectors`` names."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.replace("_", "-")
        raise InputError(f"vectors={vectors}: needs the library {library}; pip install 'unembed[{extra}]'") from error


@contextmanager
def reading(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Within it, these errors of a client library say that the store ``name`` cannot be read."""
    try:
        yield
    except errors as error:
        said = " ".join(str(error).split())[:_LONGEST_MESSAGE]
        raise InputError(f"vectors={name}: cannot be read: {said or type(error).__name__}") from error


@contextmanager
def closed_on_error(client: Any) -> Iterator[None]:
    """Within it, whatever fails closes the client."""
    with ExitStack() as stack:
        stack.callback(client.close)
        yield
        stack.pop_all()


def address_of(path: Path) -> str | None:
    """``chroma:folder`` for the folder of a store, or for what marks it as one; None for other paths."""
    for kind, mark in MARKS.items():
        if path.is_dir() and any(path.glob(mark)):
            return f"{kind}:{path}"
        if path.exists() and path.match(mark):
            return f"{kind}:{path.parent}"
    return None


def store_folder(kind: str, place: str) -> Path:
    """The folder of a store."""
    folder = Path(place).expanduser()
    if folder.is_dir() and any(folder.glob(MARKS[kind])):
        return folder
    if not folder.exists():
        raise InputError(f"vectors={kind}:{place}: {missing(folder, 'directory')}")
    address = address_of(folder)
    instead = f"the folder of such a store has {MARKS[kind]}" if address is None else f"give vectors={address}"
    raise InputError(f"vectors={kind}:{place}: no {kind} store; {instead}")


def checked_size(folder: Path, name: str) -> int:
    """Bytes of all files in a folder."""
    size = 0
    for path in folder.rglob("*"):
        if path.is_symlink():  # a library would follow it, and some write
            raise InputError(f"vectors={name}: {path} is a link, and such a folder holds none; copy what it leads to")
        size += path.stat().st_size if path.is_file() else 0
    return size


@contextmanager
def locked(path: Path, name: str) -> Iterator[None]:
    """Within it, no program that locks this file has the folder open, and none can open it."""
    with ExitStack() as stack:
        if path.is_file():
            file = stack.enter_context(path.open("rb"))
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"vectors={name}: another program has it open; end that first") from error
        yield


# -- what ``collection=`` names: <collection>, or <collection>/<vector> ------------------------------------------------


def chosen_collection(name: str, collection: str | None, names: Iterable[str]) -> str:
    """The collection of that name, or the only one.

    Args:
        name: Of the store, as messages begin.
        collection: What ``collection=`` gives.
        names: Collections of the store.
    """
    present = sorted(names)
    if collection is None and len(present) != 1:
        raise InputError(f"vectors={name}: which collection? give collection=<one of {listed(present) or 'none'}>")
    wanted = present[0] if collection is None else collection
    if wanted not in present:
        raise InputError(f"vectors={name}: no collection {wanted}; {did_you_mean(wanted, present)}")
    return wanted


def chosen_vector(
    name: str, collection: str | None, names: Iterable[str], vectors_of: Callable[[str], Sequence[str] | None]
) -> tuple[str, str | None]:
    """The collection, and the name of one of its vectors; None where the only one has no name."""
    wanted, _, vector = (None, "", "") if collection is None else collection.partition("/")
    chosen = chosen_collection(name, wanted, names)
    kinds = vectors_of(chosen)
    if kinds is None:
        return chosen, None
    vector = vector or (kinds[0] if len(kinds) == 1 else "")
    if vector not in kinds:
        raise InputError(
            f"vectors={name}: collection {chosen} has the vectors {listed(sorted(kinds)) or 'none'}; "
            f"give collection={chosen}/<one of them>"
        )
    return chosen, vector


# -- rows --------------------------------------------------------------------------------------------------------------


class KeyedStore:
    """A store whose rows are asked for by key, and come in an order of its own, or not at all; see TextStore.

    Subclasses give vectors and payloads by key, as a library returns them.

    Args:
        name: For messages and reports: no password in it.
        keys: Of all rows.
        errors: What the client library raises.
    """

    def __init__(self, name: str, keys: Sequence[Any], *errors: type[Exception]) -> None:
        self.name, self._keys, self._errors = name, keys, errors
        self.ids: Sequence[str] = [str(key) for key in keys]

    def fetch(self, positions: Sequence[int]) -> NDArray[Any]:
        """The vectors of ``ids[position]`` for each position, (n, d)."""
        import numpy as np

        rows = self._rows(positions, self._vectors)
        try:
            vectors = np.stack([np.asarray([] if row is None else row, np.float32) for row in rows])
        except (TypeError, ValueError):
            vectors = np.empty((0, 0), np.float32)
        if not vectors.size:
            raise InputError(f"vectors={self.name}: a row has no vector, a sparse one, or one of another dimension")
        return vectors

    def texts(self, positions: Sequence[int], field: str | None = None) -> Sequence[Mapping[str, str]]:
        """Text fields of ``ids[position]`` for each position, by name; only ``field``, where one is given."""
        rows = self._rows(positions, lambda keys: self._payloads(keys, field))
        return [flat_texts(row, field) for row in rows]

    def _rows(self, positions: Sequence[int], ask: Callable[[list[Any]], Mapping[Any, Any]]) -> list[Any]:
        keys = [self._keys[position] for position in positions]
        with reading(self.name, *self._errors):
            rows = ask(keys)
        if absent := sum(key not in rows for key in keys):
            raise InputError(
                f"vectors={self.name}: {absent} of {len(keys)} rows do not come back, as if deleted meanwhile; read it "
                "again"
            )
        return [rows[key] for key in keys]

    def _vectors(self, keys: list[Any]) -> Mapping[Any, Any]:
        raise NotImplementedError

    def _payloads(self, keys: list[Any], field: str | None) -> Mapping[Any, Any]:
        """What stands beside the vectors; ``field`` may spare the others."""
        raise NotImplementedError


def flat_texts(payload: Mapping[str, Any] | None, field: str | None = None) -> dict[str, str]:
    """The texts of the object that a store keeps beside a vector, by dotted name; only ``field``, where one is given.

    ``flat_texts({"a": 1, "b": {"c": "hi"}})`` is ``{"b.c": "hi"}``.
    """
    texts: dict[str, str] = {}
    left: list[tuple[str, Any, int]] = [("", payload or {}, 0)]
    while left:
        name, value, depth = left.pop()
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, Mapping) and depth < _DEEPEST:
            left += [(f"{name}.{key}" if name else str(key), one, depth + 1) for key, one in value.items()]
    return texts if field is None else {field: texts[field]} if field in texts else {}
