"""Exact steps: at one place after another, the tokens that gradients point to are run, and the best input is kept.

    "i have two cats" -> 64 tokens for the second place, the second exchanged with or moved to each other place
                      -> run them all -> the best, also if it is none of them; then the third place

A relaxed search settles where mixtures of tokens come close to the target and no input does. These steps know inputs
only. The gradient at the token that stands at a place says little of others, as it lies in a valley of its own: it is
taken half-way between the mean of all tokens and each token of the input, and averaged. (Seen on all-MiniLM-L6-v2, one
place of a chat sentence wrong: the right token was among the first 64 of 30,522 in 43 % of the places by the first, in
79 % by the second, of three tokens.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from unembed.attacks.lm_inversion.losses import Loss
from unembed.attacks.lm_inversion.method import Rows, State
from unembed.attacks.lm_inversion.swaps import best_of, distinct, losses_of, promising_tokens

_INPUTS_AT_ONCE = 128  # of one pass: gradients keep all that lies between


class Coordinates:
    """Takes exact steps; a step is at one place, and n of them go once through an input.

    Where a whole round has changed nothing, two places of the best input so far get other tokens.

    Args:
        loss: How far an input's output is from the target's.
        candidates: Tokens that are tried at a place.
    """

    def __init__(self, loss: Loss, candidates: int) -> None:
        self.loss, self.candidates = loss, candidates

    def begin(self, ids: Tensor) -> State:
        """The state of inputs (B, n)."""
        return {"ids": ids, "unchanged": torch.zeros_like(ids[:, 0]), "spent": torch.zeros_like(ids[:, 0])}

    def step(self, state: State, rows: Rows, places: Tensor) -> Tensor:
        """One step for all inputs, each at its place of ``places`` (B,); the best of what was tried, (B, n)."""
        before = state["ids"]
        tokens = promising_tokens(self._gradient(before, rows, places), self.candidates)
        candidates, owners = distinct(neighbours(before, places, tokens))
        found = best_of(candidates, owners, losses_of(candidates, owners, rows, self.loss, _INPUTS_AT_ONCE))
        state["spent"] = owners.bincount(minlength=len(rows)) + 3 * rows.length
        same = (found == before).all(dim=1)
        unchanged = torch.where(same, state["unchanged"] + 1, 0)
        settled = unchanged >= rows.length
        state["ids"] = found.clone()
        for row in settled.nonzero().squeeze(1).tolist():
            state["ids"][row] = self._disturbed(rows, row, int(places[row]), tokens[row])
        state["unchanged"] = torch.where(settled, 0, unchanged)
        return found

    def _gradient(self, ids: Tensor, rows: Rows, places: Tensor) -> Tensor:
        """Mean gradient of the loss in the one-hot token at each input's place, (B, inputs)."""
        size, length = ids.shape
        table = rows.model.input_vectors
        every = torch.arange(size, device=ids.device)
        points = table[ids][:, None].repeat(1, length, 1, 1)  # (B, points, n, width)
        points[every, :, places] = (table[ids] + table.mean(dim=0)) / 2
        owners = every.repeat_interleave(length)
        slopes = []
        parts = (torch.split(whole, _INPUTS_AT_ONCE) for whole in (points.flatten(0, 1), owners))
        for part, of in zip(*parts, strict=True):
            part.requires_grad_()
            seen = rows.seen[of]
            logits = rows.model.relaxed(part, seen.continuation, seen.ids.shape[1])
            loss = self.loss(rows.model.observation, seen, logits).sum()
            (gradient,) = torch.autograd.grad(loss, part)
            slopes.append(gradient[torch.arange(len(of)), places[of]])
        return torch.cat(slopes).view(size, length, -1).mean(dim=1) @ table.T

    def _disturbed(self, rows: Rows, row: int, place: int, tokens: Tensor) -> Tensor:
        """The best input so far with other tokens at a given and at a sampled position."""
        generator = rows.generator(row, int(rows.iteration[row]))
        ids = rows.best[row].clone()
        sampled = torch.randint(len(tokens), (2,), generator=generator)
        ids[place] = tokens[sampled[0]]
        ids[int(torch.randint(rows.length, (1,), generator=generator))] = tokens[sampled[1]]
        return ids


def neighbours(ids: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
    """Inputs that differ at a place: (B, n), (B,), (B, k) -> (B, k + 2n, n).

    Another token stands there, or the one that does has changed places with another, or was moved to another place;
    the input itself is among them.
    """
    size, length = ids.shape
    every = torch.arange(size, device=ids.device)
    other = ids[:, None].repeat(1, tokens.shape[1], 1)
    other[every, :, places] = tokens
    orders = torch.stack([_orders(length, place, ids.device) for place in range(length)])[places]  # (B, 2n, n)
    return torch.cat([other, ids[every[:, None, None], orders]], dim=1)


def _orders(length: int, place: int, device: torch.device) -> Tensor:
    """Orders of n places in which one was exchanged with each, and moved to each, (2n, n)."""
    orders = []
    for to in range(length):
        exchanged = list(range(length))
        exchanged[place], exchanged[to] = to, place
        moved = [at for at in range(length) if at != place]
        moved.insert(to, place)
        orders += [exchanged, moved]
    return torch.tensor(orders, device=device)
