"""The audit of a vector store (audit.py)."""
