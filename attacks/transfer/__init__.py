"""Attacks with few pairs or none: ALGEN, TEIA, unpaired translation, and the maps they use."""
