"""Vectors in: files, FAISS, Chroma, Qdrant, pgvector."""
