"""The trade-off between privacy and search quality under defenses."""
