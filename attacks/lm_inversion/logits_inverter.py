"""attack=logits_inverter: a T5 that is trained to write the input that a language model's logits come from.

    logits (V,) -> chunks (chunked_logits.py) -> T5 encoder, decoder -> 17862 14520 -> " Wheel adop"

The inversion model that Skapars et al. 2025 (section 5.1, appendix D) take from Morris et al. 2023b. It needs only
black-box access and no search. Its predictions are not verified with the model, so it claims no inputs.

``LogitsInverter`` writes the model's own token ids. A published T5 has other tokens: ``TextLogitsInverter`` writes
text, which is cut into the model's tokens again. Random ids seldom survive that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import PositiveInt

from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.lm_inversion.base import language_model_of
from unembed.attacks.lm_inversion.chunked_logits import ChunkedLogits
from unembed.attacks.parts.backbones import Dropout, RandomT5, token_ids
from unembed.attacks.parts.decoders import EncoderDecoder
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.core.errors import InputError
from unembed.core.examples import read_ids, written_ids
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder

PAD, END = "<|padding|>", "<|end of input|>"  # behind the model's own ids, every one of which an input may hold


class LanguageModelT5(RandomT5):
    """A small T5 from random weights that writes the tokens of a language model.

    Args:
        tokenizer: The language model's folder, or its name on the hub.
        encoder_layers: Blocks of the encoder.
        decoder_layers: Blocks of the decoder.
        width: Hidden width; a multiple of ``heads``.
        heads: Attention heads.
        dropout: Dropout everywhere.
    """

    def __init__(
        self,
        tokenizer: str,
        encoder_layers: PositiveInt = 2,
        decoder_layers: PositiveInt = 2,
        width: PositiveInt = 192,
        heads: PositiveInt = 3,
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__(encoder_layers, decoder_layers, width, heads, dropout=dropout)
        self.name = tokenizer

    def tokenizer(self, texts: Sequence[str]) -> Any:
        """The language model's, with an end and a padding token that no input can hold."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise InputError(f"attack.backbone.tokenizer={self.name}: no such tokenizer here or on the hub") from error
        tokenizer.add_special_tokens({"eos_token": END, "pad_token": PAD})
        return tokenizer


class LogitsInverter(GenerativeAttack):
    """A decoder of token ids, trained on pairs of logits and inputs; see GenerativeAttack."""

    encodes_ids = True
    decodes_vectors = False  # it asks the language model for its tokens

    def make_decoder(self, model: Any) -> EncoderDecoder:
        """The encoder reads all chunks, without a mask."""
        return EncoderDecoder(model)

    def build(self, dimension: int) -> None:
        """Make decoder and prefix; a head that all chunks share reads the words before they are trained."""
        super().build(dimension)
        if isinstance(self.prefix, ChunkedLogits) and self.prefix.shared:
            self.prefix.take_words(self.decoder.model.get_input_embeddings().weight)

    def model(self, oracle: CachedEmbedder | None) -> LanguageModelEmbedder:
        """The language model whose logits are the targets.

        Raises:
            InputError: The embedder is none, or it shows other than all logits of one output token.
        """
        model = language_model_of(oracle)
        seen = model.observation
        if seen.top_k is not None:
            raise InputError(
                f"embedder.top_k={seen.top_k}: attack=logits_inverter reads all logits; take embedder.top_k=null"
            )
        if seen.output_tokens != 1:
            raise InputError(
                f"embedder.output_tokens={seen.output_tokens}: attack=logits_inverter reads the logits of one output "
                "token; take embedder.output_tokens=1"
            )
        return model

    def prepare_data(self) -> None:
        """Check before anything is embedded that the attack can read the embedder's output."""
        self.model(self.oracle)
        super().prepare_data()

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids as the model reads them: those written out, or those of a text."""
        written = [read_ids(text) for text in texts]
        cut = iter(token_ids(self.tokenizer, [text for text, ids in zip(texts, written, strict=True) if ids is None]))
        return [next(cut) if ids is None else ids for ids in written]

    @torch.no_grad()
    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Decode each target, truncated to the input's length, if known, and to the model's positions."""
        model = self.model(oracle)
        decoded = self.decoding(
            self.decoder, self.prefix(targets.vectors), eos=self.tokenizer.eos_token_id, index=targets.index
        )
        lengths = targets.lengths or (None,) * len(decoded)
        found = []
        for candidates, length in zip(decoded, lengths, strict=True):
            longest = model.max_tokens if length is None else length
            kept = [self.input_ids(ids, model)[:longest] for ids in candidates[: self.decoding.candidates]]
            found.append(Prediction(tuple(model.decode(ids) for ids in kept), tokens=tuple(kept[0])))
        return found

    def query(self, prediction: Prediction) -> str:
        """The ids that were written; of none, the empty text."""
        return written_ids(prediction.tokens) if prediction.tokens else ""

    def input_ids(self, ids: Sequence[int], model: LanguageModelEmbedder) -> list[int]:
        """What the decoder wrote as an input of ``model``: without its own end and padding."""
        return [number for number in ids if number < model.inputs]


class TextLogitsInverter(LogitsInverter):
    """The same on a backbone with a tokenizer of its own, such as a published T5."""

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the backbone: written-out ids of the model become text first."""
        model = self.model(self.oracle)
        written = [read_ids(text) for text in texts]
        return token_ids(
            self.tokenizer,
            [text if ids is None else model.decode(ids) for text, ids in zip(texts, written, strict=True)],
        )

    def input_ids(self, ids: Sequence[int], model: LanguageModelEmbedder) -> list[int]:
        """What the decoder wrote, as text, in the model's own tokens."""
        return model.ids(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
