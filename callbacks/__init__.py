"""What happens around training and evaluation: predictions, scores, the report."""
