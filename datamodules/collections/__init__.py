"""Collections of documents and queries, which can be searched."""
