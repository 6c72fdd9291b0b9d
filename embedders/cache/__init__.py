"""The embedding cache: shards, index, cached embedder."""
