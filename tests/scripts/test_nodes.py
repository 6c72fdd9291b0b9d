"""Two "nodes": torchrun twice on this machine, a process each, over gloo. They give what one process gives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.files import metrics_of
from support.processes import ROOT, Warm
from unembed import evaluate, launch, train
from unembed.core.atomic_files import read_json
from unembed.embedders.cache.shards import ShardStore, text_keys
from unembed.runs import layout
from unembed.runs.checkpoints import load_checkpoint

pytestmark = pytest.mark.slow

# Nothing random in training: two processes would each sample their own.
TINY = ["attack=geia", "trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.max_steps=8",
        "trainer.max_time=null", "~callbacks.progress", "attack.backbone.layers=1", "attack.backbone.width=32",
        "attack.backbone.heads=2", "attack.decoding.beams=2", "attack.decoding.max_new_tokens=24",
        "datamodule.limit_train=200",
        "datamodule.source.sentences=300", "+datamodule.source.valid=20", "+datamodule.source.test=30",
        "datamodule.limit_valid=10", "datamodule.limit_test=19", "datamodule.batch_size=16",
        "datamodule.eval_batch_size=4"]  # fmt: skip


def environment(cache: Path) -> dict[str, str]:
    # One thread a process: sums are added up in one order, so that every bit can be compared.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "WANDB", "RUN_ID", "COV"))}
    return {**kept, "OMP_NUM_THREADS": "1", "UNEMBED_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "RUN_ID": "together",
            "PYTHONPATH": str(ROOT)}  # fmt: skip


def two_nodes(cache: Path, cwd: Path, warm: Warm, *command: str) -> None:
    """The command of docs/running.md on both nodes, where the second knows only the first one's address.

    The first is started by the interpreter, the second forked (support/processes.py).
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1",
                f"--master-port={port}"]  # fmt: skip
    script = [str(ROOT / command[0]), *command[1:], "trainer.strategy=ddp", "trainer.num_nodes=2", "trainer.devices=1"]
    second = warm.start([*torchrun, "--node-rank=1", *script], cwd=cwd, environment=environment(cache))
    first = subprocess.Popen(
        [sys.executable, *torchrun, "--node-rank=0", *script],
        cwd=cwd, env=environment(cache), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said = [first.communicate(timeout=540)[0], *second.communicate(timeout=60)]
    finally:
        first.kill()
        second.kill()
    assert [first.returncode, second.returncode] == [0, 0], "\n".join(text[-3000:] for text in said)


def read(run: Path, name: str) -> dict[str, Any]:
    return read_json(run / name)


def vectors(cache: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    (described,) = cache.glob("*/embedder.json")
    store = ShardStore(described.parent, json.loads(described.read_bytes())["dimension"])
    return store.read(store.find(text_keys(texts)))


def test_two_nodes_are_as_good_as_one_process(tmp_path: Path, warm: Warm) -> None:
    """Embedding, training, decoding and evaluation from an empty cache; then the same by one process."""
    two, one = tmp_path / "two" / "cache", tmp_path / "one" / "cache"
    for cache in (two, one):
        cache.parent.mkdir()
    two_nodes(two, two.parent, warm, "train.py", *TINY)
    # Two processes share the batches of a step; one, which is this one, takes as many, and adds their gradients up.
    other = one.parent / "run"
    alone = [*TINY, "trainer.accumulate_grad_batches=2", f"run_dir={other}", f"cache_dir={one}"]
    train.train(launch.compose("train", alone))
    (run,) = (two.parent / "runs" / "geia-minilm-synthetic").iterdir()
    assert (run.name, read(run, layout.RECORD)["world_size"]) == ("together", 2)  # RUN_ID: one directory

    # Each text is embedded once, by one of them, to the last bit as one process does it.
    assert sum(read(run, layout.RECORD)["embedder"]["sent"].values()) == sum(
        read(other, layout.RECORD)["embedder"]["sent"].values()
    )
    texts = [row["reference"] for row in map(json.loads, (run / layout.PREDICTIONS).read_text().splitlines())]
    assert len(texts) == 19
    assert np.array_equal(vectors(two, texts), vectors(one, texts))

    # Training: the same steps but for the order of sums.
    first, second = (load_checkpoint(path / layout.CHECKPOINT)["state_dict"] for path in (run, other))
    assert first.keys() == second.keys()
    assert max(float((first[name] - second[name]).abs().max()) for name in first) < 1e-3
    assert metrics_of(run)["token_f1"] == pytest.approx(metrics_of(other)["token_f1"], abs=2.0)
    assert metrics_of(run)["cosine"] == pytest.approx(metrics_of(other)["cosine"], abs=0.02)

    # Evaluation of the same weights: exactly the same, by one process and by two.
    lines = [f"run={run}", f"output_dir={tmp_path / 'alone'}", "trainer=cpu"]
    evaluate.evaluate(*launch.on_run("evaluate", lines))
    assert (tmp_path / "alone" / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()
    assert metrics_of(tmp_path / "alone") == metrics_of(run)
