"""unembed audit on a tiny run: what it measures, estimates, shows, hides and refuses, and resuming."""

from __future__ import annotations

import html
import json
import re
import shlex
import sys
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from support import tiny_settings
from support.files import load, read_lines, rows_of, write_lines
from support.light_scripts import answers
from support.places import Place
from unembed import launch
from unembed.__main__ import main
from unembed.attacks.nearest_neighbor import NearestNeighbor
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.audit.attackers import reading, services
from unembed.audit.defenses import neighbours_kept
from unembed.audit.exposure import places
from unembed.audit.inputs import read_truths
from unembed.audit.results import Truth
from unembed.commands import audit, invert
from unembed.core.errors import InputError, redacted
from unembed.core.examples import Span
from unembed.datamodules.vector_stores.sampling import open_store
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.launch.console import ending
from unembed.metrics import calibration
from unembed.runs import layout

pytestmark = pytest.mark.slow

WHO = ["Ada", "Bob", "Cleo", "Dan", "Eve", "Fay", "Gus", "Hal"]
CITIES = ["Paris", "Rome", "Oslo", "Lima", "Bonn"]
TRAIN = [f"{who} lives in {city} and writes to {who.lower()}@example.org" for who in WHO for city in CITIES]
# Of the test texts, every other one differs from a training text in the last word alone: readable, not word for word.
TEST = [f"{who} lives in {city} and writes to {who.lower()}@{'home' if n % 2 else 'the shop down there'}"
        for n, (who, city) in enumerate((who, city) for who in WHO for city in CITIES[:3])]  # fmt: skip
OTHER = [f"the {thing} of number {n} was not seen again" for n, thing in enumerate(["bird", "car", "tax", "rain"] * 5)]
HOSTILE = "<script>alert('x')</script> & <img src=x> \u202eab"
STORE = [*TRAIN[:20], *OTHER]
COMMON = [*tiny_settings.NEIGHBOR, "datamodule.valid_fraction=0"]


class AuditedPlace(Place):
    """A run of the nearest neighbour, and vectors of the store's texts."""

    def __init__(self, base: Path) -> None:
        rows = [{"text": text, "split": split} for split, part in (("train", [*TRAIN, HOSTILE]), ("test", TEST))
                for text in part]  # fmt: skip
        super().__init__(base, write_lines(base / "data.jsonl", rows), COMMON)
        self.run = self.train("run")
        self.store = CachedEmbedder(MiniLM(), self.cache)
        self.vectors = self.store.embed([*STORE, HOSTILE], "scoring").numpy()
        np.save(base / "store.npy", self.vectors)
        self.truths([{"text": text} for text in [*STORE, HOSTILE]], "truth.jsonl")

    def truths(self, rows: list[dict[str, Any]], name: str) -> Path:
        return write_lines(self.base / name, rows)

    def audit(self, name: str, *lines: str, defenses: str = "[]") -> dict[str, Any]:
        output = self.base / name
        given = [f"output_dir={output}", f"defenses={defenses}"]
        if not any(line.startswith("run=") for line in lines):
            given.append(f"run={self.run}")
        if not any(line.startswith("vectors=") for line in lines):
            given.append(f"vectors={self.base / 'store.npy'}")
        audit.audit(*launch.on_run("audit", [*given, *lines], audit.check_given))
        assert {path.name for path in output.iterdir()} == {
            "audit.json", "audit.html", "audit.sarif", "audit.junit.xml", "audit.md", "exposed.csv",
        }  # fmt: skip
        return load(output / "audit.json")

    def refuse(self, *lines: str, defenses: str = "[]") -> str:
        with pytest.raises(InputError) as raised:
            self.audit("refused", *lines, defenses=defenses)
        assert not (self.base / "refused").exists()
        return str(raised.value)

    @cached_property
    def measured(self) -> dict[str, Any]:
        return self.audit("measured", f"texts={self.base / 'truth.jsonl'}")

    def page(self, name: str) -> str:
        return (self.base / name / "audit.html").read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> AuditedPlace:
    return AuditedPlace(tmp_path_factory.mktemp("audit"))


def test_with_true_texts_shares_are_measured(place: AuditedPlace) -> None:
    found = place.measured
    # The attack knows the first twenty texts and the hostile one, and nothing like the other twenty.
    assert found["readable"] == {"value": 21 / 41, "low": pytest.approx(0.3648, abs=1e-3),
                                 "high": pytest.approx(0.6574, abs=1e-3), "rows": 41, "measured": True}  # fmt: skip
    assert found["exact"]["value"] == 21 / 41
    assert set(found["estimated"]) == {"readable", "exact"}
    assert [(kind["label"], kind["total"], kind["share"]["value"]) for kind in found["kinds"]] == [("EMAIL", 20, 1.0)]
    assert [one["name"] for one in found["tried"]] == ["none"]
    assert found["tried"][0]["readable"]["value"] == 21 / 41
    assert len(found["rows"]) == 20
    assert all(row["exact"] and row["cosine"] == pytest.approx(1, abs=1e-5) for row in found["rows"])
    assert found["rows"][0]["id"] == str(found["rows"][0]["position"])


def test_examples_are_chosen_by_the_truth_where_it_is_known(place: AuditedPlace) -> None:
    """The attack writes a training text for each vector: right for 21 rows, for the others with as many entities."""
    found = place.measured
    assert [(row["exact"], row["probability"], row["kinds"]) for row in found["examples"]] == [(True, 1, ["EMAIL"])] * 3
    path = place.base / "others.npy"
    np.save(path, place.vectors[20:40])
    truth = place.truths([{"text": text} for text in STORE[20:40]], "others.jsonl")
    wrong = place.audit("wrong_examples", f"vectors={path}", f"texts={truth}", "trust_vectors=true")["examples"]
    assert [(row["exact"], row["probability"], row["kinds"]) for row in wrong] == [(False, 0, [])] * 3
    assert "None of the texts whose truth is known is readable" in place.page("wrong_examples")


def test_without_true_texts_shares_are_estimated_from_what_cosines_meant(place: AuditedPlace) -> None:
    found = place.audit("estimated")
    known = rows_of(place.run)
    assert len(known) == len(found["known"]) == 24
    assert not found["readable"]["measured"]
    assert found["readable"]["low"] < found["readable"]["value"] < found["readable"]["high"]
    # The truth is 21 of 41; of the test texts, twelve are read but for a word.
    assert found["readable"]["low"] < 21 / 41 < found["readable"]["high"] + 0.1
    emails = next(kind for kind in found["kinds"] if kind["label"] == "EMAIL")
    assert emails["total"] >= 20
    assert any("looks unlike the attacker's test texts" in warning for warning in found["warnings"])
    assert "s an estimated" in place.page("estimated")


def test_each_attacker_has_one_calibration_for_each_threshold(
    place: AuditedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = []
    fit = calibration.fit
    monkeypatch.setattr(calibration, "fit", lambda *given, **more: fitted.append(given) or fit(*given, **more))
    defenses = '["defense=noise defense.level=0.01","defense=masking"]'
    found = place.audit("calibrated", defenses=defenses)
    assert len(found["tried"]) == 3
    # Readable and word for word, of the attack, the lookup, and the closest text of both; others have totals.
    assert len([given for given in fitted if given[-1] is None]) == 2 * len(found["attackers"]) == 6


def test_json_alone_is_on_standard_output(place: AuditedPlace, capsys: pytest.CaptureFixture[str]) -> None:
    found = place.audit("printed", "json=true")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == found
    assert "Report: " in printed.err


def test_texts_are_masked_unless_they_are_asked_for(place: AuditedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.measured["masked"]
    given = [f"run={place.run}", f"vectors={place.base / 'store.npy'}", f"texts={place.base / 'truth.jsonl'}"]
    given += [f"output_dir={place.base / 'shown'}", "exposed=41", "defenses=[]", "--show-text"]
    monkeypatch.setattr(sys, "argv", ["unembed", "audit", *given])
    main()
    shown = json.loads((place.base / "shown" / "audit.json").read_text())
    for name in ("audit.json", "audit.html"):
        content = (place.base / "measured" / name).read_text()
        for word in ("Ada", "Paris", "ada@example.org", "alert"):
            assert word not in content
        assert "[EMAIL]" in content
        assert "Xxx lives in Xxxx" in content
    assert {row["text"] for row in shown["rows"]} >= {*TRAIN[:20], HOSTILE}
    assert all(row["truth"] == [*STORE, HOSTILE][row["position"]] for row in shown["rows"])


def test_hostile_text_does_nothing_in_the_page(place: AuditedPlace) -> None:
    found = place.audit("clear", "show_text=true", "exposed=41")
    assert HOSTILE in {row["text"] for row in found["rows"]}
    page = place.page("clear")
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &lt;img src=x" in page
    assert "default-src 'none'" in page
    hostile = place.base / "<b>bold.npy"
    np.save(hostile, place.vectors)
    place.audit("named", f"vectors='{hostile}'", "limit=5")
    assert "<b>" not in place.page("named")


def test_defenses_are_tried_on_the_same_rows(place: AuditedPlace) -> None:
    lines = json.dumps([
        "defense=noise defense.level=1", "defense=rounding defense.step=0.001",
        "defense=truncation defense.dimensions=384",
    ])  # fmt: skip
    for name, more in (("tried", [f"texts={place.base / 'truth.jsonl'}"]), ("tried_without", [])):
        found = place.audit(name, *more, defenses=lines)
        none, noise, rounding, truncation = found["tried"]
        assert [one["holds"][:14] for one in found["tried"]] == ["", *["against nobody"] * 3]
        assert [none["name"], noise["name"]] == ["none", "noise level=1"]
        assert none["neighbours"] == truncation["neighbours"] == 1
        assert noise["neighbours"] < 0.6 < 0.9 < rounding["neighbours"] <= 1
        assert noise["cosine"] < none["cosine"] - 0.2
        assert not more or noise["exact"]["value"] < none["exact"]["value"] - 0.2
        assert truncation["readable"]["value"] == pytest.approx(none["readable"]["value"], abs=1e-6)
        assert found["tried_on"] == 41
    assert found["tried"][0]["entities"] is None
    few = place.audit("few", "defense_limit=15", defenses='["defense=rounding defense.step=0.001"]')
    assert few["tried_on"] == 15


def test_narrower_vectors_are_filled_up_with_zeros(place: AuditedPlace) -> None:
    found = place.audit("narrow", defenses='["defense=truncation defense.dimensions=128"]')
    assert found["tried"][1]["width"] == 128
    assert 0 < found["tried"][1]["cosine"] < found["tried"][0]["cosine"] + 1e-9


def test_a_killed_audit_resumes_and_keeps_nothing_of_the_way(
    place: AuditedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    invert, seen = NearestNeighbor.invert, []

    def dying(self: Any, targets: Targets, oracle: Any) -> list[Prediction]:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(targets.index.tolist())
        return invert(self, targets, oracle)

    lines = ["batch_size=16", f"texts={place.base / 'truth.jsonl'}"]
    monkeypatch.setattr(NearestNeighbor, "invert", dying)
    with pytest.raises(KeyboardInterrupt):
        place.audit("killed", *lines)
    assert {path.name for path in (place.base / "killed").iterdir()} == {layout.TEST_BATCHES}
    monkeypatch.setattr(NearestNeighbor, "invert", invert)
    whole = place.audit("whole", *lines)

    def counted(self: Any, targets: Targets, oracle: Any) -> list[Prediction]:
        seen.append(targets.index.tolist())
        return invert(self, targets, oracle)

    monkeypatch.setattr(NearestNeighbor, "invert", counted)
    found = place.audit("killed", *lines)
    assert [len(batch) for batch in seen] == [16, 16, 9]
    assert found == whole
    with pytest.raises(InputError, match="already holds an audit"):
        place.audit("killed", *lines)


def test_a_changed_attack_reads_the_test_texts_anew(place: AuditedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    invert, seen = NearestNeighbor.invert, []

    def counted(self: Any, targets: Targets, oracle: Any) -> list[Prediction]:
        seen.append(len(targets.index))
        return invert(self, targets, oracle)

    monkeypatch.setattr(NearestNeighbor, "invert", counted)
    place.audit("kept", "limit=7")
    assert seen == [7]
    place.audit("anew", "limit=7", f"ckpt_path={place.base / 'data.jsonl'}")  # an attack without weights reads none
    assert seen == [7, 24, 7]


# -- what the user gave wrong -----------------------------------------------------------------------------------------


def test_vectors_of_another_space(place: AuditedPlace) -> None:
    path = place.base / "other.npy"
    np.save(path, place.vectors[:, :100])
    assert "vectors of dimension 100, but this attack was trained on dimension 384" in place.refuse(f"vectors={path}")
    np.save(path, place.vectors * 7)
    message = place.refuse(f"vectors={path}")
    assert "median length is 7, but the run's embedder gives vectors of length 1" in message
    axes, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(384, 384)))
    np.save(path, place.vectors @ axes)
    assert (
        "these are not all-MiniLM-L6-v2 vectors (another model, or no vectors of text at all: likeness"
        in place.refuse(f"vectors={path}")
    )
    found = place.audit("trusted", f"vectors={path}", "trust_vectors=true")
    assert any("these are not all-MiniLM-L6-v2 vectors" in warning for warning in found["warnings"])


def test_what_needs_no_attacker_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    vectors = np.ones((5, 384), np.float32)
    np.save(tmp_path / "right.npy", vectors)
    vectors[3, 7] = np.nan
    np.save(tmp_path / "nan.npy", vectors)
    (tmp_path / "data.jsonl").write_text('{"vector": "a"}\n')
    (tmp_path / "audit.json").write_text("{}")
    right = "vectors=right.npy"
    mistakes = [
        (["vectors=nowhere.npy"], "vectors=nowhere.npy: no such file"),
        (["vectors=data.jsonl"], "expected a list of numbers"),
        (["vectors=nan.npy"], "row 3 holds NaN"),
        (["vectors=qdrant:nowhere"], "nowhere"),
        (["vectors=nosuch:place"], "unknown kind of store 'nosuch'"),
        ([right, "collection=notes"], "collection=notes: a file has no collections"),
        ([right, "fail_on=readable>500"], "fail_on=readable>500: 500 percent is more than all"),
        ([right, "baseline=nowhere.json"], "baseline=nowhere.json: no such file"),
        ([right, "texts=nowhere.jsonl"], "texts=nowhere.jsonl: no such file"),
        ([right, "also=nowhere"], "also=nowhere"),
        ([right, f"output_dir={tmp_path}"], "already holds an audit"),
    ]
    told = answers(*(["audit", *given] for given, _ in mistakes), folder=tmp_path)
    assert [expected in "\n".join(lines) for lines, (_, expected) in zip(told, mistakes, strict=True)] == [True] * 11


def test_vectors_of_no_text_are_told_as_such(place: AuditedPlace) -> None:
    path = place.base / "random.npy"
    vectors = np.random.default_rng(0).normal(size=(5, 384)).astype(np.float32)
    np.save(path, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    with pytest.raises(InputError, match=r"readable>100: cannot be judged\. This audit says nothing of the texts"):
        place.audit("strange", f"vectors={path}", "fail_on=readable>100")
    found = load(place.base / "strange" / "audit.json")
    assert found["unjudged"].startswith("This audit says nothing of the texts")
    assert not any("looks unlike" in warning for warning in found["warnings"])
    assert [one["passed"] for one in found["thresholds"]] == [False]
    assert found["readable"] is found["exact"] is None
    page = place.page("strange")
    assert "Find out what made these vectors" in page
    assert "Treat the vectors as the text" not in page


def test_few_vectors_are_not_judged(place: AuditedPlace) -> None:
    """Every one is a training text, and read; a threshold that is exceeded all the same is not one that holds."""
    path = place.base / "five.npy"
    np.save(path, place.vectors[:5])
    lines = [f"vectors={path}", f"texts={place.truths([{'text': text} for text in STORE[:5]], 'five.jsonl')}"]
    found = place.audit("five", *lines)
    assert found["unjudged"].startswith("5 texts are too few to judge the store by: the 95 % interval")
    page = place.page("five")
    assert page.index("too few to judge") < page.index("reads 100")
    assert "fail_on=" not in page
    with pytest.raises(InputError, match=r"classes\.dates>0: cannot be judged\. 5 texts are too few"):
        place.audit("five_judged", *lines, "fail_on=classes.dates>0")
    assert "NOT JUDGED" in place.page("five_judged")


def test_texts_that_do_not_belong_to_the_vectors(place: AuditedPlace) -> None:
    texts = place.truths([{"text": text} for text in reversed([*STORE, HOSTILE])], "reversed.jsonl")
    message = place.refuse(f"texts={texts}")
    assert "texts: the vectors of these texts have a median cosine of" in message
    assert "trust_vectors=true" in message
    store = open_store(str(place.base / "store.npy"), 384)
    for rows, expected in (
        ([{"text": "a", "index": 41}], "truth_bad.jsonl:1: index 41: the store has the positions 0 to 40"),
        ([{"text": "a", "index": "x"}], "index 'x'"),
        ([{"text": "a", "id": "41"}], "no vector has the id '41'"),
        ([{"text": "a", "id": "3"}, {"text": "b", "id": 3}], "truth_bad.jsonl:2: a second text for the vector 3"),
        ([{"txt": "a"}], "no field 'text'"),
        ([{"text": "a"}] * 42, "truth_bad.jsonl: 42 texts in order for 41 vectors; name the vector of each by index"),
        ([{"text": "a"}] * 40, "40 texts in order for 41 vectors"),
        ([{"text": " "}], "holds no text"),
        ([{"text": "abc", "spans": [{"start": 0, "end": 9, "label": "X"}]}], "does not lie in the text"),
    ):
        with pytest.raises(InputError) as raised:
            read_truths(str(place.truths(rows, "truth_bad.jsonl")), store)
        assert expected in str(raised.value)
    assert "no such file, did you mean truth.jsonl?" in place.refuse(f"texts={place.base / 'trut.jsonl'}")


def test_texts_that_the_store_holds_are_the_truth(place: AuditedPlace, tmp_path: Path) -> None:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(tmp_path / "store"))
    width = place.vectors.shape[1]
    client.create_collection("docs", models.VectorParams(size=width, distance=models.Distance.DOT))
    texts = [*STORE, HOSTILE]
    payloads = [{"title": "a"}, *({"title": "a", "body": text} for text in texts[1:])]
    client.upload_collection("docs", place.vectors, payloads, ids=range(len(texts)))
    client.close()
    vectors = f"vectors=qdrant:{tmp_path / 'store'}"
    found = place.audit("beside", vectors, "texts=store")
    assert (found["readable"]["rows"], found["readable"]["measured"]) == (len(texts) - 1, True)
    assert any(f"those in 'body' of the store, which {len(texts) - 1} of" in one for one in found["warnings"])
    printed = [html.unescape(line) for line in re.findall(r"unembed audit ([^<\n]*)", place.page("beside"))]
    assert [shlex.split(line)[1:3] for line in printed] == [[vectors, "collection=docs"]]
    with pytest.raises(InputError, match="median cosine"):
        place.audit("wrong", vectors, "texts=store:title")
    with pytest.raises(InputError, match="holds vectors alone; give a file"):
        place.audit("none", "texts=store")


def test_texts_by_id_with_spans_of_some_rows(place: AuditedPlace) -> None:
    text = STORE[4]
    rows = [{"id": "4", "text": text, "spans": [[0, 3, "NAME"]]}, {"id": 30, "text": STORE[30]}]
    found = place.audit("some", f"texts={place.truths(rows, 'some.jsonl')}", "limit=10")
    assert (found["sampled"], found["size"], found["readable"]["rows"]) == (10, 41, 2)
    assert found["readable"]["value"] == 0.5
    assert [(kind["label"], kind["total"], kind["share"]["value"]) for kind in found["kinds"]] == [("NAME", 1, 1.0)]
    row = next(row for row in found["rows"] if row["id"] == "4")
    assert row["text"].startswith("[NAME] lives in X")
    assert found["tried_on"] == 2


def test_longer_texts_than_the_run_was_trained_on(place: AuditedPlace) -> None:
    long = " ".join(f"{text}." for text in TRAIN[:4])
    np.save(place.base / "long.npy", place.store.embed([long], "scoring").numpy())
    truth = place.truths([{"text": long}], "long.jsonl")
    found = place.audit("long", f"vectors={place.base / 'long.npy'}", f"texts={truth}")
    assert any("1 of 1 texts are longer than the 32 tokens" in warning for warning in found["warnings"])


def test_settings_are_checked_together_before_anything_is_read(place: AuditedPlace) -> None:
    with pytest.raises(InputError) as raised:
        place.audit("refused", "limit=0", "readable=120", "vectors=nowhere.npy")
    assert str(raised.value).splitlines() == ["limit=0: must be at least 1", "readable=120: must be at most 100.0"]
    message = place.refuse(defenses='["defense=nose","defense=noise defense.level=-1","noise"]')
    assert "defense=nose: did you mean noise?" in message
    assert "defense.level=-1: must be at least 0" in message
    assert "vectors=nowhere.npy: no such file" in place.refuse("vectors=nowhere.npy")
    message = place.refuse(defenses='["defense=masking defense.languages={en:1}"]')
    assert message.startswith("defenses: masking languages={en:1}: ")
    assert "has no language" in message


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("audit", "vectors=postgresql://ada:{}@host/mail"),
        ("audit", "vectors=postgresql://ada:%zz/#,[{{{}@host/mail"),
        ("audit", "vectors=ada:{}@host/mail"),
        ("audit", "vectors=host=h password='x {}'"),
        ("audit", "vectors=qdrant:{}@host:6333"),
        ("audit", "--vectors=postgresql://ada:{}@host/mail"),
        ("audit", "postgresql://ada:{}@host/mail?sslmode=require"),
        ("invert", "vectors=chroma:https://ada:{}@host"),
        ("evaluate", "run=https://ada:{}@host"),
        ("train", "embedder.base_url=https://ada:x {}@host/v1"),
    ],
)
def test_no_script_repeats_a_password(
    script: str, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unembed", script, "run=nowhere", word.format("w0rdOfHonour")])
    with pytest.raises(SystemExit) as raised:
        main()
    said = capsys.readouterr()
    assert raised.value.code == 2
    assert "w0rdOfHonour" not in said.out + said.err
    assert "give" in said.err
    assert "PGPASSWORD" in said.err or "QDRANT_API_KEY" in said.err


def test_a_password_in_a_configuration_is_refused_and_not_repeated(place: AuditedPlace) -> None:
    with pytest.raises(InputError) as raised:
        launch.on_run("audit", [f"run={place.run}", "vectors=mine.npy", "texts='https://ada:a w0rd@host/x'"])
    assert str(raised.value).startswith("texts: a password or key has no place on a command line")
    assert "w0rd" not in str(raised.value)
    config = launch.compose("train", ["embedder=openai", "embedder.base_url='https://ada:a w0rd@host/v1'"])
    messages = launch.check(config)
    (message,) = messages
    assert message.startswith("embedder.base_url=***: must be an http")


def test_ctrl_c_prints_the_command_without_what_is_secret(
    place: AuditedPlace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "an-open-sesame")
    words = ["vectors=postgresql://ada:a w0rd@host/mail", "texts=an-open-sesame.jsonl", "limit=5"]
    monkeypatch.setattr(sys, "argv", ["unembed", "audit", *words])
    with pytest.raises(SystemExit), ending(launch.on_run("audit", [f"run={place.run}", "vectors=x.npy"])[1]):
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert "unembed audit 'vectors=***' 'texts=***.jsonl' limit=5" in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to postgresql://ada:a/b#c?d@e@host/mail: no", "to postgresql://***@host/mail: no"),
        ("at https://key@host:6333/x and http://host:8000", "at https://***@host:6333/x and http://host:8000"),
        ("host=h password='a b' port=1", "host=h password=*** port=1"),
        ("?api_key=abc&x=1", "?api_key=***&x=1"),
        ("""{"api-key": "abc", 'token': 'x'}""", """{"api-key": "***", 'token': "***"}"""),
        ("Authorization: Bearer abcdef.ghi-jkl", "Authorization: Bearer ***"),
        ("said tied-with-string twice: tied%2Dwith%2Dstring", "said *** twice: tied%2Dwith%2Dstring"),
        ("org/model@main, max_tokens=32, api_key_env=OPENAI_API_KEY", None),
    ],
)
def test_secrets_are_blotted_out_of_messages(text: str, shown: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "tied-with-string")
    assert redacted(text) == (text if shown is None else shown)
    assert str(InputError(text)) == (text if shown is None else shown)


def test_a_run_that_was_not_tested_can_only_be_measured(place: AuditedPlace) -> None:
    path = place.run / layout.PREDICTIONS
    kept = path.read_text()
    path.unlink()
    try:
        found = place.audit("untested")
        assert found["readable"] is None
        assert any("Nothing can be estimated" in warning for warning in found["warnings"])
        assert "How much of that is right is not known" in place.page("untested")
        assert place.audit("untested_measured", f"texts={place.base / 'truth.jsonl'}")["readable"]["value"] == 21 / 41
    finally:
        path.write_text(kept)


def test_a_run_on_a_language_models_output_is_no_auditor(tmp_path: Path) -> None:
    session: Any = SimpleNamespace(run=tmp_path, embedder=CachedEmbedder(LanguageModelEmbedder("nowhere"), tmp_path))
    with pytest.raises(InputError, match="an audit is of embeddings"):
        services(session)


def test_an_attacker_of_defended_vectors_is_for_a_store_of_such(place: AuditedPlace) -> None:
    run = place.train("narrow_run", "defense=truncation", "defense.dimensions=128", "defense.adaptive=true")
    path = place.base / "narrow.npy"
    np.save(path, place.vectors[:, :128] / np.linalg.norm(place.vectors[:, :128], axis=1, keepdims=True))
    lines = [f"run={run}", f"vectors={path}", f"texts={place.base / 'truth.jsonl'}"]
    assert "add defense.hypotheses=defended" in place.refuse(*lines)
    found = place.audit("defended", *lines, "defense.hypotheses=defended", defenses='["defense=rounding"]')
    assert (found["width"], found["readable"]["value"], found["rows"][0]["cosine"]) == (128, 21 / 41, pytest.approx(1))
    assert "vectors of dimension 384" in place.refuse(f"run={run}", "defense.hypotheses=defended")


# -- parts ------------------------------------------------------------------------------------------------------------


def test_neighbours_kept_by_hand() -> None:
    angles = torch.tensor([0.0, 0.1, 0.3, 3.0]) * 1.0
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert neighbours_kept(vectors, 5 * vectors) == 1
    assert neighbours_kept(vectors[:1], vectors[:1]) == 1
    # Of twelve rows on a circle each has eleven others, of which ten are near: mirrored in an axis, all stay.
    circle = torch.arange(12) * 0.2
    ring = torch.stack([circle.cos(), circle.sin()], dim=1)
    assert neighbours_kept(ring, ring * torch.tensor([1.0, -1.0])) == 1
    # Turned by half, each second row lies elsewhere: the farthest row of one order is not that of the other.
    turned = ring * torch.tensor([-1.0, 1.0]) ** torch.arange(12)[:, None]
    farthest = [(unit @ unit.T).argmin(dim=1) for unit in (ring, turned)]
    lost = int((farthest[0] != farthest[1]).sum())
    assert neighbours_kept(ring, turned) == pytest.approx(1 - lost / 120)


def test_reading_and_places() -> None:
    assert reading("ada is here", 0.5, None, "sequence").f1 is None
    one = reading("ada is there", 0.5, "Ada is here", "sequence")
    assert (one.f1, one.exact) == (pytest.approx(200 / 3), False)
    assert reading("a b", 0.5, "b a", "set").exact is None
    truth = Truth("Ada Bell of Rome", (Span(0, 8, "PERSON"), Span(12, 16, "CITY")))
    assert places("so ada  bell, of Romeo", truth, [Span(3, 6, "X")]) == (Span(3, 12, "PERSON"),)


def inverted(place: AuditedPlace, folder: Path, vectors: Any, *lines: str) -> list[dict[str, Any]]:
    np.save(folder / "mine.npy", vectors)
    given = [f"run={place.run}", f"vectors={folder / 'mine.npy'}", *lines]
    invert.invert(*launch.on_run("invert", given))
    return read_lines(folder / "mine.npy.texts.jsonl")


def test_what_an_audit_refuses_is_not_inverted_either(
    place: AuditedPlace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shuffled = np.random.default_rng(0).permutation(place.vectors.shape[1])
    assert inverted(place, tmp_path, place.vectors)[0]["text"] == STORE[0]
    assert "vectors=" not in caplog.text
    (tmp_path / "mine.npy.texts.jsonl").unlink()
    for vectors, said in (
        (place.vectors[:, shuffled], "these are not all-MiniLM-L6-v2 vectors"),
        (place.vectors * 3, "their median length is 3, but the run's embedder gives vectors of length 1"),
        (place.vectors[:3] * 3, "their median length is 3"),
    ):
        with pytest.raises(InputError, match=f"{said}.*trust_vectors=true continues all the same"):
            inverted(place, tmp_path, vectors)
        assert not (tmp_path / "mine.npy.texts.jsonl").exists()
        assert said in place.refuse(f"vectors={tmp_path / 'mine.npy'}")
        assert len(inverted(place, tmp_path, vectors, "trust_vectors=true")) == len(vectors)
        assert said in caplog.text
        (tmp_path / "mine.npy.texts.jsonl").unlink()


def test_an_audit_tries_a_defense_from_outside(
    place: AuditedPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halving.py").write_text(
        "from unembed.defenses.identity import Identity\n\n\nclass Halved(Identity):\n"
        "    def __call__(self, embeddings, examples, role, epoch=None):\n        return embeddings / 2\n"
    )
    (tmp_path / "own" / "defense").mkdir(parents=True)
    (tmp_path / "own" / "defense" / "halved.yaml").write_text("_target_: halving.Halved\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = place.audit("outside", f"config_dir={tmp_path / 'own'}", defenses='["defense=halved"]')
    assert [one["name"] for one in found["tried"]] == ["none", "halved"]
