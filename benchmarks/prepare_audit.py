"""Make an attacker's text and somebody else's vector store from one file of synthetic personal data, to audit it.

    python benchmarks/prepare_audit.py --text presidio_synth_pii.jsonl --output audit_data

The file holds JSON lines with ``text``, ``masked`` (the text with its entities as {{LABEL}}), ``spans`` (label, text,
start, end) and ``split``. The store is 2,000 distinct texts: all of the splits test and valid, whose templates occur
nowhere else, and others sampled at random. What is left is the attacker's: 150 texts each for validation and test, and
the rest for training, multiplied by filling its templates with its own entities, as any attacker would. ``--more``
adds the training texts of another file. ``--notes`` adds 700 clinical notes to the store, and others to the attacker's
texts. No text of the store is among the attacker's.

    audit_data/train.jsonl valid.jsonl test.jsonl     text, spans
    audit_data/store.jsonl                            index, id, text (cut to ``--tokens``), spans: the truth
    audit_data/store.npy                              (2000, 384): the vectors of these texts, in order
"""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring import command_line, read_rows, write_rows

from unembed.datamodules.sources.base import Fields, folded
from unembed.datamodules.truncation import Truncation
from unembed.embedders.minilm import MiniLM

STORE, NOTES, HELD_OUT, FILLED, TOKENS = 2_000, 700, 150, 12_000, 32
SLOT = re.compile(r"\{\{(\w+)\}\}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="the file of personal data")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    parser.add_argument("--more", type=Path, help="other text to train on: JSON lines with text and split")
    parser.add_argument("--limit-more", type=int, default=15_000, help="how many of them")
    parser.add_argument("--notes", type=Path, help="a file of notes: JSON lines with id, text and split")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="where the store's texts are cut (default 32)")
    arguments = parser.parse_args(argv)

    generator = random.Random(0)
    store, own = separated(arguments.text, STORE, generator)
    parts = {"test": own[:HELD_OUT], "valid": own[HELD_OUT : 2 * HELD_OUT], "train": own[2 * HELD_OUT :]}
    taken = {folded(row["text"]) for row in (*store, *parts["test"], *parts["valid"])}
    parts["train"] = parts["train"] + list(filled(parts["train"], taken, generator))
    if arguments.more is not None:
        more = itertools.islice(read_rows(arguments.more, "train"), arguments.limit_more)
        parts["train"] += [{"text": row["text"], "spans": []} for row in more]
    if arguments.notes is not None:
        held, rest = separated(arguments.notes, NOTES, generator)
        store = store + held
        for name, part in (("test", rest[:HELD_OUT]), ("train", rest[HELD_OUT:])):
            parts[name] = parts[name] + part
    for name, chosen in parts.items():
        rows = [{"text": row["text"], "spans": row.get("spans", [])} for row in chosen]
        write_rows(arguments.output / f"{name}.jsonl", rows)

    fields = Fields(spans="spans")
    examples = [fields.example({"spans": [], **row}, str(row["id"])) for row in store]
    cut = list(Truncation(arguments.tokens).cut([example for example in examples if example is not None]))
    rows = []
    for index, (row, one) in enumerate(zip(store, cut, strict=True)):
        spans = [[span.start, span.end, span.label] for span in one.spans]
        rows.append({"index": index, "id": row["id"], "text": one.text, "spans": spans})
    write_rows(arguments.output / "store.jsonl", rows)
    np.save(arguments.output / "store.npy", MiniLM().embed([one.text for one in cut]).numpy())
    print({name: len(chosen) for name, chosen in parts.items()}, "store", len(cut))


def separated(path: Path, size: int, generator: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The distinct texts of a file: as many for the store, those of the splits test and valid first, and the others."""
    distinct = list({folded(row["text"]): row for row in read_rows(path)}.values())
    generator.shuffle(distinct)
    distinct.sort(key=lambda row: row["split"] == "train")  # the order of shuffling stays within both parts
    return distinct[:size], distinct[size:]


def filled(own: Sequence[Any], taken: set[str], generator: random.Random) -> Iterator[dict[str, Any]]:
    """Texts of the attacker's templates with entities of its own texts in their places."""
    values: dict[str, list[str]] = defaultdict(list)
    for row in own:
        for label, text, _, _ in row["spans"]:
            values[label].append(text)
    templates = [row["masked"] for row in own if SLOT.search(row["masked"])]
    made = 0
    while made < FILLED:
        template = generator.choice(templates)
        if not all(label in values for label in SLOT.findall(template)):
            continue
        text, spans, position = "", [], 0
        for slot in SLOT.finditer(template):
            text += template[position : slot.start()]
            value = generator.choice(values[slot[1]])
            spans.append([slot[1], value, len(text), len(text) + len(value)])
            text, position = text + value, slot.end()
        text += template[position:]
        if folded(text) not in taken:
            taken.add(folded(text))
            made += 1
            yield {"text": text, "spans": spans}


if __name__ == "__main__":
    main()
