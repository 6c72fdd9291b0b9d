"""Errors, files, examples, processes: what everything else may import, and what imports nothing of ours."""
