"""How often an unpaired translation finds the text: by number of vectors, seed and kind of space.

    python benchmarks/translation.py --victim layer5.npy --own minilm.npy --vectors 1000 10000 50000 --seeds 0 1 2 3 4
    python benchmarks/translation.py --rotate --own minilm.npy --own-time

The two files hold vectors, (n, d) and (N, k) with N > n. The first n rows of the second file are of the texts of the
first one: they are the answers, which the translation does not see. It sees as many rows of the first file as
``--vectors`` says, and as many of the second file after row n (or of ``--others``, another file: of another domain).
A seed samples both sets of rows, and is the seed of the translation. With ``--rotate`` the victim's vectors are the
first half of the own ones under a random rotation, and the cosine of the found rotation with the true one is printed,
too.

``top1``: percent of the tested texts whose translated vector is nearer to their own vector than to that of any other
tested text. ``cka``: linear centred kernel alignment of the two spaces. ``paired``: top1 of a rotation that is fitted
to all pairs, which no unpaired one should exceed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Clock, command_line
from torch import Tensor

from unembed.attacks.transfer.translation import Prepared, Translator, nearest_rotation

TESTED = 8192


def read(path: Path) -> Tensor:
    return torch.from_numpy(np.load(path).astype(np.float32))


def top1(moved: Tensor, own: Tensor, center: Tensor) -> float:
    """Percent of rows that are nearest to the row of their number, by cosine of the centred vectors."""
    moved, own = (torch.nn.functional.normalize(rows.float() - center, dim=1) for rows in (moved, own))
    right = [
        (moved[begin : begin + 1024] @ own.T).argmax(1) == torch.arange(begin, min(begin + 1024, len(moved)))
        for begin in range(0, len(moved), 1024)
    ]
    return 100 * float(torch.cat(right).float().mean())


def cka(x: Tensor, y: Tensor) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019)."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float((x.T @ y).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def paired(victim: Tensor, own: Tensor, power: float) -> float:
    """What a rotation fitted to half of the pairs finds of the others."""
    theirs, ours = Prepared.of(victim, power)(victim), Prepared.of(own, power)(own)
    half = len(victim) // 2
    rotation = nearest_rotation((theirs[half:].T @ ours[half:]).double())
    return top1(theirs[:half] @ rotation, ours[:half], torch.zeros(ours.shape[1]))


def sample(vectors: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Numbers of some rows, or of all where there are no more."""
    return torch.randperm(len(vectors), generator=random)[:count]


def main(argv: Sequence[str] | None = None) -> None:
    """Translate for each number of vectors and each seed."""
    parser = command_line(__doc__, own_time=True)
    parser.add_argument("--victim", type=Path)
    parser.add_argument("--own", type=Path, required=True)
    parser.add_argument("--others", type=Path, help="the attacker's own vectors, in place of the rest of --own")
    parser.add_argument("--rotate", action="store_true")
    parser.add_argument("--vectors", type=int, nargs="+", default=[1000, 3000, 10_000, 50_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    if options.rotate == (options.victim is not None):
        parser.error("give --victim or --rotate")

    torch.set_num_threads(options.threads)
    clock, own = Clock(own_time=options.own_time), read(options.own)
    turn: Tensor | None = None
    if options.rotate:
        random = torch.Generator().manual_seed(1)
        turn = torch.linalg.qr(torch.randn(own.shape[1], own.shape[1], generator=random))[0]
        victim = own[: len(own) // 2] @ turn
    else:
        victim = read(options.victim)
    answers, rest = own[: len(victim)], own[len(victim) :] if options.others is None else read(options.others)
    some = slice(0, TESTED)
    found: dict[str, Any] = {
        "cka": cka(victim[some], answers[some]), "paired": paired(victim[some], answers[some], Translator().power),
        "rows": [],
    }  # fmt: skip
    print(f"cka {found['cka']:.3f}, paired {found['paired']:.1f} %")
    for count in options.vectors:
        for seed in options.seeds:
            random = torch.Generator().manual_seed(seed)
            rows, own_rows = sample(victim, count, random), sample(rest, count, random)
            begin = clock()
            made = Translator(seed=seed).fit(victim[rows], rest[own_rows])
            seconds = clock() - begin
            part = rows[:TESTED]
            row = {"vectors": count, "seed": seed, "seconds": seconds, **made.about}
            row["top1"] = top1(made.map(victim[part]), answers[part], rest[own_rows].mean(0))
            if turn is not None:
                weight = made.map.weight.float()
                row["cosine"] = float((weight * turn.T).sum() / (weight.norm() * turn.norm()))
            found["rows"].append(row)
            print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
