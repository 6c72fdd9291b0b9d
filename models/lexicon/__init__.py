"""Lexicon search: words of a text are replaced by others whose vectors fit what the text's vector lacks."""
