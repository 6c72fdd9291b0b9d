"""Texts translated into another language and back (Chen et al. 2024, appendix E), as test texts of a finished run.

    python benchmarks/round_trip.py runs/a/predictions.jsonl --field reference --there Helsinki-NLP/opus-mt-en-es \
        --back Helsinki-NLP/opus-mt-es-en --output round_trip.jsonl
    python evaluate.py run=runs/a datamodule=files datamodule.test=round_trip.jsonl output_dir=runs/a/evaluations/trip

Is a text that came out of a translation model easier to read back? The texts of any file that ``datamodule=files``
reads; those of predictions.jsonl are the very test texts of a run. A line of the output:

    {"text": "I enjoy my dogs.", "original": "i love my dogs .", "pivot": "Me gustan mis perros."}

A model is a hub name or a folder. What is done is written to ``<output>.part`` block by block, and the same command
resumes it after a kill.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from measuring import Rows, command_line

from unembed.core.errors import InputError
from unembed.core.limits import existing
from unembed.datamodules.sources.base import rows
from unembed.scoring.translation import Translator

BLOCK = 64  # texts that are translated and written together
PIVOT, HERE = "there", "back"  # names of the languages, which are those of the options in messages


def read(path: Path, field: str, split: str | None) -> list[str]:
    """The texts of a file, of one split where its rows name theirs.

    Raises:
        InputError: The file cannot be read, lacks the field, or holds no such text.
    """
    texts = []
    for line, row in rows(path, field):
        if field not in row:
            raise InputError(f"{path}:{line}: no field {field!r} (--field), only {', '.join(map(str, row))}")
        if (split is None or row.get("split") == split) and str(row[field]).strip():
            texts.append(str(row[field]))
    if not texts:
        raise InputError(f"{path}: no text" + ("" if split is None else f" whose split is {split!r} (--split)"))
    return texts


def round_trip(texts: Sequence[str], there: Translator, back: Translator, output: Path) -> None:
    """Translate ``texts`` and write ``output``; resumes ``<output>.part``.

    Raises:
        InputError: What is to be resumed is of other texts.
    """
    part = Rows(output.with_name(f"{output.name}.part"))
    if [row["original"] for row in part] != list(texts[: len(part)]):
        raise InputError(f"{part.path}: is of other texts than these; delete it to begin anew")
    for begin in range(len(part), len(texts), BLOCK):
        block = texts[begin : begin + BLOCK]
        pivots = [text or "" for text in there.translate(block, [PIVOT] * len(block))]
        again = [text or "" for text in back.translate(pivots, [HERE] * len(pivots))]
        columns = zip(again, block, pivots, strict=True)
        part.add(*({"text": text, "original": original, "pivot": pivot} for text, original, pivot in columns))
        print(f"{len(part):,} of {len(texts):,} texts", file=sys.stderr)
    part.path.replace(output)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("texts", help="a file of texts, or the predictions.jsonl of a run")
    parser.add_argument("--field", default="text", help="that holds them; reference in predictions.jsonl")
    parser.add_argument("--split", help="only rows whose field split is this")
    parser.add_argument("--there", required=True, help="the model that translates into the other language")
    parser.add_argument("--back", required=True, help="the model that translates back")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    given = parser.parse_args(arguments)
    try:
        texts = read(existing(given.texts, "texts"), given.field, given.split)
        options = {"beams": given.beams, "max_new_tokens": given.max_new_tokens}
        there = Translator(HERE, {PIVOT: given.there}, **options)
        round_trip(texts, there, Translator(PIVOT, {HERE: given.back}, **options), given.output)
    except InputError as error:
        sys.exit(str(error).replace("scoring.translation.models.", "--"))


if __name__ == "__main__":
    main()
