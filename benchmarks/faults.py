"""Kills processes at random moments of embedding, training, hypotheses, evaluation and inversion, and looks at the end.

    python benchmarks/faults.py --folder /tmp/faults --runs 20

Each run is started as a user would start it, killed by SIGKILL (one of its processes, or all), started again with
ckpt_path=last, perhaps killed again, and then left alone. Its predictions, its metrics, its weights and the texts in
its cache must be those of a run that nobody disturbed: bit by bit, but for cosines, which may differ by the rounding of
float32, since hypotheses whose vectors were lost are embedded again in other batches. Ends with one JSON line; the exit
code is 1 where a run ended otherwise.

The scripts run in forks of this process, which has imported the libraries: no time for that is killed in.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers  # noqa: F401  imported before the first fork
from lightning.pytorch.utilities import rank_zero_only
from measuring import command_line

from unembed.core.atomic_files import read_json
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.cache.shards import ShardStore
from unembed.embedders.minilm import MiniLM
from unembed.runs import layout

DATA = ["datamodule.limit_train=160", "datamodule.limit_valid=8", "datamodule.limit_test=24",
        "datamodule.batch_size=16", "datamodule.eval_batch_size=4"]  # fmt: skip
TRAINER = ["trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.max_time=null",
           "~callbacks.progress", "+callbacks.checkpoint.every_n_train_steps=5",
           "callbacks.checkpoint.train_time_interval=null"]  # fmt: skip
GEIA = [*DATA, *TRAINER, "attack=geia", "attack.backbone.layers=1", "attack.backbone.width=32",
        "attack.backbone.heads=2", "attack.decoding.beams=2", "attack.decoding.max_new_tokens=24"]  # fmt: skip
INVERTER = [*DATA, *TRAINER, "attack=vec2text_inverter", "attack.backbone.encoder_layers=1",
            "attack.backbone.decoder_layers=1", "attack.backbone.width=32", "attack.backbone.heads=2",
            "attack.prefix.vectors=4", "attack.decoding.max_new_tokens=24"]  # fmt: skip
CORRECTOR = [*DATA, *TRAINER, "attack=vec2text_corrector", "attack.layout.vectors=4", "attack.max_new_tokens=24",
             "attack.hypotheses.noise=[0.0,0.2]", "attack.search.steps=3"]  # fmt: skip
PATIENCE_SECONDS = 600.0
ROUNDING = 1e-6  # of cosines
SHARD = 64  # rows: a kill shall find some shards written, others not


@dataclass(frozen=True)
class Work:
    """What is disturbed: a script, its overrides, how many processes it has, and the cache that it begins with."""

    name: str
    script: str
    overrides: list[str]
    processes: int
    cache: Path | None


@dataclass(frozen=True)
class Outcome:
    """What a run left."""

    predictions: list[dict[str, Any]]
    metrics: dict[str, Any]
    weights: dict[str, torch.Tensor]
    stored: tuple[int, int]  # rows in the cache, and distinct ones among them


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="is made, filled and removed")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60, help="of each training (default 60)")
    parser.add_argument("--only", default="", metavar="NAME", help="what is disturbed, in part: 'embed', '(1)' ...")
    options = parser.parse_args(argv)
    folder: Path = options.folder
    folder.mkdir()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    torch.set_num_threads(1)
    CachedEmbedder.__init__.__kwdefaults__["shard_size"] = SHARD
    chance = random.Random(options.seed)
    for overrides in (GEIA, INVERTER, CORRECTOR):
        overrides.append(f"trainer.max_steps={options.steps}")

    base = folder / "base"
    cache, geia, inverter = (base / "inverter" / "cache", base / "geia" / "run", base / "inverter" / "run")
    evaluation = [f"run={geia}", "attack.decoding.rerank=8"]
    vectors = base / "vectors.npy"
    inversion = [f"run={geia}", f"vectors={vectors}", "trust_vectors=true", "batch_size=4", "attack.decoding.rerank=8"]
    works = [
        work
        for n in (1, 2)
        for work in (
            Work(f"embed, train, test ({n})", "train", GEIA, n, None),
            Work(f"hypotheses, corrector ({n})", "train", [*CORRECTOR, f"attack.inverter_run={inverter}"], n, cache),
            Work(f"evaluate, rerank 8 ({n})", "evaluate", evaluation, n, cache),
            Work(f"invert 400 vectors ({n})", "invert", inversion, n, base / "geia" / "cache"),
        )
        if options.only in work.name
    ]
    if not works:
        parser.error(f"--only {options.only!r}: in none of the names")
    if any(work.cache is not None for work in works):
        for work in (Work("geia", "train", GEIA, 1, None), Work("inverter", "train", INVERTER, 1, base / "geia/cache")):
            undisturbed(work, base / work.name)
        texts = [row["reference"] for row in outcome_of(Work("", "train", [], 1, None), base / "geia").predictions]
        some = MiniLM("cpu").embed(texts).numpy()
        np.save(vectors, some[np.arange(400) % len(some)] + np.random.default_rng(0).normal(0, 0.01, (400, 1)))
    wanted = {}
    for number, work in enumerate(works):
        wanted[work.name] = undisturbed(work, folder / f"undisturbed{number}")
    print(f"{'run':>4}  {'what (processes)':<32}{'kills':<44}{'the end':<20}", flush=True)
    results = []
    for number in range(options.runs):
        work = works[number % len(works)]
        outcome, seconds = wanted[work.name]
        kills: list[str] = []
        wrong = ""
        while not kills and not wrong:  # a run that was quicker than its kill is made again
            shutil.rmtree(folder / f"run{number}", ignore_errors=True)
            kills, found = disturbed(work, folder / f"run{number}", seconds, chance)
            wrong = different(work, outcome, found) if isinstance(found, Outcome) else found
            seconds *= 0.9
        print(f"{number + 1:>4}  {work.name:<32}{', '.join(kills):<44}{wrong or 'as undisturbed':<20}", flush=True)
        results.append({"work": work.name, "kills": kills, "wrong": wrong})
        if not wrong:
            shutil.rmtree(folder / f"run{number}")
    right = sum(not result["wrong"] for result in results)
    print(json.dumps({"runs": len(results), "right": right, "kills": sum(len(r["kills"]) for r in results)}))
    if right < len(results):
        raise SystemExit(f"what went wrong is kept in {folder}")
    shutil.rmtree(folder)


def undisturbed(work: Work, folder: Path) -> tuple[Outcome, float]:
    """A run from beginning to end, and the seconds that it took."""
    began = time.monotonic()
    prepare(work, folder)
    if any(wait(start(work, folder, session=0))):
        raise SystemExit(f"{work.name} fails undisturbed: {(folder / 'session0.log').read_text()[-2000:]}")
    return outcome_of(work, folder), time.monotonic() - began


def disturbed(work: Work, folder: Path, seconds: float, chance: random.Random) -> tuple[list[str], Outcome | str]:
    """A run that is killed once or twice, then resumed; what was killed when, and its outcome or what went wrong."""
    prepare(work, folder)
    kills: list[str] = []
    planned = chance.choice([1, 1, 2])
    for session in range(planned + 1):
        processes = start(work, folder, session)
        delay = chance.uniform(0, seconds) if session < planned else PATIENCE_SECONDS
        moment = time.monotonic() + delay
        while time.monotonic() < moment and all(map(alive, processes)):
            time.sleep(0.01)
        if session == planned or not all(map(alive, processes)):  # left alone, or quicker than the kill
            if any(codes := wait(processes)):
                return kills, f"exit codes {codes}: {folder / f'session{session}.log'}"
            return kills, outcome_of(work, folder)
        chosen = chance.choice([*processes, None])
        kills.append(f"{'all' if chosen is None or len(processes) == 1 else 'one'} after {delay:.0f} s")
        for pid in processes if chosen is None else [chosen]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)  # torchrun and SLURM end the other processes of a job, too
        wait(processes, patience=0.0)
    raise AssertionError("the last session returns")


def prepare(work: Work, folder: Path) -> None:
    folder.mkdir(parents=True)
    if work.cache is not None:
        shutil.copytree(work.cache, folder / "cache")


def start(work: Work, folder: Path, session: int) -> list[int]:
    """The processes of one session, as torchrun would start them."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    target = {"train": "run_dir", "evaluate": "output_dir", "invert": "output"}[work.script]
    arguments = [*work.overrides, f"{target}={folder / 'run'}", f"cache_dir={folder / 'cache'}"]
    arguments += ["ckpt_path=last"] if work.script == "train" and session else []
    several = work.processes > 1 and work.script != "invert"
    arguments += ["trainer.strategy=ddp", "trainer.devices=2"] if several else []
    pids = []
    for rank in range(work.processes):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        os.environ["UNEMBED_CACHE"] = str(folder / "cache")
        if work.processes > 1:
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": work.processes, "GROUP_RANK": 0,
                     "LOCAL_WORLD_SIZE": work.processes, "TORCHELASTIC_RUN_ID": "faults",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
            os.environ |= {name: str(value) for name, value in ranks.items()}
            rank_zero_only.rank = rank  # type: ignore[attr-defined]
        in_child(work.script, arguments, folder / f"session{session}.log")
    return pids


def in_child(script: str, arguments: list[str], log: Path) -> None:
    """Run a script with its output in a file, then end this process: nothing of the parent's is tidied up twice."""
    code = 1
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            sys.argv = ["unembed", script, *arguments]
            runpy.run_module("unembed", run_name="__main__", alter_sys=True)
            code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        if code and sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def alive(pid: int) -> bool:
    """Whether a child still runs; one that has ended is left to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def wait(pids: list[int], patience: float = PATIENCE_SECONDS) -> list[int]:
    """Exit codes; what hangs is killed after ``patience`` seconds, and counts as failed."""
    end = time.monotonic() + patience
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def outcome_of(work: Work, folder: Path) -> Outcome:
    run = folder / "run"
    if work.script == "invert":
        if rest := [path.name for path in folder.glob("*.part*")]:
            raise SystemExit(f"{folder}: left behind {rest}")
        return Outcome([json.loads(line) for line in run.read_text().splitlines()], {}, {}, (0, 0))
    metrics = {name: value for name, value in read_json(run / layout.METRICS).items() if name != "seconds"}
    weights = {}
    if work.script == "train":
        weights = torch.load(run / layout.CHECKPOINT, weights_only=True)["state_dict"]
    rows = distinct = 0
    for described in (folder / "cache").glob("*/embedder.json"):
        store = ShardStore(described.parent, json.loads(described.read_bytes())["dimension"])
        rows += len(store)
        distinct += len(np.unique(np.concatenate([keys for keys, _ in store._index._runs])))
    predictions = [json.loads(line) for line in (run / layout.PREDICTIONS).read_text().split("\n")[:-1]]
    return Outcome(predictions, metrics, weights, (rows, distinct))


def different(work: Work, wanted: Outcome, found: Outcome) -> str:
    """What of an outcome is not as it should be; empty where all is.

    No text is embedded twice, but for hypotheses that two processes think of at the same moment: a shard of those.
    """
    wrong = []
    if wanted.weights.keys() != found.weights.keys() or not all(
        torch.equal(wanted.weights[name], found.weights[name]) for name in wanted.weights
    ):
        wrong.append("weights")
    if len(wanted.predictions) != len(found.predictions) or not all(map(alike, wanted.predictions, found.predictions)):
        wrong.append("predictions")
    if not alike(wanted.metrics, found.metrics):
        wrong.append("metrics")
    twice = found.stored[0] - found.stored[1]
    if twice > (SHARD if work.processes > 1 and work.cache is not None else 0):
        wrong.append(f"{twice} texts stored twice")
    return ", ".join(wrong)


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two lines or sets of metrics are equal but for the rounding of cosines."""

    def same(key: str) -> bool:
        pair = one[key], other[key]
        floats = "cosine" in key and all(isinstance(value, float) for value in pair)
        return pair[0] == pair[1] or (floats and abs(pair[0] - pair[1]) < ROUNDING)

    return one.keys() == other.keys() and all(map(same, one))


if __name__ == "__main__":
    main()
