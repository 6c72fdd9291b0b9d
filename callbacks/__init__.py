"""Lightning callbacks and loggers: what is written, shown and scored around training and evaluation."""
