"""Several runs side by side: compare.py."""
