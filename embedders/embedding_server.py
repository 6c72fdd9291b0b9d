"""Client of one server with the OpenAI embeddings protocol: sends a request and retries transient failures.

    POST {base_url}/embeddings   {"model": "m", "input": ["hello"], "encoding_format": "float"}
    -> {"data": [{"index": 0, "embedding": [0.1, ...]}]}

The key is read from the environment when requests are sent, and stored only in the headers of the HTTP client.
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

from unembed.core.errors import InputError
from unembed.embedders.cache.shards import Vectors
from unembed.embedders.embedding_answer import NoJSONError, retry_after, vectors_of, words_of
from unembed.embedders.exchange import Answer, AnswerError, DeadlineError, client_for, post

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_READ_CHARACTERS, _SHOWN_CHARACTERS = 2000, 200  # of a server's message
_LONGEST_BACKOFF = 60.0  # seconds
_LONGEST_WAIT = 600.0  # seconds: if a server asks for more, the run fails
_SILENT_WAIT = 5.0  # seconds: shorter waits are not logged
# Largest dimension that is read: if the dimension is unknown; and at least, if it is known, so that a vector with more
# dimensions than expected gets its own message
_MOST_DIMENSIONS, _LEAST_DIMENSIONS = 2**14, 2**12
# Size of the JSON: a number with all digits and deep indentation; the other fields of a text; the rest of an answer
_BYTES_OF_A_NUMBER, _BYTES_OF_A_TEXT, _SPARE_BYTES = 48, 4096, 2**20
_TRIED_AGAIN = {408, 409, 425, 429}  # and everything from 500 on
_EXHAUSTED = b"insufficient_quota"  # OpenAI's code for an empty account: it comes as 429, and no waiting helps


def _address(value: str) -> str:
    # The address is written into config.yaml, so it must not contain a secret.
    try:
        parts = urlsplit(value)
        plain = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        plain = plain and value.isprintable() and not any(letter in value for letter in "@?# ")
    except ValueError:  # the port is not a number
        plain = False
    if not plain:
        raise PydanticCustomError("address", "an http or https address without user name, query or fragment")
    return value


Address = Annotated[str, AfterValidator(_address)]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an attempt failed.

    Attributes:
        again: Whether another attempt may succeed.
        billed: Whether the server may have billed the attempt although it failed.
        asked_wait: Seconds that the server asks to wait.
    """

    reason: str
    again: bool
    billed: bool = False
    asked_wait: float | None = None


class EmbeddingServer:
    """Requests the vectors of a few texts at a time.

    Attributes:
        name: Model and address, for messages.
        dimension: Dimension of a vector; without the argument ``dimensions``, None until the first answer.
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
        self._jitter = random.Random()  # separate from the run's seeded global generator

    def client(self, connections: int) -> httpx.AsyncClient:
        """An HTTP client with at most ``connections`` concurrent requests.

        Raises:
            InputError: The environment variable of the key is not set or holds no valid key; or a proxy or certificate
                file that the environment names cannot be used.
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
        """Vectors of ``texts``, (n, d) float32, from one request, which is retried after transient failures.

        Args:
            client: From :meth:`client`.
            texts: At least one. An empty text is sent as a space, since OpenAI's server refuses empty texts.
            stop: Interrupts the wait before the next attempt.
            spend: Called with n before n texts are sent again after an attempt that the server may have billed;
                returns how many of them may be sent.
            dimension: Dimension of the vectors, if known; limits the size of the answer.

        Returns:
            The vectors; null becomes NaN, and numbers that overflow float32 become infinity.

        Raises:
            InputError: The server refuses the request, does not answer, or answers with anything but a list of vectors.
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
        """The answer of one attempt, or the reason why it failed."""
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
            # Before the first answer, a wrong address is likelier than a restarting server.
            return _Failure(f"no connection: {self._quoted(_cause(error))}", again=self._reached)
        except (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError) as error:
            return _Failure(f"the connection broke: {self._quoted(_cause(error))}", again=True, billed=True)
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            return _Failure(f"{type(error).__name__}: {self._quoted(str(error))}", again=False)
        self._reached = True
        return answer if answer.status == 200 else self._refusal(answer)

    def _refusal(self, answer: Answer) -> _Failure:
        status, said = answer.status, self._quoted(words_of(answer.body))
        if status == 401:  # the server's message may contain a part of the key
            given = f"the key in {self._api_key_env}" if self._api_key_env else "a request without a key"
            return _Failure(f"refuses {given} (HTTP 401)", again=False)
        reason = f"HTTP {status}" + (f": {said}" if said else "")
        if status == 404:
            reason += "; check embedder.base_url (it mostly ends in /v1) and embedder.model"
        elif 300 <= status < 400:  # following a redirect would send the texts and the key to another server
            reason += "; redirects are not followed: give embedder.base_url the address that the server names"
            if answer.headers.get("location"):
                reason += f" ({self._quoted(answer.headers['location'])})"
        exhausted = status == 429 and _EXHAUSTED in answer.body
        again = not exhausted and (status in _TRIED_AGAIN or status >= 500)
        return _Failure(reason, again=again, asked_wait=retry_after(answer.headers))

    def _wait(self, attempt: int, asked: float | None) -> float:
        """Seconds until the next attempt: the server's request or exponential backoff, with jitter."""
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
        """A server's message on one line, without control characters and without the key."""
        key = self._key()
        said, whole = said[:_READ_CHARACTERS], len(said) <= _READ_CHARACTERS
        if key:
            said = said.replace(key, "***")
            said = said if whole else said[: -len(key)]  # truncation may have left a part of the key
        said = " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())
        return said if len(said) <= _SHOWN_CHARACTERS else f"{said[: _SHOWN_CHARACTERS - 1]}…"


async def stopped_within(seconds: float, stop: asyncio.Event) -> bool:
    """Wait for ``stop``; False if it is not set within ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


def _cause(error: BaseException) -> str:
    """The original error, below wrappers such as "all connection attempts failed"."""
    while isinstance(error, BaseExceptionGroup) or error.__cause__ is not None:
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error
    return str(error) or type(error).__name__
