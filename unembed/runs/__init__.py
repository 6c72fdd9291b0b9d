"""Run directories: their layout, trust checks, checkpoints, and rebuilding a stored attack."""
