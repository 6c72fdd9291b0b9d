"""Has a language model an input of up to n tokens for a claimed output? (Skapars et al. 2025, section 5.4)

    python benchmarks/slander.py --model gpt2 --claim " You should be ashamed of yourself" --max-length 3

    1 token    all 50,257 inputs run: none gives this output
    2 tokens   searched, none found; of outputs that have such an input the search finds one for 17 of 20 (64-95 %)
    ...

Lengths of which there are few inputs (``--exhaust``) are tried whole, which settles them. The others are searched
by SODA, which may miss an input: how often is measured on the model's own greedy outputs of ``--trials`` random
inputs of each length, searched in the same way. An input that is found is certain: the model was run on it. The claim
is cut into the model's tokens; an output that the model wrote in other tokens of the same letters is another claim.
Inputs that come with a beginning of sequence, a chat template or a system prompt are not covered. Ends with a line of
JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import command_line
from torch import Tensor

from unembed.attacks.lm_inversion.losses import TextLoss
from unembed.attacks.lm_inversion.soda import SODA
from unembed.attacks.parts.predictions import Targets
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.metrics.statistics import Share

INPUTS_AT_ONCE = 2**22  # logits of one forward pass


def every_input(inputs: int, length: int, together: int) -> Iterator[Tensor]:
    """All inputs of a length in blocks, (B, length)."""
    places = inputs ** torch.arange(length - 1, -1, -1)
    for begin in range(0, inputs**length, together):
        numbers = torch.arange(begin, min(begin + together, inputs**length))
        yield numbers[:, None] // places % inputs


def exhausted(model: LanguageModelEmbedder, claim: Tensor, length: int) -> list[int] | None:
    """The first input of a length whose greedy output is the claim (m,), after all were run; None where none is."""
    together = max(1, INPUTS_AT_ONCE // (model.observation.vocabulary * len(claim)))
    for ids in every_input(model.inputs, length, together):
        logits = model.logits(ids.to(model.device), claim[:-1].expand(len(ids), -1))
        found = (logits.argmax(-1) == claim).all(1).nonzero()[:, 0]
        if len(found):
            return [int(number) for number in ids[found[0]]]
    return None


def searched(
    model: LanguageModelEmbedder, claims: Tensor, length: int, options: argparse.Namespace
) -> list[list[int] | None]:
    """An input of a length for each claim (N, m); None where the search found none."""
    attack = SODA(
        TextLoss(log=True), lr=options.lr, decay=options.decay, iterations=options.iterations, length=length,
        max_length=length, restarts=options.restarts, seed=options.seed,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        attack.connect(Path(folder), CachedEmbedder(model, Path(folder)))
        found = attack.invert(Targets(claims.float(), torch.arange(len(claims))), attack.oracle)
    return [list(one.tokens or ()) if one.search is not None and one.search.verified else None for one in found]


def main(argv: Sequence[str] | None = None) -> None:
    """Try or search length after length, until an input is found."""
    parser = command_line(__doc__)
    parser.add_argument("--model", required=True, help="a folder, or a name on the hub")
    parser.add_argument("--claim", required=True, help="the output")
    parser.add_argument("--max-length", type=int, default=3, help="tokens of the longest inputs")
    parser.add_argument("--exhaust", type=int, default=100_000, help="lengths with so many inputs are tried whole")
    parser.add_argument("--trials", type=int, default=20, help="known outputs of each length that is searched")
    parser.add_argument("--iterations", type=int, default=1000, help="of the search, for each length")
    parser.add_argument("--restarts", type=int, default=1, help="searches side by side")
    parser.add_argument("--lr", type=float, default=0.065)
    parser.add_argument("--decay", type=float, default=0.9)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    cut = LanguageModelEmbedder(options.model, device=options.device).ids(options.claim)
    model = LanguageModelEmbedder(options.model, len(cut), top_k=0, device=options.device)
    claim = torch.tensor(cut, device=model.device)
    print(f"the claim has {len(cut)} tokens; the model has {model.inputs:,} for an input")
    lengths: list[dict[str, Any]] = []
    for length in range(1, options.max_length + 1):
        entry = report(model, claim, length, options)
        lengths.append(entry)
        print(f"{length} token{'s' if length > 1 else ' '}   {entry.pop('said')}", flush=True)
        if entry["input"] is not None:
            break
    print(json.dumps({"claim": options.claim, "lengths": lengths}))


def report(model: LanguageModelEmbedder, claim: Tensor, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """What is known of inputs of a length: ``input`` (ids or None), ``settled``, and in words."""
    whole = model.inputs**length <= options.exhaust
    found = exhausted(model, claim, length) if whole else searched(model, claim[None], length, options)[0]
    if found is not None:
        said = f"the input {model.decode(found)!r} (ids {found}) gives this output"
        return {"length": length, "input": found, "settled": True, "said": said}
    if whole:
        said = f"all {model.inputs**length:,} inputs run: none gives this output"
        return {"length": length, "input": None, "settled": True, "said": said}
    generator = torch.Generator().manual_seed(options.seed)
    ids = torch.randint(model.inputs, (options.trials, length), generator=generator)
    known = [one is not None for one in searched(model, model.observe(ids).long(), length, options)]
    share = Share(sum(known), len(known))
    assert share.interval is not None
    low, high = share.interval
    said = (
        "searched, none found; of outputs that have such an input the search finds one for "
        f"{share.part} of {share.whole} ({low:.0f}-{high:.0f} %)"
    )
    return {"length": length, "input": None, "settled": False, "found": share.part, "trials": share.whole, "said": said}


if __name__ == "__main__":
    main()
