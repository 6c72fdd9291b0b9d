"""Metrics of predicted texts against references, independent of the attack."""
