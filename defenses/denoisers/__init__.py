"""Denoisers: estimates of the vectors behind noisy ones, from noisy vectors alone, one per file."""
