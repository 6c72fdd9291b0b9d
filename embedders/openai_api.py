"""Any server that speaks the OpenAI embeddings protocol: OpenAI's own, or vLLM, TEI, Ollama, llama.cpp and the like.

OpenAIEmbedder("text-embedding-3-small", dimensions=512).embed(["hello"])   # (1, 512), and one text is billed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import urlsplit

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from unembed.core.errors import InputError
from unembed.embedders.base import Keep, QueryLimitError, UnfinishedError, fingerprint_of
from unembed.embedders.cache.soundness import flaw, sound
from unembed.embedders.embedding_server import Address, EmbeddingServer

log = logging.getLogger(__name__)

_LARGE_JOB = 1000  # texts: smaller jobs are cheap and not announced
_BYTES_PER_TOKEN = 4  # of UTF-8: about right for English, and closer than a count of characters for other scripts
_PROBE = "dimension"
_TERMINATION_SECONDS = 5.0


class OpenAIEmbedder:
    """Texts to the vectors that a server gives for them, several requests at a time."""

    def __init__(
        self,
        model: str = "text-embedding-ada-002",
        base_url: Address = "https://api.openai.com/v1",
        dimensions: PositiveInt | None = None,
        api_key_env: str | None = "OPENAI_API_KEY",
        max_tokens: PositiveInt = 8191,
        batch_size: PositiveInt = 128,
        concurrency: PositiveInt = 4,
        timeout: PositiveFloat = 60.0,
        retries: NonNegativeInt = 6,
        backoff: PositiveFloat = 1.0,
        price_per_million_tokens: NonNegativeFloat | None = None,
        max_queries: PositiveInt | None = None,
    ) -> None:
        """The key is read and requests are sent on first use.

        Args:
            model: Its name on the server. If the weights behind a name change, use another cache.
            base_url: The address without ``/embeddings``.
            dimensions: Dimension to request from the server; None uses the model's own, found by sending one text.
            api_key_env: Environment variable of the key; None for a server that needs no key.
            max_tokens: Context length of the model. Texts are not truncated here; the server may refuse longer ones.
            batch_size: Texts per request.
            concurrency: Concurrent requests.
            timeout: Seconds for a connection, and without a byte of the answer.
            retries: Further attempts after 429, 5xx, a time-out or a broken connection.
            backoff: Seconds before the second attempt, doubled each time to at most a minute. The server's Retry-After
                takes precedence.
            price_per_million_tokens: For the estimate before a large job, in any currency.
            max_queries: Most texts that this process may send; None for no limit. A text that is sent again after a
                time-out or a broken connection counts twice, since the server may have billed it twice.
        """
        self.max_tokens = max_tokens
        self.fingerprint = fingerprint_of(
            kind="openai", server=_place(base_url), model=model, dimensions=dimensions, max_tokens=max_tokens
        )
        self._server = EmbeddingServer(base_url, model, dimensions, api_key_env, timeout, retries, backoff)
        self._batch_size = batch_size
        self._concurrency = concurrency
        self._price = price_per_million_tokens
        self._max_queries = self._left = max_queries
        self._arrived = 0

    @property
    def dimension(self) -> int:
        """Dimension of a vector; if it is unknown, a request with one text is sent.

        Raises:
            InputError: As ``embed``.
        """
        if self._server.dimension is None:
            self.embed([_PROBE])
        assert self._server.dimension is not None
        return self._server.dimension

    @property
    def texts_at_once(self) -> int:
        """Number of texts that keeps all concurrent requests busy."""
        return self._batch_size * self._concurrency

    @property
    def queries_left(self) -> int | None:
        """Texts that ``max_queries`` still allows; None without a limit."""
        return self._left

    def announce(self, texts: Iterable[str]) -> None:
        """Log the size and cost of embedding ``texts``; small jobs are not logged."""
        sizes = [len(text.encode(errors="replace")) for text in texts]
        if len(sizes) < _LARGE_JOB:
            return
        tokens = sum(-(-size // _BYTES_PER_TOKEN) for size in sizes)
        cost = "embedder.price_per_million_tokens would tell the cost"
        if self._price is not None:
            cost = f"cost about {tokens / 1e6 * self._price:,.2f} at {self._price:g} per million"
        line = f"{self._server.name}: {len(sizes):,} texts to embed, about {tokens:,} tokens; {cost}"
        if self._left is not None and self._left < len(sizes):
            line += f"; embedder.max_queries ends it after {self._left:,} texts"
        log.info(line)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors of ``texts``, (n, d) float32 on the CPU.

        Raises:
            InputError: The key is missing.
            QueryLimitError: ``max_queries`` is reached; the error holds the vectors that arrived.
            UnfinishedError: The server refuses a request, does not answer or sends an invalid answer; the error holds
                the vectors that arrived.
        """
        if not texts:
            return torch.empty(0, self.dimension)
        vectors: dict[int, Tensor] = {}

        def keep(places: Sequence[int], rows: Tensor) -> None:
            good = sound(rows.numpy())
            vectors.update((place, row) for place, row, is_good in zip(places, rows, good, strict=True) if is_good)
            if not good.all():
                bad = int(good.argmin())
                raise InputError(f"{self._server.name}: gave {flaw(rows[bad].numpy())} for text {places[bad]}")

        def arrived() -> Tensor:
            return torch.stack([vectors[place] for place in sorted(vectors)]) if vectors else torch.empty(0)

        try:
            self.deliver(texts, keep)
        except UnfinishedError as error:
            raise type(error)(str(error), sorted(vectors), arrived()) from None
        return arrived()

    def deliver(self, texts: Sequence[str], keep: Keep) -> None:
        """Hand the vectors of ``texts`` to ``keep`` as they arrive; see ``Remote``.

        Raises:
            InputError: The key is missing.
            QueryLimitError: ``max_queries`` is reached.
            UnfinishedError: The server refuses a request, does not answer or sends an invalid answer.
        """
        client = self._server.client(self._concurrency)
        stop, free = asyncio.Event(), asyncio.Semaphore(self._concurrency)
        failures: list[InputError] = []
        before = self._arrived

        async def fetch(start: int) -> None:
            batch = texts[start : start + self._batch_size]
            async with free:
                try:
                    if allowed := 0 if stop.is_set() else self._take(len(batch)):
                        vectors = await self._server.vectors(client, batch[:allowed], stop, self._take)
                        await asyncio.to_thread(keep, range(start, start + allowed), torch.from_numpy(vectors))
                        self._arrived += allowed
                except BaseException as error:  # start no further request, but await the pending ones: they are billed
                    stop.set()
                    if not isinstance(error, InputError):
                        raise
                    failures.append(error)

        async def fetch_all() -> None:
            async with client:
                starts = range(0, len(texts), self._batch_size)
                outcomes = await asyncio.gather(*map(fetch, starts), return_exceptions=True)
            for error in filter(None, outcomes):
                raise error

        run_beside(fetch_all(), stop, self._server.name)
        if failures:
            stored = f"; vectors that had arrived and are kept in the cache: {self._arrived:,}" if self._arrived else ""
            raise UnfinishedError(f"{failures[0]}{stored}", [], torch.empty(0))
        if self._arrived - before < len(texts):
            raise QueryLimitError(
                f"embedder.max_queries={self._max_queries} is reached: this process has sent so many texts to "
                f"{self._server.name}, and the {self._arrived:,} vectors that arrived are kept in the cache. Raise it, "
                "or run the command again to send as many more: only what is missing is sent",
                [],
                torch.empty(0),
            )

    def _take(self, texts: int) -> int:
        """Count ``texts`` against ``max_queries``; returns how many of them may be sent."""
        if self._left is None:
            return texts
        granted = min(texts, self._left)
        self._left -= granted
        return granted


def _place(base_url: str) -> str:
    """Host, port and path of an address, normalised: identifies a server."""
    parts = urlsplit(base_url)
    return f"{parts.netloc.lower()}{parts.path.rstrip('/')}"


def run_beside(job: Coroutine[Any, Any, None], stop: asyncio.Event, name: str) -> None:
    """Run a job of requests in an event loop on a separate thread, since Ctrl-C only interrupts the main thread.

    After Ctrl-C, pending requests are awaited until a second Ctrl-C; after SIGTERM, for a few seconds, since SIGKILL
    follows soon.

    Args:
        job: Coroutine to run; its exceptions are raised here.
        stop: Set to tell the job to start no further request.
        name: Name of the server, for the log.
    """
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
        loop = runner.get_loop()
        under_way = pool.submit(runner.run, job)
        try:
            under_way.result()
        except BaseException as error:
            patience: float | None = _TERMINATION_SECONDS
            if isinstance(error, KeyboardInterrupt):
                log.warning("%s: waiting for the requests under way, which are paid for; Ctrl-C again drops them", name)
                patience = None
            with contextlib.suppress(KeyboardInterrupt):
                loop.call_soon_threadsafe(stop.set)
                wait([under_way], patience)
            if not under_way.done():
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
            raise
