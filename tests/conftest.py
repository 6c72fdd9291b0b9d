"""Shared by all tests: no network, one thread a process, tiny models."""

from __future__ import annotations

import copy
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
import yaml

from support.processes import Warm

if TYPE_CHECKING:
    from unembed.embedders.language_model import LanguageModelEmbedder

# Before torch is imported: the tests may run side by side, and sums over more threads differ in their last bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "offline")

# A shell starts jobs in the background with Ctrl-C switched off, and their children inherit that; the tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


# What is imported stays: the collector need not walk through the libraries again and again, now or later.
gc.disable()


LONG = (
    "test_notebooks.py", "test_documented_commands.py", "test_reproducing.py", "test_train.py", "test_docs.py",
    "test_transfer.py", "test_vec2text.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest first: no worker should wait for it at the end."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """All modules are imported now; a configuration is thousands of objects, none of them garbage."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _parse_once() -> None:
    """Each composition reads the same files again, and PyYAML takes a tenth of the tests' time for it."""
    parse, trees = yaml.load, dict[tuple[str | bytes, str], Any]()

    def load(stream: str | bytes | IO[str], Loader: type) -> Any:  # noqa: N803
        text = stream if isinstance(stream, str | bytes) else stream.read()
        key = (text, Loader.__qualname__)
        if key not in trees:
            if not isinstance(stream, str | bytes):
                stream.seek(0)  # an error names the file
            trees[key] = parse(stream, Loader)
        return copy.deepcopy(trees[key])

    yaml.load = load


_parse_once()


@pytest.fixture(autouse=True)
def _no_script_remains() -> Iterator[None]:
    """A script that a test ran in this process leaves no handlers of signals, and is no starter of later processes."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for name in ("UNEMBED_STARTER", "RUN_ID"):
        os.environ.pop(name, None)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Starts scripts in processes of their own; the first start takes as long as any, the others hardly anything."""
    with Warm() as started:
        yield started


@pytest.fixture(scope="session")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a GPT-2 of 60 tokens (support/tiny_models.py)."""
    from support.tiny_models import tiny_language_model

    return tiny_language_model(tmp_path_factory.mktemp("language_model"))


@pytest.fixture(scope="session")
def tiny_lm(language_model: Path) -> LanguageModelEmbedder:
    """That model as an embedder: next-token logits."""
    from unembed.embedders.language_model import LanguageModelEmbedder

    return LanguageModelEmbedder(str(language_model), device="cpu")
