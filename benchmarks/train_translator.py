"""A small translation model for ad hoc translation without a network (docs/multilingual.md).

    python benchmarks/train_translator.py multi30k.jsonl --source de --target en --output runs/de-en --steps 800
    python evaluate.py run=<dir> scoring/translation=encoder_decoder scoring.translation.written=de \
        'scoring.translation.models={en: runs/de-en}'

A line of the file holds a text in several languages: ``{"split": "train", "en": "Two men cook.", "de": "Zwei Männer
kochen."}``. The model is a small T5 from random weights with one byte-level BPE over both languages; its folder is one
like those of the hub. It knows the sentences of its kind and no others: outside them, name a published model. Prints
the BLEU of its translations of the test split, beside that of the untranslated texts, and ends with one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

from budget import Budget, add_budget

from datamodules.batching import LengthBucketBatchSampler
from metrics.text import bleu_counts, corpus_bleu
from models.cross_entropy import IGNORED, cross_entropy
from models.optimizers import MuonAdamW, schedule
from models.precision import training_precision
from models.tokenizing import train_tokenizer
from scoring.translation import Translator

SMOOTHING = 0.1


def read(path: Path, split: str, languages: Sequence[str]) -> list[list[str]]:
    """The texts of a split, a list for each language, in one order."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [[row[language] for row in rows if row["split"] == split] for language in languages]


def ending(tokenizer: Any) -> Any:
    """The tokenizer, which from now on writes the end token behind every text."""
    from tokenizers.processors import TemplateProcessing

    end = tokenizer.eos_token
    template = TemplateProcessing(single=f"$A {end}", special_tokens=[(end, tokenizer.eos_token_id)])
    tokenizer.backend_tokenizer.post_processor = template
    return tokenizer


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def new_model(tokenizer: Any, options: argparse.Namespace) -> Any:
    """A T5 of version 1.1, with one matrix for all embeddings."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=len(tokenizer), d_model=options.width, d_kv=64, d_ff=options.width * 8 // 3,
        num_layers=options.layers, num_decoder_layers=options.layers, num_heads=options.width // 64,
        dropout_rate=0.1, feed_forward_proj="gated-gelu", pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def fit(model: Any, sources: list[list[int]], targets: list[list[int]], options: argparse.Namespace) -> int:
    """Train for ``options.steps``; gives the number of steps that were made."""
    model.train()
    settings = MuonAdamW(muon_lr=options.muon_lr, adamw_lr=options.adamw_lr, weight_decay=0.1, warmup_steps=100)
    optimizer = settings.build(model)
    lengths = np.array([len(source) + len(target) for source, target in zip(sources, targets, strict=True)])
    sampler = LengthBucketBatchSampler(lengths, options.batch_size, options.seed)
    rates = [group["lr"] for group in optimizer.param_groups]
    budget, pad, steps = Budget(options.steps, options.minutes), model.config.pad_token_id, 0
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for batch in sampler:
            if budget.over(steps):
                return steps
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(budget.share(steps), steps, settings.warmup_steps)
            ids, labels = padded([sources[i] for i in batch], pad), padded([targets[i] for i in batch], IGNORED)
            begin = torch.full((len(labels), 1), pad)
            with torch.autocast("cpu", torch.bfloat16, enabled=training_precision("cpu") == "bf16-mixed"):
                inputs = torch.cat([begin, labels[:, :-1].clamp_min(0)], 1)
                found = model(input_ids=ids, attention_mask=ids != pad, decoder_input_ids=inputs, use_cache=False)
                loss = cross_entropy(found.logits, labels, SMOOTHING)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            if steps % 100 == 0:
                print(
                    f"  {100 * budget.share(steps):3.0f} %  epoch {epoch}  step {steps:,}  loss {float(loss):.3f}",
                    flush=True,
                )
    raise AssertionError("unreachable: epochs do not end")


def saved(model: Any, tokenizer: Any, output: Path) -> None:
    """Write a folder with model and tokenizer, whole or not at all."""
    part = output.with_name(f".{output.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    shutil.rmtree(output, ignore_errors=True)
    part.rename(output)


def main(argv: Sequence[str] | None = None) -> None:
    """Read, train, save, translate the test split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--source", required=True, help="language of the texts to translate")
    parser.add_argument("--target", required=True, help="language of the translations")
    parser.add_argument("--output", type=Path, required=True)
    add_budget(parser, steps=800)
    parser.add_argument("--layers", type=int, default=3, help="of encoder and decoder each")
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=8000, help="of both languages together")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--muon-lr", type=float, default=1.2e-2)
    parser.add_argument("--adamw-lr", type=float, default=3e-3)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test-texts", type=int, default=500, help="translated at the end, at most")
    options = parser.parse_args(argv)
    torch.manual_seed(options.seed)
    pair = (options.source, options.target)
    training = read(options.texts, "train", pair)
    tokenizer = ending(train_tokenizer([text for texts in training for text in texts], options.vocabulary))
    sources, targets = (tokenizer(texts)["input_ids"] for texts in training)
    model = new_model(tokenizer, options)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(sources):,} pairs, {size / 1e6:.1f} million weights", flush=True)
    steps = fit(model, sources, targets, options)
    saved(model.eval(), tokenizer, options.output)

    given, wanted = (texts[: options.test_texts] for texts in read(options.texts, "test", pair))
    translator = Translator(options.source, {options.target: str(options.output)}, beams=options.beams)
    begun = time.monotonic()
    found = translator.translate(given, [options.target] * len(given))
    seconds = time.monotonic() - begun
    for text, translation, reference in list(zip(given, found, wanted, strict=True))[:3]:
        print(f"  {text}\n    {translation}\n    ({reference})")
    scores = {
        name: corpus_bleu(bleu_counts(zip(wanted, texts, strict=True)))
        for name, texts in (("translated", [text or "" for text in found]), ("untranslated", given))
    }
    print(f"BLEU of {len(found)} texts after {steps:,} steps: {scores}; {len(found) / seconds:.0f} texts a second")
    print(json.dumps({"source": pair[0], "target": pair[1], "steps": steps, **scores, "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main()
