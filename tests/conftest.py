"""Shared by all tests: no network, one thread a process, tiny models."""

from __future__ import annotations

import os
import signal

# Before torch is imported: the tests may run side by side, and sums over more threads differ in their last bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "offline")

# A shell starts jobs in the background with Ctrl-C switched off, and their children inherit that; the tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
