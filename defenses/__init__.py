"""Defenses: transformations of the vectors that an attacker sees, one per file."""
