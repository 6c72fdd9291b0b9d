"""Training rates of attack=bag_of_words and attack=multiset against attack=geia, all as train.py runs them.

    python benchmarks/classifiers.py --device cpu --threads 2
    python benchmarks/classifiers.py --path my.jsonl --sentences 6000 --own-time --threads 1

The same texts, vectors and number of entries: all three predict tokens of a byte-level BPE of geia's size. Batches are
those that each attack is trained with, 256 texts for bag_of_words and 64 for the others.
The attacks take turns in one process; a value is whole epochs after a first one that warms up, and a ratio is the
median over the rounds. `ratio` in the JSON line at the end is the worse of the two margins: how far bag_of_words is
above 20 times geia's rate, or multiset above 3 times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import Callback
from measuring import Clock, arguments, job, quiet, ratios, spread, texts_of

WANTED = {"bag_of_words": 20.0, "multiset": 3.0}  # times geia's rate
BATCH = {"geia": 64, "multiset": 64, "bag_of_words": 256}
EPOCHS = {"geia": 1, "multiset": 3, "bag_of_words": 15}  # in a round: about equally long


class Epochs(Callback):
    """The clock at the end of every epoch."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ends: list[float] = []

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.ends.append(self.clock())


def rate(attack: str, options: argparse.Namespace, given: list[str], directory: Path, clock: Clock) -> float:
    """Sentences a second of one attack."""
    overrides = [*given, f"attack={attack}", f"datamodule.batch_size={BATCH[attack]}"]
    if attack == "geia":
        overrides.append(f"attack.backbone.vocabulary={options.vocabulary}")
    else:
        overrides += ["attack/vocabulary=pieces", f"attack.vocabulary.limit={options.vocabulary}"]
    work = job(options, overrides, directory / attack, directory / "cache")
    epochs = Epochs(clock)
    work.trainer(work.run, [epochs], max_epochs=EPOCHS[attack] + 1).fit(work.attack, work.datamodule)
    sentences = len(work.datamodule.examples("train")) * EPOCHS[attack]
    return sentences / (epochs.ends[-1] - epochs.ends[0])


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sentences", type=int, default=3000, help="training texts (default 3000)")
    parser.add_argument("--vocabulary", type=int, default=4096, help="entries of the BPE (default 4096)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    quiet()
    torch.set_num_threads(options.threads)
    clock = Clock(options.device, options.own_time)
    given = texts_of(options, options.sentences, 100)
    rates: dict[str, list[float]] = {attack: [] for attack in EPOCHS}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(options.rounds):
            for attack in EPOCHS:
                rates[attack].append(rate(attack, options, given, Path(directory), clock))
    report(rates, options)


def report(rates: dict[str, list[float]], options: argparse.Namespace) -> None:
    """Print the table, the ratios and the JSON line."""
    print(f"{options.vocabulary} entries; {options.threads} threads, {options.device}\n")
    print(f"{'':<20}{'sentences/s':>12}")
    for attack, measured in rates.items():
        print(f"{attack:<20}{statistics.median(measured):>12,.0f}")
    print()
    against = {name: ratios(rates[name], rates["geia"]) for name in WANTED}
    for name, measured in against.items():
        print(f"{name} against geia: {spread(measured)}; at least {WANTED[name]:g} is wanted")
    medians = {name: statistics.median(measured) for name, measured in against.items()}
    result = {
        "ratio": round(min(medians[name] / wanted for name, wanted in WANTED.items()), 3),
        **{f"ratio_{name}": round(median, 2) for name, median in medians.items()},
        "sentences_per_second": {name: round(statistics.median(measured), 1) for name, measured in rates.items()},
        "device": options.device,
        "threads": options.threads,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
