"""Trained attackers that are shipped with unembed: each folder here is a run directory, opened by its name.

unembed invert run=minilm vectors=mine.npy
"""
