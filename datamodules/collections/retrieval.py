"""Search a collection's vectors under a defense, to measure the utility that the defense costs.

    index = Searchable(collection, embedder, max_tokens=32)
    metrics = index.retrieve(defense)            # {"ndcg_at_10": (queries,), "recall_at_10": ..., "mrr_at_10": ...}

Vectors come from the cache, so each text is embedded once whatever the number of defenses; defended ones are made block
by block and never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from unembed.core.examples import Example
from unembed.datamodules.arrow_examples import to_arrow
from unembed.datamodules.collections.base import Collection
from unembed.datamodules.collections.exact_search import Similarity, search
from unembed.datamodules.truncation import Truncation
from unembed.defenses.base import Defense
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder, CachedVectors
from unembed.metrics.retrieval import score_rankings
from unembed.metrics.statistics import Floats

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
        self._views: tuple[CachedVectors, CachedVectors] | None = None

    def embed(self) -> None:
        """Embed what is not in the cache yet; resumable."""
        texts = [[example.text for example in examples] for examples in (self.queries, self.documents)]
        for some in texts:
            self.embedder.fill(some, "scoring")
        self._views = (self.embedder.view(texts[0]), self.embedder.view(texts[1]))

    def fit(self, defense: Defense, documents: Sequence[int]) -> None:
        """Fit a defense to the documents at these positions, and to queries in languages that the documents lack.

        A defender has the store and can obtain text in the language of the queries; without it, a defense with
        per-language parameters would have none for the queries.
        """
        queries, stored = self._vectors()
        examples = [self.documents[place] for place in documents]
        languages = {example.language for example in examples}
        foreign = [place for place, example in enumerate(self.queries) if example.language not in languages]
        vectors = torch.cat([stored[list(documents)], queries[foreign]])
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
        queries, documents = self._vectors()
        defense = defense or Identity()
        asked = (defense if defended == "both" else Identity())(queries[:], self.queries, "query")
        if asked.shape[1] != defense.output_dimension(self.embedder.dimension):
            return None
        skip = self.collection.skip_same_id
        found = search(asked, self._blocks(defense, documents), k + skip, similarity).positions.tolist()
        ids = self.collection.document_ids
        named = [[ids[position] for position in row] for row in found]
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

    def _vectors(self) -> tuple[CachedVectors, CachedVectors]:
        if self._views is None:
            self.embed()
        assert self._views is not None
        return self._views

    def _blocks(self, defense: Defense, documents: CachedVectors) -> Iterator[Tensor]:
        for start in range(0, len(documents), BLOCK):
            examples: Sequence[Example] = self.documents[start : start + BLOCK]
            yield defense(documents[start : start + BLOCK], examples, "document")
