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
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import command_line, read_rows
from small_models import add_training, fit_muon, save
from torch import Tensor

from unembed.attacks.parts.backbones import train_tokenizer
from unembed.attacks.parts.decoders import cross_entropy
from unembed.attacks.parts.optimizers import MuonAdamW
from unembed.datamodules.arrow_examples import IGNORED
from unembed.datamodules.batching import LengthBucketBatchSampler
from unembed.metrics.bleu import bleu
from unembed.metrics.scored import Scored
from unembed.scoring.translation import Translator

SMOOTHING = 0.1


def read(path: Path, split: str, languages: Sequence[str]) -> list[list[str]]:
    """The texts of a split, a list for each language, in one order."""
    rows = list(read_rows(path, split))
    return [[row[language] for row in rows] for language in languages]


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


def train(model: Any, sources: list[list[int]], targets: list[list[int]], options: argparse.Namespace) -> None:
    settings = MuonAdamW(muon_lr=options.muon_lr, adamw_lr=options.adamw_lr, weight_decay=0.1, warmup_steps=100)
    lengths = np.array([len(source) + len(target) for source, target in zip(sources, targets, strict=True)])
    pad = model.config.pad_token_id

    def batches() -> Iterator[list[int]]:
        sampler = LengthBucketBatchSampler(lengths, options.batch_size, options.seed)
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from sampler

    def loss_of(batch: list[int]) -> Tensor:
        ids, labels = padded([sources[i] for i in batch], pad), padded([targets[i] for i in batch], IGNORED)
        inputs = torch.cat([torch.full((len(labels), 1), pad), labels[:, :-1].clamp_min(0)], 1)
        found = model(input_ids=ids, attention_mask=ids != pad, decoder_input_ids=inputs, use_cache=False)
        return cross_entropy(found.logits, labels, SMOOTHING)

    def report(step: int, loss: float) -> str | None:
        return f"loss {loss:.3f}" if step % 100 == 0 else None

    fit_muon(model, settings, batches(), loss_of, options.steps, report)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--source", required=True, help="language of the texts to translate")
    parser.add_argument("--target", required=True, help="language of the translations")
    add_training(parser, steps=800, batch_size=64)
    parser.add_argument("--layers", type=int, default=3, help="of encoder and decoder each")
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=8000, help="of both languages together")
    parser.add_argument("--muon-lr", type=float, default=1.2e-2)
    parser.add_argument("--adamw-lr", type=float, default=3e-3)
    parser.add_argument("--beams", type=int, default=4)
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
    train(model, sources, targets, options)
    save(model.eval(), tokenizer, options.output)

    given, wanted = (texts[: options.test_texts] for texts in read(options.texts, "test", pair))
    translator = Translator(options.source, {options.target: str(options.output)}, beams=options.beams)
    begun = time.monotonic()
    found = translator.translate(given, [options.target] * len(given))
    seconds = time.monotonic() - begun
    for text, translation, reference in list(zip(given, found, wanted, strict=True))[:3]:
        print(f"  {text}\n    {translation}\n    ({reference})")
    scores = {
        name: bleu().of([Scored(*pair) for pair in zip(wanted, texts, strict=True)])
        for name, texts in (("translated", [text or "" for text in found]), ("untranslated", given))
    }
    print(f"BLEU of {len(found)} texts: {scores}; {len(found) / seconds:.0f} texts a second")
    result = {"source": pair[0], "target": pair[1], "steps": options.steps}
    print(json.dumps({**result, **scores, "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main()
