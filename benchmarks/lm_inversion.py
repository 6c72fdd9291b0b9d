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
benchmark resumes where it was; ``--minutes`` ends it between two cells. At the end, and with ``--parts`` alone, the
tables of all cells so far are printed (lm_inversion_tables.py), and the plot is written beside the output.

SODA's settings are the paper's for TinyStories-33M but for ``--soda``, embedding search's the paper's but for
``--embedding-search``; both were chosen on other random inputs of the small model. Cost is counted in forward passes
of one input, a backward pass as two. The logits inverter's are those of its training pairs; it is trained on fresh
ones for ``--inverter-steps``.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import lm_inversion_tables as tables
import torch
from common import quiet
from lm_inversion_bench import Bench
from lm_inversion_cells import CELLS
from measuring import command_line

PARTS = ("oracle", "wrong_length", "slander", "outputs", "ablation", "lengths", "long")


def main(argv: Sequence[str] | None = None) -> None:
    """Do the cells that are missing, then show all."""
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of train_language_model.py")
    parser.add_argument("--texts", type=Path, required=True, help="the texts that it was trained on")
    parser.add_argument("--output", type=Path, required=True, help="a .jsonl file; the plot is written beside it")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="none: only show what is there")
    parser.add_argument("--minutes", type=float, default=60.0, help="no cell begins after so long")
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
    done = tables.read(options.output)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, options.output.open("a", encoding="utf-8") as file:
        bench = Bench(options, Path(folder))
        for cell in itertools.chain.from_iterable(CELLS[part](bench) for part in options.parts):
            if cell.part != "inverter" and cell.name.get("attack", "soda") == "soda":
                cell.name["soda"] = options.soda
            if cell.key in done:
                continue
            if time.monotonic() - began > 60 * options.minutes:
                print(f"{options.minutes:g} minutes are over: the same command resumes from here")
                break
            started = time.perf_counter()
            record = {"part": cell.part, "name": cell.name, **cell.run()}
            record["seconds"] = round(time.perf_counter() - started, 2)
            file.write(json.dumps(record) + "\n")
            file.flush()
            print(f"  {record['seconds']:7.1f} s  {cell.part}: {tables.short(record)}", flush=True)
    records = list(tables.read(options.output).values())
    print(tables.everything(records))
    if plotted := tables.plot(records):
        options.output.with_suffix(".svg").write_text(plotted, encoding="utf-8")
        print(f"plot: {options.output.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
