"""One server that speaks the OpenAI embeddings protocol: a request, and which failures are worth another attempt.

    POST {base_url}/embeddings   {"model": "m", "input": ["hello"], "encoding_format": "float"}
    -> {"data": [{"index": 0, "embedding": [0.1, ...]}]}

The key is read from the environment when requests are sent, and held in the headers of their client alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from embedders.cache.shards import Vectors
from embedders.embedding_answer import NoJSONError, retry_after, vectors_of, words_of
from embedders.exchange import Answer, AnswerError, DeadlineError, client_for, post
from errors import InputError

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_READ_CHARACTERS, _SHOWN_CHARACTERS = 2000, 200  # of what a server says
_LONGEST_BACKOFF = 60.0  # seconds
_LONGEST_WAIT = 600.0  # seconds: a server that asks for more will not be ready in this run
_SILENT_WAIT = 5.0  # seconds: shorter waits are not worth a line
# Dimensions of the largest answer that is read: where nobody knows how many there are, and else at least, so that a
# model with more than before is named as such
_MOST_DIMENSIONS, _LEAST_DIMENSIONS = 2**14, 2**12
# Of JSON: a number with all its digits, deep indentation included; the other fields of a text; the rest of an answer
_BYTES_OF_A_NUMBER, _BYTES_OF_A_TEXT, _SPARE_BYTES = 48, 4096, 2**20
_TRIED_AGAIN = {408, 409, 425, 429}  # and everything from 500 on
_EXHAUSTED = b"insufficient_quota"  # OpenAI's code for an empty account: it comes as 429, and no waiting helps


def _address(value: str) -> str:
    # What stands here is written into config.yaml, so no secret may be part of it.
    try:
        parts = urlsplit(value)
        plain = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        plain = plain and value.isprintable() and not any(letter in value for letter in "@?# ")
    except ValueError:  # a port that is no number
        plain = False
    if not plain:
        raise PydanticCustomError("address", "an http or https address without user name, query or fragment")
    return value


Address = Annotated[str, AfterValidator(_address)]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an attempt gave nothing.

    Attributes:
        again: Whether another attempt may succeed.
        billed: Whether the server may have done, and counted, the work all the same.
        asked_wait: Seconds that the server asks to wait.
    """

    reason: str
    again: bool
    billed: bool = False
    asked_wait: float | None = None


class EmbeddingServer:
    """Asks for the vectors of a few texts at a time.

    Attributes:
        name: Model and address, as messages name them.
        dimension: Of a vector; None until the first answer, where no ``dimensions`` were asked for.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        dimensions: int | None,
        api_key_env: str | None,
        timeout: float,
        retries: int,
        backoff: float,
    ) -> None:
        """No request is sent yet; the arguments are those of ``OpenAIEmbedder``."""
        self.name = f"embedder.model={model} at {base_url}"
        self.dimension = dimensions
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._model, self._dimensions, self._api_key_env = model, dimensions, api_key_env
        self._timeout, self._retries, self._backoff = timeout, retries, backoff
        self._reached = False
        self._parsing = threading.Lock()
        self._jitter = random.Random()  # the global generator is seeded, and the run's own

    def client(self, connections: int) -> httpx.AsyncClient:
        """What sends requests, so many at a time.

        Raises:
            InputError: The environment variable of the key is not set, or holds something else; a proxy or a file of
                certificates that the environment names cannot be used.
        """
        import httpx

        key = self._key()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            return client_for(headers, connections)
        except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:  # it may quote the password of a proxy
            raise InputError(
                f"{self.name}: no connection can be prepared ({type(error).__name__}): check the environment variables "
                "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
            ) from None

    async def vectors(
        self,
        client: httpx.AsyncClient,
        texts: Sequence[str],
        stop: asyncio.Event,
        spend: Callable[[int], int],
        dimension: int | None = None,
    ) -> Vectors:
        """Vectors of ``texts`` by one request, repeated where that may help; (n, d) float32, in their order.

        Args:
            client: Of :meth:`client`.
            texts: At least one. An empty one is sent as a space, since OpenAI's server refuses empty texts.
            stop: Ends a wait before the next attempt.
            spend: Asked for leave to send n texts once more, after an attempt that the server may have billed; gives
                how many of them may be sent.
            dimension: That the vectors will have, where it is known: it limits the size of the answer.

        Returns:
            NaN and infinity stand where the server gave null, or numbers that float32 does not hold.

        Raises:
            InputError: The server refuses, stays silent, or answers with something that is no list of vectors.
        """
        wanted = {} if self._dimensions is None else {"dimensions": self._dimensions}
        inputs = [text or " " for text in texts]
        request = {"model": self._model, "input": inputs, "encoding_format": "float", **wanted}
        content = json.dumps(request).encode()  # ASCII, whatever the texts hold
        attempt = 0
        while True:
            known = self.dimension or dimension
            dimensions = max(known, _LEAST_DIMENSIONS) if known else _MOST_DIMENSIONS
            most_bytes = _SPARE_BYTES + len(texts) * (_BYTES_OF_A_TEXT + _BYTES_OF_A_NUMBER * dimensions)
            outcome = await self._attempt(client, content, most_bytes)
            if not isinstance(outcome, _Failure):
                return await asyncio.to_thread(self._parsed, outcome, len(texts), dimensions)
            reason = f"{self.name}: {outcome.reason}" + (f" ({attempt + 1} attempts)" if attempt else "")
            if not outcome.again or attempt == self._retries:
                raise InputError(reason)
            wait = self._wait(attempt, outcome.asked_wait)
            if wait > _LONGEST_WAIT:
                raise InputError(f"{reason}, and asks to wait {wait:,.0f} seconds: try again then")
            if wait > _SILENT_WAIT:
                log.warning("%s; the next attempt in %.0f seconds", reason, wait)
            if await stopped_within(wait, stop):
                raise InputError(f"{reason}; given up, since another request failed")
            if outcome.billed and spend(len(texts)) < len(texts):
                raise InputError(f"{reason}; embedder.max_queries allows no further attempt")
            attempt += 1

    def _key(self) -> str | None:
        if self._api_key_env is None:
            return None
        key = os.environ.get(self._api_key_env, "").strip()
        if not key:
            raise InputError(
                f"embedder.api_key_env={self._api_key_env}: that environment variable is not set; export it with the "
                "server's key, or give embedder.api_key_env=null for a server that wants none"
            )
        if not (key.isascii() and key.isprintable()) or " " in key:  # an error of the HTTP library would quote it
            raise InputError(f"embedder.api_key_env={self._api_key_env}: that environment variable holds no key")
        return key

    async def _attempt(self, client: httpx.AsyncClient, content: bytes, most_bytes: int) -> Answer | _Failure:
        """A good answer, or why there is none."""
        import httpx

        try:
            answer = await post(client, self._url, content, most_bytes, self._timeout)
        except DeadlineError as error:
            what = "answer" if error.sent else "connection"
            reason = f"no {what} within embedder.timeout={self._timeout:g} seconds"
            return _Failure(reason, again=True, billed=error.sent)
        except AnswerError as error:
            return _Failure(self._quoted(str(error)), again=False)
        except httpx.ConnectError as error:
            # Before anything was ever answered, a wrong address is likelier than a server that restarts.
            return _Failure(f"no connection: {self._quoted(_cause(error))}", again=self._reached)
        except (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError) as error:
            return _Failure(f"the connection broke: {self._quoted(_cause(error))}", again=True, billed=True)
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            return _Failure(f"{type(error).__name__}: {self._quoted(str(error))}", again=False)
        self._reached = True
        return answer if answer.status == 200 else self._refusal(answer)

    def _refusal(self, answer: Answer) -> _Failure:
        status, said = answer.status, self._quoted(words_of(answer.body))
        if status == 401:  # the server's words may hold a part of the key
            given = f"the key in {self._api_key_env}" if self._api_key_env else "a request without a key"
            return _Failure(f"refuses {given} (HTTP 401)", again=False)
        reason = f"HTTP {status}" + (f": {said}" if said else "")
        if status == 404:
            reason += "; check embedder.base_url (it mostly ends in /v1) and embedder.model"
        elif 300 <= status < 400:  # to follow would send the texts and the key somewhere else
            reason += "; redirects are not followed: give embedder.base_url the address that the server names"
            if answer.headers.get("location"):
                reason += f" ({self._quoted(answer.headers['location'])})"
        exhausted = status == 429 and _EXHAUSTED in answer.body
        again = not exhausted and (status in _TRIED_AGAIN or status >= 500)
        return _Failure(reason, again=again, asked_wait=retry_after(answer.headers))

    def _wait(self, attempt: int, asked: float | None) -> float:
        """Seconds until the next attempt: what the server asks for, or twice as long each time; never all at once."""
        jitter = self._jitter.random()
        if asked is not None:
            return asked + jitter * self._backoff
        return min(self._backoff * 2.0**attempt, _LONGEST_BACKOFF) * (0.5 + 0.5 * jitter)

    def _parsed(self, answer: Answer, texts: int, most_dimensions: int) -> Vectors:
        with self._parsing:  # one at a time: a parsed answer takes a multiple of its bytes
            try:
                vectors = vectors_of(answer.body, texts, most_dimensions)
            except NoJSONError as error:
                said = f"{answer.headers.get('content-type', 'no content type')}, {error}"
                raise InputError(
                    f"{self.name}: the answer is no JSON; check embedder.base_url, which mostly ends in /v1 "
                    f"({self._quoted(said)})"
                ) from None
            except ValueError as error:
                raise InputError(f"{self.name}: {self._quoted(str(error))}") from None
            self.dimension = self.dimension or vectors.shape[1]
            if vectors.shape[1] != self.dimension:
                wanted = "embedder.dimensions asks for" if self._dimensions else "the first answer had"
                raise InputError(
                    f"{self.name}: gave vectors of dimension {vectors.shape[1]}, {wanted} {self.dimension}"
                )
            return vectors

    def _quoted(self, said: str) -> str:
        """What a server says, on one line, without control characters and without the key that it may repeat."""
        key = self._key()
        said, whole = said[:_READ_CHARACTERS], len(said) <= _READ_CHARACTERS
        if key:
            said = said.replace(key, "***")
            said = said if whole else said[: -len(key)]  # the cut may have left a part of it
        said = " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())
        return said if len(said) <= _SHOWN_CHARACTERS else f"{said[: _SHOWN_CHARACTERS - 1]}…"


async def stopped_within(seconds: float, stop: asyncio.Event) -> bool:
    """Wait for ``stop``; False where it does not come within ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


def _cause(error: BaseException) -> str:
    """What went wrong at first: the layers above say that "all connection attempts failed"."""
    while isinstance(error, BaseExceptionGroup) or error.__cause__ is not None:
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error
    return str(error) or type(error).__name__
