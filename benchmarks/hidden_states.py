"""What hidden states, keys and values disclose of prompts: attack=sipit on a real model (docs/lm_inversion.md).

    python benchmarks/prepare_smollm2.py --output smollm2
    python benchmarks/hidden_states.py --model smollm2 --texts qnli.jsonl --layer 15 --prompts 200 --parts float32 bf16
    python benchmarks/hidden_states.py --model smollm2 --texts qnli.jsonl --layer 8 --cached k --prompts 48
    python benchmarks/hidden_states.py --model smollm2 --texts qnli.jsonl --layer 8 --prompts 24 --parts protections

Prompts are texts of at least 8 tokens, cut to 64. Parts: a precision of the states; ``alone``, one prompt after the
other; ``exhaustive``, all tokens at each position of the first prompt's first ``--most`` tokens; ``protections``, each
with an attacker who knows of it and what it costs the model: the perplexity of the prompts where the blocks after the
layer read the protected states. A line of JSON each.
"""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import Clock, command_line, read_rows
from torch import Tensor

from unembed.attacks.lm_inversion.sipit import Sipit
from unembed.attacks.parts.predictions import Targets
from unembed.core.examples import Example, written_ids
from unembed.defenses.base import Defense
from unembed.defenses.identity import Identity
from unembed.defenses.noise import Noise
from unembed.defenses.permutation import Permutation
from unembed.defenses.rotation import Rotation
from unembed.defenses.states import of_states
from unembed.defenses.truncation import Truncation
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder

Prompt = tuple[int, ...]
SHORTEST, LONGEST = 8, 64


class Bench:
    """The model with one reader and one table of first tokens for all measurements."""

    def __init__(self, options: Any) -> None:
        kind = {"observe": "kv", "cached": options.cached} if options.cached else {"observe": "hidden_state"}
        self.keys: dict[str, Any] = {**kind, "layer": options.layer, "max_tokens": LONGEST, "device": "cpu"}
        self.options, self.clock = options, Clock(own_time=True)
        self.model = LanguageModelEmbedder(options.model, **self.keys)
        found = {tuple(self.model.ids(row["text"])[:LONGEST]) for row in read_rows(options.texts)}
        self.prompts: list[Prompt] = sorted(ids for ids in found if len(ids) >= SHORTEST)
        random.Random(0).shuffle(self.prompts)
        self.shared = Sipit()
        begin = self.clock()
        passes = self.shared.reader(self.model, self.model.layout.width).passes
        read = self.clock()
        self.shared.firsts(self.model)
        self.print(part="made", reader_seconds=read - begin, first_seconds=self.clock() - read, passes=passes)

    def measure(self, part: str, prompts: Sequence[Prompt], defense: Defense | None = None, **settings: Any) -> None:
        precision = (
            part if part in ("float32", "bf16", "fp16", "int8", "int4") else settings.pop("precision", "float32")
        )
        model = LanguageModelEmbedder(self.options.model, precision=precision, **self.keys)
        model.__dict__["_loaded"] = self.model._loaded
        rows = model.embed([written_ids(ids) for ids in prompts])
        examples = [Example(place, "", tokens=ids) for place, ids in enumerate(prompts)]
        whole = of_states(defense or Identity(), model.layout.tokens)
        attack = Sipit(**settings)
        attack._firsts = self.shared._firsts
        defended = whole(rows, examples, "test")
        if defended.shape == rows.shape:
            attack._reader = self.shared._reader
        with tempfile.TemporaryDirectory() as folder:
            oracle = CachedEmbedder(model, Path(folder))
            attack.connect(Path(folder), oracle)
            begin = self.clock()
            found = attack.propose(Targets(defended, torch.arange(len(rows))), oracle)
            seconds = self.clock() - begin
        tokens = sum(map(len, prompts))
        exact = [one.tokens == ids for one, ids in zip(found, prompts, strict=True)]
        searches = [one.search for one in found if one.search is not None]
        self.print(
            part=part, precision=precision, defense=type(defense).__name__, settings=settings,
            prompts=len(prompts), tokens=tokens, exact=sum(exact),
            verified=sum(search.verified for search in searches),
            false=sum(search.verified and not right for search, right in zip(searches, exact, strict=True)),
            passes_a_token=sum(search.passes for search in searches) / tokens, seconds_a_token=seconds / tokens,
            broken_at=sorted(search.iterations for search, right in zip(searches, exact, strict=True) if not right)[:8],
            largest_z=max([search.loss or 0.0 for search in searches if search.verified], default=None),
            perplexity=self.perplexity(prompts, rows, whole) if part == "protections" else None,
        )  # fmt: skip

    @torch.no_grad()
    def perplexity(self, prompts: Sequence[Prompt], rows: Tensor, defense: Defense) -> float | None:
        """Of the prompts, where the later blocks read defended states; None where they could not read them."""
        layout, inner = self.model.layout, self.model._model
        examples = [Example(place, "", tokens=ids) for place, ids in enumerate(prompts)]
        defended = defense(rows, examples, "test")
        if defended.shape != rows.shape:
            states = torch.zeros(len(rows), layout.tokens, layout.width)
            states[..., : defended.shape[1] // layout.tokens] = defended.view(len(rows), layout.tokens, -1)
            defended = states.flatten(1)
        surprise = 0.0
        for ids, row in zip(prompts, defended.view(len(rows), layout.tokens, -1), strict=True):
            block = self.model.blocks._blocks[layout.layer - 1]
            states = row[None, : len(ids)]
            handle = block.register_forward_hook(lambda *_, states=states: states)
            try:
                logits = inner(input_ids=torch.tensor([ids])).logits[0, :-1]
            finally:
                handle.remove()
            surprise += float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum"))
        return math.exp(surprise / sum(len(ids) - 1 for ids in prompts))

    def protections(self, prompts: Sequence[Prompt]) -> None:
        states, _ = self.model.layout.parse(self.model.embed([written_ids(ids) for ids in prompts]))
        spread = float(states[states.any(dim=-1)].median(dim=0).values.abs().median())
        self.measure("protections", prompts)
        for precision in ("int8", "int4"):
            self.measure("protections", prompts, precision=precision)
        for share in (0.1, 1.0, 10.0):
            level = share * spread
            self.measure("protections", prompts, Noise(level), noise=level, tolerance=1.3, most=4096)
        for dimensions in (states.shape[-1] // 4, states.shape[-1] // 16):
            self.measure("protections", prompts, Truncation(dimensions, renormalize=False), reader_steps=200)
        os.environ["UNEMBED_PERMUTATION_KEY"] = os.environ["UNEMBED_ROTATION_KEY"] = "of the benchmark, no secret"
        for axis in ("dimensions", "positions"):
            self.measure("protections", prompts, Permutation(axis), unknown=axis)  # type: ignore[arg-type]
            self.measure("protections", prompts, Permutation(axis), most=4096)  # type: ignore[arg-type]
        self.measure("protections", prompts, Rotation(), most=4096)

    def print(self, **values: Any) -> None:
        print(json.dumps({**self.keys, **values}), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines with a field text")
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--cached", choices=("k", "v", "both"))
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--most", type=int, default=2, help="tokens of the prompt of the exhaustive search")
    parser.add_argument("--parts", nargs="+", default=["float32"])
    options = parser.parse_args(argv)
    bench = Bench(options)
    prompts = bench.prompts[: options.prompts]
    for part in options.parts:
        if part == "protections":
            bench.protections(prompts)
        elif part == "alone":
            bench.measure(part, prompts, active_targets=1)
        elif part == "exhaustive":
            bench.measure(part, [prompts[0][: options.most]], order="exhaustive")
        else:
            bench.measure(part, prompts)


if __name__ == "__main__":
    main()
