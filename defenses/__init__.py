"""What a defender does to vectors before an attacker sees them, one defense a file."""
