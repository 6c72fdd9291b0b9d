"""A baseline without vectors: a language model that continues a text's first word (Li et al. 2023, table 4).

    "my"                                        ->  "my favorite color is blue ."
    "what do you do ? | i fly planes . | my"    ->  "my job keeps me away from home ."      (with context)

It is trained on the same texts as the attacks, and measures how well the language and the first word alone predict a
text: an attack must do better to show that vectors leak information. The hints are parts of the test texts, so this is
not an attack.

A text begins after the model's start token (without one, its end token), so the trained model is an ordinary causal
language model. ``artifacts/language_model`` has it as a folder of the hub, for ``scoring.language_model.model``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.decoders import CausalDecoder
from unembed.attacks.parts.predictions import Hint, Prediction, Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.parts.sharding import is_sharded
from unembed.core.atomic_files import replacing
from unembed.core.errors import InputError
from unembed.core.examples import Split
from unembed.datamodules.arrow_examples import IGNORED
from unembed.embedders.base import loading
from unembed.embedders.cache.cached import CachedEmbedder

FOLDER = "language_model"  # among the artifacts
FIRST = 16  # tokens of a first word that are used: enough for all but addresses of web pages


class Start(Prefix):
    """The model's own embedding of its start token, which stands where an attack has the target's vector."""

    def build(self, dimension: int, width: int) -> None:
        self.width = width

    def read(self, model: Any, token: int) -> None:
        """Take ``token`` of ``model``, which is no part of this module: its weights would be stored twice."""
        self.embeddings, self.token = model.get_input_embeddings, token

    def forward(self, embeddings: Tensor) -> Tensor:
        """(n, d) -> (n, 1, width), independent of the embeddings."""
        start: Tensor = self.embeddings()(torch.full((len(embeddings), 1), self.token, device=embeddings.device))
        return start


class LanguageModel(GenerativeAttack):
    """Continues the first word of each test text, by itself or after what was said before."""

    decodes_vectors = False
    prefix: Start

    def __init__(self, context_tokens: NonNegativeInt = 0, **generative: Any) -> None:
        super().__init__(prefix=Start(), refine=None, **generative)
        self.context_tokens = context_tokens

    def make_decoder(self, model: Any) -> CausalDecoder:
        first = self.tokenizer.bos_token_id
        self.prefix.read(model, self.tokenizer.eos_token_id if first is None else first)
        return CausalDecoder(model)

    @property
    def positions(self) -> int:
        """Start token, context, first word and what follows it."""
        return 1 + self.context_tokens + FIRST + self.decoding.max_new_tokens

    def setup(self, stage: str) -> None:
        examples = self.data.examples("test")
        if self.context_tokens and examples and not any(example.context for example in examples):
            raise InputError(
                f"attack.context_tokens={self.context_tokens}: no test text has a context; name its field by "
                "datamodule.context_field, or set attack.context_tokens=0"
            )
        super().setup(stage)

    def check_refining(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        if self.decoding.rerank:
            raise InputError(
                f"attack.decoding.rerank={self.decoding.rerank}: attack=language_model reads no vectors, so there is "
                "nothing to compare its texts with; take attack.decoding.rerank=0"
            )

    def targets(self, batch: dict[str, Tensor]) -> Targets:
        examples = [self.data.examples("test")[i] for i in batch["index"].tolist()]
        hints = tuple(Hint(example.text.split(maxsplit=1)[0], example.context) for example in examples)
        return Targets(batch["vectors"], batch["index"], hints=hints)

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        return super().training_step(self._with_context(batch, "train"), batch_index)

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        super().validation_step(self._with_context(batch, "valid"), batch_index)

    def on_fit_end(self) -> None:
        """Write the model as a folder of the hub; not in sharded training, where no process has all of it."""
        if self.trainer.is_global_zero and not is_sharded(self.trainer.strategy):
            place = self.artifacts / FOLDER
            with replacing(place) as folder, loading(f"{place}: cannot be written"):  # without a progress bar
                self.decoder.model.save_pretrained(folder)
                self.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Continue the hint of each target; neither the vectors nor the embedder are used."""
        if targets.hints is None:
            raise InputError(
                "attack=language_model reads no vectors: it continues first words, which only a test on texts can give"
            )
        first = [ids[:FIRST] for ids in self.tokens([hint.first for hint in targets.hints])]
        context = self._context_ids([hint.context for hint in targets.hints])
        alike: dict[int, list[int]] = defaultdict(list)  # decoding takes prefixes of one length at a time
        for row, (before, word) in enumerate(zip(context, first, strict=True)):
            alike[len(before) + len(word)].append(row)
        predictions: dict[int, Prediction] = {}
        for rows in alike.values():
            ids = torch.tensor([context[row] + first[row] for row in rows], device=targets.vectors.device)
            start = self.prefix(targets.vectors[rows])
            prefix = torch.cat([start, self.decoder.model.get_input_embeddings()(ids).to(start.dtype)], 1)
            eos = self.tokenizer.eos_token_id
            decoded = self.decoding(self.decoder, prefix, eos=eos, index=targets.index[rows])
            for row, candidates in zip(rows, decoded, strict=True):
                texts = tuple(self.text([*first[row], *ids]) for ids in candidates)
                predictions[row] = Prediction(texts, given=targets.hints[row].first)
        return [predictions[row] for row in range(len(first))]

    def _context_ids(self, contexts: Sequence[str | None]) -> list[list[int]]:
        """The last ids of each context and of the line end that closes it; none without a context."""
        ids = self.tokens([f"{context}\n" if context else "" for context in contexts])
        return [row[-self.context_tokens :] if self.context_tokens else [] for row in ids]

    def _with_context(self, batch: dict[str, Tensor], split: Split) -> dict[str, Tensor]:
        """The batch with the context's ids before each row of labels."""
        if not self.context_tokens or len(batch["index"]) == 0:
            return batch
        labels, examples = batch["labels"], self.data.examples(split)
        contexts = self._context_ids([examples[i].context for i in batch["index"].tolist()])
        rows = [
            torch.cat([torch.tensor(ids, dtype=labels.dtype, device=labels.device), row[row != IGNORED]])
            for ids, row in zip(contexts, labels, strict=True)
        ]
        return {**batch, "labels": nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)}
