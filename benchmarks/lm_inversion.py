"""Attacks on a language model's output, measured on a model that was trained a minute ago (docs/lm_inversion.md).

    python benchmarks/train_language_model.py stories.jsonl --output runs/tinylm --steps 2500
    python benchmarks/lm_inversion.py --model runs/tinylm --texts stories.jsonl --output runs/lm_inversion.jsonl

Parts (``--parts``), each a list of cells:

    oracle        inputs of 1 and 2 tokens: soda against brute force over all inputs
    wrong_length  inputs of 1 to 4 tokens, searched with 1 to 4 (table 9)
    slander       outputs that have an input of up to 3 tokens, and such as have none
    outputs       1, 3, 10, 25 output tokens with 0, 1, 10, 100 or all logits (tables 2 and 8)
    ablation      soda without its parts (table 4)
    lengths       inputs of 1 to 10 tokens, random and in domain: all attacks at one cost (table 5)
    long          soda alone for longer (figures 2 and 3)

A cell is written to ``--output`` (a line of JSON) when it is done and never done again, so a killed or interrupted
benchmark resumes where it was. At the end, and with ``--parts`` alone, the tables of all cells so far are printed
(lm_inversion_tables.py), and the plot is written beside the output.

SODA's settings are the paper's for TinyStories-33M but for ``--soda``, embedding search's the paper's but for
``--embedding-search``; both were chosen on other random inputs of the small model. Cost is counted in forward passes
of one input, a backward pass as two. The logits inverter's are those of its training pairs; it is trained on fresh
ones for ``--inverter-steps``.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import lm_inversion_tables as tables
import torch
from lm_inversion_inverter import Inverter
from measuring import Rows, command_line, quiet, read_rows, write_rows
from torch import Tensor

from unembed import launch
from unembed.attacks.parts.predictions import Targets
from unembed.core.examples import Example
from unembed.datamodules.sources.base import END
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder

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
Ids = tuple[int, ...]
Found = dict[str, Any]


class Bench:
    """The model, its inputs, and attacks on it; ``folder`` is for files that go with it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.sentences = folder / "sentences.jsonl"
        write_rows(self.sentences, self._sentences())

    def _sentences(self) -> Iterator[dict[str, Any]]:
        """Every sentence a text: stories begin alike."""
        for row in read_rows(self.options.texts):
            yield from ({"split": row["split"], "text": text} for text in END.split(row["text"]))

    @lru_cache  # noqa: B019  (one bench a process; composing takes a tenth of a second)
    def config(self, *overrides: str) -> Any:
        """What train.py would make of the overrides."""
        config = launch.compose(
            "train", ["embedder=language_model", f"embedder.model={self.options.model}", *overrides]
        )
        if mistakes := launch.check(config):
            raise SystemExit("\n".join(mistakes))
        return config

    @lru_cache  # noqa: B019  (one bench a process)
    def model(self, output_tokens: int = 1, top_k: int | None = None) -> LanguageModelEmbedder:
        return LanguageModelEmbedder(
            str(self.options.model), output_tokens, top_k or None, "words" if top_k == 0 else "logits", device="cpu"
        )

    def oracle(self, model: LanguageModelEmbedder) -> CachedEmbedder:
        return CachedEmbedder(model, self.folder / "cache")

    @lru_cache  # noqa: B019
    def inputs(self, data: str, length: int, count: int) -> list[Ids]:
        """Test inputs: ``random`` ids, or the beginnings of ``text`` that the model was not trained on."""
        from hydra.utils import instantiate

        chosen = [f"datamodule.source.{end}_length={length}" for end in ("min", "max")]
        kind = {
            "random": ["datamodule=random_tokens"],
            "text": [
                "datamodule=cut_texts", f"datamodule.source.source.path={self.sentences}",
                "datamodule.source.source.split_field=split",
            ],
        }[data]  # fmt: skip
        config = self.config("attack=soda", *kind, *chosen, f"datamodule.source.test_per_length={count}")
        found: Sequence[Example] = instantiate(config.datamodule.source, _convert_="all").load()["test"]
        return [example.tokens for example in found if example.tokens is not None]

    def search(
        self, attack: str, ids: Sequence[Ids], overrides: Sequence[str] = (),
        model: LanguageModelEmbedder | None = None, rows: Tensor | None = None, known: bool = True,
    ) -> list[Found]:  # fmt: skip
        """What an attack finds for the outputs of inputs of one length, or for given ``rows``."""
        from hydra.utils import instantiate

        model = model or self.model()
        chosen = [f"attack={attack}", "attack.keep=best", "datamodule=random_tokens", *overrides]
        made = instantiate(self.config(*chosen).attack)
        made.connect(self.folder / "artifacts", self.oracle(model))
        rows = model.observe(torch.tensor(ids)) if rows is None else rows
        lengths = tuple(map(len, ids)) if known else None
        predictions = made.invert(Targets(rows, torch.arange(len(rows)), lengths=lengths), made.oracle)
        return [
            {
                "true": list(true), "found": list(one.tokens or ()), "verified": one.search.verified,
                "iterations": one.search.iterations, "passes": one.search.passes,
            }
            for true, one in zip(ids, predictions, strict=True)
        ]  # fmt: skip

    def lengths(self, most: int) -> range:
        """Input lengths of a part, 1 to ``most``; fewer with ``--longest``."""
        return range(1, min(most, self.options.longest) + 1)

    def iterations(self, usual: int) -> int:
        """Those of a part that has no ``--passes``, cut by ``--iterations-share``."""
        return max(1, round(usual * self.options.iterations_share))

    def soda(self, ids: Sequence[Ids], overrides: Sequence[str], **arguments: Any) -> list[Found]:
        own = [f"attack.{setting}" for setting in self.options.soda]
        return self.search(
            "soda", ids, [f"attack.active_targets={self.options.active_targets}", *own, *overrides], **arguments
        )


def every_input(inputs: int, length: int, together: int) -> Iterator[Tensor]:
    """All inputs of a length in blocks, (B, length)."""
    places = inputs ** torch.arange(length - 1, -1, -1)
    for begin in range(0, inputs**length, together):
        numbers = torch.arange(begin, min(begin + together, inputs**length))
        yield numbers[:, None] // places % inputs


@dataclass(frozen=True, slots=True)
class Cell:
    """A unit of work: the part, what tells it from the others of the part, and the function that does it."""

    part: str
    name: dict[str, Any]
    run: Callable[[], dict[str, Any]]


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
    searches = (bench.soda(bench.inputs("random", n, each), overrides, model=model) for n in (1, 2, 3))
    return {"rows": list(itertools.chain.from_iterable(searches))}


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
    "ablation": ablation_cells, "lengths": length_cells, "long": long_cells,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of train_language_model.py")
    parser.add_argument("--texts", type=Path, required=True, help="the texts that it was trained on")
    parser.add_argument("--output", type=Path, required=True, help="a .jsonl file; the plot is written beside it")
    parser.add_argument("--parts", nargs="*", choices=CELLS, default=list(CELLS), help="none: only show what is there")
    parser.add_argument("--passes", type=int, default=3000, help="forward passes that a target may cost")
    parser.add_argument("--long-passes", type=int, default=10_000, help="the same in part long")
    parser.add_argument("--count", type=int, default=50, help="inputs of each length and kind in part lengths")
    parser.add_argument("--small-count", type=int, default=20, help="inputs of each cell in other parts")
    parser.add_argument("--oracle-count", type=int, default=100, help="inputs of each length in part oracle")
    parser.add_argument("--longest", type=int, default=10, help="tokens of the longest inputs, of all parts")
    parser.add_argument("--iterations-share", type=float, default=1.0, help="of the iterations of the other parts")
    parser.add_argument("--active-targets", type=int, default=50, help="targets searched at once")
    parser.add_argument("--inverter-steps", type=int, default=3500, help="of the training of each logits inverter")
    attacks = ["soda", "gcg", "embedding_search", "logits_inverter", "gcg_64"]
    parser.add_argument("--attacks", nargs="+", choices=attacks, default=attacks[:-1])
    parser.add_argument("--soda", nargs="*", default=["lr=0.03", "decay=0.98"], help="settings of soda for this model")
    parser.add_argument("--embedding-search", nargs="*", default=["lr=0.02", "draw_std=0.1"], help="the same of it")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    quiet()
    records = Rows(options.output)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        for cell in itertools.chain.from_iterable(CELLS[part](bench) for part in options.parts):
            if cell.part != "inverter" and cell.name.get("attack", "soda") == "soda":
                cell.name["soda"] = options.soda
            if records.have(part=cell.part, name=cell.name):
                continue
            started = time.perf_counter()
            record = {"part": cell.part, "name": cell.name, **cell.run()}
            record["seconds"] = round(time.perf_counter() - started, 2)
            records.add(record)
            print(f"  {record['seconds']:7.1f} s  {cell.part}: {tables.short(record)}", flush=True)
    print(tables.everything(records))
    if plotted := tables.plot(records):
        options.output.with_suffix(".svg").write_text(plotted, encoding="utf-8")
        print(f"plot: {options.output.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
