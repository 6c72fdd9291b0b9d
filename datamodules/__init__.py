"""Data modules: sources of texts, and batches of (vector, text)."""
