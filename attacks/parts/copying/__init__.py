"""A decoder with an open vocabulary: it copies words of a lexicon that fit the vector."""
