"""The parts of benchmarks/lm_inversion.py as cells, each done once."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lm_inversion_bench import Bench
from lm_inversion_inverter import Inverter
from slander import every_input

ALL = "all"
ABLATIONS: dict[str, list[str]] = {
    "soda": [],
    "no decay": ["attack.decay=1.0"],
    "no resets": ["attack.reset_moments=null", "attack.reset_state=null"],
    "bias correction": ["attack.bias_correction=true"],
    "reparametrisation alone": [
        "attack.decay=1.0", "attack.reset_moments=null", "attack.reset_state=null", "attack.bias_correction=true",
    ],
    "embedding search": [
        "attack.decay=1.0", "attack.reset_moments=null", "attack.reset_state=null", "attack.bias_correction=true",
        "attack.reparametrize=false",
    ],
}  # fmt: skip
SODA_PASSES = 3.5  # of an iteration: three of the gradient, one where the candidate changed


@dataclass(frozen=True, slots=True)
class Cell:
    """A unit of work: the part, what tells it from the others of the part, and the function that does it."""

    part: str
    name: dict[str, Any]
    run: Callable[[], dict[str, Any]]

    @property
    def key(self) -> str:
        return json.dumps([self.part, self.name], sort_keys=True)


def overrides_of(attack: str, length: int, inputs: int, options: argparse.Namespace) -> tuple[str, list[str]]:
    """The attack's configuration, and as many iterations as ``--passes`` pay for."""
    if not attack.startswith("gcg"):
        chosen = options.soda if attack == "soda" else options.embedding_search
        return attack, [
            f"attack.iterations={max(1, round(options.passes / SODA_PASSES))}",
            f"attack.active_targets={options.active_targets}",
            *(f"attack.{setting}" for setting in chosen),
        ]
    candidates = {"gcg": 700, "gcg_64": 64}[attack]
    cells = length * min(128, inputs)
    different = cells * (1 - (1 - 1 / cells) ** candidates)  # expected, of so many samples
    steps = max(1, round(options.passes / (4 + different)))
    return "gcg", [
        f"attack.iterations={steps}",
        f"attack.candidates={candidates}",
        f"attack.active_targets={options.active_targets}",
    ]


def length_cells(bench: Bench) -> Iterator[Cell]:
    options = bench.options
    for data in ("random", "text"):
        if "logits_inverter" in options.attacks:
            settings = {"data": data, "steps": options.inverter_steps}
            inverter = Inverter(bench, data)
            yield Cell("inverter", settings, inverter.train)
    for attack, length, data in itertools.product(options.attacks, bench.lengths(10), ("random", "text")):
        ids = bench.inputs(data, length, options.count)
        name = {"data": data, "length": length, "attack": attack, "count": options.count}
        if attack == "logits_inverter":
            name["steps"] = options.inverter_steps
            yield Cell("lengths", name, lambda ids=ids, data=data: {"rows": Inverter(bench, data).invert(ids)})
        else:
            chosen, overrides = overrides_of(attack, length, bench.model().inputs, options)
            name["passes"] = options.passes
            if attack == "embedding_search":
                name["embedding_search"] = options.embedding_search
            yield Cell("lengths", name, lambda c=chosen, i=ids, o=overrides: {"rows": bench.search(c, i, o)})


def long_cells(bench: Bench) -> Iterator[Cell]:
    options = bench.options
    iterations = [f"attack.iterations={max(1, round(options.long_passes / SODA_PASSES))}"]
    for length, data in itertools.product(bench.lengths(10), ("random", "text")):
        name = {"data": data, "length": length, "count": options.small_count, "passes": options.long_passes}
        ids = bench.inputs(data, length, options.small_count)
        yield Cell("long", name, lambda i=ids: {"rows": bench.soda(i, iterations)})


def oracle_cells(bench: Bench) -> Iterator[Cell]:
    yield Cell("oracle", {"count": bench.options.oracle_count}, lambda: _oracle(bench))


def _oracle(bench: Bench) -> dict[str, Any]:
    """soda, which knows only that the inputs have at most two tokens, and all inputs that agree with each output."""
    model, count = bench.model(), bench.options.oracle_count
    ids = [row for length in (1, 2) for row in bench.inputs("random", length, count)]
    rows = torch.cat([model.observe(torch.tensor([row])) for row in ids])
    agreeing: list[list[list[int]]] = [[] for _ in ids]
    for block in itertools.chain.from_iterable(every_input(model.inputs, length, 4096) for length in (1, 2)):
        seen = model.observe(block)
        for target, row in enumerate(rows):
            # Most inputs are distinguished by their first logits.
            near = torch.isclose(seen[:, :8], row[:8], atol=1e-4, rtol=1e-4).all(1).nonzero()[:, 0]
            exact = torch.isclose(seen[near], row, atol=1e-4, rtol=1e-4).all(1)
            agreeing[target] += block[near[exact]].tolist()
    overrides = [f"attack.iterations={bench.iterations(1000)}", "attack.length=search", "attack.max_length=2"]
    return {"rows": bench.soda(ids, overrides, rows=rows, known=False), "agreeing": agreeing}


def wrong_length_cells(bench: Bench) -> Iterator[Cell]:
    iterations = bench.iterations(300)
    for true, searched in itertools.product(bench.lengths(4), bench.lengths(4)):
        name = {"true": true, "searched": searched, "count": bench.options.small_count, "iterations": iterations}
        overrides = [f"attack.length={searched}", f"attack.iterations={iterations}"]
        ids = bench.inputs("random", true, bench.options.small_count)
        yield Cell("wrong_length", name, lambda i=ids, o=overrides: {"rows": bench.soda(i, o, known=False)})


def slander_cells(bench: Bench) -> Iterator[Cell]:
    for top_k, claim in itertools.product((0, 1, None), ("true", "shuffled output")):
        name = {"logits": ALL if top_k is None else top_k, "claim": claim, "count": bench.options.small_count}
        yield Cell("slander", name, lambda k=top_k, c=claim: _slander(bench, k, c))


def _slander(bench: Bench, top_k: int | None, claim: str) -> dict[str, Any]:
    """Has an output of ten tokens an input of at most three? ``shuffled output``: one whose tokens changed places."""
    count, m = bench.options.small_count, 10
    model, whole = bench.model(m, top_k), bench.model(m)
    ids = [row for n in (1, 2, 3) for row in bench.inputs("random", n, -(-count // 3))]
    logits = torch.cat([whole.observe(torch.tensor([row])) for row in ids]).view(len(ids), m, -1)
    if claim != "true":
        generator = torch.Generator().manual_seed(0)
        logits = torch.stack([row[torch.randperm(m, generator=generator)] for row in logits])
    overrides = [
        f"attack.iterations={bench.iterations(200)}", "attack.length=search", "attack.max_length=3",
        f"attack/loss={'text' if top_k == 0 else 'logit'}",
    ]  # fmt: skip
    rows = model.observation.pack(logits)
    return {"rows": bench.soda(ids, overrides, model=model, rows=rows, known=False)}


def output_cells(bench: Bench) -> Iterator[Cell]:
    for m, top_k in itertools.product((1, 3, 10, 25), (0, 1, 10, 100, None)):
        name = {"tokens": m, "logits": ALL if top_k is None else top_k, "count": bench.options.small_count}
        yield Cell("outputs", name, lambda m=m, k=top_k: _outputs(bench, m, k))


def _outputs(bench: Bench, m: int, top_k: int | None) -> dict[str, Any]:
    overrides = [f"attack.iterations={bench.iterations(300)}", f"attack/loss={'text' if top_k == 0 else 'logit'}"]
    model, each = bench.model(m, top_k), -(-bench.options.small_count // 3)
    return {
        "rows": [
            row for n in (1, 2, 3) for row in bench.soda(bench.inputs("random", n, each), overrides, model=model)
        ]
    }  # fmt: skip


def ablation_cells(bench: Bench) -> Iterator[Cell]:
    options = bench.options
    iterations = [f"attack.iterations={max(1, round(options.passes / SODA_PASSES))}"]
    for length, (variant, overrides) in itertools.product(bench.lengths(5), ABLATIONS.items()):
        name = {"variant": variant, "length": length, "count": options.small_count, "passes": options.passes}
        if variant == "embedding search":
            overrides = [*overrides, *(f"attack.{setting}" for setting in options.embedding_search)]
            name["embedding_search"] = options.embedding_search
        ids = bench.inputs("random", length, options.small_count)
        yield Cell("ablation", name, lambda i=ids, o=overrides: {"rows": bench.soda(i, [*iterations, *o])})


CELLS: dict[str, Callable[[Bench], Iterator[Cell]]] = {
    "oracle": oracle_cells, "wrong_length": wrong_length_cells, "slander": slander_cells, "outputs": output_cells,
    "ablation": ablation_cells, "long": long_cells, "lengths": length_cells,
}  # fmt: skip
