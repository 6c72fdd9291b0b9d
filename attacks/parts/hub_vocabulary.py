"""The tokens of a ready tokenizer as the vocabulary of an attack without word order.

vocabulary = HubTokens("openai-community/gpt2-medium")
vocabulary.prepare(["i love my dog ."], artifacts)     # writes artifacts/pieces.json
vocabulary.ids(["i love my dog ."])                    # [[72, 1842, 616, 3290, 764]]

Li et al. (2023, appendix A) score all attacks over the same byte-pair encoding, that of the decoder they attack with.
"""

from __future__ import annotations

from collections.abc import Sequence

from unembed.attacks.parts.vocabulary import Pieces
from unembed.core.errors import InputError


class HubTokens(Pieces):
    """All tokens of a tokenizer of the hub, or of a local folder.

    Args:
        name: Hub name or local path.
        revision: Branch, tag or commit of a hub name.
    """

    def __init__(self, name: str, revision: str | None = None) -> None:
        super().__init__()
        self.name, self.revision = name, revision

    def choose(self, texts: Sequence[str]) -> str:
        """The tokenizer, as the library writes it.

        Raises:
            InputError: It is neither on this machine nor to be had.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.name, revision=self.revision, trust_remote_code=False)
        except OSError as error:
            raise InputError(
                f"attack.vocabulary.name={self.name}: no such local directory, and no such tokenizer in the hub's "
                "cache or on the hub. Offline, attack/vocabulary=pieces trains one"
            ) from error
        described: str = tokenizer.backend_tokenizer.to_str()
        return described
