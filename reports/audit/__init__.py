"""What a vector store discloses: audit.py."""
