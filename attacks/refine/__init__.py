"""What improves predictions with the embedder at hand: reranking, consensus, lexicon search."""
