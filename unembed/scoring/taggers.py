"""Named entity recognition with spaCy, Stanza or a token classifier of transformers, for data without entity labels.

    SpacyTagger("en_core_web_sm").tag(["Ada moved to Paris."])   # [(Span(0, 3, "PERSON"), Span(13, 18, "GPE"))]

spaCy and Stanza are optional and imported at the first text. A missing library or model raises an InputError; their
models are never downloaded automatically. GEIA measured its entity recovery with Stanza (appendix B).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from pydantic import PositiveInt

from unembed.core.errors import InputError
from unembed.core.examples import Span
from unembed.embedders.base import resolve_device


class Tagger(Protocol):
    """Finds entities in texts."""

    def tag(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
        """The entities of each text, in order of their start."""
        ...


class SpacyTagger:
    """A spaCy pipeline.

    Args:
        model: Name of an installed pipeline, or path of one on disk.
        labels: Kinds of entities to return, such as [PERSON, GPE]; None returns all.
        batch_size: Texts tagged at once.
    """

    def __init__(
        self, model: str = "en_core_web_sm", labels: list[str] | None = None, batch_size: PositiveInt = 128
    ) -> None:
        self.model, self.labels, self.batch_size = model, labels, batch_size

    def tag(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
        documents = self._pipeline.pipe(texts, batch_size=self.batch_size)
        found = ([(e.start_char, e.end_char, e.label_) for e in document.ents] for document in documents)
        return [_spans(text, entities, self.labels) for text, entities in zip(texts, found, strict=True)]

    @cached_property
    def _pipeline(self) -> Any:
        try:
            import spacy
        except ModuleNotFoundError as error:
            raise _not_installed("spacy", error) from error
        try:
            pipeline = spacy.load(self.model)
        except (OSError, ValueError) as error:  # ValueError: a component that is not installed
            raise InputError(
                f"scoring.tagger.model={self.model}: spaCy cannot load it: neither an installed pipeline nor the "
                "folder of one; python -m spacy download en_core_web_sm installs the small English one "
                f"({str(error).splitlines()[0]})"
            ) from error
        if not pipeline.analyze_pipes(keys=["assigns"])["attrs"].get("doc.ents", {}).get("assigns"):
            raise InputError(
                f"scoring.tagger.model={self.model}: this pipeline ({', '.join(pipeline.pipe_names) or 'empty'}) has "
                "no component that finds entities, such as ner"
            )
        return pipeline


class StanzaTagger:
    """Stanza's tokenizer and entity recogniser.

    Args:
        language: Code of an installed language.
        package: Its package of models.
        labels: Kinds of entities to return; None returns all.
        directory: Directory of the models; None is Stanza's default.
        gpu: Whether to use a GPU if there is one.
    """

    def __init__(
        self,
        language: str = "en",
        package: str = "default",
        labels: list[str] | None = None,
        directory: str | None = None,
        gpu: bool = True,
    ) -> None:
        self.language, self.package, self.labels, self.directory, self.gpu = language, package, labels, directory, gpu

    def tag(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
        # Stanza fails on a text without words.
        kept = [place for place, text in enumerate(texts) if text.strip()]
        spans: list[tuple[Span, ...]] = [()] * len(texts)
        documents = self._pipeline.bulk_process([texts[place] for place in kept]) if kept else []
        for place, document in zip(kept, documents, strict=True):
            entities = [(entity.start_char, entity.end_char, entity.type) for entity in document.entities]
            spans[place] = _spans(texts[place], entities, self.labels)
        return spans

    @cached_property
    def _pipeline(self) -> Any:
        try:
            import stanza
        except ModuleNotFoundError as error:
            raise _not_installed("stanza", error) from error
        place = {} if self.directory is None else {"model_dir": self.directory}
        try:
            return stanza.Pipeline(
                self.language,
                package=self.package,
                processors="tokenize,ner",
                download_method=None,
                use_gpu=self.gpu,
                verbose=False,
                **place,
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"scoring.tagger.language={self.language}: Stanza has no models of it on this machine; "
                f"python -c \"import stanza; stanza.download('{self.language}')\" fetches them "
                f"({' '.join(str(error).split())[:200]})"
            ) from error


class TokenClassifier:
    """A token classifier of transformers, such as a biomedical one; long texts are read in windows of the model's.

    Labels are of the BIO scheme (B-age, I-age, O) or plain (age, O). A word has the label of its first token;
    neighbouring words of one label are one entity, unless the second begins with B-. Vec2Text finds the entities of
    clinical notes this way (Morris et al. 2023, section 6).

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
        self.model, self.labels, self.batch_size, self.device = model, labels, batch_size, device

    def tag(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
        words = self._words(texts)
        return [
            _spans(text, _joined([own[number] for number in sorted(own)]), self.labels)
            for text, own in zip(texts, words, strict=True)
        ]

    @torch.inference_mode()
    def _words(self, texts: Sequence[str]) -> list[dict[int, tuple[int, int, str]]]:
        """Start, end and label of each word of each text, by the word's number."""
        tokenizer, model = self._loaded
        words: list[dict[int, tuple[int, int, str]]] = [{} for _ in texts]
        if not texts:
            return words
        window = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))
        windows = tokenizer(
            list(texts), truncation=True, max_length=window, stride=window // 4, return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )  # fmt: skip
        owners = windows["overflow_to_sample_mapping"]
        for begin in range(0, len(owners), self.batch_size):
            rows = range(begin, min(begin + self.batch_size, len(owners)))
            ids = {"input_ids": [windows["input_ids"][row] for row in rows]}
            padded = tokenizer.pad(ids, return_tensors="pt").to(model.device)
            logits = model(input_ids=padded["input_ids"], attention_mask=padded["attention_mask"]).logits
            for row, labels in zip(rows, logits.argmax(dim=-1).tolist(), strict=True):
                own = words[owners[row]]
                for place, word in enumerate(windows.word_ids(row)):
                    if word is not None:
                        start, end = windows["offset_mapping"][row][place]
                        # The label is that of the first token of a word, in the first window that has it.
                        first, last, label = own.get(word, (start, end, model.config.id2label[labels[place]]))
                        own[word] = first, max(last, end), label
        return words

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
        return tokenizer, model.to(resolve_device(self.device)).eval()


def _joined(words: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Entities of labelled words: neighbours of one label are one, unless the second begins with B-."""
    entities: list[tuple[int, int, str]] = []
    previous = "O"
    for start, end, label in words:
        kind = label.removeprefix("B-").removeprefix("I-")
        if kind != "O" and kind == previous and not label.startswith("B-"):
            entities[-1] = (entities[-1][0], end, kind)
        elif kind != "O":
            entities.append((start, end, kind))
        previous = kind
    return entities


def _not_installed(library: str, error: ModuleNotFoundError) -> InputError:
    return InputError(
        f"scoring/tagger={library}: {library} cannot be imported ({error}); pip install {library}, or leave "
        "scoring/tagger out: then entities are those that the data labels"
    )


def _spans(text: str, entities: Iterable[tuple[int, int, str]], labels: Sequence[str] | None) -> tuple[Span, ...]:
    """Entities as spans, stripped of white space; blank ones are left out."""
    spans = []
    for start, end, label in entities:
        found = text[start:end]
        if found.strip() and (labels is None or label in labels):
            start += len(found) - len(found.lstrip())
            spans.append(Span(start, start + len(found.strip()), label))
    return tuple(sorted(spans, key=lambda span: (span.start, span.end)))
