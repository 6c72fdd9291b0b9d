"""The model of benchmarks/lm_inversion.py, its inputs, and attacks on it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from measuring import read_rows, write_rows
from torch import Tensor

from unembed import launch
from unembed.attacks.parts.predictions import Targets
from unembed.core.examples import Example
from unembed.datamodules.sources.sentences import END
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder

Ids = tuple[int, ...]
Found = dict[str, Any]


class Bench:
    """The model, its inputs, and attacks on it; ``folder`` is for files that go with it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.sentences = folder / "sentences.jsonl"
        write_rows(self.sentences, self._sentences())

    def _sentences(self) -> Iterator[dict[str, Any]]:
        """Every sentence a text: stories begin alike."""
        for row in read_rows(self.options.texts):
            yield from ({"split": row["split"], "text": text} for text in END.split(row["text"]))

    def config(self, overrides: Sequence[str]) -> Any:
        """What train.py would make of the overrides; composed once, since composing takes a tenth of a second."""
        return self._composed(tuple(overrides))

    @lru_cache  # noqa: B019  (one bench a process)
    def _composed(self, overrides: tuple[str, ...]) -> Any:
        config = launch.compose(
            "train", ["embedder=language_model", f"embedder.model={self.options.model}", *overrides]
        )
        if mistakes := launch.check(config):
            raise SystemExit("\n".join(mistakes))
        return config

    @lru_cache  # noqa: B019  (one bench a process)
    def model(self, output_tokens: int = 1, top_k: int | None = None) -> LanguageModelEmbedder:
        return LanguageModelEmbedder(str(self.options.model), output_tokens, top_k, device="cpu")

    def oracle(self, model: LanguageModelEmbedder) -> CachedEmbedder:
        return CachedEmbedder(model, self.folder / "cache")

    @lru_cache  # noqa: B019
    def inputs(self, data: str, length: int, count: int) -> list[Ids]:
        """Test inputs: ``random`` ids, or the beginnings of ``text`` that the model was not trained on."""
        from hydra.utils import instantiate

        chosen = [f"datamodule.source.{end}_length={length}" for end in ("min", "max")]
        kind = {
            "random": ["datamodule=random_tokens"],
            "text": [
                "datamodule=cut_texts", f"datamodule.source.source.path={self.sentences}",
                "datamodule.source.source.split_field=split",
            ],
        }[data]  # fmt: skip
        config = self.config(["attack=soda", *kind, *chosen, f"datamodule.source.test_per_length={count}"])
        found: Sequence[Example] = instantiate(config.datamodule.source, _convert_="all").load()["test"]
        return [example.tokens for example in found if example.tokens is not None]

    def search(
        self, attack: str, ids: Sequence[Ids], overrides: Sequence[str] = (),
        model: LanguageModelEmbedder | None = None, rows: Tensor | None = None, known: bool = True,
    ) -> list[Found]:  # fmt: skip
        """What an attack finds for the outputs of inputs of one length, or for given ``rows``."""
        from hydra.utils import instantiate

        model = model or self.model()
        chosen = [f"attack={attack}", "attack.keep=best", "datamodule=random_tokens", *overrides]
        made = instantiate(self.config(chosen).attack)
        made.connect(self.folder / "artifacts", self.oracle(model))
        rows = model.observe(torch.tensor(ids)) if rows is None else rows
        lengths = tuple(map(len, ids)) if known else None
        predictions = made.invert(Targets(rows, torch.arange(len(rows)), lengths=lengths), made.oracle)
        return [
            {
                "true": list(true), "found": list(one.tokens or ()), "verified": one.search.verified,
                "iterations": one.search.iterations, "passes": one.search.passes,
            }
            for true, one in zip(ids, predictions, strict=True)
        ]  # fmt: skip

    def lengths(self, most: int) -> range:
        """Input lengths of a part, 1 to ``most``; fewer with ``--longest``."""
        return range(1, min(most, self.options.longest) + 1)

    def iterations(self, usual: int) -> int:
        """Those of a part that has no ``--passes``, cut by ``--iterations-share``."""
        return max(1, round(usual * self.options.iterations_share))

    def soda(self, ids: Sequence[Ids], overrides: Sequence[str], **arguments: Any) -> list[Found]:
        own = [f"attack.{setting}" for setting in self.options.soda]
        return self.search(
            "soda", ids, [f"attack.active_targets={self.options.active_targets}", *own, *overrides], **arguments
        )
