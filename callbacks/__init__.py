"""Lightning callbacks and loggers for training and testing."""
