"""What improves predictions with the embedder at hand: reranking, lexicon search, sentence search."""
