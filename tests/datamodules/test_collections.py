"""Collections are read from both layouts, what does not fit is counted or named, and searched under a defense."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from torch import Tensor

from support.letters import Letters
from unembed import launch
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.collections import (
    BeirCollection,
    ClirMatrixCollection,
    CollectionSource,
    CollectionTexts,
    begun,
)
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.retrieval import Searchable
from unembed.defenses.base import Role
from unembed.embedders.cache.cached import CachedEmbedder

DOCUMENTS = [
    {"_id": "d1", "title": "cats", "text": "a cat sat on the mat ."},
    {"_id": "d2", "title": "dogs", "text": "dogs bark all night ."},
    {"_id": "d3", "title": "", "text": "fish swim far below ."},
    {"_id": "d4", "title": "a cat", "text": "a cat again , and its kittens ."},
]
QUERIES = [{"_id": "q1", "text": "cat"}, {"_id": "q2", "text": "dogs"}, {"_id": "q3", "text": "never labelled"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td4\t1\nq2\td2\t1\n"


def beir(folder: Path, **changes: Any) -> Path:
    """A directory in BEIR's layout; ``corpus``, ``queries`` (rows or text) and ``qrels`` (text) may be changed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        content = changes.get(name, rows)
        text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (folder / "qrels.tsv").write_text(changes.get("qrels", QRELS), encoding="utf-8")
    return folder


class Negated:
    """Turns vectors round, and notes in which role."""

    def __init__(self, dimension: int = 26) -> None:
        self.dimension = dimension
        self.roles: set[tuple[Role, int]] = set()

    def output_dimension(self, dimension: int) -> int:
        return self.dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Nothing to estimate."""

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        self.roles.update((role, example.index) for example in examples)
        return -embeddings[:, : self.dimension]


# ------------------------------------------------------------------------------------------------------- BEIR's layout


def test_a_directory_is_read(tmp_path: Path) -> None:
    found = BeirCollection(str(beir(tmp_path))).read()
    assert isinstance(BeirCollection(str(tmp_path)), CollectionSource)
    assert list(found.document_ids) == ["d1", "d2", "d3", "d4"]
    assert [example.text for example in found.documents] == [
        "cats a cat sat on the mat .",
        "dogs bark all night .",  # the text begins with its title
        "fish swim far below .",
        "a cat again , and its kittens .",
    ]
    assert [example.index for example in found.documents] == [0, 1, 2, 3]
    assert (found.query_ids, [q.text for q in found.queries]) == (["q1", "q2"], ["cat", "dogs"])
    assert found.relevance == [{"d1": 2, "d4": 1}, {"d2": 1}]
    assert found.left_out == {}
    assert {example.language for example in (*found.documents, *found.queries)} == {"en"}
    rows = [{**DOCUMENTS[0], "language": "de"}, *DOCUMENTS[1:]]
    found = BeirCollection(str(beir(tmp_path, corpus=rows)), title=False, language=None).read()
    assert found.documents[0].text == "a cat sat on the mat ."
    assert [example.language for example in found.documents] == ["de", None, None, None]


def test_compressed_files_and_judgements_by_split(tmp_path: Path) -> None:
    folder = beir(tmp_path)
    packed = gzip.compress((folder / "corpus.jsonl").read_bytes())
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(packed)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq3\td3\t1\n", encoding="utf-8")
    assert BeirCollection(str(folder), split="dev").read().query_ids == ["q3"]
    assert BeirCollection(str(folder)).read().query_ids == ["q1", "q2"]  # there is no qrels/test.tsv
    (folder / "qrels.tsv").unlink()
    with pytest.raises(InputError, match=r"no relevance labels qrels/test.tsv or qrels.tsv \(split=test: .*dev"):
        BeirCollection(str(folder)).read()


def test_the_layout_of_the_hub_and_judgements_of_their_own(tmp_path: Path) -> None:
    """Parquet in folders, as the hub converts sets to, and a second set with the relevance labels alone."""
    for name, rows in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        (tmp_path / "texts" / name).mkdir(parents=True)
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, tmp_path / "texts" / name / "part-00000-of-00001.parquet")
    (tmp_path / "labelled").mkdir()
    labelled = [{"query-id": "q2", "corpus-id": "d3", "score": 1}]
    (tmp_path / "labelled" / "test.jsonl").write_text(json.dumps(labelled[0]) + "\n", encoding="utf-8")
    found = BeirCollection(str(tmp_path / "texts"), qrels=str(tmp_path / "labelled")).read()
    assert found.relevance == [{"d3": 1}]
    assert len(found.documents) == 4


def test_what_does_not_fit_is_counted_and_reported(tmp_path: Path) -> None:
    corpus = [*DOCUMENTS, {"_id": "empty", "title": "", "text": "  "}]
    queries = [*QUERIES, {"_id": "blank", "text": " "}, {"_id": "hopeless", "text": "nothing"}]
    qrels = f"{QRELS}q1\tgone\t1\nq9\td1\t1\nq1\tempty\t1\nblank\td1\t1\nhopeless\td1\t0\n"
    with pytest.warns(UserWarning, match="1 relevance labels of unknown documents"):
        found = BeirCollection(str(beir(tmp_path, corpus=corpus, queries=queries, qrels=qrels))).read()
    assert found.left_out == {
        "blank documents": 1,
        "relevance labels of unknown documents": 1,
        "relevance labels of unknown queries": 1,
        "blank queries": 1,
        "queries without a relevant document": 1,
    }
    assert found.query_ids == ["q1", "q2"]
    assert found.relevance[0] == {"d1": 2, "d4": 1, "gone": 1, "empty": 1}  # as every evaluator counts them
    assert "empty" not in found.document_ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qrels": "query-id\tcorpus-id\tscore\n1\t2\t1\n"}, "no relevance label joins .*'d1', labelled such"),
        ({"qrels": "query-id\tcorpus-id\tscore\n"}, "there are no relevance labels"),
        ({"qrels": "q1\td1\t1\nq2\td2\t1\n"}, r"qrels.tsv:2: no 'query-id'"),
        ({"qrels": "query-id\tcorpus-id\tscore\nq1\td1\n"}, r"qrels.tsv:2: 2 fields, but the header has 3"),
        ({"qrels": "query-id\tcorpus-id\tscore\nq1\td1\tvery\n"}, r"qrels.tsv:2: the score .* whole number, not 've"),
        ({"qrels": "query-id\tcorpus-id\tscore\nq1\td1\t.5\n"}, r"qrels.tsv:2: the score .* whole number"),
        ({"qrels": f"{QRELS}q1\td1\t1\n"}, r"qrels.tsv:5: query 'q1' and document 'd1' were labelled 2 before"),
        ({"qrels": "query-id\tcorpus-id\tscore\nq1\td1\t0\n"}, "no document is relevant to any of 1 labelled queries"),
        ({"corpus": '{"_id": "d", "text": "a"}\n{"_id": "d", "text": "b"}\n'}, r"corpus.jsonl:2: two doc.*'d'"),
        ({"corpus": '{"_id": "d1", "text": "a"}\n\n{"id": "d2"\n'}, r"corpus.jsonl:3: not JSON"),
        ({"corpus": '{"id": "d1", "text": "a"}\n'}, r"corpus.jsonl:1: no '_id'; did you mean id"),
        ({"corpus": '{"_id": "d1", "txt": "a"}\n'}, r"corpus.jsonl:1: no field 'text'; did you mean txt"),
        ({"corpus": '{"_id": "d1", "text": 5}\n'}, r"corpus.jsonl:1: text should be a text, not int"),
        ({"queries": '{"_id": "", "text": "a"}\n'}, r"queries.jsonl:1: _id is empty"),
        ({"queries": '{"_id": "q1", "text": ""}\n'}, "no relevance label joins"),
    ],
)  # fmt: skip
def test_bad_collections_are_named_with_file_and_line(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BeirCollection(str(beir(tmp_path, **changes))).read()


def test_a_missing_directory_or_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    folder = beir(tmp_path / "scifact")
    with pytest.raises(InputError, match="did you mean scifact"):
        BeirCollection(str(tmp_path / "scifct")).read()
    (folder / "queries.jsonl").rename(folder / "query.jsonl")
    with pytest.raises(InputError, match=r"queries.jsonl: no such file, did you mean query.jsonl"):
        BeirCollection(str(folder)).read()


# -------------------------------------------------------------------------------------------------------- CLIRMatrix


def clirmatrix(
    folder: Path, queries: str | None = None, documents: str | None = None, **given: Any
) -> ClirMatrixCollection:
    rows = [
        {"src_id": "7", "src_query": "cat", "tgt_results": [["11", 6], ["12", 0]]},
        {"src_id": "8", "src_query": "dog", "tgt_results": [["12", 3]]},
    ]
    (folder / "en_de.jl.gz").write_bytes(gzip.compress((queries or "\n".join(map(json.dumps, rows))).encode()))
    (folder / "de.tsv").write_text(documents or "11\teine Katze\n12\tein\tHund\n\n13\tein Fisch\n", encoding="utf-8")
    return ClirMatrixCollection(str(folder / "de.tsv"), str(folder / "en_de.jl.gz"), "en", "de", **given)


def test_clirmatrix_is_read(tmp_path: Path) -> None:
    found = clirmatrix(tmp_path).read()
    assert found.document_ids == ["11", "12"]  # 13 is labelled for no query
    assert [(example.text, example.language) for example in found.documents] == [
        ("eine Katze", "de"),
        ("ein\tHund", "de"),
    ]
    assert [(example.text, example.language) for example in found.queries] == [("cat", "en"), ("dog", "en")]
    assert found.relevance == [{"11": 6, "12": 0}, {"12": 3}]
    assert clirmatrix(tmp_path, judged_only=False).read().document_ids == ["11", "12", "13"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": '{"src_id": "7"}'}, "en_de.jl.gz:1: no field 'src_query'"),
        ({"queries": '{"src_id": "7", "src_query": "x", "tgt_results": "11"}'}, "en_de.jl.gz:1: tgt_results should"),
        ({"queries": '{"src_id": "7", "src_query": "x", "tgt_results": [["11"]]}'}, r"en_de.jl.gz:1: \['11'\] in tgt"),
        ({"queries": "{"}, "en_de.jl.gz:1: not JSON"),
        ({"documents": "11 eine Katze\n"}, r"de.tsv:1: expected an id, a tab and a text"),
    ],
)  # fmt: skip
def test_bad_clirmatrix_files_are_named_with_file_and_line(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        clirmatrix(tmp_path, **changes).read()


# -------------------------------------------------------------------------------------------------- texts to train on


def test_texts_begin_at_every_sentence_and_the_data_module_composes(tmp_path: Path) -> None:
    text = "one two three. four five six seven eight nine ten. last words"
    pieces = [text[start:end] for start, end in begun(text, 6)]
    assert pieces == [
        "one two three. four five six",
        "four five six seven eight nine",
        "seven eight nine ten. last words",  # three words on in a long sentence
    ]
    assert list(begun("short", 6)) == [(0, 5)]
    assert list(begun("", 6)) == []
    from hydra.utils import instantiate

    config = launch.compose("train", ["datamodule=collection", f"datamodule.source.path={beir(tmp_path)}"])
    assert launch.check(config) == []
    datamodule = instantiate(config.datamodule, _convert_="all")
    assert isinstance(datamodule, InversionDataModule)
    assert {len(datamodule.examples(split)) for split in ("valid", "test")} == {1}


def test_documents_are_split_and_nothing_of_a_held_out_one_is_trained_on(tmp_path: Path) -> None:
    rows = [
        {"_id": str(n), "text": f"first thing {n} is said here. second thing {n} comes after it."} for n in range(40)
    ]
    source = CollectionTexts(str(beir(tmp_path, corpus=rows)))
    found = source.load()
    groups = {split: {example.group for example in examples} for split, examples in found.items()}
    assert {split: len(names) for split, names in groups.items()} == {"train": 30, "valid": 2, "test": 8}
    assert not groups["train"] & groups["test"] | groups["train"] & groups["valid"] | groups["valid"] & groups["test"]
    assert len(found["train"]) == 60
    assert {example.text[:5] for example in found["train"]} == {"first", "secon"}
    assert {example.text[:5] for example in found["test"]} == {"first"}
    assert [example.index for example in found["train"]] == list(range(60))
    alone = CollectionTexts(str(tmp_path), begin="document").load()
    assert len(alone["train"]) == 30
    assert alone["test"] == found["test"]
    with pytest.raises(InputError, match="leave no training text"):
        CollectionTexts(str(tmp_path), valid_fraction=0.5, test_fraction=0.5)


# ----------------------------------------------------------------------------------------------- search under a defense


def index(folder: Path, **given: Any) -> Searchable:
    collection = BeirCollection(str(beir(folder, **given.pop("files", {}))), **given.pop("beir", {})).read()
    return Searchable(collection, CachedEmbedder(Letters(), folder / "cache"), **given)


def test_a_collection_is_searched_and_its_texts_are_cut_before(tmp_path: Path) -> None:
    searchable = index(tmp_path)
    rankings = searchable.rankings(k=2)
    assert rankings[1][0] == "d2"
    metrics = searchable.retrieve()
    assert metrics["ndcg_at_10"].shape == (2,)
    assert metrics["recall_at_10"].tolist() == [1.0, 1.0]
    assert metrics["mrr_at_10"][1] == 1.0
    searchable = index(tmp_path, max_tokens=2)
    assert [example.text for example in searchable.documents] == ["cats a", "dogs bark", "fish swim", "a cat"]
    assert [example.text for example in searchable.queries] == ["cat", "dogs"]
    searchable.embed()
    assert searchable.embedder.queries.asked["scoring"] == 6


def test_a_defense_meets_queries_and_documents_in_their_roles(tmp_path: Path) -> None:
    searchable = index(tmp_path)
    plain, both = Negated(), Negated()
    clean = searchable.rankings()
    assert searchable.rankings(both, "both") == clean  # turned round alike
    assert both.roles == {("query", 0), ("query", 1), *(("document", n) for n in range(4))}
    against = searchable.rankings(plain, "documents")
    assert {role for role, _ in plain.roles} == {"document"}
    assert against == [row[::-1] for row in clean]
    searchable = index(tmp_path)
    assert searchable.retrieve(Negated(dimension=3), "documents") is None
    assert searchable.retrieve(Negated(dimension=3), "both") is not None


def test_a_querys_own_document_can_be_left_out(tmp_path: Path) -> None:
    files = {
        "queries": [{"_id": "d1", "text": "cats a cat sat on the mat ."}],
        "qrels": "query-id\tcorpus-id\tscore\nd1\td4\t1\n",
    }
    with_it = index(tmp_path / "a", files=dict(files)).rankings(k=3)
    without = index(tmp_path / "b", files=dict(files), beir={"skip_same_id": True}).rankings(k=3)
    assert with_it[0][0] == "d1"
    assert "d1" not in without[0]
    assert len(without[0]) == 3
