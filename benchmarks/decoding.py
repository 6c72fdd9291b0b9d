"""Beam search over many targets at once, against transformers' ``generate`` on the same batches.

    python benchmarks/decoding.py --device cpu --threads 2

Both decode the same vectors with the same model, in float32 and with a key-value cache, with 5 beams and the same
stopping rule (``early_stopping=False``). First the model is trained for some steps, since one with random weights never
ends a text. The two take turns, batch by batch, and each begins every other time; a ratio is the median over the
batches. Ends with one JSON line, whose ``ratio`` is generate's time over ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from measuring import Clock, arguments, job, quiet, ratios, spread, texts_of
from torch import Tensor

from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.decoding import BeamSearch
from unembed.session import Session

THEIRS, OURS = "generate, in batches", "ours, in batches"
Texts = list[list[int]]


def generated(attack: GenerativeAttack, search: BeamSearch, prefix: Tensor) -> Texts:
    """Best text of each prefix (n, k, width) by transformers' ``generate``, as ids without the end token."""
    tokenizer = attack.tokenizer
    mask = torch.ones(prefix.shape[:2], dtype=torch.long, device=prefix.device)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    options = {"num_beams": search.beams, "early_stopping": False, "length_penalty": search.length_penalty}
    options |= {"max_new_tokens": search.max_new_tokens, "do_sample": False, "use_cache": True}
    ids = attack.decoder.model.generate(inputs_embeds=prefix, attention_mask=mask, **options, **special).tolist()
    eos = tokenizer.eos_token_id
    return [row[: row.index(eos)] if eos in row else row for row in ids]


def trained(options: argparse.Namespace, directory: Path) -> Session:
    """A small GEIA after ``options.steps`` steps of ordinary training."""
    work = job(options, texts_of(options, options.sentences, options.texts * options.rounds), directory)
    trainer = work.trainer(work.run, [], max_steps=options.steps)
    trainer.fit(work.attack, work.datamodule)
    print(f"trained for {trainer.global_step} steps, {trainer.callback_metrics['train/loss']:.2f} nats a token at last")
    work.datamodule.setup("test")
    work.attack.to(options.device).eval()
    return work


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sentences", type=int, default=6000, help="training texts (default 6000)")
    parser.add_argument("--steps", type=int, default=800, help="of training (default 800)")
    parser.add_argument("--texts", type=int, default=128, help="decoded at once (default 128)")
    parser.add_argument("--rounds", type=int, default=3, help="batches that each way decodes (default 3)")
    options = parser.parse_args(argv)
    quiet()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as directory:
        report(options, trained(options, Path(directory)))


@torch.inference_mode()
def report(options: argparse.Namespace, work: Session) -> None:
    clock, attack = Clock(options.device, options.own_time), work.attack
    search, eos = BeamSearch(max_new_tokens=attack.decoding.max_new_tokens), attack.tokenizer.eos_token_id

    def ours(prefix: Tensor) -> Texts:
        index = torch.arange(len(prefix))
        return [found[0] for found in search(attack.decoder, prefix, eos=eos, index=index)]

    ways: dict[str, Callable[[Tensor], Texts]] = {THEIRS: lambda prefix: generated(attack, search, prefix), OURS: ours}
    seconds: dict[str, list[float]] = {name: [] for name in ways}  # of a sentence
    found: dict[str, list[Texts]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        # The first, small turn warms up.
        rows = range((turn - 1) * options.texts, turn * options.texts) if turn else range(min(4, options.texts))
        prefix = attack.prefix(work.datamodule.vectors("test", list(rows)).to(options.device))
        for name, way in list(ways.items())[:: 1 if turn % 2 else -1]:
            began = clock()
            texts = way(prefix)
            if turn:
                seconds[name].append((clock() - began) / len(texts))
                found[name].append(texts)

    def identical(name: str) -> float:
        pairs = [pair for a, b in zip(found[name], found[OURS], strict=True) for pair in zip(a, b, strict=False)]
        return statistics.mean(a == b for a, b in pairs)

    lengths = [len(ids) + 1 for texts in found[OURS] for ids in texts]
    print(
        f"{len(lengths)} texts, {options.texts} at a time, {search.beams} beams, texts of "
        f"{statistics.mean(lengths):.1f} tokens ({max(lengths)} at most); {options.threads} threads, {options.device}\n"
    )
    against = ratios(seconds[THEIRS], seconds[OURS])
    print(f"{'':<36}{'sentences/s':>14}{'identical best texts':>24}")
    for name, measured in seconds.items():
        print(f"{name:<36}{1 / statistics.median(measured):>14,.1f}{identical(name):>24.1%}")
    print(f"\nratio: {spread(against)}")
    result = {
        "ratio": round(statistics.median(against), 3),
        "identical": round(identical(THEIRS), 4),
        "sentences_per_second": round(1 / statistics.median(seconds[OURS]), 2),
        "generate_sentences_per_second": round(1 / statistics.median(seconds[THEIRS]), 2),
        "texts_at_once": options.texts,
        "device": options.device,
        "threads": options.threads,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
