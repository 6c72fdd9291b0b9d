"""Readers of vector stores: files, FAISS, Chroma, Qdrant, pgvector."""
