"""The logits inverter of benchmarks/lm_inversion.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from measuring import read_rows
from small_models import fit_muon
from torch import Tensor

from unembed.attacks.parts.predictions import Targets

if TYPE_CHECKING:
    from lm_inversion import Bench, Found, Ids

# The logits of a model of width 128 have 128 degrees of freedom: each of 4 chunks of 256 says all, where none of 64
# chunks of 16 says much, and a small encoder has less to put together. With one decoder layer there are more steps.
INVERTER = [
    "attack=logits_inverter", "datamodule=random_tokens", "attack.prefix.vectors=4", "attack.prefix.hidden=512",
    "attack.backbone.width=128", "attack.backbone.heads=2", "attack.backbone.encoder_layers=1",
    "attack.backbone.decoder_layers=1",
]  # fmt: skip
INVERTER_BATCH = 256


class Inverter:
    """The logits inverter, trained on fresh pairs of the lengths 1 to 10 and kept in a file."""

    def __init__(self, bench: Bench, data: str) -> None:
        self.bench, self.data = bench, data
        self.file = bench.options.output.with_suffix(f".{data}_inverter.pt")

    def _built(self) -> Any:
        from hydra.utils import instantiate

        attack = instantiate(self.bench.config(*INVERTER).attack)
        attack.connect(self.bench.folder / "artifacts", self.bench.oracle(self.bench.model()))
        attack.prepare([], attack.artifacts)
        attack.build(self.bench.model().dimension)
        return attack

    def _batches(self, size: int) -> Iterator[Tensor]:
        """Inputs of one length, (size, n): random ids, or the beginnings of training sentences."""
        model, generator = self.bench.model(), torch.Generator().manual_seed(0)
        known = self._beginnings() if self.data == "text" else []
        while True:
            length = int(torch.randint(1, self.bench.lengths(10).stop, (), generator=generator))
            if self.data == "random":
                yield torch.randint(model.inputs, (size, length), generator=generator)
            else:
                chosen = torch.randint(len(known), (4 * size,), generator=generator).tolist()
                yield torch.tensor([known[i][:length] for i in chosen if len(known[i]) >= length][:size])

    def _beginnings(self) -> list[list[int]]:
        """The first ten tokens of each training sentence."""
        return [self.bench.model().ids(row["text"])[:10] for row in read_rows(self.bench.sentences, "train")]

    def train(self) -> dict[str, Any]:
        torch.manual_seed(0)
        attack, model, total = self._built(), self.bench.model(), self.bench.options.inverter_steps
        pairs = 0
        held_out = {
            tuple(ids)
            for n in self.bench.lengths(10)
            for ids in self.bench.inputs("random", n, self.bench.options.count)
        }

        def examples() -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal pairs
            for ids in self._batches(INVERTER_BATCH):
                given = map(tuple, ids.tolist())
                kept = [row for row in given if self.data == "text" or len(row) < 3 or row not in held_out]
                labels = torch.tensor([[*row, attack.tokenizer.eos_token_id] for row in kept])
                pairs += len(kept)
                yield model.observe(torch.tensor(kept)), labels

        losses = fit_muon(attack, attack.optimizer_settings, examples(), lambda batch: attack.loss(*batch), total)
        part = self.file.with_suffix(".part")
        torch.save(attack.state_dict(), part)
        part.replace(self.file)
        # Inputs of one length are a batch, and longer ones are harder: of one batch the loss would say little.
        last = losses[-100:]
        return {"rows": [], "pairs": pairs, "steps": len(losses), "loss": sum(last) / max(1, len(last))}

    def invert(self, ids: Sequence[Ids]) -> list[Found]:
        attack, model = self._built(), self.bench.model()
        attack.load_state_dict(torch.load(self.file, weights_only=True))
        attack.eval()
        targets = Targets(model.observe(torch.tensor(ids)), torch.arange(len(ids)), lengths=tuple(map(len, ids)))
        found = attack.invert(targets, attack.oracle)
        rows = [
            {"true": list(true), "found": list(one.tokens), "verified": False, "iterations": 0, "passes": 0}
            for true, one in zip(ids, found, strict=True)
        ]
        if self.data == "text":  # sentences of a kind begin alike: training may have shown a test input itself
            known = self._beginnings()
            for row in rows:
                row["shown"] = any(begun[: len(row["true"])] == row["true"] for begun in known)
        return rows
