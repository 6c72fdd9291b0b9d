"""What defenses cost and what they protect: tradeoff.py."""
