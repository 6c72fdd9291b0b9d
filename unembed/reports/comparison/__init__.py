"""The comparison of several runs (compare.py)."""
