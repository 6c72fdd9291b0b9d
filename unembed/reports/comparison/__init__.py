"""The comparison of several runs (unembed compare)."""
