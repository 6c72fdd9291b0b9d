"""Maps from one vector space to another, fitted to few pairs of vectors."""
