"""Attacks on what a language model put out."""
