"""Named data sets, read from local copies of their repositories' layouts by the code that reads the real ones."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pyarrow
import pyarrow.parquet
import pytest

from support import data_configs
from unembed.core.errors import InputError
from unembed.core.examples import Span, Split
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.hub import HubSet, found_at

NAMES = [
    "arxiv", "abcd", "cc_news", "cjeu_terms", "mnli", "msmarco", "msmarco_passages", "multiwoz",
    "nq", "nq_dpr", "personachat", "personachat_geia", "pile_pubmed", "qnli", "sst2",
    "us_crimes", "wiki_bio", "wiki_large", "wiki_small", "wiki_xl", "wmt16", "wmt16_cs", "pii_masking",
    "reddit", "tinystories",
]  # fmt: skip


def declared(name: str, **changes: Any) -> HubSet:
    """The set of configs/datamodule/<name>.yaml, as train.py builds it."""
    return data_configs.declared(name, **{f"source__{key}": value for key, value in changes.items()}).source


def parquet(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)


def texts(source: HubSet) -> dict[str, list[str]]:
    return {split: [example.text for example in found] for split, found in source.load().items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_declaration_is_complete(name: str):
    source = declared(name)
    assert source.licence
    assert source.revision
    if name in ("cjeu_terms", "us_crimes"):
        assert set(source.files) == {"test"}
        return
    assert "train" in source.files
    for split in ("valid", "test"):  # every split has files, or is cut from the training texts
        assert split in source.files or split in source.sizes


@pytest.mark.parametrize(
    ("name", "splits", "total"),
    [
        ("personachat_geia", ("train", "valid", "test"), 162_064),
        ("qnli", ("train", "test"), 220_412),
        ("mnli", ("train", "valid", "test"), 824_626),
        ("sst2", ("train", "valid", "test"), 70_042),
        ("wmt16_cs", ("train", "valid", "test"), 1_002_895),
    ],
)
def test_sizes_are_those_of_geia(name: str, splits: Sequence[Split], total: int):
    """Tables 2 and 7 of Li et al. 2023."""
    assert sum(declared(name).sizes[split] for split in splits) == total


GLUE: dict[str, Sequence[str]] = {
    "qnli": ["question", "sentence"],
    "sst2": ["sentence"],
    "mnli": ["premise", "hypothesis"],
}


@pytest.mark.parametrize("name", list(GLUE))
def test_glue(tmp_path: Path, name: str):
    matched = "_matched" if name == "mnli" else ""
    for file in ["train", f"validation{matched}", f"test{matched}"]:
        for part in range(2):
            row = {field: f"{file} {part} {field}" for field in GLUE[name]} | {"label": 0, "idx": part}
            parquet(tmp_path, f"{name}/{file}-0000{part}-of-00002.parquet", [row])
    found = texts(declared(name, path=str(tmp_path)))
    assert found["train"] == [f"train {part} {field}" for part in range(2) for field in GLUE[name]]
    assert found["test"] == [f"test{matched} {part} {field}" for part in range(2) for field in GLUE[name]]
    assert set(found) == {"train", "valid", "test"}


def test_nested_tables(tmp_path: Path):
    for split in ["train", "validation", "test"]:
        parquet(tmp_path, f"de-en/{split}-0.parquet", [{"translation": {"de": "Guten Tag", "en": f"hello {split}"}}])
        parquet(
            tmp_path, f"v2.2/{split}/0000.parquet", [{"turns": {"speaker": [0, 1], "utterance": ["a room", split]}}]
        )
        parquet(tmp_path, f"cs-en/{split}-0.parquet", [{"translation": {"cs": "Dobrý den", "en": f"good day {split}"}}])
        passages = {"is_selected": [0, 1], "passage_text": ["one", split], "url": ["", ""]}
        parquet(tmp_path, f"v2.1/{split}-0.parquet", [{"query": "q", "passages": passages}])
    assert texts(declared("wmt16", path=str(tmp_path)))["valid"] == ["hello validation"]
    assert texts(declared("wmt16_cs", path=str(tmp_path)))["valid"] == ["good day validation"]
    assert texts(declared("multiwoz", path=str(tmp_path)))["valid"] == ["a room", "validation"]
    assert texts(declared("msmarco", path=str(tmp_path)))["test"] == ["one", "test"]


def test_personachat_and_that_of_geia(tmp_path: Path):
    def conversation(number: int) -> dict[str, Any]:
        said = [f"{number}: turn {turn}" for turn in range(4)]
        turns = [{"history": said[:end], "candidates": ["wrong", said[end]]} for end in (1, 3)]
        return {"personality": ["I ski."], "utterances": turns}

    for split, numbers in {"train": range(20), "valid": range(20, 22)}.items():
        path = tmp_path / f"personachat_truecased_full_{split}.json"
        path.write_text(json.dumps([conversation(number) for number in numbers]))
    found = texts(declared("personachat", path=str(tmp_path), sizes={"test": 8}))
    assert found["valid"] == [f"{number}: turn {turn}" for number in (20, 21) for turn in range(4)]
    assert len(found["test"]) == 8
    assert len(found["train"]) == 72
    assert not set(found["train"]) & set(found["test"])
    for split, part in {"train": 3, "dev": 1, "test": 2}.items():
        rows = [{"your_persona": ["my persona: i ski ."], "conv": [f"{split} {n} .", "hello ."]} for n in range(part)]
        (tmp_path / f"{split}_merged_shuffle.txt").write_text(json.dumps(rows))
    source = declared("personachat_geia", path=str(tmp_path))
    assert [example.context for example in source.load()["valid"]] == [None, "dev 0 ."]
    found = texts(source)
    assert found["valid"] == ["dev 0 .", "hello ."]
    assert [len(found[split]) for split in ("train", "test")] == [6, 4]


@pytest.mark.parametrize(
    ("name", "file"),
    [("cc_news", "plain_text/{split}-0.parquet"), ("pile_pubmed", "data/{split}-0.parquet")],
)
def test_documents_are_split_into_sentences_of_some_length(tmp_path: Path, name: str, file: str):
    document = "{} was seen here on a Monday. No. Was it so on {}?  Nobody of us knows it, {} say!"
    for split in ("train", "validation", "test") if "pubmed" in name else ("train",):
        rows = [{"text": document.format(f"{split} {n}", n, n)} for n in range(9)]
        parquet(tmp_path, file.format(split=split), rows)
    found = texts(declared(name, path=str(tmp_path), sentences=[5, 60], sizes={"train": 6, "valid": 1, "test": 2}))
    assert {split: len(part) for split, part in found.items()} == {"train": 6, "valid": 1, "test": 2}
    for text in [text for part in found.values() for text in part]:
        assert re.fullmatch(
            r"\w+ \d was seen here on a Monday\.|Was it so on \d\?|Nobody of us knows it, \d say!", text
        )


def test_abcd_comments_and_stories(tmp_path: Path):
    conversation = {
        "original": [["customer", "hi"], ["action", "Account pulled up."], ["agent", "hello"]],
        "delexed": [{"targets": ["a", None, 3, []]}],
    }
    content = {"train": [conversation], "dev": [conversation] * 2, "test": [conversation]}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "abcd_v1.1.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    found = texts(declared("abcd", path=str(tmp_path)))
    assert found == {"train": ["hi", "hello"], "valid": ["hi", "hello"] * 2, "test": ["hi", "hello"]}
    parquet(tmp_path, "data/train-00000-of-00002.parquet", [{"title": "t", "body": f"comment {n}"} for n in range(30)])
    parquet(tmp_path, "data/train-00001-of-00002.parquet", [{"title": "t", "body": "not read"}])
    found = texts(declared("reddit", path=str(tmp_path), sizes={"valid": 5, "test": 5}))
    assert {split: len(part) for split, part in found.items()} == {"train": 20, "valid": 5, "test": 5}
    assert set().union(*found.values()) == {f"comment {n}" for n in range(30)}
    stories = tmp_path / "stories"
    for file in ("train-00000-of-00004", "train-00001-of-00004", "validation-00000-of-00001"):
        parquet(stories, f"data/{file}.parquet", [{"text": f"{file[:5]} {file[6:11]} {n}"} for n in range(10)])
    found = texts(declared("tinystories", path=str(stories), sizes={"valid": 4}))
    assert {split: len(part) for split, part in found.items()} == {"train": 16, "valid": 4, "test": 10}
    assert all(text.startswith("valid") for text in found["test"])


def test_the_corpora_of_vec2text(tmp_path: Path):
    parquet(
        tmp_path, "corpus/corpus-0.parquet", [{"_id": str(n), "title": "", "text": f"passage {n}"} for n in range(50)]
    )
    found = texts(declared("nq", path=str(tmp_path), sizes={"train": 20, "valid": 3, "test": 4}))
    assert {split: len(part) for split, part in found.items()} == {"train": 20, "valid": 3, "test": 4}
    assert set().union(*found.values()) == {f"passage {n}" for n in range(27)}
    parquet(tmp_path, "data/train-00000-of-00007-f85b.parquet", [{"text": f"passage {n}"} for n in range(20)])
    parquet(tmp_path, "data/dev-00000-of-00002-4b10.parquet", [{"text": f"held out {n}"} for n in range(8)])
    found = texts(declared("nq_dpr", path=str(tmp_path), sizes={"train": 15, "valid": 5, "test": 6}))
    assert {split: len(part) for split, part in found.items()} == {"train": 15, "valid": 5, "test": 6}
    assert found["test"] == [f"held out {n}" for n in range(6)]
    rows = [json.dumps({"docid": str(n), "title": "-", "text": f"web {n}"}) for n in range(20)]
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    found = texts(declared("msmarco_passages", path=str(tmp_path), sizes={"train": 12, "valid": 3, "test": 5}))
    assert {split: len(part) for split, part in found.items()} == {"train": 12, "valid": 3, "test": 5}
    assert set().union(*found.values()) == {f"web {n}" for n in range(20)}


@pytest.mark.parametrize(
    ("name", "file", "column"),
    [
        ("wiki_xl", "data/{split}-00000-of-00002.parquet", "sentence"),
        ("cc_news", "plain_text/{split}-00000-of-00005.parquet", "text"),
        ("pile_pubmed", "data/{split}-00000-of-00003.parquet", "text"),
        ("wiki_bio", "default/{split}/0000.parquet", "target_text"),
    ],
)
def test_sets_of_the_llm_attacker(tmp_path: Path, name: str, file: str, column: str):
    own = {"pile_pubmed": ("train", "validation", "test"), "wiki_bio": ("train", "val", "test")}.get(name, ("train",))
    for split in own:
        parquet(tmp_path, file.format(split=split), [{column: f"{split} {n}", "other": 1} for n in range(40)])
    found = texts(declared(name, path=str(tmp_path), sizes={"valid": 4, "test": 5}))
    assert {split: len(part) for split, part in found.items()} == {
        "train": 40 - 9 * (len(own) == 1),
        "valid": 4,
        "test": 5,
    }
    held_out = own[2] if len(own) == 3 else "train"
    assert all(text.startswith(f"{held_out} ") for text in found["test"])


@pytest.mark.parametrize(("name", "attribute"), [("cjeu_terms", "legal_term"), ("us_crimes", "criminal_charge")])
def test_legal_sets_fill_the_mask_and_keep_the_term_as_an_attribute(tmp_path: Path, name: str, attribute: str):
    terms = ["fraud", "theft"]
    parquet(
        tmp_path, f"{name}/test/0000.parquet",
        [{"text": f"case {n % 4}: <mask> and <mask>", "label": terms[n % 2], "category": "c"} for n in range(12)],
    )  # fmt: skip
    data = data_configs.declared(name, source__path=str(tmp_path))
    found = data.examples("test")
    assert len(found) == 12  # all, the repeated ones too: nothing is trained on them
    assert not data.examples("train")
    for example in found:
        number = int(example.text.split(":")[0].removeprefix("case "))
        assert example.text == f"case {number}: {terms[number % 2]} and {terms[number % 2]}"
        assert example.attributes == {attribute: terms[number % 2]}
    assert data.attributes == (attribute,)
    assert declared(name).sizes == {"test": {"cjeu_terms": 2127, "us_crimes": 4518}[name]}  # table 5 of Zhu et al. 2024


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_set_fetched_once_works_offline_and_names_its_commit(offline: Path):
    commit = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
    repository = offline / "datasets--nyu-mll--glue"
    for split in ["train", "validation", "test"]:
        parquet(repository / "snapshots" / commit, f"qnli/{split}-0.parquet", [{"question": "?", "sentence": split}])
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    source = declared("qnli")
    assert source.download() == commit
    assert texts(source) == {"train": ["?", "train"], "valid": ["?", "validation"], "test": ["?", "test"]}
    assert InversionDataModule(source).resolved_revision == commit


def test_what_cannot_be_fetched_says_what_works(offline: Path, tmp_path: Path):
    with pytest.raises(
        InputError, match=r"nyu-mll/glue \(revision v7\) is neither .* datamodule=synthetic, and datamodule=f"
    ):
        declared("qnli", revision="v7").load()


def test_a_local_folder_has_no_commit(tmp_path: Path):
    assert declared("qnli", path=str(tmp_path)).download() is None


def test_missing_files_and_fields_and_damaged_json_are_named(tmp_path: Path):
    parquet(tmp_path, "qnli/training-0.parquet", [{"question": "q", "sentence": "a"}])
    with pytest.raises(
        InputError, match=r"no train file qnli/train-\*\.parquet; did you mean qnli/training-0\.parquet"
    ):
        declared("qnli", path=str(tmp_path)).load()
    parquet(tmp_path, "qnli/train-0.parquet", [{"question": "q", "sentences": "a"}])
    with pytest.raises(InputError, match=r"train-0\.parquet:1: no field 'sentence'; did you mean sentences\?"):
        declared("qnli", path=str(tmp_path)).load()
    (tmp_path / "personachat_truecased_full_train.json").write_text('[{"utterances": ')
    with pytest.raises(InputError, match=r"full_train\.json: not JSON"):
        declared("personachat", path=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", [{"a": [[1, 2], [3, 4], []], "b": {"x": 5, "y": 6}}]),
        ("a.*.-1", [2, 4]),
        ("a.0.*", [1, 2]),
        ("b.*", [5, 6]),
        ("a.7", []),
        ("b.x!=5.y", []),
        ("b.x!=7.y", [6]),
    ],
)
def test_paths(path: str, expected: list[Any]):
    assert list(found_at({"a": [[1, 2], [3, 4], []], "b": {"x": 5, "y": 6}}, path, "here")) == expected


@pytest.mark.parametrize("path", ["b.z", "a.first", "b.x.y", "z!=1.b"])
def test_paths_that_lead_nowhere(path: str):
    with pytest.raises(InputError, match="here: "):
        list(found_at({"a": [1], "b": {"x": "text"}}, path, "here"))


def test_personal_data_has_its_labels(tmp_path: Path):
    text = "Ada Hill, 12 May"
    entities = [{"label": "SURNAME", "start": 4, "end": 8, "value": "Hill", "label_index": 1}]
    for split in ("train", "validation"):
        file = tmp_path / "data" / split / "1en.jsonl"
        file.parent.mkdir(parents=True)
        rows = [{"source_text": f"{text} {n}", "privacy_mask": entities, "language": "en"} for n in range(4)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = declared("pii_masking", path=str(tmp_path), sizes={"valid": 1}).load()
    assert [example.spans for example in found["test"]] == [(Span(4, 8, "SURNAME"),)] * 4
    assert {split: len(part) for split, part in found.items()} == {"train": 3, "valid": 1, "test": 4}
    wrong = tmp_path / "data" / "train" / "1en.jsonl"
    wrong.write_text(json.dumps({"source_text": "Ada", "privacy_mask": entities}) + "\n")
    with pytest.raises(InputError, match=r"1en\.jsonl:1: span 4-8 \(SURNAME\) does not lie in the text"):
        declared("pii_masking", path=str(tmp_path), sizes={"valid": 1}).load()
    with pytest.raises(ValueError, match="one path in texts"):
        HubSet("x", {}, ["a", "b"], {}, "none", spans="c")
