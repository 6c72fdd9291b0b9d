"""ROUGE-L by number of known texts: the map of ALGEN's authors and ours before one decoder, and TEIA's own decoders.

    python train.py attack=geia embedder=transformer embedder.model=<own encoder> ... run_dir=runs/own
    python benchmarks/alignment.py --source runs/own --data personachat=personachat.jsonl presidio=presidio.jsonl \\
        --output alignment.jsonl

``paper`` is the pseudo-inverse, ``map`` our map alone, ``ours`` the same with feedback, ``teia`` attack=teia, which
trains the decoder further and leaves its runs beside the output. A file of texts has the fields
``text`` and ``split``; the known texts are the first of its training split. Intervals are 95 % of a bootstrap over the
test texts, paired for the ratio. Each line is appended to the output when it is measured, and the same command measures
what is missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Rows, cka, command_line
from torch import Tensor

from unembed import launch, train
from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.transfer.algen import Proposals, feedback
from unembed.attacks.transfer.aligners import Known, LeaveOneOut, PseudoInverse
from unembed.metrics.rouge import RougeL
from unembed.metrics.scored import Scored
from unembed.metrics.statistics import interval, resampled_sums
from unembed.runs import layout
from unembed.runs.config_file import read_config
from unembed.runs.stored_attack import attack_of
from unembed.session import Session

PAIRS = (1, 10, 50, 100, 300, 384, 500, 1000, 8000)
RESAMPLES = 2000
ATTACKS = ("paper", "map", "ours", "teia")
ROUNDS, PROPOSALS = 3, 4


class Attacker:
    """A run of a decoder: its own encoder, and what it writes for the vectors of others."""

    def __init__(self, session: Session, public: int) -> None:
        self.session = session
        attack = attack_of(session.run, session.dimension)
        assert isinstance(attack, GenerativeAttack)
        self.attack = attack
        self.public = self.embed(list(session.training_texts()[:public]))

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors by the own encoder."""
        return self.session.embedder.embed(texts, "training").double()

    def decode(self, vectors: Tensor) -> Proposals:
        """Texts for vectors of the own space, best first."""
        found = self.attack.propose(Targets(vectors.float(), torch.arange(len(vectors))), None)
        return [list(one.candidates) for one in found]

    def texts(self, known: Known, wanted: Collection[str]) -> Iterator[tuple[str, Proposals]]:
        """What the attacks that need no training read of the store."""
        self.attack.decoding.propose(1)
        if "paper" in wanted:
            yield "paper", self.decode(PseudoInverse().fit(known).map(known.store))
        if not {"map", "ours"} & set(wanted):
            return
        found = LeaveOneOut().fit(known)
        start = found.map(known.store)
        if "map" in wanted:
            yield "map", self.decode(start)
        if "ours" not in wanted:
            return
        self.attack.decoding.propose(PROPOSALS)
        forth = LeaveOneOut().fit(known.reversed()).plain
        yield "ours", feedback(known.store, start, found.plain, forth, ROUNDS, self.decode, self.embed)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--source", type=Path, required=True, help="run of the decoder on the attacker's own encoder")
    parser.add_argument("--data", nargs="+", required=True, metavar="NAME=FILE", help="texts: text, split")
    parser.add_argument(
        "--victim", nargs="+", default=["embedder=minilm"], metavar="KEY=VALUE", help="embedder (default minilm)"
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=PAIRS, help="numbers of known texts")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=ATTACKS, help="what is measured")
    parser.add_argument("--steps", type=int, default=200, help="training steps of teia (default 200)")
    parser.add_argument("--texts", type=int, default=200, help="test texts (default 200)")
    parser.add_argument("--public", type=int, default=4000, help="texts of the source's training (default 4000)")
    parser.add_argument("--max-tokens", type=int, default=32, help="where texts are cut (default 32)")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = Rows(options.output)
    attacker: Attacker | None = None

    def add(data: str, pairs: int, attack: str, texts: Proposals, references: Sequence[str]) -> None:
        scores = [RougeL().of_example(Scored(a, b[0])) for a, b in zip(references, texts, strict=True)]
        rows.add({"data": data, "pairs": pairs, "attack": attack, "scores": scores})
        print(f"{data} {pairs} {attack}: {np.mean(scores):.1f}", flush=True)

    for name, _, path in (given.partition("=") for given in options.data):
        done = {(row["pairs"], row["attack"]) for row in rows if row["data"] == name}
        if {(0, "ceiling"), *product(options.pairs, options.attacks)} <= done:
            continue
        attacker = attacker or Attacker(Session.open(options.source, read_config(options.source)), options.public)
        victim, store, known, test = _vectors(attacker.session, path, max(options.pairs), options)
        true, own = attacker.embed(test), attacker.embed(known)
        if (0, "ceiling") not in done:
            print(f"{name}: linear CKA of the two spaces {cka(store, true):.2f}")
            add(name, 0, "mean", attacker.decode(attacker.public.mean(0).expand(len(test), -1)), test)
            add(name, 0, "ceiling", attacker.decode(true), test)
        for pairs in (pairs for pairs in options.pairs if pairs <= len(known)):
            wanted = {attack for attack in options.attacks if (pairs, attack) not in done}
            for attack, texts in attacker.texts(Known(victim[:pairs], own[:pairs], store, attacker.public), wanted):
                add(name, pairs, attack, texts, test)
            if "teia" in wanted and pairs > 1:
                run = options.output.parent / f"teia_{name}_{pairs}"
                add(name, pairs, "teia", transferred(run, path, pairs, attacker.session, options), test)
    print(json.dumps({"rows": table(rows)}))


def _vectors(
    source: Session, path: str, pairs: int, options: argparse.Namespace
) -> tuple[Tensor, Tensor, list[str], list[str]]:
    """Victim vectors of the known and of the test texts, and these texts."""
    config = launch.compose("train", ["attack=nearest_neighbor", *_setting(source, path, pairs, options)])
    data = Session(config, options.output.parent).datamodule
    data.embed("train", "test")
    given, test = data.examples("train"), data.examples("test")
    known, store = (data.clean_vectors(one, range(len(data.examples(one)))).double() for one in ("train", "test"))
    return known, store, list(given.texts), list(test.texts)


def _setting(source: Session, path: str, pairs: int, options: argparse.Namespace) -> list[str]:
    """The victim, the known and the test texts."""
    return [
        *options.victim, "logger=none", "datamodule=files", f"datamodule.path='{path}'",
        "datamodule.split_field=split", f"datamodule.limit_train={pairs}", f"datamodule.limit_test={options.texts}",
        f"datamodule.max_tokens={options.max_tokens}", f"cache_dir={source.config.cache_dir}",
    ]  # fmt: skip


def transferred(run: Path, path: str, pairs: int, source: Session, options: argparse.Namespace) -> Proposals:
    """What a run of attack=teia reads; an interrupted one is resumed."""
    train.train(launch.compose("train", [
        "attack=teia", f"attack.source_run='{options.source}'", *_setting(source, path, pairs, options),
        f"run_dir='{run}'", f"trainer.max_steps={options.steps}", "~callbacks.attributes", "ckpt_path=last",
    ]))  # fmt: skip
    lines = map(json.loads, (run / layout.PREDICTIONS).read_text(encoding="utf-8").splitlines())
    return [[line["prediction"]] for line in sorted(lines, key=lambda line: line["index"])]


def table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean, interval and ratio for each number of pairs; printed, too."""
    found = []
    by = {(row["data"], row["pairs"], row["attack"]): np.array(row["scores"]) for row in rows}
    for (data, pairs, attack), scores in by.items():
        sums = resampled_sums(np.stack([scores, np.ones(len(scores))], 1), RESAMPLES, seed=0)
        low, high = interval(sums[:, 0] / sums[:, 1]) or (np.nan, np.nan)
        line = {"data": data, "pairs": pairs, "attack": attack, "rougeL": scores.mean(), "low": low, "high": high}
        paper = by.get((data, pairs, "paper"))
        if attack in ("map", "ours", "teia") and paper is not None:
            both = resampled_sums(np.stack([scores, paper], 1), RESAMPLES, seed=0)
            low, high = interval(both[:, 0] / both[:, 1]) or (np.nan, np.nan)
            line |= {"ratio": scores.mean() / paper.mean(), "ratio_low": low, "ratio_high": high}
        found.append({key: round(value, 3) if isinstance(value, float) else value for key, value in line.items()})
        print(*(f"{key}={value}" for key, value in found[-1].items()))
    return found


if __name__ == "__main__":
    main()
