"""Benchmarks that train or run attacks on embeddings, each to its end at its smallest size."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support import tiny_settings
from support.places import Place
from support.running_benchmarks import Benchmarks

TINY = [*tiny_settings.GEIA, "attack.backbone.vocabulary=300"]
DEVICE = ["--device=cpu", f"--threads={torch.get_num_threads()}"]
INVERTER = [*tiny_settings.INVERTER, "attack.decoding.max_new_tokens=8", "attack.decoding.beams=1"]
CORRECTOR = [
    *tiny_settings.CORRECTOR, "attack.max_new_tokens=8", "attack.search.steps=1", "attack.search.beams=1",
]  # fmt: skip
PEER = """#!{python}
# What search_peer.py writes, without the package: one text for every target.
import json, sys
given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert sys.argv[1].endswith("search_peer.py") and all(name.startswith("--") for name in given)
found = {{"seconds": 2.0, "own_seconds": 1.0, "embedded": 40 * int(given["--beams"]), "texts": ["we sell tea ."] * 3}}
open(given["--out"], "w").write(json.dumps(found))
"""


@pytest.mark.slow
def test_training_against_a_plain_loop(benchmarks: Benchmarks) -> None:
    small = ["--sentences=130", "--rounds=1", "--steps=1", "--epochs=2"]
    found = benchmarks.result("training", *DEVICE, *small, "--precision=32-true", *TINY)
    assert min(found["ratio"], found["ratio_without_embedding"], found["ratio_without_embedding_muon"]) > 0
    assert list(found["sentences_per_second"]) == [
        "plain loop, embedding at every step",
        "plain loop, vectors made before",
        "ours (attack=geia, Trainer, AdamW), warm cache",
        "ours, with cold embedding spread over 2 epochs",
    ]
    assert (found["device"], found["precision"]) == ("cpu", "32-true")


def test_decoding_against_generate(benchmarks: Benchmarks, tmp_path: Path) -> None:
    small = ["--sentences=100", "--steps=3", "--texts=4", "--rounds=2"]
    length = "attack.decoding.max_new_tokens=12"
    found = benchmarks.result("decoding", *DEVICE, *small, *TINY, length, f"cache_dir={tmp_path}")
    assert found["identical"] == 1.0
    assert found["texts_at_once"] == 4
    faster = found["sentences_per_second"] / found["generate_sentences_per_second"]
    assert 0.2 < faster / found["ratio"] < 5  # the ratio is a median of pairs, the rates are medians of each
    assert "trained for 3 steps" in benchmarks.printed
    assert "8 texts, 4 at a time, 5 beams" in benchmarks.printed


def test_classifiers_against_geia_and_the_rate_of_a_short_training(benchmarks: Benchmarks, tmp_path: Path) -> None:
    found = benchmarks.result("classifiers", *DEVICE, "--sentences=20", "--rounds=1", "--vocabulary=300")
    assert set(found["sentences_per_second"]) == {"geia", "multiset", "bag_of_words"}
    assert found["ratio"] == pytest.approx(min(found["ratio_bag_of_words"] / 20, found["ratio_multiset"] / 3), abs=0.01)
    small = ["--sentences=64", "--steps=2", "--precision=32-true"]
    found = benchmarks.result("slow_processor", f"--child={tmp_path}", *small, *TINY)
    assert found["steps_per_second"] > 0
    assert (found["steps"], found["precision"]) == (2, "32-true")


def test_the_share_of_newton_schulz(benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in benchmarks.load("slow_processor").EMULATION:
        monkeypatch.delenv(name, raising=False)
    small = ["--sentences=64", "--steps=2", "--precision=32-true"]
    found = benchmarks.result("newton_schulz", *DEVICE, *small, *TINY)
    assert (found["mode"], found["steps"]) == ("native", 2)
    assert found["processor"]
    for name in ("torch.optim.Muon", "ours"):
        assert 0 < found[name]["ms_newton_schulz"] < found[name]["ms_muon"] < found[name]["ms_step"]
        assert 0 < found[name]["share"] < 1
        assert found[name]["precision"] == "32-true"


def test_a_slow_mode_that_is_too_slow_fails(benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmarks.load("slow_processor")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # which the native training must not inherit
    rates: dict[str, float] = {}

    def process(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        kind = "slow" if set(module.EMULATION.items()) <= set(env.items()) else "native"
        assert kind == "slow" or not set(module.EMULATION) & set(env)
        assert ("--precision=32-true" in command) == (kind == "native")
        assert command[-1] == "seed=1"
        found = {"steps_per_second": rates[kind], "steps": 3, "precision": "32-true"}
        return subprocess.CompletedProcess(command, 0, json.dumps(found), "")

    monkeypatch.setattr(module.subprocess, "run", process)
    rates |= {"native": 8.0, "slow": 2.0}
    assert benchmarks.result("slow_processor", "--least=0.25", "seed=1")["ratio"] == 0.25
    rates["slow"] = 1.0
    with pytest.raises(SystemExit, match=r"only 1\.00 steps/s, 0\.12 of the 8\.00 of native float32"):
        benchmarks.run("slow_processor", "--least=0.25", "seed=1")
    assert json.loads(benchmarks.capsys.readouterr().out.splitlines()[-1])["ratio"] == 0.125


@pytest.fixture(scope="module")
def corrector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of attack=vec2text_corrector, hardly trained."""
    texts = [f"we sell {thing} ." for thing in ("tea", "milk", "dogs", "cats", "rain", "snow", "jazz", "rock")]
    texts += [f"{text[:-1]}here ." for text in texts]
    place = Place(tmp_path_factory.mktemp("search"), texts, [*tiny_settings.FILES, "datamodule.batch_size=6"])
    inverter = place.train("inverter", *INVERTER, steps=2)
    return place.train("corrector", *CORRECTOR, f"attack.inverter_run={inverter}", steps=2)


def test_search_against_a_stand_in_for_the_package(benchmarks: Benchmarks, corrector: Path, tmp_path: Path) -> None:
    peer = tmp_path / "python"
    peer.write_text(PEER.format(python=sys.executable))
    peer.chmod(0o755)
    found = search(benchmarks, corrector, peer, "1x1,2x2")
    assert [found[name]["embedded"][1] for name in ("1x1", "2x2")] == [40, 80]
    assert [found[name]["seconds"][1] for name in ("1x1", "2x2")] == [2.0, 2.0]
    assert found["ratio"] == min(found[name]["ratio"] for name in ("1x1", "2x2"))


@pytest.mark.slow
def test_search_against_the_package(benchmarks: Benchmarks, corrector: Path) -> None:
    if importlib.util.find_spec("vec2text") is None:
        pytest.skip("needs an environment with vec2text 0.0.13 (benchmarks/search_peer.py)")
    search(benchmarks, corrector, Path(sys.executable), "1x1")


def search(benchmarks: Benchmarks, corrector: Path, peer: Path, settings: str) -> dict[str, Any]:
    small = [f"--settings={settings}", "--targets=3", "--batch=2", "--length=9", DEVICE[1]]
    found = benchmarks.result("search", f"--run={corrector}", f"--peer-python={peer}", *small)
    for name in settings.split(","):
        assert found[name]["embedded"][0] > 0
        assert max(found[name]["cosine"]) <= 1
    assert found["targets"] == 3
    return found
