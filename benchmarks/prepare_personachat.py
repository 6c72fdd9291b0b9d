"""Make the PersonaChat training and test files from a folder of public text, without a text in common.

    python benchmarks/prepare_personachat.py --text <folder> --output personachat.jsonl
    python benchmarks/prepare_personachat.py --text <folder> --output personachat_more.jsonl --more 45000

The folder holds JSON lines: conversation/personachat_utterances.jsonl and personachat_persona_labels.jsonl, and for
``--more`` lm/ and sentences/ too. Training text: all labelled utterances, the profile sentences, and the
"valid" utterances; test text: 2,000 distinct utterances of split "test"; validation: 1,500 texts of the training
dialogues. What repeats a test or validation text after lower-casing and stripping punctuation is dropped.

``--more N`` adds what any attacker has for nothing: other public text, written the way PersonaChat is written (lower
case, spaces around punctuation), and N texts recombined from the sentences of the training utterances. Only texts that
are in the training part already are recombined.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring import command_line, read_rows, write_rows

VALID, TEST, LONGEST = 1_500, 2_000, 22


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="the folder of public text")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--more", type=int, default=0, metavar="N", help="add other text and N recombined texts")
    arguments = parser.parse_args(argv)

    conversation = arguments.text / "conversation"
    utterances = list(read_rows(conversation / "personachat_utterances.jsonl"))
    labelled = list(read_rows(conversation / "personachat_persona_labels.jsonl"))
    generator = random.Random(0)
    test = distinct(row["text"] for row in utterances if row["split"] == "test")
    held_out = {folded(text) for text in test}
    train = distinct(
        [
            *(row["text"] for row in labelled),
            *(row["text"] for row in utterances if row["split"] == "valid"),
            *(profile for row in labelled for profile in row["personas"]),
        ]
    )
    train = [text for text in train if folded(text) not in held_out]
    generator.shuffle(test)
    generator.shuffle(train)
    valid, train = train[:VALID], train[VALID:]
    held_out |= {folded(text) for text in valid}
    if arguments.more:
        more = [*other_text(arguments.text), *recombined(train, arguments.more, generator)]
        train = distinct([*train, *more])
    train = [text for text in train if folded(text) not in held_out]
    parts = {"train": train, "valid": valid, "test": test[:TEST]}
    write_rows(arguments.output, ({"split": split, "text": text} for split, texts in parts.items() for text in texts))
    print({split: len(texts) for split, texts in parts.items()})


def other_text(folder: Path) -> list[str]:
    """Sentences of children's stories and questions, in PersonaChat's spelling."""
    stories = (row["text"] for row in read_rows(folder / "lm" / "tinystories_sample.jsonl"))
    sentences = (sentence for story in stories for sentence in re.split(r"(?<=[.!?])\s+", story))
    questions = (row["text"] for row in read_rows(folder / "sentences" / "nq_open_questions.jsonl"))
    texts = (respelt(text) for source in (sentences, questions) for text in source)
    return [text for text in texts if 3 <= len(text.split()) <= LONGEST]


def recombined(texts: list[str], count: int, generator: random.Random) -> Iterator[str]:
    """Texts of two or three sentences sampled from different texts, each in the place where it stood."""
    cut = [re.findall(r"[^.?!]+[.?!]*", text) for text in texts]
    firsts = [parts[0].strip() for parts in cut if len(parts) > 1]
    lasts = [parts[-1].strip() for parts in cut if len(parts) > 1]
    produced = 0
    while produced < count:
        text = f"{generator.choice(firsts)} {generator.choice(lasts)}"
        if len(text.split()) <= LONGEST:
            produced += 1
            yield text


def respelt(text: str) -> str:
    """Lower case, a space before each mark: "It's late." -> "it s late ."."""
    text = re.sub(r"[^a-z0-9.,?!]+", " ", text.lower())
    return " ".join(re.sub(r"([.,?!])", r" \1 ", text).split())


def folded(text: str) -> str:
    """Lower case without punctuation, for comparing."""
    return " ".join(re.sub(r"[^\w\s]", "", text.lower()).split())


def distinct(texts: Any) -> list[str]:
    """Each text once, in the order of its first appearance."""
    return list(dict.fromkeys(texts))


if __name__ == "__main__":
    main()
