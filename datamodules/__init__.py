"""Where texts come from, and how they become batches of (vector, text)."""
