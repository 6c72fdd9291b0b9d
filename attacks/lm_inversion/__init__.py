"""Attacks on the outputs of language models."""
