"""Make a collection in BEIR's layout for the lock test, and the text that its attacker knows anyway.

    python benchmarks/prepare_locks.py --rows qnli.jsonl --halved climate_fever_wikipedia.jsonl \\
        --public wiki_split.jsonl.gz openstax_textbooks.jsonl.gz topical_chat.jsonl.gz
    python train.py -m experiment=locks

A line of ``--rows`` has ``text``, ``question`` and ``label`` (entailment: the text answers the question), as QNLI; its
texts are sentences of Wikipedia. Of ``--halved``, every other text is in the collection and the others are the
attacker's; those of ``--public`` are all the attacker's. The files are locks/corpus.jsonl and so on, and public.jsonl.
For shadow queries, shadow/texts has the texts that have a question, shadow/questions the first question of each in its
place, both with the other questions as queries, and shadow/pairs.jsonl each text with its first question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from measuring import command_line, read_rows, write_rows

from unembed.datamodules.sources.base import folded


def write_collection(folder: Path, names: Mapping[str, str], asked: Mapping[str, str]) -> None:
    """Write a collection: documents with their names, and queries with the names of their documents."""
    write_rows(folder / "corpus.jsonl", [{"_id": name, "text": text} for text, name in names.items()])
    write_rows(folder / "queries.jsonl", [{"_id": f"q{place}", "text": query} for place, query in enumerate(asked)])
    labels = [f"q{place}\t{name}\t1" for place, name in enumerate(asked.values())]
    lines = ["query-id\tcorpus-id\tscore", *labels]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--halved", type=Path, required=True)
    parser.add_argument("--public", type=Path, nargs="+", required=True)
    parser.add_argument("--queries", type=int, default=500, help="questions, the first ones that have an answer")
    parser.add_argument("--each", type=int, default=12_000, help="texts of a file of --public, evenly")
    arguments = parser.parse_args(argv)
    rows, halved = list(read_rows(arguments.rows)), list(read_rows(arguments.halved))
    texts = dict.fromkeys(row["text"] for row in [*rows, *halved[::2]])
    names = {text: f"d{number}" for number, text in enumerate(texts)}
    asked = {row["question"]: names[row["text"]] for row in rows if row["label"] == "entailment"}
    chosen = list(asked.items())[: arguments.queries]
    write_collection(Path("locks"), names, dict(chosen))
    by_name = {name: text for text, name in names.items()}
    first = {name: question for question, name in reversed(asked.items())}
    others = {question: name for question, name in asked.items() if first[name] != question}
    write_collection(Path("shadow/texts"), {by_name[name]: name for name in first}, others)
    write_collection(Path("shadow/questions"), {question: name for name, question in first.items()}, others)
    pairs = [{"text": by_name[name], "question": question} for name, question in first.items()]
    write_rows(Path("shadow/pairs.jsonl"), pairs)
    known = [row["text"] for row in halved[1::2]]
    for path in arguments.public:
        texts_of_file = [row["text"] for row in read_rows(path)]
        known += texts_of_file[:: max(1, len(texts_of_file) // arguments.each)]
    stored = {folded(text) for text in names}
    public = [text for text in dict.fromkeys(known) if folded(text) not in stored]
    public = public[::2] + public[1::2]  # an attack that reads fewer reads of all files
    write_rows(Path("public.jsonl"), [{"text": text} for text in public])
    print(f"{len(names)} documents, {len(chosen)} queries, {len(public)} texts of the attacker")


if __name__ == "__main__":
    main()
