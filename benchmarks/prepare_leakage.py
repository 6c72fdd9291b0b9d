"""Make the texts of the law of leakage: an attacker's own ones of mixed length, and others that are cut to each length.

    python benchmarks/prepare_leakage.py --known general/*.jsonl.gz \\
        --tested tinystories_sample.jsonl mts_dialog_notes.jsonl scifact.jsonl
    python train.py -m experiment=leakage

A text is cut at the end of the last word that fits into so many tokens of all-MiniLM-L6-v2. Each text of ``--tested``
has as many as the largest length and is a test text once for each length, so that lengths differ in nothing else. The
file is leakage.jsonl: ``text``, ``split``, ``tokens`` (the length that it was cut to), ``source``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from measuring import command_line, read_rows, write_rows

from unembed.datamodules.sources.base import folded
from unembed.datamodules.truncation import load_tokenizer

LENGTHS = (4, 8, 16, 32, 64, 128)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--known", type=Path, nargs="+", required=True, help="the attacker's own texts")
    parser.add_argument("--tested", type=Path, nargs="+", required=True, help="of sources that no training had")
    parser.add_argument("--each", type=int, default=200, help="texts of a file of --known, evenly")
    parser.add_argument("--tests", type=int, default=70, help="texts of a file of --tested")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="in tokens")
    parser.add_argument("--output", type=Path, default=Path("leakage.jsonl"))
    options = parser.parse_args(argv)
    tested = []
    for path in options.tested:
        whole = ((row["text"], cut(row["text"], options.lengths)) for row in read_rows(path))
        full = [cuts for _, cuts in whole if len(cuts) == len(options.lengths)]
        chosen = full[:: max(1, len(full) // options.tests)][: options.tests]
        tested += [{"text": text, "split": "test", "tokens": length, "source": path.name.split(".")[0]}
                   for cuts in chosen for length, text in cuts.items()]  # fmt: skip
    excluded, known, generator = {folded(row["text"]) for row in tested}, [], random.Random(0)
    for path in options.known:
        texts = [row["text"] for row in read_rows(path)]
        for text in texts[:: max(1, len(texts) // options.each)][: options.each]:
            cuts = list(cut(text, options.lengths).items())
            if cuts:  # sentences have no long ones, so longer ones are taken more often
                ((length, short),) = generator.choices(cuts, weights=range(1, len(cuts) + 1))
                if folded(short) not in excluded:
                    known.append({"text": short, "split": "train", "tokens": length, "source": path.name.split(".")[0]})
    generator.shuffle(known)
    write_rows(options.output, known + tested)
    print(f"{len(known)} texts of the attacker, {len(tested)} test texts")


def cut(text: str, lengths: Sequence[int]) -> dict[int, str]:
    """The text at each length that it has: its longest beginning of whole words with at most so many tokens."""
    encoding = load_tokenizer("minilm").encode(text, add_special_tokens=False)
    words, offsets = encoding.word_ids, encoding.offsets
    cuts = {}
    for length in lengths:
        if length <= len(words):
            end = length
            while end and end < len(words) and words[end] == words[end - 1]:
                end -= 1
            if end:
                cuts[length] = text[: offsets[end - 1][1]]
    return cuts


if __name__ == "__main__":
    main()
