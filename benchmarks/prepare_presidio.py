"""Make training and test files of sentences with personal data, and of general text, without a text in common.

    python benchmarks/prepare_presidio.py --text <folder> --output presidio.jsonl --faker
    python train.py attack=geia datamodule=files datamodule.path=presidio.jsonl datamodule.split_field=split \\
        datamodule.spans_field=spans attack.label_smoothing=0.1 trainer.max_steps=2000 run_dir=runs/presidio

The folder holds pii/presidio_synth_pii.jsonl (templates filled with invented persons) and general/*.jsonl.gz. Its
splits share no template of the same set; the two sets of the file share some, and ``known`` says which test texts are
made from a template of the training part. Training text: the train split, ``--copies`` times more with other names,
and ``--general`` short sentences of the other sources. Names for the copies are those of the train split and Faker's
(package faker). No name is taken from validation or test texts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring import command_line, read_rows, write_rows

from unembed.attacks.refine.lexicon.words import names

Row = dict[str, Any]
PERSON, LONGEST = "PERSON", 22


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="the folder of public text")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--copies", type=int, default=4, help="of each training text, with other names (default 4)")
    parser.add_argument("--general", type=int, default=15_000, help="sentences of other sources (default 15000)")
    parser.add_argument("--faker", action="store_true", help="take names of the package faker, too, for the copies")
    options = parser.parse_args(argv)

    generator = random.Random(0)
    rows = list(read_rows(options.text / "pii" / "presidio_synth_pii.jsonl"))
    parts: dict[str, list[Row]] = {split: [row for row in rows if row["split"] == split] for split in ("valid", "test")}
    train = [row for row in rows if row["split"] == "train"]
    templates = {template(row) for row in train}
    known = [span[1] for row in train for span in row["spans"] if span[0] == PERSON]
    known += [name for name in sorted(set(names())) if name.isalpha()] if options.faker else []
    copies = [renamed(row, known, generator) for _ in range(options.copies) for row in train]
    general = list(sentences(options.text / "general"))
    generator.shuffle(general)
    parts["train"] = [*train, *copies, *({"text": text} for text in general[: options.general])]
    written = (
        {"split": split, "text": row["text"], "spans": row.get("spans", []), "known": template(row) in templates}
        for split in ("train", "valid", "test")
        for row in parts[split]
    )
    write_rows(options.output, written)
    print({split: len(found) for split, found in parts.items()})


def template(row: Row) -> str:
    """What is left of a text without its values, so that templates of both sets can be compared."""
    kept = re.sub(r"\{\{.*?\}\}", "*", row.get("masked", row["text"]))
    return re.sub(r"[^a-z*]+", " ", kept.lower()).strip()


def renamed(row: Row, known: Sequence[str], generator: random.Random) -> Row:
    """The text with another name in each place where a person stands."""
    text, spans, moved = row["text"], [], 0
    for label, value, start, end in sorted(row["spans"], key=lambda span: span[2]):
        new = " ".join(generator.choice(known).split()[0] for _ in value.split()) if label == PERSON else value
        text = text[: start + moved] + new + text[end + moved :]
        spans.append([label, new, start + moved, start + moved + len(new)])
        moved += len(new) - len(value)
    return {**row, "text": text, "spans": spans}


def sentences(folder: Path) -> Iterator[str]:
    """Sentences of 3 to 22 words."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        if "_passages" not in path.name:
            yield from (row["text"] for row in read_rows(path) if 3 <= len(row["text"].split()) <= LONGEST)


if __name__ == "__main__":
    main()
