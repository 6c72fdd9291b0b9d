"""Search a collection's vectors under a defense, to measure the utility that the defense costs.

    index = Searchable(collection, embedder, max_tokens=32)
    metrics = index.retrieve(defense)            # {"ndcg_at_10": (queries,), "recall_at_10": ..., "mrr_at_10": ...}

Vectors come from the cache, so each text is embedded once whatever the number of defenses; defended ones are made block
by block and never stored.

The search is exact. Inner products are first computed in float32, where their last bits depend on the shape of a block.
Candidates for the top k are then rescored in float64, one row at a time, so that equal documents have equal scores;
ties are sorted by position. If more documents are tied than there are candidates, all of them are rescored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.core.examples import Example
from unembed.datamodules.arrow_examples import to_arrow
from unembed.datamodules.collections import Collection
from unembed.datamodules.truncation import Truncation
from unembed.defenses.base import Defense, searched
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors
from unembed.metrics.retrieval import score_rankings
from unembed.metrics.statistics import Floats

Similarity = Literal["dot", "cosine"]

QUERIES = 256  # compared with a block at once
RESCORED = 4_000_000  # numbers that are multiplied in float64 at once
SPARE = 16  # candidates beyond k, so that rounding cannot hide one of the best


class Best(NamedTuple):
    """The best ``k`` documents of each query, or all where there are fewer: positions from 0 and scores, best first."""

    positions: Tensor
    scores: Tensor


def search(queries: Tensor, blocks: Iterable[Tensor], k: int, similarity: Similarity = "dot") -> Best:
    """The ``k`` documents with the highest product, or cosine, with each query; of equals the earlier one.

    Args:
        queries: (q, d), at least one.
        blocks: The documents in order, (n_i, d) each.
        k: Documents wanted.
        similarity: ``cosine`` divides by the lengths of both; a vector of zeros is like nothing (cosine 0).
    """
    queries = _unit(queries.float()) if similarity == "cosine" else queries.float()
    positions = torch.empty(len(queries), 0, dtype=torch.int64)
    scores = torch.empty(len(queries), 0, dtype=torch.float64)
    begin = 0
    for block in blocks:
        if block.ndim != 2 or block.shape[1] != queries.shape[1]:
            raise ValueError(f"documents of shape {tuple(block.shape)} do not go with queries of {queries.shape[1]}")
        if not len(block):
            continue
        block = _unit(block.float()) if similarity == "cosine" else block.float()
        best = [_best_of_block(some, block, k) for some in torch.split(queries, QUERIES)]
        columns, values = (torch.cat(parts) for parts in zip(*best, strict=True))
        scores, order = torch.cat([scores, values], dim=1).sort(dim=1, descending=True, stable=True)
        positions = torch.cat([positions, columns + begin], dim=1).gather(1, order)
        scores, positions = scores[:, :k].contiguous(), positions[:, :k].contiguous()
        begin += len(block)
    return Best(positions, scores)


def _best_of_block(queries: Tensor, block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Columns and float64 scores of the best of a block, (q, min(k, n)), best first."""
    # Bound of the float32 rounding error of a sum of d products in any order.
    error = block.shape[1] * torch.finfo(torch.float32).eps * block.norm(dim=1).max() * queries.norm(dim=1)
    products = queries @ block.T
    k, candidate_count = min(k, len(block)), min(k + SPARE, len(block))
    values, columns = products.topk(candidate_count, dim=1)
    if not values.isfinite().all():
        raise ValueError("a product of a query and a document is not finite")
    columns = columns.sort(dim=1).values  # of equal scores, a stable sort then leaves the earlier document first
    exact = _rescored(queries, block, columns)
    exact, order = exact.sort(dim=1, descending=True, stable=True)
    columns, exact = columns.gather(1, order)[:, :k], exact[:, :k]
    if candidate_count < len(block):
        doubtful = values[:, k - 1] - values[:, -1] <= 2 * error
        for row in doubtful.nonzero().flatten().tolist():
            candidates = (products[row] >= values[row, k - 1] - 2 * error[row]).nonzero().flatten()
            scores, order = _rescored(queries[row : row + 1], block, candidates[None])[0].sort(
                descending=True, stable=True
            )
            columns[row], exact[row] = candidates[order[:k]], scores[:k]
    return columns, exact


def _rescored(queries: Tensor, block: Tensor, columns: Tensor) -> Tensor:
    """Products in float64 of each query (q, d) with the documents at its ``columns`` (q, m), one at a time: (q, m)."""
    together = max(1, RESCORED // (columns.shape[1] * block.shape[1]))
    parts = zip(torch.split(queries, together), torch.split(columns, together), strict=True)
    return torch.cat([(block[some].double() * query.double()[:, None, :]).sum(dim=2) for query, some in parts])


def _unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=1)


BLOCK = 16_384  # documents whose vectors are in memory at once
RECALL = (10, 100)

Defended = Literal["both", "documents"]


class Searchable:
    """A collection whose texts are cut and embedded.

    Args:
        collection: What is searched.
        embedder: The black box behind its cache.
        max_tokens: Tokens of a document and of a query that are embedded; None leaves both whole, so that the
            embedder cuts them where it must.
        tokenizer: Whose tokens are counted (see Truncation).
    """

    def __init__(
        self,
        collection: Collection,
        embedder: CachedEmbedder,
        max_tokens: PositiveInt | None = None,
        tokenizer: str = "minilm",
    ) -> None:
        self.collection, self.embedder = collection, embedder
        self.documents, self.queries = collection.documents, collection.queries
        if max_tokens is not None:
            truncation = Truncation(max_tokens, tokenizer)
            self.documents, self.queries = (
                to_arrow(truncation.cut(examples)) for examples in (self.documents, self.queries)
            )

    def embed(self) -> None:
        """Embed what is not in the cache yet; resumable."""
        _ = self._vectors

    @cached_property
    def _vectors(self) -> tuple[CachedVectors, CachedVectors]:
        """The vectors of queries and documents."""
        texts = [[example.text for example in examples] for examples in (self.queries, self.documents)]
        for some in texts:
            self.embedder.fill(some, "scoring")
        return self.embedder.view(texts[0]), self.embedder.view(texts[1])

    def stored(self, documents: Sequence[int]) -> tuple[Tensor, list[Example]]:
        """The undefended vectors of the documents at these positions, (n, d), and the documents."""
        return self._vectors[1][list(documents)], [self.documents[place] for place in documents]

    def fit(self, defense: Defense, documents: Sequence[int]) -> None:
        """Fit a defense to the documents at these positions, and to queries in languages that the documents lack.

        A defender has the store and can obtain text in the language of the queries; without it, a defense with
        per-language parameters would have none for the queries.
        """
        queries = self._vectors[0]
        vectors, examples = self.stored(documents)
        languages = {example.language for example in examples}
        foreign = [place for place, example in enumerate(self.queries) if example.language not in languages]
        vectors = torch.cat([vectors, queries[foreign]])
        defense.fit(vectors, [*examples, *(self.queries[place] for place in foreign)])

    def rankings(
        self,
        defense: Defense | None = None,
        defended: Defended = "both",
        similarity: Similarity = "cosine",
        k: int = 100,
    ) -> list[list[str]] | None:
        """Ids of the ``k`` nearest documents of each query, best first.

        Args:
            defense: Applied to the vectors, a query's and a document's in their own roles; None: as they are.
            defended: ``both`` queries and documents, or ``documents`` alone, where a store defends what it holds and
                its users send plain queries.
            similarity: How vectors are compared.
            k: Documents wanted.

        Returns:
            None where defended documents are of another dimension than the queries, so that nothing can be compared.
        """
        queries, documents = self._vectors
        defense = defense or Identity()
        asked = searched(defense if defended == "both" else Identity(), queries[:], self.queries, "query")
        if asked.shape[1] != defense.output_dimension(self.embedder.dimension):
            return None
        skip = self.collection.skip_same_id
        positions = search(asked, self._blocks(defense, documents), k + skip, similarity).positions.tolist()
        ids = self.collection.document_ids
        named = [[ids[position] for position in row] for row in positions]
        if skip:
            own = self.collection.query_ids
            named = [[name for name in row if name != query] for query, row in zip(own, named, strict=True)]
        return [row[:k] for row in named]

    def retrieve(
        self, defense: Defense | None = None, defended: Defended = "both", similarity: Similarity = "cosine"
    ) -> dict[str, Floats] | None:
        """Metrics of each query (see metrics/retrieval.py); arguments and None as in ``rankings``."""
        rankings = self.rankings(defense, defended, similarity, max(RECALL))
        return None if rankings is None else score_rankings(rankings, self.collection.relevance, RECALL)

    def _blocks(self, defense: Defense, documents: CachedVectors) -> Iterator[Tensor]:
        for start in range(0, len(documents), BLOCK):
            examples: Sequence[Example] = self.documents[start : start + BLOCK]
            yield searched(defense, documents[start : start + BLOCK], examples, "document")
