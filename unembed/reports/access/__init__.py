"""The access table: attacks down, what the attacker has across (unembed compare columns=access)."""
