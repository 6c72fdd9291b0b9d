"""Checkpoints: tensors and state that a training would take over, as invert.py and a resumed train.py read them."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import unittest.mock
import zipfile
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from hydra.utils import instantiate
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import Tensor

from unembed import launch
from unembed.embedders.base import fingerprint_of
from unembed.runs import layout
from unembed.runs.batch_cache import BatchCache
from unembed.runs.checkpoints import load_checkpoint, resume_from
from unembed.runs.trust import trusting

from .broken import PATHS, VALUES, Inputs, changed, inputs, replaced, weighted, written
from .pickles import hostile
from .reader import Reader

SMALL = [
    "attack=bag_of_words", "datamodule=files", "datamodule.batch_size=4", "trainer=cpu", "logger=none",
    "trainer.precision=32-true", "trainer.max_time=00:00:00:01", "~callbacks.progress", "~callbacks.attributes",
    "~callbacks.pace", "+callbacks.checkpoint.every_n_train_steps=1", "callbacks.checkpoint.train_time_interval=null",
]  # fmt: skip
LIBRARIES = (
    "train", "lightning", "unembed.callbacks.analyses", "unembed.callbacks.baseline", "unembed.reports.page",
    "unembed.callbacks.run_record", "unembed.scoring.models", "unembed.attacks.bag_of_words",
    "unembed.attacks.parts.sharding", "unembed.datamodules.inversion", "sentence_transformers", "transformers",
    "hydra.utils", "unembed.defenses.threat",
)  # fmt: skip
ABSURD = [6_000_000_000, 2**31, 10**12]


class Letters:
    """An embedder: counts of letters."""

    dimension = len(ascii_lowercase)
    max_tokens = 64
    fingerprint = fingerprint_of(kind="letters", used="fuzzing")

    def embed(self, texts: Sequence[str]) -> Tensor:
        """(n, 26)."""
        return torch.tensor([[0.1 + text.count(letter) for letter in ascii_lowercase] for text in texts])


def readers() -> dict[str, Reader]:
    """By what is done with the file."""
    unfinished = json.dumps("0" * 32)
    return {
        "last.ckpt": Reader(_loaded, _trained, _inputs, 1.5, LIBRARIES),
        "last.ckpt, resumed": Reader(_resumed, _trained, _inputs, 0.15, LIBRARIES),
        "test_batches, unfinished": Reader(_unfinished, lambda: _unfinished_good(unfinished), _inputs, 0.5),
    }


class _FittedError(Exception):
    """Training has ended: what follows reads nothing more of a checkpoint."""


def _train(folder: Path, steps: int, resume: bool) -> None:
    import train

    data = folder / "texts.jsonl"
    if not data.exists():
        data.write_text("".join(json.dumps({"text": f"ada met bob {number}"}) + "\n" for number in range(16)))
    config = launch.compose(
        "train", [*SMALL, f"datamodule.path={data}", f"run_dir={folder / 'run'}", f"cache_dir={folder / 'cache'}"]
    )
    config.embedder = OmegaConf.create({"_target_": "fuzzing.checkpoints.Letters"})
    config.trainer.max_steps = steps
    config.ckpt_path = "last" if resume else None
    ended = unittest.mock.patch("lightning.Trainer.test", side_effect=_FittedError)
    with ended, trusting("fuzzing"):
        try:
            train.train(config)
        except _FittedError:
            return


def _trained() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _train(Path(folder), 2, resume=False)
        return (Path(folder) / "run" / layout.CHECKPOINT).read_bytes()


def _loaded(folder: Path, content: bytes) -> object:
    path = written(folder / layout.CHECKPOINT, content)
    (folder / layout.PREVIOUS).unlink(missing_ok=True)
    resume_from(folder, "last")
    return load_checkpoint(path)


def _resumed(folder: Path, content: bytes) -> None:
    whole = folder / "whole"
    if not whole.exists():
        _train(folder, 2, resume=False)
        (folder / "run").rename(whole)
    shutil.rmtree(folder / "run", ignore_errors=True)
    shutil.copytree(whole, folder / "run")
    written(folder / "run" / layout.CHECKPOINT, content)
    _train(folder, 4, resume=True)


def _unfinished(folder: Path, content: bytes) -> object:
    batches = BatchCache(folder, "settings")
    batch = {"index": torch.arange(2), "vectors": torch.ones(2, 4)}
    written(folder / "search-000000000.pt", content)
    return batches.search_state("search", batch).read()


def _unfinished_good(key: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        batches = BatchCache(Path(folder), "settings")
        batch = {"index": torch.arange(2), "vectors": torch.ones(2, 4)}
        batches.search_state("search", batch).write({"ids": torch.arange(6).reshape(2, 3), "steps": 7, "losses": [0.5]})
        return next(Path(folder).iterdir()).read_bytes()


# -- broken ones ------------------------------------------------------------------------------------------------------


def _tensors() -> st.SearchStrategy[Any]:
    """Tensors that are not what they seem: of any size without any bytes, overlapping, of other kinds."""
    sizes = st.sampled_from(ABSURD)
    plain = st.sampled_from(
        [torch.empty(0), torch.tensor(1.0), torch.full((3,), float("nan")), torch.full((2, 2), 3e38),
         torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.float8_e4m3fn),
         torch.ones(3, dtype=torch.bfloat16), torch.zeros(5056, dtype=torch.uint8),
         torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta"), torch.arange(3), torch.zeros(3, dtype=torch.bool),
         torch.nn.Parameter(torch.ones(2)), torch.ones(4).as_strided((4, 4), (0, 1))]
    )  # fmt: skip
    unfolding = st.builds(lambda size, kind: torch.zeros(1, dtype=kind).expand(size), sizes, st.sampled_from(
        [torch.float32, torch.uint8, torch.int64]))  # fmt: skip
    square = st.sampled_from([10**4, 10**5]).map(lambda size: torch.zeros(1).expand(size, size))
    return plain | plain | unfolding | square


def _saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _repacked(whole: bytes, part: str, content: bytes, packed: bool) -> bytes:
    """The archive with another content of one of its files: sound but for that."""
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(file, "w", kind) as new:
        for name in old.namelist():
            new.writestr(name, content if name == part else old.read(name))
    return file.getvalue()


def _paths(tree: Any) -> st.SearchStrategy[Any]:
    """The state of the callback that writes checkpoints, with paths that lead elsewhere."""
    paths = st.sampled_from([*PATHS, "", "run", "run/checkpoints", "run/checkpoints/../../../outside"])
    harmful = st.sampled_from(["local://../outside", "run/checkpoints/../../../outside"])
    scores = st.dictionaries(paths, st.just(torch.tensor(1.0)), max_size=2)
    nothing, one = st.none(), st.just(torch.tensor(1.0))
    state = st.fixed_dictionaries(
        {"best_model_path": harmful | paths, "last_model_path": paths, "kth_best_model_path": paths,
         "dirpath": paths | nothing, "best_k_models": scores, "monitor": nothing, "best_model_score": nothing,
         "current_score": nothing, "kth_value": one}
    )  # fmt: skip
    key = instantiate(launch.compose("train", SMALL).callbacks.checkpoint).state_key
    return state.map(lambda values: {**tree, "callbacks": {**tree.get("callbacks", {}), key: values}})


def _inputs(whole: bytes) -> Inputs:
    tree = torch.load(io.BytesIO(whole), weights_only=True)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in parts if name.endswith("data.pkl"))
    values = st.sampled_from(VALUES) | _tensors() | _tensors()
    other = st.sampled_from(sorted(parts)).flatmap(
        lambda name: changed(parts[name]).map(lambda content: _repacked(whole, name, content, packed=False))
    )
    pickles = st.builds(lambda part, packed: _repacked(whole, pickled, part, packed), hostile(parts[pickled]),
                        st.sampled_from([False] * 9 + [True]))  # fmt: skip
    return weighted(
        (4, replaced(tree, values).map(_saved)),
        (2, _paths(tree).map(_saved)),
        (2, pickles),
        (1, other),
        (2, inputs(whole)),
    )
