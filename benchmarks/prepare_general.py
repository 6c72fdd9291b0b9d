"""Make one file of general text for a shipped attacker, from folders of JSON lines with a text a line.

    python benchmarks/prepare_general.py --folder <folder> --output general.jsonl
    python train.py experiment=attackers/minilm datamodule.path=general.jsonl
    python benchmarks/prepare_general.py --folder en=<folder> de=<folder> fr=<folder> --output multilingual.jsonl
    python train.py datamodule=files datamodule.path=multilingual.jsonl datamodule.split_field=split \\
        datamodule.language_field=language

A folder holds ``<source>.jsonl.gz`` (sentences) and ``<source>_passages.jsonl.gz`` (40 words and more). Rows of one
with a language have a field ``language``; prepare_multilingual.py makes such folders. Split, order and everything
random follow from a hash of the text, so that the file does not depend on the order of the rows.

``--derived`` adds training texts that are made from the others: the sentences of the passages; texts with other names
and numbers, so that an attack has to read these from the vector; short texts of one source joined to a passage. It
leaves languages other than English alone: German nouns would pass for names.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

from measuring import command_line, read_rows, write_rows

PASSAGES = "_passages"
TEST, VALID = 0.004, 0.002  # shares of all texts
WORD = re.compile(r"[A-Za-z][A-Za-z'\u2019-]*|\d+")
NAME = re.compile(r"[A-Z][a-z]{2,}")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'0-9])")
LONGEST = 60  # words of a text that is rewritten with other names: longer ones take most of the time and add little
JOINED = 0.25  # share of the short texts that also stand in a joined passage


class Row(NamedTuple):
    """A text, its source without ``_passages``, its split, and its language, where the folder has one."""

    text: str
    source: str
    split: str
    language: str = ""

    def fields(self) -> dict[str, str]:
        """What is written."""
        return {name: value for name, value in self._asdict().items() if value}


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folder", nargs="+", required=True, help="folders of *.jsonl.gz, or <language>=<folder>")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--passages", type=float, default=1.0, help="share of the training passages kept (default 1)")
    parser.add_argument("--derived", action="store_true", help="add training texts made from the others")
    options = parser.parse_args(argv)

    rows: list[Row] = []
    for given in options.folder:
        language, _, folder = given.rpartition("=")
        files = sorted(Path(folder).glob("*.jsonl.gz"))
        if not files:
            raise SystemExit(f"--folder {given}: holds no *.jsonl.gz")
        rows.extend(row for file in files for row in kept(file, options.passages, language))
    counts = Counter({"read": len(rows)})
    if options.derived:
        training = [row for row in rows if row.split == "train" and row.language in ("", "en")]
        for derive in (sentences, renamed, joined):
            before = len(rows)
            rows.extend(derive(training))
            counts[derive.__name__] = len(rows) - before
    rows.sort(key=lambda row: uniform(row.text, "order"))
    write_rows(options.output, (row.fields() for row in rows))
    print(dict(counts), dict(Counter((row.language, row.split) for row in rows).most_common()))


def kept(file: Path, passages: float, language: str = "") -> Iterator[Row]:
    """The texts of a file that are kept."""
    name = file.name.removesuffix(".jsonl.gz")
    for text in (row["text"] for row in read_rows(file)):
        chance = uniform(text, "split")
        split = "test" if chance < TEST else "valid" if chance < TEST + VALID else "train"
        if split != "train" or not name.endswith(PASSAGES) or uniform(text, "thin") < passages:
            yield Row(text, name.removesuffix(PASSAGES), split, language)


def sentences(rows: Iterable[Row]) -> Iterator[Row]:
    """The sentences, of three words and more, of the texts that have several."""
    for row in rows:
        parts = SENTENCE_END.split(row.text)
        if len(parts) > 1:
            yield from (row._replace(text=part) for part in parts if len(part.split()) >= 3)


def renamed(rows: Sequence[Row]) -> Iterator[Row]:
    """Texts with every name and number replaced: a capitalised word by another one of all texts, a digit by any."""
    names = capitalised(rows)
    known, words = set(names), list(names)
    weights = list(accumulate(count**0.5 for count in names.values()))  # once: there are thirty thousand names
    for row in rows:
        if row.text.count(" ") >= LONGEST:
            continue
        draw = random.Random(row.text)
        found = [word for word in WORD.finditer(row.text) if word.group() in known or word.group().isdigit()]
        if not found:
            continue
        others = iter(draw.choices(words, cum_weights=weights, k=len(found)))
        parts, end = [], 0
        for word in found:
            new = digits(word.group(), draw) if word.group().isdigit() else next(others)
            parts += [row.text[end : word.start()], new]
            end = word.end()
        yield row._replace(text="".join(parts) + row.text[end:])


def capitalised(rows: Iterable[Row]) -> dict[str, int]:
    """How often each word is written with a capital inside a text, of words that are mostly written so."""
    upper, lower = Counter[str](), Counter[str]()
    for row in rows:
        for place, word in enumerate(WORD.findall(row.text)):
            if word[0].islower():
                lower[word] += 1
            elif place and NAME.fullmatch(word):
                upper[word] += 1
    return {word: count for word, count in sorted(upper.items()) if count >= 2 and lower[word.lower()] < count / 2}


def digits(number: str, draw: random.Random) -> str:
    """Another number of as many digits; another year for a year."""
    if len(number) == 4 and 1500 <= int(number) < 2050:
        return str(draw.randint(1900, 2029))
    first = "0" if number[0] == "0" else draw.choice("123456789")
    return first + "".join(draw.choice("0123456789") for _ in number[1:])


def joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Passages of 30 to 110 words, each made of short texts of one source."""
    short = [row for row in rows if row.text.count(" ") < 30 and uniform(row.text, "join") < JOINED]
    short.sort(key=lambda row: (row.source, uniform(row.text, "place")))
    for _, group in groupby(short, key=lambda row: row.source):
        parts: list[str] = []
        words, wanted = 0, 0
        for row in group:
            if not parts:
                wanted = 30 + int(60 * uniform(row.text, "length"))
            parts.append(row.text if row.text[-1] in ".!?" else row.text + ".")
            words += row.text.count(" ") + 1
            if words >= wanted:
                yield row._replace(text=" ".join(parts))
                parts, words = [], 0


def uniform(text: str, purpose: str) -> float:
    """A number from 0 to 1 that follows from the text alone; another one for each purpose."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, salt=purpose.encode()).digest()
    return int.from_bytes(digest, "big") / 2**64


if __name__ == "__main__":
    main()
