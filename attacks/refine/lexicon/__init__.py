"""Lexicon search: change words of a text so that its vector moves closer to the target."""
