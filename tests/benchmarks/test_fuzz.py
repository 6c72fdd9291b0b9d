"""A few broken files of vectors and stores; benchmarks/fuzz_stores.py tries thousands. And what it found once."""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import strategies as st

from support.processes import ROOT
from support.running_benchmarks import Benchmarks
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.vector_files import read_vectors
from unembed.runs.checkpoints import load_checkpoint

VECTORS = ["vectors.npy", "vectors.safetensors", "vectors.parquet", "vectors.jsonl"]
STORES = ["FAISS Flat", "Qdrant folder"]


@pytest.fixture
def fuzzing(benchmarks: Benchmarks) -> ModuleType:
    return benchmarks.load("fuzz_stores")


def test_these_are_readers(fuzzing: ModuleType) -> None:
    names = fuzzing.readers().keys()
    assert names > {*VECTORS, *STORES}


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTORS)
def test_a_good_file_is_read_and_broken_ones_are_refused(fuzzing: ModuleType, tmp_path: Path, name: str) -> None:
    faults = fuzzing.Faults(tmp_path)
    outcomes = fuzzing.fuzz(name, 8, faults)  # raises where the good one is not read
    assert len(outcomes) >= 6
    assert any(outcome.kind == "refused" for outcome in outcomes)
    # What takes long depends on the machine too; benchmarks/fuzz_stores.py says so.
    assert not [key for key in faults.found if not key[0].startswith(("more than 2 s", "waits longer"))]


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_a_good_one_is_read_and_broken_ones_are_tried(fuzzing: ModuleType, tmp_path: Path, name: str) -> None:
    pytest.importorskip({"FAISS Flat": "faiss", "Qdrant folder": "qdrant_client"}[name])
    faults = fuzzing.Faults(tmp_path)
    assert len(fuzzing.fuzz(name, 3, faults)) >= 2
    assert not [key for key in faults.found if not key[0].startswith(("more than 2 s", "waits longer"))]


def misbehave(folder: Path, content: bytes) -> None:
    """Does what its input says."""
    match content:
        case b"refuse":
            raise InputError("no")
        case b"raise":
            raise KeyError("a")
        case b"crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"end":
            os._exit(3)
        case b"busy":
            while True:
                pass
        case b"busy child":
            subprocess.run([sys.executable, "-c", "while True: pass"], check=True)
        case b"wait":
            time.sleep(60)
        case b"memory":
            held = bytearray(1_500_000_000)
            held[::4096] = b"a" * len(held[::4096])
            raise InputError("no")
        case b"print":
            log = logging.getLogger("fuzzed")
            log.propagate, log.handlers = False, [logging.StreamHandler(sys.stderr)]
            log.error("%d", "b")  # logging prints a traceback, and raises nothing
        case b"remove":
            shutil.rmtree("../outside")
            raise KeyError("a")
        case b"make":
            Path("../outside/made").touch()


@pytest.mark.parametrize(
    ("content", "kind", "place"),
    [
        (b"", "read", ""), (b"refuse", "refused", ""), (b"raise", "KeyError", "misbehave"),
        (b"crash", "SIGSEGV", "misbehave"), (b"end", "exit code 3", ""), (b"busy", "more than 0.3 s", "misbehave"),
        pytest.param(b"busy child", "more than 0.3 s", "", marks=pytest.mark.slow),
        pytest.param(b"wait", "waits longer than 1 s", "misbehave", marks=pytest.mark.slow),
        pytest.param(b"memory", "more than 500 MB", "", marks=pytest.mark.slow),
        (b"print", "prints a traceback", ""),
        (b"remove", "harm", "a file outside was removed"), (b"make", "harm", "outside/made was made"),
    ],
)  # fmt: skip
def test_what_an_input_does_to_a_process_is_found_out(
    fuzzing: ModuleType, tmp_path: Path, content: bytes, kind: str, place: str
) -> None:
    child = importlib.import_module("fuzzing.child")
    seconds, waiting = 5 if content == b"memory" else 0.3, 1 if content == b"wait" else 10
    most = 500 if content == b"memory" else 8000  # a fork has the memory of this process
    found = child.attempt(misbehave, content, tmp_path / "folder", child.Limits(seconds, waiting, megabytes=most))
    assert found.kind == kind
    assert place in found.place


def test_a_library_in_an_environment_inside_the_clone_is_not_ours(fuzzing: ModuleType) -> None:
    child = importlib.import_module("fuzzing.child")
    frames = [
        (ROOT / "benchmarks" / "fuzzing" / "child.py", "serve"),
        (ROOT / "datamodules" / "files.py", "read"),
        (ROOT / ".venv" / "lib" / "python3.11" / "site-packages" / "numpy" / "npyio.py", "load"),
    ]
    lines = [f'  File "{path}", line {number}, in {name}' for number, (path, name) in enumerate(frames, 1)]
    assert child.place_of("\n".join(lines)) == "datamodules/files.py:2 read"
    assert child.place_of("\n".join(reversed(lines)), innermost_first=True) == "datamodules/files.py:2 read"
    assert child.place_of("\n".join(lines[::2])).endswith("numpy/npyio.py:3 load")


def test_a_fault_is_saved(
    fuzzing: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = importlib.import_module("fuzzing.broken").Reader(misbehave, lambda: b"", lambda _: st.just(b"raise"))
    monkeypatch.setattr(fuzzing, "readers", lambda: {"a reader": reader})
    with pytest.raises(SystemExit, match="1"):
        fuzzing.main(["--inputs=3", f"--folder={tmp_path}"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert {"inputs": 1, "readers": 1, "faults": 1}.items() <= json.loads(last).items()
    assert any("KeyError" in line for line in lines)
    assert next(tmp_path.glob("a-reader--*.input")).read_bytes() == b"raise"


def test_long_messages_and_bytes_over_which_torch_trips(tmp_path: Path) -> None:
    said = str(InputError(f"config.yaml: {'a' * 10_000}; did you mean b?"))
    assert len(said) < 4000
    assert said.startswith("config.yaml: aaa")
    assert said.endswith("aaa; did you mean b?")
    (tmp_path / "a.ckpt").write_bytes(b"a")  # an IndexError, once
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
        load_checkpoint(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': F3, 4), }",  # Python's tokenizer gave up with an error of its own
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 30 + b", 4), }",
        b"(" * 300,
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3, 4), }",
    ],
)
def test_headers_of_arrays_that_were_found(tmp_path: Path, header: bytes) -> None:
    padded = header + b" " * (-(len(header) + 11) % 64) + b"\n"
    (tmp_path / "mine.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + b"\0" * 48)
    with pytest.raises(InputError, match=r"mine\.npy: no \.npy array can be read"):
        read_vectors(tmp_path / "mine.npy", 4)
