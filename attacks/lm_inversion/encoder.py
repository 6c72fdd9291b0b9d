"""Forward passes of token ids through a sentence encoder, in batches of a fixed shape.

encoder = Encoder(RelaxedEncoder(MiniLM()))
encoder.vectors([(2023, 2003), (7592,)])     # (2, d), of L2 norm 1
encoder.spans((2027, 2522, 2072))            # ((0, 1), (1, 2), (2, 3), (1, 3)): tokens, and words of several
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from unembed.embedders.transformer import RelaxedEncoder

Ids = tuple[int, ...]

_TOKENS_AT_ONCE = 128  # of a batch, special tokens excluded; larger ones are little faster on a processor
_ON_GPU = 4096
_CONTROL = re.compile(r"\[[^\]]+\]|<[^>]+>")  # [unused7], [MASK], <extra_id_0>


class Encoder:
    """Unit vectors of token ids.

    How many inputs a batch has depends on their length alone, so that a vector does not depend on what else is
    computed; a batch that is not full is filled up.

    Args:
        model: Whose inputs are token ids without special tokens.
    """

    def __init__(self, model: RelaxedEncoder) -> None:
        self.model = model

    @torch.no_grad()
    def vectors(self, inputs: Sequence[Ids]) -> Tensor:
        """Vectors (n, d), on the CPU, of inputs of one token or more."""
        found = torch.empty(len(inputs), self.model.observation.vocabulary)
        together = _TOKENS_AT_ONCE if self.model.device.type == "cpu" else _ON_GPU
        none = torch.empty(1, 0, dtype=torch.long)
        by_length: dict[int, list[int]] = {}
        for place, ids in enumerate(inputs):
            by_length.setdefault(len(ids), []).append(place)
        for length, places in sorted(by_length.items()):
            size = max(1, together // length)
            for begin in range(0, len(places), size):
                batch = places[begin : begin + size]
                rows = torch.tensor([inputs[place] for place in batch] + [inputs[batch[0]]] * (size - len(batch)))
                vectors = self.model.logits(rows.to(self.model.device), none)[: len(batch), 0]
                found[batch] = torch.nn.functional.normalize(vectors, dim=1).cpu()
        return found

    @cached_property
    def control(self) -> Tensor:
        """Whether a token stands for no text, such as ``[MASK]`` or ``[unused7]``; (V,)."""
        tokenizer = self.model.embedder.tokenizer
        special = set(tokenizer.all_special_ids)
        tokens = tokenizer.convert_ids_to_tokens(range(self.model.inputs))
        return torch.tensor(
            [token is None or place in special or bool(_CONTROL.fullmatch(token)) for place, token in enumerate(tokens)]
        )

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """The tokens of each text, uncut; () where it has none."""
        found = self.model.embedder.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return [tuple(ids) for ids in found]

    def canonical(self, inputs: Sequence[Ids]) -> list[Ids]:
        """Each input as the tokenizer writes its text: "dog", "##s" becomes "dogs"; () where it has none."""
        tokenizer = self.model.embedder.tokenizer
        plain = [list(ids) for ids in inputs]
        return self.ids(tokenizer.batch_decode(plain, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def spans(self, ids: Ids) -> list[tuple[int, int]]:
        """First place, and the place behind the last, of each token, then of each word of several tokens."""
        tokenizer = self.model.embedder.tokenizer
        pairs = [list(pair) for pair in pairwise(ids)]
        joined = [" " not in text.strip() for text in tokenizer.batch_decode(pairs, clean_up_tokenization_spaces=False)]
        begins = [0, *(place for place, one in enumerate(joined, 1) if not one), len(ids)]
        words = [(begin, end) for begin, end in pairwise(begins) if end > begin + 1]
        return [(place, place + 1) for place in range(len(ids))] + words
