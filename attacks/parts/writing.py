"""What a search asks of a trained decoder: how a text goes on, its words in another order, and how probable it is.

writer = Writer(lambda: attack)                                  # an attack=geia, built when it is called
writer.write_on(vectors, ["my name is", ...], uniforms)          # [" ada", ...]
writer.rearranged(vectors, ["ada is my name", ...], beams=32)    # [["my name is ada", ...], ...]
writer.log_probabilities(vectors, ["my name is ada", ...])       # (n,)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unembed.attacks.parts.decoding import BeamSearch, WantedWords, drawn
from unembed.datamodules.arrow_examples import IGNORED

if TYPE_CHECKING:
    from unembed.attacks.geia import GenerativeAttack

_WRITTEN = 256  # texts that are written at a time
_REARRANGED = 8  # texts whose words are put in order at a time
_NATS = 4.0  # what a wanted word is worth: with 3 or 6, fewer true texts are found
_SCORED = 32  # texts that are scored at a time: memory of this size is used again, larger blocks are new every time


class Writer:
    """The decoder of a generative attack, on any number of vectors and texts at a time.

    ``read`` makes what the decoder reads of vectors (n, d); by default, they are read as they are. ``predict`` gives
    unit vectors (n, d) of texts without a query, where the attack needs no trained surrogate for it.
    """

    def __init__(
        self,
        attack: Callable[[], GenerativeAttack],
        read: Callable[[Tensor], Tensor] | None = None,
        predict: Callable[[Sequence[str]], Tensor] | None = None,
    ) -> None:
        self._built, self.predict = attack, predict
        self._read = read or (lambda vectors: vectors)

    @property
    def _attack(self) -> GenerativeAttack:
        return self._built()

    @torch.no_grad()
    def write_on(
        self, vectors: Tensor, beginnings: Sequence[str], uniforms: Tensor, temperature: float = 1.0
    ) -> list[str]:
        """Sampled continuations of n texts, each given its vector.

        Args:
            vectors: (n, d).
            beginnings: n texts, which may be empty.
            uniforms: Random numbers from 0 to 1 that choose the tokens, (n, most tokens of a continuation).
            temperature: Of the sampling.
        """
        tokens = self._attack.tokens(beginnings)
        found = [""] * len(tokens)
        order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        for begin in range(0, len(order), _WRITTEN):
            rows = order[begin : begin + _WRITTEN]
            written = self._sampled(vectors[rows], [tokens[row] for row in rows], uniforms[rows], temperature)
            for row, ids in zip(rows, written, strict=True):
                found[row] = self._attack.text(ids)
        return found

    def _sampled(
        self, vectors: Tensor, given: list[list[int]], uniforms: Tensor, temperature: float
    ) -> list[list[int]]:
        """Token ids written behind the ids ``given``, the shortest of which come first."""
        attack, eos = self._attack, self._attack.tokenizer.eos_token_id
        longest, limit = uniforms.shape[1], attack.decoding.max_new_tokens  # the decoder has no more positions
        written: list[list[int]] = [[] for _ in given]
        logits, state = attack.decoder.start(attack.prefix(self._read(vectors).to(attack.device)))
        active = list(range(len(given)))
        for step in range(len(given[-1]) + longest):
            places = [place for place, row in enumerate(active) if step >= len(given[row])]
            free = [active[place] for place in places]
            if free:
                numbers = uniforms[free, [step - len(given[row]) for row in free]].to(logits.device)
                probabilities = (logits[places].float() / temperature).softmax(-1)
                sampled = drawn(probabilities, numbers).clamp_max(probabilities.shape[1] - 1)
                for row, token in zip(free, sampled.tolist(), strict=True):
                    written[row].append(token)
            kept = [
                place
                for place, row in enumerate(active)
                if len(written[row]) < longest and (not written[row] or written[row][-1] != eos)
            ]
            active = [active[place] for place in kept]
            if not active or step + 1 >= limit:
                break
            attack.decoder.select(torch.tensor(kept, device=logits.device)[:, None], state)
            new = [given[row][step] if step < len(given[row]) else written[row][-1] for row in active]
            logits = attack.decoder.step(torch.tensor(new, device=logits.device)[:, None], state)[:, 0]
        return [ids[: ids.index(eos)] if eos in ids else ids for ids in written]

    @torch.no_grad()
    def rearranged(self, vectors: Tensor, texts: Sequence[str], beams: int) -> list[list[str]]:
        """For each of n texts, ``beams`` probable ones given its vector (n, d) that use its words, and a few others."""
        attack, found = self._attack, list[list[str]]()
        search = BeamSearch(beams, attack.decoding.max_new_tokens, length_penalty=0.0, candidates=beams)
        for begin in range(0, len(texts), _REARRANGED):
            rows = slice(begin, begin + _REARRANGED)
            wanted = WantedWords(self._kinds.to(attack.device), attack.tokens(texts[rows]), _NATS)
            prefix, eos = attack.prefix(self._read(vectors[rows]).to(attack.device)), attack.tokenizer.eos_token_id
            written = search(attack.decoder, prefix, eos=eos, index=torch.arange(len(prefix)), wanted=wanted)
            found += [[attack.text(ids) for ids in own] for own in written]
        return found

    @cached_property
    def _kinds(self) -> Tensor:
        """Tokens that differ in case and spaces have the same number, (V,)."""
        known: dict[str, int] = {}
        tokenizer, size = self._attack.tokenizer, self._attack.decoder.model.config.vocab_size  # may be padded
        written = (tokenizer.decode([token]).strip().lower() for token in range(size))
        return torch.tensor([known.setdefault(one, len(known)) for one in written])

    @torch.no_grad()
    def log_probabilities(self, vectors: Tensor, texts: Sequence[str]) -> Tensor:
        """Of whole texts, end token included, given their vectors (n, d): (n,) on the CPU."""
        attack = self._attack
        tokens = [torch.tensor(ids) for ids in attack.encode(texts)]
        found = torch.zeros(len(tokens))
        order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        for begin in range(0, len(order), _SCORED):
            rows = order[begin : begin + _SCORED]
            labels = torch.nn.utils.rnn.pad_sequence([tokens[row] for row in rows], True, IGNORED).to(attack.device)
            prefix = attack.prefix(self._read(vectors[rows]).to(attack.device))
            log_p = attack.decoder.logits(prefix, labels).float().log_softmax(-1)
            own = log_p.gather(2, labels.clamp_min(0)[..., None])[..., 0]
            found[rows] = own.masked_fill(labels == IGNORED, 0.0).sum(1).cpu()
        return found
