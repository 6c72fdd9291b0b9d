"""Named entity recognition with a token classifier of transformers, such as a biomedical one.

    TokenClassifier("d4data/biomedical-ner-all").tag(["Fever since Monday."])    # [(Span(0, 5, "Sign_symptom"), ...)]

Labels are of the BIO scheme (B-age, I-age, O) or plain (age, O). A word has the label of its first token; neighbouring
words of one label are one entity, unless the second begins with B-. Vec2Text finds the entities of clinical notes this
way (Morris et al. 2023, section 6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from pydantic import PositiveInt

from unembed.core.errors import InputError
from unembed.core.examples import Span


class TokenClassifier:
    """A tagger (see unembed.scoring.taggers.Tagger) that reads texts of any length in windows of the model's.

    Args:
        model: Name of a model on the hub, or a folder.
        labels: Kinds of entities to return, such as [Age, Sign_symptom]; None returns all.
        batch_size: Windows classified at once.
        device: cpu, cuda, or auto: a GPU if there is one.
    """

    def __init__(
        self,
        model: str = "d4data/biomedical-ner-all",
        labels: list[str] | None = None,
        batch_size: PositiveInt = 32,
        device: str = "auto",
    ) -> None:
        self.model, self.labels, self.batch_size = model, labels, batch_size
        self.device = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    def tag(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
        return [tuple(self._entities(text, words)) for text, words in zip(texts, self._words(texts), strict=True)]

    @torch.inference_mode()
    def _words(self, texts: Sequence[str]) -> list[dict[int, tuple[int, int, str]]]:
        """Start, end and label of each word of each text, by the word's number."""
        tokenizer, model = self._loaded
        found: list[dict[int, tuple[int, int, str]]] = [{} for _ in texts]
        if not texts:
            return found
        window = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))
        windows = tokenizer(
            list(texts), truncation=True, max_length=window, stride=window // 4, return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )  # fmt: skip
        owners = windows["overflow_to_sample_mapping"]
        for begin in range(0, len(owners), self.batch_size):
            chosen = range(begin, min(begin + self.batch_size, len(owners)))
            padded = tokenizer.pad({"input_ids": [windows["input_ids"][row] for row in chosen]}, return_tensors="pt")
            given = {key: padded[key].to(self.device) for key in ("input_ids", "attention_mask")}
            classes = model(**given).logits.argmax(dim=-1).tolist()
            for row, labels in zip(chosen, classes, strict=True):
                words = found[owners[row]]
                for place, word in enumerate(windows.word_ids(row)):
                    if word is None:
                        continue
                    start, end = windows["offset_mapping"][row][place]
                    if word not in words:  # the first token of a word, in the first window that has it
                        words[word] = start, end, model.config.id2label[labels[place]]
                    else:
                        first, last, label = words[word]
                        words[word] = first, max(last, end), label
        return found

    def _entities(self, text: str, words: dict[int, tuple[int, int, str]]) -> Iterator[Span]:
        """Neighbouring words of one label, joined."""
        ordered = [words[number] for number in sorted(words)]
        kinds = [label.removeprefix("B-").removeprefix("I-") for _, _, label in ordered]
        breaks = [0] if ordered else []
        for place, (one, two) in enumerate(pairwise(kinds), start=1):
            if one != two or ordered[place][2].startswith("B-"):
                breaks.append(place)
        for first, beyond in pairwise([*breaks, len(ordered)]):
            start, end, kind = ordered[first][0], ordered[beyond - 1][1], kinds[first]
            if kind != "O" and text[start:end].strip() and (self.labels is None or kind in self.labels):
                yield Span(start, end, kind)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.model, trust_remote_code=False)
            model = AutoModelForTokenClassification.from_pretrained(self.model, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"scoring.tagger.model={self.model}: no token classifier here or on the hub "
                f"({str(error).splitlines()[0][:200]})"
            ) from error
        if not tokenizer.is_fast:
            raise InputError(f"scoring.tagger.model={self.model}: its tokenizer does not tell where its tokens stand")
        return tokenizer, model.to(self.device).eval()
