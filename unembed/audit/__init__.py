"""The audit of a vector store (unembed audit)."""
