"""Your own text: every format, how splits are found, and one clear message for what cannot be read."""

from __future__ import annotations

import csv
import gzip
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from unembed.core import limits
from unembed.core.errors import InputError
from unembed.core.examples import Example, Span
from unembed.datamodules.sources import base
from unembed.datamodules.sources.base import cut_apart, folded
from unembed.datamodules.sources.files import TextFiles
from unembed.datamodules.truncation import Truncation

ROWS: list[dict[str, Any]] = [
    {"utterance": "Hi, I am Ada.", "part": "train", "lang": "en"},
    {"utterance": "¿Qué tal?\tBien", "part": "train", "lang": "es"},
    {"utterance": 'She said "no"', "part": "dev", "lang": "en"},
    {"utterance": "see you", "part": "test", "lang": "en"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in the format of the path's extension."""
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    with io.StringIO(newline="") as out:
        match kind:
            case "jsonl":
                out.writelines(json.dumps(row) + "\n" for row in rows)
            case "csv":
                writer = csv.DictWriter(out, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
            case "tsv":
                out.write("\t".join(rows[0]) + "\n")
                out.writelines("\t".join(row.values()) + "\n" for row in rows)
            case "txt":
                out.writelines(row["utterance"] + "\n" for row in rows)
        content = out.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def texts(source: TextFiles) -> dict[str, list[str]]:
    return {split: [example.text for example in found] for split, found in source.load().items()}


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.csv.gz", "A.JSONL"])
def test_every_format_gives_the_same_texts(tmp_path: Path, name: str):
    rows = [row | {"utterance": row["utterance"].replace("\t", " ")} for row in ROWS]
    path = write(tmp_path / name.lower(), rows).rename(tmp_path / name)
    source = TextFiles(str(path), text_field="utterance", split_field="part", language_field="lang")
    assert texts(source) == {
        "train": ["Hi, I am Ada.", "¿Qué tal? Bien"],
        "valid": ['She said "no"'],
        "test": ["see you"],
    }
    assert [(e.index, e.language) for e in source.load()["train"]] == [(0, "en"), (1, "es")]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_text_file_holds_a_text_a_line(tmp_path: Path, name: str):
    path = write(tmp_path / name, ROWS)
    assert texts(TextFiles(test=str(path)))["test"] == [row["utterance"] for row in ROWS]


def test_quoted_line_breaks_and_dates_of_no_calendar(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes('\ufefftext,n\r\n"two\nlines, one text",1\r\nnext,2\r\n'.encode())
    assert texts(TextFiles(test=str(tmp_path / "a.csv")))["test"] == ["two\nlines, one text", "next"]
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": ["a"], "at": pyarrow.array([2**62], pyarrow.timestamp("us"))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="damaged or not parquet, after row 0"):
        TextFiles(path=str(tmp_path / "a.parquet")).load()


def test_a_file_for_each_split_or_for_the_test_alone(tmp_path: Path):
    a, b = write(tmp_path / "a.jsonl", ROWS[:2]), write(tmp_path / "b.csv", ROWS[2:3])
    c = write(tmp_path / "c.parquet", ROWS[3:])
    source = TextFiles(train=[str(a), str(b)], valid=str(c), test=str(c), text_field="utterance")
    assert {split: len(found) for split, found in texts(source).items()} == {"train": 3, "valid": 1, "test": 1}
    source = TextFiles(test=str(write(tmp_path / "a.jsonl", ROWS)), text_field="utterance")
    assert {split: len(found) for split, found in source.load().items()} == {"test": 4}


def test_split_values_say_which_is_which(tmp_path: Path):
    path = str(write(tmp_path / "a.jsonl", ROWS))
    values = {"train": "dev", "valid": None, "test": "train"}
    found = texts(TextFiles(path, text_field="utterance", split_field="part", split_values=values, valid_fraction=0))  # type: ignore[arg-type]
    assert found == {"train": ['She said "no"'], "valid": [], "test": [r["utterance"] for r in ROWS[:2]]}
    with pytest.raises(InputError, match=r"split_values\.test=tset.*did you mean test\?"):
        TextFiles(path, text_field="utterance", split_field="part", split_values={"test": "tset"}).load()
    with pytest.raises(InputError, match=r"split_field=lang.*\(en, es\).*split_values\.train"):
        TextFiles(path, text_field="utterance", split_field="lang").load()


def test_one_unsplit_file_is_cut_by_the_text_alone(tmp_path: Path):
    rows = [{"text": f"text number {n}"} for n in range(200)]
    whole = texts(TextFiles(str(write(tmp_path / "a.jsonl", rows)), valid_fraction=0.1, test_fraction=0.05))
    assert {split: len(found) for split, found in whole.items()} == {"train": 170, "valid": 20, "test": 10}
    backwards = texts(TextFiles(str(write(tmp_path / "b.jsonl", rows[::-1])), valid_fraction=0.1, test_fraction=0.05))
    assert {s: set(t) for s, t in whole.items()} == {s: set(t) for s, t in backwards.items()}
    other = texts(TextFiles(str(tmp_path / "a.jsonl"), valid_fraction=0.1, test_fraction=0.05, split_seed=1))
    assert other["test"] != whole["test"]


def test_repeats_stay_on_one_side_of_a_cut():
    examples = [Example(i, text) for i, text in enumerate(["Yes!", "no", "yes", "maybe", "YES."])]
    for count in range(5):
        rest, taken, more = cut_apart(examples, [count, 1], seed=0)
        sides = [{folded(e.text) for e in part} for part in (rest, taken, more)]
        assert sum(map(len, sides)) == len(set.union(*sides)) == 3
        assert len(rest) + len(taken) + len(more) == 5
    assert folded("  Don't   STOP, now…") == "dont stop now"
    assert folded("C++ costs 5€ + tax") == "c costs 5€ tax"
    assert folded("हिन्दी।") == "हिन्दी"  # vowel signs are no punctuation
    assert folded("?!") == "?!"


@pytest.mark.parametrize(
    "spans",
    [
        [{"start": 8, "end": 11, "label": "name", "text": "Ada"}, {"start": 0, "end": 2, "label": "hello"}],
        [[8, 11, "name"], [0, 2, "hello"]],
        [["name", "Ada", 8, 11], ["hello", "Hi", 0, 2]],
        json.dumps([[8, 11, "name"], [0, 2, "hello"]]),
    ],
)
def test_spans_in_every_form_come_in_order(tmp_path: Path, spans: Any):
    path = write(tmp_path / "a.jsonl", [{"text": "Hi I am Ada", "spans": spans}])
    (example,) = TextFiles(test=str(path), spans_field="spans").load()["test"]
    assert example.spans == (Span(0, 2, "hello"), Span(8, 11, "name"))


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[8, 12, "name"]], r"a\.jsonl:2: span 8-12 \(name\) does not lie in the text, which has 11 characters"),
        ([[8, 8, "name"]], "span 8-8"),
        ([[-3, 2, "name"]], "span -3-2"),
        ([["name", "Eva", 8, 11]], r"a\.jsonl:2: span 8-11 \(name\) should be 'Eva', but there is 'Ada'"),
        ([{"begin": 8, "end": 11, "label": "name"}], "is none of"),
        ("[[8, 11", "not JSON"),
        (5, "should be a list"),
    ],
)
def test_wrong_spans_name_their_line(tmp_path: Path, spans: Any, message: str):
    path = write(tmp_path / "a.jsonl", [{"text": "fine", "spans": []}, {"text": "Hi I am Ada", "spans": spans}])
    with pytest.raises(InputError, match=message):
        TextFiles(test=str(path), spans_field="spans").load()


def test_attributes_from_fields_and_from_an_object(tmp_path: Path):
    rows = [
        {"text": "a", "born": 1815, "attributes": {"city": "London", "job": ""}},
        {"text": "b", "born": None, "attributes": {"job": "poet"}},
    ]
    path = str(write(tmp_path / "a.jsonl", rows))
    found = TextFiles(test=path, attributes=["born", "city", "job"]).load()["test"]
    assert [dict(e.attributes) for e in found] == [{"born": "1815", "city": "London"}, {"job": "poet"}]
    with pytest.raises(InputError, match=r"no row of .* has 'ctiy'; did you mean city\?"):
        TextFiles(test=path, attributes=["ctiy"]).load()


def test_blank_texts_are_skipped_and_missing_files_named(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": " "}\n\n{"text": "here"}\n{"text": ""}\n')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = TextFiles(test=str(tmp_path / "a.jsonl")).load()["test"]
    assert [(e.index, e.text) for e in found] == [(0, "here")]
    assert [str(w.message).rpartition(": ")[2] for w in caught] == ["3 blank texts skipped"]
    write(tmp_path / "chats.jsonl", ROWS)
    with pytest.raises(InputError, match=r"datamodule\.path=.*chat\.jsonl: no such file, did you mean chats\.jsonl"):
        TextFiles(str(tmp_path / "chat.jsonl")).load()
    with pytest.raises(InputError, match=r"no directory .*nowhere$"):
        TextFiles(train=str(tmp_path / "nowhere" / "chat.jsonl")).load()
    with pytest.raises(InputError, match="is a directory"):
        TextFiles(str(tmp_path)).load()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "datamodule.test=.*a.jsonl: the file is empty"),
        ("a.csv", b"text\n", "the file is empty"),
        ("a.txt", b" \n\n", "every text is blank"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', r"a\.jsonl:2: not UTF-8 \(invalid start byte at byte 11 "),
        ("a.txt", b"fine\ncaf\xe9\n", r"a\.txt:2: not UTF-8"),
        ("a.csv", b"text\nfine\ncaf\xe9\n", r"a\.csv:3: not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1: a line should be a JSON object, not list"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: not JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl:1: field 'text' is not valid Unicode"),
        (
            "a.jsonl",
            b'{"txet": "a"}\n',
            r"a\.jsonl:1: no field 'text' \(datamodule.text_field=text\); did you mean txet\?",
        ),
        ("a.csv", b"id,texts\n1,a\n", r"a\.csv:2: no field 'text'.*did you mean texts\?"),
        ("a.jsonl", b'{"text": 5}\n', r"a\.jsonl:1: field 'text' holds int 5, not a text"),
        ("a.jsonl", b'{"text": null}\n', "holds nothing, not a text"),
        ("a.csv", b"id,text\n1,a,b\n", r"a\.csv:2: 3 fields, but the header has 2"),
        ("a.csv", b'text\n"never closed\nfor ever\n', r"a\.csv:3: not valid"),
        ("a.jsonl.gz", b"not gzip", "damaged or not gzip"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 5000)[:-20], "damaged or not gzip"),
        ("a.parquet", b"PAR1 not really", "damaged or not parquet"),
        ("a.json", b"[]", r"unknown extension '\.json'; did you mean \.jsonl\?"),
        ("a.parquet.gz", b"", "unknown extension"),
    ],
)
def test_what_cannot_be_read_says_where(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        TextFiles(test=str(tmp_path / name)).load()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"needs datamodule\.path=<file>"),
        ({"path": "a", "train": "b"}, r"datamodule\.path=a and datamodule\.train=b exclude each other"),
        ({"train": "b", "split_field": "s"}, r"split_field=s is for datamodule\.path"),
        ({"path": "a", "valid_fraction": 0.5, "test_fraction": 0.5}, "leave no training text"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        TextFiles(**arguments)


def test_a_split_field_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "a", "s": f"\x1b{n}" * 500}) + "\n" for n in (1, 2)))
    with pytest.raises(InputError, match="none of its values is the name of a split") as raised:
        TextFiles(str(tmp_path / "a.jsonl"), split_field="s").load()
    assert "\ufffd1\ufffd1" in str(raised.value)
    assert len(str(raised.value)) < 300
    assert "\x1b" not in str(raised.value)
    path = str(write(tmp_path / "a.jsonl", ROWS))
    with pytest.raises(InputError, match=r"a\.jsonl:1: no field 'prat'.*did you mean part\?"):
        TextFiles(path, text_field="utterance", split_field="prat").load()


LONG = f"longer than {limits.LONGEST_LINE:,} bytes"


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.txt", b"short\n" + b"word " * 2_100_000, ":2: "),
        ("a.jsonl", b'{"text": "' + b"a" * 10_000_000 + b'"}\n', ":1: "),
        ("a.txt.gz", gzip.compress(b"x" * 11_000_000, 1), ":1: "),
    ],
)
def test_a_line_has_a_longest_length(tmp_path: Path, name: str, content: bytes, place: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}{place}.*{LONG}"):
        TextFiles(str(tmp_path / name)).load()


def test_parquet_of_texts_that_repeat_is_read_as_it_is(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "text": f"text {number}", "split": "train" if number % 3 else None, "n": number / 2,
            "tags": [{"label": "PER", "at": number}],
            "words": ["a", None, "b" * 50], "pairs": [("k", "v" * (number % 7))], "raw": b"\xff",
        }
        for number in range(500)
    ]  # fmt: skip
    kinds = pyarrow.schema([("text", "large_string"), ("split", "string"), ("words", pyarrow.list_(pyarrow.string()))])
    fields = {"pairs": pyarrow.map_(pyarrow.string(), pyarrow.string()), "raw": pyarrow.binary(1), "n": "double"}
    tags = pyarrow.list_(pyarrow.struct([("label", pyarrow.string()), ("at", pyarrow.int64())]))
    schema = pyarrow.schema([*kinds, ("tags", tags), *fields.items()])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), tmp_path / "a.parquet", row_group_size=200)
    assert [row for _, row in base.rows(tmp_path / "a.parquet", "text")] == rows


def test_a_long_text_is_cut_where_a_short_one_is_without_reading_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    truncation = Truncation(8)
    seen: list[int] = []
    whole = truncation._tokenizer

    class Counting:
        def encode_batch(self, texts: list[str], add_special_tokens: bool) -> Any:
            seen.extend(map(len, texts))
            return whole.encode_batch(texts, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(truncation, "_tokenizer", Counting())
    begin = "Élodie 世界 lives in   supercalifragilistic Paris, today\n"
    short, long = truncation.cut([Example(0, begin), Example(1, begin * 100_000)])
    assert short.text == long.text
    assert max(seen) < 2_000
