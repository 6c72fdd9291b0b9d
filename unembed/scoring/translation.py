"""Ad hoc translation of predictions into the language of their reference (Chen et al. 2024, section 4).

    Translator(written="de", models={"en": "Helsinki-NLP/opus-mt-de-en"}).translate(["Zwei Männer kochen."], ["en"])
    # ["Two men cook."]
    Translator(written="de", models="Helsinki-NLP/opus-mt-{written}-{language}", lowercase=True)    # any language

An attack trained on one language predicts texts in that language, whatever the language of its target. Any
encoder-decoder model with start and end tokens in its tokenizer and configuration works; ``prefixes`` gives the target
language to models that read it from their input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from pydantic import Field, PositiveInt

from unembed.core.errors import did_you_mean
from unembed.embedders.base import batches_of, loading, resolve_device

LANGUAGE, WRITTEN = "{language}", "{written}"  # placeholders in one name for all languages
_TOKENS_AT_ONCE = 8192  # on a GPU, padding included; times the number of beams


class Translator:
    """One translation model for each target language, in float32; each is loaded at its first text.

    Args:
        written: ISO 639-1 code of the predictions' language: the one the attack was trained on.
        models: By target language: hub name, or path of a folder with a model and its tokenizer; or one name for all
            languages, in which ``{written}`` and ``{language}`` are filled in.
        prefixes: By target language: prepended to each text, such as ">>fra<< ", if the model needs it.
        beams: Beams of the search; 1 is greedy.
        max_new_tokens: Most tokens of a translation.
        device: "auto" is a GPU if there is one.
        lowercase: Whether translations are lower-cased, and compared with lower-cased references: for attacks on
            lower-cased text, since translation models write capitals.
    """

    def __init__(
        self,
        written: str,
        models: Annotated[Mapping[str, str] | str, Field(min_length=1)],
        prefixes: Mapping[str, str] | None = None,
        beams: PositiveInt = 4,
        max_new_tokens: PositiveInt = 128,
        device: str = "auto",
        lowercase: bool = False,
    ) -> None:
        if isinstance(models, str):
            if LANGUAGE not in models:
                raise ValueError(f"models={models}: one name for all languages needs {LANGUAGE}")
        else:
            if written in models:
                raise ValueError(
                    f"models.{written}: predictions are in {written!r} (written) and need no translation to it"
                )
            for language in prefixes or {}:
                if language not in models:
                    raise ValueError(f"prefixes.{language}: there is no such model; {did_you_mean(language, models)}")
        self.written, self.models, self.prefixes = written, models, prefixes or {}
        self.beams, self.max_new_tokens, self.device = beams, max_new_tokens, device
        self.lowercase = lowercase
        self._loaded: dict[str, tuple[Any, Any]] = {}  # tokenizer and model
        self._done: dict[tuple[str, str], str] = {}

    def languages(self, asked: Sequence[str] = ()) -> list[str]:
        """The target languages: those of ``models``, or those of ``asked`` if one name serves them all."""
        if isinstance(self.models, str):
            return [language for language in dict.fromkeys(asked) if language != self.written]
        return list(self.models)

    def translate(self, texts: Sequence[str], languages: Sequence[str | None]) -> list[str | None]:
        """Each text translated to the given language; a text whose language is the written one is returned unchanged.

        If the language is unknown or has no model, the result is None, with one warning per language. Translations are
        cached over calls; a blank text stays blank.
        """
        wanted = [language for language in dict.fromkeys(languages) if language != self.written]
        for language in wanted:
            if language is None or self._model(language) is None:
                named = "of unknown language" if language is None else f"in {language!r}"
                known = self.models if isinstance(self.models, str) else ", ".join(self.models)
                rank_zero_warn(
                    f"predictions for texts {named} are not translated: scoring.translation.models has {known}"
                )
                continue
            asked = (text for text, target in zip(texts, languages, strict=True) if target == language)
            new = [text for text in dict.fromkeys(asked) if (language, text) not in self._done]
            self._done.update(((language, text), "") for text in new if not text.strip())
            spoken = [text for text in new if text.strip()]
            for text, found in self._translated(spoken, language):
                self._done[language, text] = found.lower() if self.lowercase else found
        return [
            text if language == self.written else self._done.get((language or "", text))
            for text, language in zip(texts, languages, strict=True)
        ]

    @torch.inference_mode()
    def _translated(self, texts: Sequence[str], language: str) -> Iterator[tuple[str, str]]:
        if not texts:
            return
        tokenizer, model = self._load(language)
        prefix = self.prefixes.get(language, "")
        ids = tokenizer([prefix + text for text in texts], truncation=True, return_attention_mask=False)["input_ids"]
        for batch in batches_of(list(map(len, ids)), model.device, _TOKENS_AT_ONCE):
            padded = tokenizer.pad(
                {"input_ids": [ids[place] for place in batch]}, padding_side="right", return_tensors="pt"
            ).to(model.device)
            written = model.generate(
                input_ids=padded["input_ids"],
                attention_mask=padded["attention_mask"],
                num_beams=self.beams,
                do_sample=False,
                max_new_tokens=self.max_new_tokens,
            )
            decoded = tokenizer.batch_decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for place, text in zip(batch, decoded, strict=True):
                yield texts[place], text.strip()

    def _model(self, language: str) -> str | None:
        if isinstance(self.models, str):
            return self.models.replace(WRITTEN, self.written).replace(LANGUAGE, language)
        return self.models.get(language)

    def _load(self, language: str) -> tuple[Any, Any]:
        if language in self._loaded:
            return self._loaded[language]
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        name = self._model(language)
        with loading(
            f"scoring.translation.models.{language}={name}: no encoder-decoder model that can be loaded: neither a "
            "folder with a model and its tokenizer, nor in the hub's cache on this machine, nor on the hub, or the hub "
            "cannot be reached"
        ):
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            model = AutoModelForSeq2SeqLM.from_pretrained(name, dtype=torch.float32, trust_remote_code=False)
        model = model.eval().requires_grad_(False).to(resolve_device(self.device))
        self._loaded[language] = tokenizer, model
        return self._loaded[language]
