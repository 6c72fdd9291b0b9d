"""The commands, a file each: ``unembed <command>``. train.py and evaluate.py stand at the root of the clone."""
