"""benchmarks/prepare_multilingual.py: texts of other languages from clones and packages."""

from __future__ import annotations

import gzip
import json
import struct
import zipfile
from pathlib import Path

import pytest

from support.running_benchmarks import Benchmarks

LAW = """---
Title: Gesetz
---

# Gesetz über die [Katzen](https://example.org)

(1) Die Katze ist nach Art. 5 Abs. 2 frei. Sie wird nach Maßgabe von Satz 1, soweit es möglich ist und
nicht anders bestimmt ist, von der Behörde gefüttert.
"""
NOVEL = """<TEI><teiHeader><p>Das ist nicht der Text des Buches.</p></teiHeader><body><p>Sie ging <hi>nicht</hi> in
die Stadt.</p><sp><speaker>Die alte Frau und ich</speaker><p>&#171;Komm mit mir!&#187; sagte sie.</p></sp></body>
</TEI>"""
READERS = [
    ("lines", b"1\tWir sind zu Hause.\n", ["Wir sind zu Hause."]),
    ("conllu", b"# text = Das ist gut.\n1\tDas\tder\n", ["Das ist gut."]),
    ("keyed", b'a.b: "Das ist \\"gut\\"."\n', ['Das ist "gut".']),
    ("keyed", b"en:\n  long: >-\n    Das ist\n    lang.\n  short: Das ist kurz\n", ["Das ist lang.", "Das ist kurz"]),
    (
        "keyed",
        b'dialogStr("Wir sind hier.")\nshort=Das ist kurz (und gut)\n',
        ["Wir sind hier.", "Das ist kurz (und gut)"],
    ),
    ("po", b'msgid "It"\nmsgstr ""\n"Das ist "\n"*gut*."\n', ["Das ist gut."]),
]


@pytest.mark.parametrize(("name", "data", "texts"), READERS)
def test_a_format_is_read(benchmarks: Benchmarks, name: str, data: bytes, texts: list[str]) -> None:
    assert [text for text in getattr(benchmarks.load("prepare_multilingual"), name)(data) if text] == texts


def test_a_compiled_catalogue_is_read(benchmarks: Benchmarks) -> None:
    texts = [b"header", b"_Das ist gut.\0Die sind gut."]
    places = [28 + 8 * len(texts), 28 + 8 * len(texts) + len(texts[0])]
    table = b"".join(struct.pack("<2I", len(text), place) for text, place in zip(texts, places, strict=True))
    data = struct.pack("<7I", 0x950412DE, 0, len(texts), 0, 28, 0, 0) + table + b"".join(texts)
    assert list(benchmarks.load("prepare_multilingual").catalogue(data)) == ["Das ist gut.", "Die sind gut."]


def test_sources_become_texts_of_a_language(benchmarks: Benchmarks, tmp_path: Path) -> None:
    sources, held_out, output = (tmp_path / name for name in ("sources", "held_out", "output"))
    for file, text in (
        ("bundestag+gesetze/k/katzen.md", LAW),
        ("COST-ELTeC+ELTeC-deu/level1/DEU001.xml", NOVEL),
    ):
        (sources / file).parent.mkdir(parents=True)
        (sources / file).write_text(text, encoding="utf-8")
    pairs = [
        "Go.\tGeh.\tx",
        "We are here.\tWir sind hier.\tx",
        "I see.\tIch sehe das nicht.\tx",
        "No\tI am not here.\tx",
    ]
    (sources / "a+b").mkdir()
    with zipfile.ZipFile(sources / "a+b" / "deu-eng.zip", "w") as packed:
        packed.writestr("deu.txt", "\n".join([*pairs, "We!\tWir sind HIER!\tx"]))
        packed.writestr("_about.txt", "a\tWir sind nicht der Text.\tx")
    held_out.mkdir()
    (held_out / "test.jsonl").write_text(json.dumps({"de": "ich sehe das nicht"}) + "\n", encoding="utf-8")
    benchmarks.run(
        "prepare_multilingual",
        *(f"--sources={sources}", f"--output={output}", f"--held-out={held_out}", "--languages", "de"),
    )
    found = {}
    for file in (output / "de").glob("*.gz"):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            found[file.name] = [json.loads(line)["text"] for line in lines]
    assert found == {
        "tatoeba.jsonl.gz": ["Wir sind hier."],  # too short, held out, English, repeated
        "novels.jsonl.gz": ["Sie ging nicht in die Stadt.", "«Komm mit mir!» sagte sie."],
        "law.jsonl.gz": [
            "Gesetz über die Katzen",
            "Die Katze ist nach Art. 5 Abs. 2 frei.",
            "Sie wird nach Maßgabe von Satz 1, soweit es möglich ist und nicht anders bestimmt ist, von der Behörde "
            "gefüttert.",
        ],
    }
    assert "| novels | 2 |" in (output / "de" / "README.md").read_text(encoding="utf-8")
    assert "nothing of common_voice" in benchmarks.printed
