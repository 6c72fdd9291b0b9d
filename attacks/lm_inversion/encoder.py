"""Forward passes of token ids through a sentence encoder, in batches of a fixed shape.

encoder = Encoder(RelaxedEncoder(MiniLM()))
encoder.vectors([(2023, 2003), (7592,)])     # (2, d), of L2 norm 1
encoder.alone                                # (V, d): of every token of the vocabulary, alone between special tokens
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from embedders.white_box import RelaxedEncoder

_TOKENS_AT_ONCE = 256  # of a batch, special tokens excluded; larger ones are hardly faster on a processor
_CONTROL = re.compile(r"\[[^\]]+\]|<[^>]+>")  # [unused7], [MASK], <extra_id_0>


class Encoder:
    """Unit vectors of token ids.

    The number of inputs in a batch depends on their length alone, so that a vector does not depend on how many others
    are computed with it; a batch that is not full is filled up.
    """

    def __init__(self, model: RelaxedEncoder) -> None:
        self.model = model

    @torch.no_grad()
    def vectors(self, inputs: Sequence[tuple[int, ...]]) -> Tensor:
        """Vectors (n, d), on the CPU, of inputs of any length from 1."""
        found = torch.empty(len(inputs), self.model.observation.vocabulary)
        by_length: dict[int, list[int]] = {}
        for place, ids in enumerate(inputs):
            by_length.setdefault(len(ids), []).append(place)
        none = torch.empty(1, 0, dtype=torch.long)
        for length, places in sorted(by_length.items()):
            size = max(1, _TOKENS_AT_ONCE // length)
            for begin in range(0, len(places), size):
                batch = places[begin : begin + size]
                rows = torch.tensor([inputs[place] for place in batch] + [inputs[batch[0]]] * (size - len(batch)))
                vectors = self.model.logits(rows.to(self.model.device), none)[: len(batch), 0]
                found[batch] = torch.nn.functional.normalize(vectors, dim=1).cpu()
        return found

    @cached_property
    def alone(self) -> Tensor:
        """The vector of each token of the vocabulary alone, (V, d)."""
        return self.vectors([(token,) for token in range(self.model.inputs)])

    @cached_property
    def control(self) -> Tensor:
        """Whether a token stands for no text, such as ``[MASK]`` or ``[unused7]``; (V,)."""
        tokenizer = self.model.embedder.tokenizer
        tokens = tokenizer.convert_ids_to_tokens(range(self.model.inputs))
        found = torch.tensor([token is None or bool(_CONTROL.fullmatch(token)) for token in tokens])
        found[[token for token in tokenizer.all_special_ids if token < len(found)]] = True
        return found

    def canonical(self, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Each input as the tokenizer writes its text: "dog", "##s" becomes "dogs"; of no text, ()."""
        tokenizer = self.model.embedder.tokenizer
        texts = tokenizer.batch_decode(
            [list(ids) for ids in inputs], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return [tuple(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
