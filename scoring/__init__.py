"""Models that metrics need: entity taggers, perplexity, translation, a second embedder."""
