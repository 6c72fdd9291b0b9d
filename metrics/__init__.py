"""Scores of predicted texts against references. No metric knows an attack."""
