"""Models that metrics need: entity taggers, a language model for perplexity, translation, a second embedder."""
