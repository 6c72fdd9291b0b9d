"""Named entity recognition with spaCy or Stanza, for data without entity labels.

    SpacyTagger("en_core_web_sm").tag(["Ada moved to Paris."])   # [(Span(0, 3, "PERSON"), Span(13, 18, "GPE"))]

Both libraries are optional and imported at the first text. A missing library or model raises an InputError; models are
never downloaded automatically. GEIA measured its entity recovery with Stanza (appendix B).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

from pydantic import PositiveInt

from unembed.core.errors import InputError
from unembed.core.examples import Span


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
