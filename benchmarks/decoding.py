"""Beam search over many targets at once, against transformers' ``generate`` one sentence at a time.

    python benchmarks/decoding.py --device cpu --threads 2

Both decode the same vectors with the same model, in float32, with 5 beams and the same stopping rule
(``early_stopping=False``). First the model is trained for a while, since one with random weights never ends a text. The
two take turns: a batch of ours, then its sentences one by one; a ratio is the median over the batches. The table also
has ``generate`` on whole batches, to tell batching from the rest. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from common import Clock, Job, arguments, job, quiet, spread, texts_of
from torch import Tensor

from attacks.decoding import BeamSearch
from attacks.generative import GenerativeAttack

Texts = list[list[int]]


def generated(attack: GenerativeAttack, search: BeamSearch, prefix: Tensor) -> Texts:
    """Best text of each prefix (n, k, width) by transformers' ``generate``, as ids without the end token."""
    tokenizer = attack.tokenizer
    ids = attack.decoder.model.generate(
        inputs_embeds=prefix,
        attention_mask=torch.ones(prefix.shape[:2], dtype=torch.long, device=prefix.device),
        num_beams=search.beams,
        early_stopping=False,
        length_penalty=search.length_penalty,
        max_new_tokens=search.max_new_tokens,
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).tolist()
    eos = tokenizer.eos_token_id
    return [row[: row.index(eos)] if eos in row else row for row in ids]


def trained(options: argparse.Namespace, directory: Path) -> Job:
    """A small GEIA after ``options.seconds`` of ordinary training."""
    work = job(
        options,
        [*texts_of(options, options.sentences, options.texts * options.rounds), "trainer.max_time=null"],
        directory / "artifacts",
    )
    trainer = work.trainer(max_time=timedelta(seconds=options.seconds))
    trainer.fit(work.attack, work.datamodule)
    print(f"trained for {trainer.global_step} steps, {trainer.callback_metrics['train/loss']:.2f} nats a token at last")
    work.datamodule.setup("test")
    work.attack.to(options.device).eval()
    return work


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sentences", type=int, default=6000, help="training texts (default 6000)")
    parser.add_argument("--seconds", type=int, default=75, help="of training (default 75)")
    parser.add_argument("--texts", type=int, default=128, help="decoded at once (default 128)")
    parser.add_argument("--rounds", type=int, default=3, help="batches that each way decodes (default 3)")
    options = parser.parse_args(argv)
    quiet()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as directory:
        report(options, trained(options, Path(directory)))


@torch.inference_mode()
def report(options: argparse.Namespace, work: Job) -> None:
    clock, attack = Clock(options.device, options.own_time), work.attack
    eos, search = attack.tokenizer.eos_token_id, attack.decoding
    assert isinstance(search, BeamSearch)

    def ours(prefix: Tensor) -> Texts:
        index = torch.arange(len(prefix))
        return [found[0] for found in search(attack.decoder, prefix, eos=eos, index=index)]

    def one_by_one(prefix: Tensor) -> Texts:
        return [generated(attack, search, prefix[i : i + 1])[0] for i in range(len(prefix))]

    def together(prefix: Tensor) -> Texts:
        return generated(attack, search, prefix)

    ways: dict[str, Callable[[Tensor], Any]] = {
        "generate, one sentence at a time": one_by_one,
        f"generate, {options.texts} at a time": together,
        f"ours, {options.texts} at a time": ours,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Texts] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        # The first, small turn warms up.
        rows = range((turn - 1) * options.texts, turn * options.texts) if turn else range(4)
        prefix = attack.prefix(work.datamodule.vectors("test", list(rows)).to(options.device))
        for name, way in ways.items():
            began = clock()
            texts = way(prefix)
            if turn:
                times[name].append(clock() - began)
                found[name] += texts

    theirs, batched, own = ways

    def ratios(slow: str, fast: str) -> list[float]:
        return [a / b for a, b in zip(times[slow], times[fast], strict=True)]

    same = statistics.mean(a == b for a, b in zip(found[theirs], found[own], strict=True))
    lengths = [len(ids) + 1 for ids in found[own]]
    print(
        f"{len(lengths)} texts, {search.beams} beams, texts of {statistics.mean(lengths):.1f} tokens "
        f"({max(lengths)} at most); {options.threads} threads, {options.device}\n"
    )
    print(f"{'':<44}{'sentences/s':>14}")
    for name, measured in times.items():
        print(f"{name:<44}{options.texts / statistics.median(measured):>14,.1f}")
    print(f"\nidentical best texts:     {same:.1%}")
    print(f"ratio, one at a time:     {spread(ratios(theirs, own))}")
    print(f"ratio, batches:           {spread(ratios(batched, own))}")
    figures = {
        "ratio": round(statistics.median(ratios(theirs, own)), 3),
        "ratio_to_batches": round(statistics.median(ratios(batched, own)), 3),
        "identical": round(same, 4),
        "sentences_per_second": round(options.texts / statistics.median(times[own]), 2),
        "device": options.device,
        "threads": options.threads,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
