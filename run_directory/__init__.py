"""What is done with a run directory (runs.py): trusted, begun from, checked, and its attack built again."""
