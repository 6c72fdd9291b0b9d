"""A search over texts of any length for those that have given vectors.

    ["i like dog"]  ->  shorter, longer, changed and reordered texts  ->  "i like my dog ."

Changes are tried by forward passes, and the closest texts are changed again, those first that were changed seldom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from unembed.attacks.lm_inversion.edits import Edit, pairs
from unembed.attacks.lm_inversion.encoder import Encoder, Ids
from unembed.attacks.lm_inversion.entries import Entries
from unembed.attacks.lm_inversion.ranked_edits import RankedEdits
from unembed.attacks.lm_inversion.token_language import TokenLanguage

FOUND = 1 - 2e-5  # cosine of a text with its own vector, less the last bits of float32 and of another batch
_EQUAL = 6  # decimals of a cosine that count
_KEPT = 400  # closest texts of a target whose vectors are kept
_WEAR = 0.5  # share of its distance by which a text is taken to be farther for each round in which it was changed


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a search tries.

    Attributes:
        steps: Rounds of each target.
        candidates: Changes that are run in a round, beside texts that are shorter by a token.
        beam: Texts that are changed in a round.
    """

    steps: int
    candidates: int
    beam: int


@dataclass(slots=True, eq=False)
class Text:
    """A text whose vector is known.

    Attributes:
        ids: Its tokens.
        vector: Unit vector, (d,).
        cosine: With the target.
        changed: Rounds in which it was changed.
        edits: Its edits that were not tried yet; None before the first round.
        tried: Edits of it, with the vectors that they gave.
    """

    ids: Ids
    vector: Tensor
    cosine: float
    changed: int = 0
    edits: Iterator[Edit] | None = None
    tried: list[tuple[Edit, Tensor]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TextSearch:
    """The search for one target.

    Attributes:
        target: Unit vector, (d,).
        starts: Texts to begin with, one at least.
        budget: See Budget.
        texts: The closest texts, the closest first.
        tried: All texts that were run.
        steps: Rounds until now.
        passes: Forward passes until now.
    """

    target: Tensor
    starts: Sequence[Ids]
    budget: Budget
    texts: list[Text] = field(default_factory=list)
    tried: set[Ids] = field(default_factory=set)
    steps: int = 0
    passes: int = 0

    @property
    def found(self) -> bool:
        """Whether the closest text has the target's vector."""
        return self.texts[0].cosine > FOUND

    @property
    def active(self) -> bool:
        return not self.found and self.steps < self.budget.steps and any(text.edits is not _NONE for text in self.texts)

    def receive(self, inputs: Sequence[Ids], vectors: Tensor) -> None:
        """Take the vectors of texts that were run."""
        for ids, vector, cosine in zip(inputs, vectors, (vectors @ self.target).tolist(), strict=True):
            if ids not in self.tried:
                self.tried.add(ids)
                self.texts.append(Text(ids, vector, round(cosine, _EQUAL)))
        self.texts = sorted(self.texts, key=lambda text: (-text.cosine, text.ids))[:_KEPT]
        self.passes += len(inputs)

    def beam(self) -> list[Text]:
        """The texts that are changed in the next round."""
        left = [text for text in self.texts if text.edits is not _NONE]
        left.sort(key=lambda text: (1 - text.cosine) * (1 + _WEAR * text.changed))
        return left[: self.budget.beam]

    def next_edits(self, beam: Sequence[Text], encoder: Encoder) -> list[tuple[Text, Edit, Ids]]:
        """Edits of these texts, and what they give, that were not run: pairs of edits, and those ranked next."""
        self.steps += 1
        found: dict[Ids, tuple[Text, Edit, Ids]] = {}
        wanted = -(-self.budget.candidates // len(beam))
        for text in beam:
            assert text.edits is not None
            count = len(found)
            if text.changed:
                joint = pairs(text.ids, text.vector, text.tried, self.target)
                self._take(found, text, joint, count + wanted // 2, encoder)
            if not self._take(found, text, text.edits, count + wanted, encoder):
                text.edits = _NONE
            text.changed += 1
        return list(found.values())

    def _take(
        self,
        found: dict[Ids, tuple[Text, Edit, Ids]],
        text: Text,
        edits: Iterator[Edit],
        until: int,
        encoder: Encoder,
    ) -> bool:
        """Add edits to ``found`` until it has ``until``; False if there are fewer."""
        while len(found) < until:
            some = list(islice(edits, until - len(found)))
            if not some:
                return False
            for edit, ids in zip(some, encoder.canonical([edit.of(text.ids) for edit in some]), strict=True):
                if ids not in self.tried and 0 < len(ids) <= encoder.model.max_tokens:
                    found.setdefault(ids, (text, edit, ids))
        return True


_NONE: Iterator[Edit] = iter(())  # of a text whose edits were all tried


@torch.no_grad()
def search(searches: Sequence[TextSearch], entries: Entries, language: TokenLanguage, encoder: Encoder) -> None:
    """Take rounds of all searches until each has found its text or used up its budget."""
    _run([(one, list(dict.fromkeys(one.starts))) for one in searches], encoder)
    while active := [one for one in searches if one.active]:
        beams = [(one, one.beam()) for one in active]
        _begin([(one, text) for one, beam in beams for text in beam if text.edits is None], entries, language, encoder)
        edits = [one.next_edits(beam, encoder) for one, beam in beams]
        vectors = _run([(one, [ids for _, _, ids in own]) for one, own in zip(active, edits, strict=True)], encoder)
        for own, block in zip(edits, vectors, strict=True):
            for (text, edit, ids), vector in zip(own, block, strict=True):
                if edit.of(text.ids) == ids:
                    text.tried.append((edit, vector))


def _begin(
    texts: Sequence[tuple[TextSearch, Text]], entries: Entries, language: TokenLanguage, encoder: Encoder
) -> None:
    """Run each text without each of its tokens and words, and rank its other changes."""
    spans = [encoder.spans(text.ids) for _, text in texts]
    removals = [[Edit(*span, ()) for span in own] for own in spans]
    rest = [[edit.of(text.ids) or text.ids for edit in own] for (_, text), own in zip(texts, removals, strict=True)]
    vectors = _run([(one, own) for (one, _), own in zip(texts, rest, strict=True)], encoder)
    for (one, text), own, edits, shorter in zip(texts, spans, removals, vectors, strict=True):
        text.edits = iter(RankedEdits(text.ids, text.vector, own, shorter, one.target, entries, language))
        text.tried = [(edit, vector) for edit, vector in zip(edits, shorter, strict=True) if len(edit.of(text.ids))]


def _run(wanted: Sequence[tuple[TextSearch, Sequence[Ids]]], encoder: Encoder) -> Sequence[Tensor]:
    """The vectors of each search's texts."""
    vectors = encoder.vectors([ids for _, own in wanted for ids in own])
    found: tuple[Tensor, ...] = torch.split(vectors, [len(own) for _, own in wanted])
    for (one, own), block in zip(wanted, found, strict=True):
        one.receive(own, block)
    return found
