"""The embedding cache: shards, index, the cached embedder."""
