"""The access table: attacks down, what the attacker has across (compare.py columns=access)."""
