"""The configurations, a folder a group; Hydra composes them."""
