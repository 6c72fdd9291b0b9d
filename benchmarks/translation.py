"""How often an unpaired translation finds the text: by number of vectors, seed and kind of space.

    python benchmarks/translation.py --victim layer5.npy --own minilm.npy --vectors 1000 10000 50000 --seeds 0 1 2 3 4

The two files hold vectors, (n, d) and (N, k). The first rows of the second file, n or as many as ``--answers`` says,
are of the texts of the first rows of the first file: they are the answers, which the translation does not see. It sees
as many rows of the first file as ``--vectors`` says, those tested among them, and as many of the second file after the
answers. A seed samples both sets of rows, and is the seed of the translation.

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
from measuring import Clock, cka, command_line
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


def paired(victim: Tensor, own: Tensor, power: float) -> float:
    """What a rotation fitted to half of the pairs finds of the others."""
    theirs, ours = Prepared.of(victim, power)(victim), Prepared.of(own, power)(own)
    half = len(victim) // 2
    rotation = nearest_rotation((theirs[half:].T @ ours[half:]).double())
    return top1(theirs[:half] @ rotation, ours[:half], torch.zeros(ours.shape[1]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__, own_time=True)
    parser.add_argument("--victim", type=Path, required=True)
    parser.add_argument("--own", type=Path, required=True)
    parser.add_argument("--vectors", type=int, nargs="+", default=[1000, 3000, 10_000, 50_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--answers", type=int)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    clock, victim, own = Clock(own_time=options.own_time), read(options.victim), read(options.own)
    known = options.answers or len(victim)
    answers, rest = own[:known], own[known:]
    some = slice(0, min(TESTED, known))
    found: dict[str, Any] = {
        "cka": cka(victim[some], answers[some]), "paired": paired(victim[some], answers[some], Translator().power),
        "rows": [],
    }  # fmt: skip
    print(f"cka {found['cka']:.3f}, paired {found['paired']:.1f} %")
    for count in options.vectors:
        for seed in options.seeds:
            random = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(victim), generator=random)
            own_rows = torch.randperm(len(rest), generator=random)[:count]
            part = order[order < known][:TESTED][:count]
            rows = torch.cat([part, order[~torch.isin(order, part)]])[:count]
            begin = clock()
            made = Translator(seed=seed).fit(victim[rows], rest[own_rows])
            seconds = clock() - begin
            row = {"vectors": count, "seed": seed, "seconds": seconds, **made.about}
            row["top1"] = top1(made.map(victim[part]), answers[part], rest[own_rows].mean(0))
            found["rows"].append(row)
            print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
