"""Make one file of general English for the shipped attacker, from a folder of JSON lines with a text a line.

    python benchmarks/prepare_general.py --folder <folder> --output general.jsonl
    python train.py experiment=attackers/minilm datamodule.path=general.jsonl

The folder holds ``<source>.jsonl.gz`` (sentences) and ``<source>_passages.jsonl.gz`` (40 words and more). Split, order
and the choice of passages follow from a hash of the text, so that the file does not depend on the order of the rows.
``--passages`` is the share of the training passages that are kept: they take a quarter of the training time already.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from measuring import command_line, write_rows

PASSAGES = "_passages"
TEST, VALID = 0.004, 0.002  # shares of all texts


def main(argv: Sequence[str] | None = None) -> None:
    """Read, split, thin out, shuffle, write."""
    parser = command_line(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the folder of *.jsonl.gz")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--passages", type=float, default=0.5, help="share of the training passages kept (default 0.5)")
    options = parser.parse_args(argv)

    files = sorted(options.folder.glob("*.jsonl.gz"))
    if not files:
        raise SystemExit(f"--folder {options.folder}: holds no *.jsonl.gz")
    rows = sorted(row for file in files for row in kept(file, options.passages))
    write_rows(options.output, ({"text": text, "source": source, "split": split} for _, text, source, split in rows))
    print(dict(Counter(row[3] for row in rows).most_common()))


def kept(file: Path, passages: float) -> Iterator[tuple[float, str, str, str]]:
    """Place in the order, text, source and split of each text of a file that is kept."""
    name = file.name.removesuffix(".jsonl.gz")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            chance = uniform(text, "split")
            split = "test" if chance < TEST else "valid" if chance < TEST + VALID else "train"
            if split == "train" and name.endswith(PASSAGES) and uniform(text, "thin") >= passages:
                continue
            yield uniform(text, "order"), text, name.removesuffix(PASSAGES), split


def uniform(text: str, purpose: str) -> float:
    """A number from 0 to 1 that follows from the text alone; another one for each purpose."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, salt=purpose.encode()).digest()
    return int.from_bytes(digest, "big") / 2**64


if __name__ == "__main__":
    main()
