"""Vec2Text (Morris et al. 2023): an inverter that guesses, a corrector that reads how far off it is, a search."""
