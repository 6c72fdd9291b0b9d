"""A small causal language model, so that inversion of a trained one is measured without a
network (docs/lm_inversion.md).

    python benchmarks/train_language_model.py stories.jsonl --output runs/tinylm --steps 2500
    python train.py attack=soda embedder=language_model embedder.model=runs/tinylm

A line of the file holds a text: ``{"split": "train", "text": "One day, a little girl ..."}``. The model is a GPT-2 of
about a million weights from random ones, with a byte-level BPE of its own; its folder is one like those of the hub.
Half of the windows that it is trained on begin where a text begins: the inputs to be inverted are short and stand at
the first positions. Prints the loss on the test split (nats a token) as it goes, and ends with one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from measuring import command_line, read_rows
from small_models import add_training, fit_muon, save
from torch import Tensor

from unembed.attacks.parts.backbones import token_ids, train_tokenizer
from unembed.attacks.parts.optimizers import MuonAdamW


class Stream:
    """All texts end to end, an end token behind each, and where each begins."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        rows = [[*ids, tokenizer.eos_token_id] for ids in token_ids(tokenizer, texts)]
        self.ids = torch.tensor([number for row in rows for number in row])
        lengths = torch.tensor([0, *map(len, rows[:-1])])
        self.starts = lengths.cumsum(0)

    def windows(self, count: int, width: int, generator: torch.Generator) -> Tensor:
        """(count, width): the first half begin with a text, the others anywhere."""
        last = len(self.ids) - width
        starts = self.starts[self.starts <= last]
        chosen = starts[torch.randint(len(starts), (count // 2,), generator=generator)]
        anywhere = torch.randint(last + 1, (count - count // 2,), generator=generator)
        return self.ids[torch.cat([chosen, anywhere])[:, None] + torch.arange(width)]


def new_model(tokenizer: Any, options: argparse.Namespace) -> Any:
    """A GPT-2 without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=options.positions, n_embd=options.width, n_layer=options.layers,
        n_head=options.heads, activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def loss_of(model: Any, ids: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in nats."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


@torch.inference_mode()
def validation_loss(model: Any, stream: Stream, width: int) -> float:
    """Nats a token over the whole stream, in windows one after the other."""
    model.eval()
    rows = stream.ids[: len(stream.ids) // width * width].view(-1, width)
    losses = [(float(loss_of(model, part)), len(part)) for part in rows.split(64)]
    model.train()
    return sum(loss * count for loss, count in losses) / len(rows)


def train(model: Any, training: Stream, held_out: Stream, options: argparse.Namespace) -> None:
    settings = MuonAdamW(muon_lr=options.muon_lr, adamw_lr=options.adamw_lr, weight_decay=0.1, warmup_steps=50)
    generator = torch.Generator().manual_seed(options.seed)

    def report(step: int, loss: float) -> str | None:
        if step % 500:
            return None
        return f"loss {loss:.3f}  held out {validation_loss(model, held_out, options.window):.3f}"

    batches = (training.windows(options.batch_size, options.window, generator) for _ in itertools.count())
    fit_muon(model, settings, batches, lambda batch: loss_of(model, batch), options.steps, report)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    add_training(parser, steps=2500, batch_size=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of --heads")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--positions", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=1024, help="of the BPE: its 256 bytes and two signs included")
    parser.add_argument("--window", type=int, default=128, help="tokens of a training window")
    parser.add_argument("--muon-lr", type=float, default=1.2e-2)
    parser.add_argument("--adamw-lr", type=float, default=3e-3)
    options = parser.parse_args(argv)
    torch.manual_seed(options.seed)
    texts, others = ([row["text"] for row in read_rows(options.texts, split)] for split in ("train", "test"))
    tokenizer = train_tokenizer(texts, options.vocabulary)
    training, held_out = Stream(tokenizer, texts), Stream(tokenizer, others)
    model = new_model(tokenizer, options)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(texts):,} texts of {len(training.ids):,} tokens, {size / 1e6:.2f} million weights", flush=True)
    train(model, training, held_out, options)
    loss = validation_loss(model, held_out, options.window)
    save(model.eval(), tokenizer, options.output)
    begun = torch.tensor(token_ids(tokenizer, ["Once upon a time"]))
    written = model.generate(begun, max_new_tokens=40, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    print(f"  {tokenizer.decode(written[0])!r}")
    print(f"validation loss {loss:.3f} nats a token (perplexity {math.exp(loss):.1f}) after {options.steps:,} steps")
    result = {"steps": options.steps, "validation_loss": round(loss, 4)}
    print(json.dumps({**result, "weights": size, "vocabulary": len(tokenizer)}))


if __name__ == "__main__":
    main()
