"""Vec2Text (Morris et al. 2023): inverter, corrector and search."""
