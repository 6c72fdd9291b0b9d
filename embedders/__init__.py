"""Text embedders and the embedding cache."""
