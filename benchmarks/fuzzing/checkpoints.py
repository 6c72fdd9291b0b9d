"""Checkpoints as evaluate, invert and a resumed train read them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import torch
from hypothesis import strategies as st

from unembed.runs import layout
from unembed.runs.checkpoints import LIGHTNING_VERSION, load_checkpoint, resume_from

from .broken import Inputs, changed, inputs, weighted, written
from .pickles import CALLS
from .reader import Reader


def readers() -> dict[str, Reader]:
    """By what is done with the file."""
    return {"last.ckpt": Reader(_loaded, _saved, _inputs, 1.5)}


def _saved() -> bytes:
    file = io.BytesIO()
    weights = {"layer.weight": torch.ones(4, 3), "layer.bias": torch.zeros(4)}
    callbacks = {"ModelCheckpoint": {"best_model_path": "/etc"}, "History": {"seconds": 3.0}}
    torch.save({"state_dict": weights, "callbacks": callbacks, LIGHTNING_VERSION: "2.6.0"}, file)
    return file.getvalue()


def _loaded(folder: Path, content: bytes) -> object:
    path = written(folder / layout.CHECKPOINT, content)
    (folder / layout.PREVIOUS).unlink(missing_ok=True)
    resume_from(folder, "last")
    return load_checkpoint(path)


def _repacked(whole: bytes, part: str, content: bytes) -> bytes:
    """The archive with another content of one of its files: sound but for that."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, content if name == part else old.read(name))
    return file.getvalue()


def _inputs(whole: bytes) -> Inputs:
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in parts if name.endswith("data.pkl"))
    other = st.sampled_from(sorted(parts)).flatmap(
        lambda name: changed(parts[name]).map(lambda content: _repacked(whole, name, content))
    )
    calls = CALLS.map(lambda content: _repacked(whole, pickled, content))
    return weighted((2, calls), (1, other), (2, inputs(whole)))
