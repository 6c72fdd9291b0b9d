"""Benchmarks are run by hand: each runs to its end at its smallest size, and what it prints is sane.

Those of the attacks are in test_attack_benchmarks.py, those of language models in test_lm_benchmarks.py.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import runpy
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.files import read_lines, write_lines
from support.processes import Warm
from support.running_benchmarks import FOLDER, Benchmarks
from unembed import launch

PEERS = {"search_peer.py", "make_published_fixtures.py"}  # run in an environment of the package vec2text
WITHOUT_MAIN = {"drawing.py", "lm_inversion_inverter.py", "lm_inversion_tables.py", "measuring.py", "small_models.py"}
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in PEERS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_finds_what_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    found = runpy.run_path(str(FOLDER / name), run_name="imported")
    assert callable(found.get("main")) or name in WITHOUT_MAIN


@pytest.mark.parametrize("name", sorted(PEERS))
def test_what_runs_beside_the_package_finds_what_it_imports(name: str) -> None:
    if importlib.util.find_spec("vec2text") is None:
        pytest.skip("needs an environment with vec2text 0.0.13 (benchmarks/search_peer.py)")
    assert callable(runpy.run_path(str(FOLDER / name), run_name="imported")["main"])


@pytest.mark.parametrize("more", [[], ["datamodule.batch_size=8"]])
def test_the_number_of_texts_can_be_chosen(benchmarks: Benchmarks, more: list[str]) -> None:
    overrides = benchmarks.load("measuring").texts_of(argparse.Namespace(path=None), 3000, 100)
    config = launch.compose("train", [*overrides, *more])
    assert launch.check(config) == []
    source = config.datamodule.source
    assert (source.sentences, source.valid, source.test) == (3200, 100, 100)


# -- cache and search --------------------------------------------------------------------------------------------------


def test_the_cache_against_plain_encoding_and_at_scale(
    benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = benchmarks.result("cache", "--texts=8", "--rounds=1", "--stored=300", "--read-seconds=0.01")
    assert found["ratio"] > 0
    assert found["warm_64_per_second"] > 0
    monkeypatch.setattr(benchmarks.load("cache"), "START", "fork")  # memory is not looked at here
    folder = tmp_path / "scale"
    few = ("--texts=2000", "--dimension=8", "--read-seconds=0.01", "--own-time")
    found = benchmarks.result("cache", f"--folder={folder}", *few)
    assert found["texts"] == 2000
    assert {"build_peak_gb", "read_peak_gb", "data_peak_gb", "built_per_second"} < set(found)
    assert not folder.exists()


def test_exact_search_against_faiss(benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="the other side is faiss-cpu")
    module = benchmarks.load("retrieval")
    called = []

    def in_this_process(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        """A process of its own takes seconds to import torch, and only its memory is another."""
        called.append(command[3])
        benchmarks.capsys.readouterr()
        module.main(command[2:])
        return subprocess.CompletedProcess(command, 0, benchmarks.capsys.readouterr().out, "")

    monkeypatch.setattr(module.subprocess, "run", in_this_process)
    found = benchmarks.result("retrieval", "--documents=300", "--queries=4", "--dimension=8", "--k=3", "--rounds=2")
    assert called == ["faiss", "ours", "ours", "faiss"]
    assert found["same_places"] == 1.0
    assert min(found["ratio"], found["ratio_with_filling"], found["memory_mb"], found["faiss_memory_mb"]) > 0


class Hashed:
    """Each text is a random direction, the same for upper and lower case."""

    dimension = 384
    max_tokens = 256
    fingerprint = "cd" * 32

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.stack(
            [
                torch.randn(self.dimension, generator=torch.Generator().manual_seed(zlib.crc32(text.lower().encode())))
                for text in texts
            ]
        )


@pytest.mark.slow
def test_members_of_a_store(benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(benchmarks.load("members"), "MiniLM", Hashed)
    texts = write_lines(tmp_path / "texts.jsonl", [{"text": f"Text {n}, by Ada {n}."} for n in range(1300)])
    sizes = ["--rows=300", "--others=1000", "--near=20", "--resamples=3", "--threes=5"]
    found = benchmarks.result("members", str(texts), *sizes)
    rows = {row["store"]: row for row in found["results"]}
    for name in ("clean", "int8", "noise 0.001", "first 128 dimensions", "rotation, key known"):
        assert (rows[name]["auc"], rows[name]["tpr"]) == (1, 1), name
        assert rows[name]["near"]["lower case"] == 1, name
        assert rows[name]["near"]["a word replaced"] < 0.5, name
    assert rows["rotation, key unknown"]["auc"] == pytest.approx(0.5, abs=0.1)
    assert found["threes"] == [5, 0, 5]


def test_broken_files(benchmarks: Benchmarks) -> None:
    readers = ("vectors.jsonl", "vectors.npy")
    found = benchmarks.result("fuzz_stores", "--inputs=5", "--readers", *readers)
    assert found["inputs"] >= 10
    assert (found["readers"], found["faults"]) == (2, 0)


FAULTS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import faults
faults.GEIA += ["++datamodule.source.sentences=300", "++datamodule.source.valid=20", "++datamodule.source.test=60"]
faults.main()
"""


@pytest.mark.slow
def test_a_killed_run(warm: Warm, tmp_path: Path) -> None:
    """In a process of its own, since it forks."""
    command = ["-c", FAULTS, str(FOLDER), f"--folder={tmp_path / 'faults'}", "--runs=1", "--steps=10"]
    done = warm.run([*command, "--only=embed, train, test (1)"])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["runs"], found["right"]) == (1, 1)
    assert found["kills"] >= 1


def test_the_picture_of_what_a_run_recovered(benchmarks: Benchmarks, tmp_path: Path) -> None:
    texts = [("i like tea .", "i like tea ."), ("he has a dog .", "she has a cat ."), ("no", "yes"), ("a b", "b a")]
    rows = [{"index": n, "reference": one, "prediction": other} for n, (one, other) in enumerate(texts)]
    write_lines(tmp_path / "predictions.jsonl", rows)
    (tmp_path / "config.yaml").write_text("choices: {attack: geia, embedder: minilm, datamodule: files}\n")
    output = tmp_path / "out.svg"
    benchmarks.run("draw_recovered", f"--run={tmp_path}", f"--output={output}")
    drawn = output.read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert all(f"Text: {one} Read back: {other}" in drawn for one, other in texts)
    assert 'class="mark"' in drawn
    assert 'class="wrong"' in drawn
    benchmarks.run("draw_recovered", f"--run={tmp_path}", f"--output={output}", "--index", "1")
    assert "i like tea" not in output.read_text(encoding="utf-8")


def test_the_files_of_personachat(benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = benchmarks.load("prepare_personachat")
    monkeypatch.setattr(module, "VALID", 2)
    monkeypatch.setattr(module, "TEST", 3)
    things = ["tea", "milk", "dogs", "cats", "rain", "snow", "jazz", "rock"]
    labelled = [{"text": f"i like {one} . do you ?", "personas": [f"i am fond of {one} ."]} for one in things]
    spoken = [{"text": f"we sell {one} .", "split": "valid" if one == "tea" else "test"} for one in things]
    repeated = {"text": "I like milk. Do you?", "split": "test"}
    write_lines(tmp_path / "conversation" / "personachat_persona_labels.jsonl", labelled)
    write_lines(tmp_path / "conversation" / "personachat_utterances.jsonl", [*spoken, repeated])
    write_lines(tmp_path / "lm" / "tinystories_sample.jsonl", [{"text": "It's late. The cat sleeps."}])
    write_lines(tmp_path / "sentences" / "nq_open_questions.jsonl", [{"text": "who sings that song"}])
    for more in ([], ["--more=2"]):
        output = tmp_path / "out.jsonl"
        benchmarks.run("prepare_personachat", f"--text={tmp_path}", f"--output={output}", *more)
        rows = read_lines(output)
        parts = {split: {row["text"] for row in rows if row["split"] == split} for split in ("train", "valid", "test")}
        assert (len(parts["valid"]), len(parts["test"])) == (2, 3)
        folded = {split: {module.folded(text) for text in texts} for split, texts in parts.items()}
        assert not folded["train"] & (folded["valid"] | folded["test"])
        assert ("it s late ." in parts["train"]) == bool(more)
    assert str({split: len(texts) for split, texts in parts.items()}) in benchmarks.printed


def test_the_files_of_the_audit(benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = benchmarks.load("prepare_audit")
    for name, size in (("STORE", 4), ("NOTES", 2), ("HELD_OUT", 1), ("FILLED", 3)):
        monkeypatch.setattr(module, name, size)
    people = ["Ada", "Bob", "Cleo", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim"]
    rows: list[dict[str, object]] = []
    for number, person in enumerate(people):
        verb = ["met", "saw", "knows"][number % 3]
        spans = [["NAME", person, 0, len(person)]]
        text, masked = f"{person} {verb} you", "{{NAME}} " + f"{verb} you"
        split = "test" if number < 3 else "train"
        rows.append({"id": number, "text": text, "masked": masked, "spans": spans, "split": split})
    given = write_lines(tmp_path / "given.jsonl", rows)
    more = write_lines(
        tmp_path / "more.jsonl", [{"text": "more of it", "split": "train"}, {"text": "x", "split": "test"}]
    )
    notes = write_lines(
        tmp_path / "notes.jsonl",
        [{"id": f"n{row}", "text": f"note {row} of a visit", "split": "train" if row else "test2"} for row in range(5)],
    )
    output, noted = tmp_path / "out", tmp_path / "noted"
    benchmarks.run("prepare_audit", f"--text={given}", f"--output={output}", f"--more={more}")
    benchmarks.run("prepare_audit", f"--text={given}", f"--output={noted}", f"--notes={notes}", "--tokens=3")
    stored = [json.loads(line)["text"] for line in (noted / "store.jsonl").open()]
    assert (len(stored), stored[4], np.load(noted / "store.npy").shape) == (6, "note 0 of", (6, 384))
    texts = {path.stem: [json.loads(line)["text"] for line in path.open()] for path in output.glob("*.jsonl")}
    assert {name: len(some) for name, some in texts.items()} == {"train": 8, "valid": 1, "test": 1, "store": 4}
    assert not set(texts["store"]) & {text for name, some in texts.items() if name != "store" for text in some}
    assert {f"{person} {verb} you" for person, verb in zip(people[:3], ["met", "saw", "knows"], strict=True)} < set(
        texts["store"]
    )
    assert "more of it" in texts["train"]
    vectors = np.load(output / "store.npy")
    assert vectors.shape == (4, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)


@pytest.mark.parametrize("kind", ["npy", "qdrant"])
def test_stores_are_read(kind: str, benchmarks: Benchmarks, tmp_path: Path) -> None:
    vectors = torch.nn.functional.normalize(torch.randn(40, 8), dim=1).numpy()
    if kind == "qdrant":
        library = pytest.importorskip("qdrant_client")
        client = library.QdrantClient(path=str(tmp_path))
        size = library.models.VectorParams(size=8, distance=library.models.Distance.DOT)
        client.create_collection("docs", size)
        client.upload_collection("docs", vectors, [{"text": "a"}] * 40, ids=range(40))
        client.close()
        address = f"qdrant:{tmp_path}"
    else:
        address = str(tmp_path / "mine.npy")
        np.save(address, vectors)
    found = benchmarks.result("stores", address, "--dimension=8", "--limit=10")
    assert (found["rows"], found["sample"]) == (40, 10)
    assert bool(found["texts_per_s"]) == (kind == "qdrant")


def test_the_standing_results_are_those_of_results(benchmarks: Benchmarks) -> None:
    standing = benchmarks.load("standing")
    page = standing.PAGE.read_text(encoding="utf-8")
    assert page == standing.with_table(page), "run python benchmarks/standing.py"
    assert standing.CHART.read_text(encoding="utf-8") == standing.chart()
    with (FOLDER.parent / "results" / "lexicon.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["table"], row["row"], row["metric"]): row for row in csv.DictReader(file)}
    found = rows["unseen sources", "minilm_large, sentence search, 300 queries", "token_f1"]
    assert f"| {found['value']} ({float(found['low']):.0f} to {float(found['high']):.0f}) |" in page
