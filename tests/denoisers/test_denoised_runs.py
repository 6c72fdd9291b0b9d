"""A denoiser in evaluate, invert and audit: any attack reads denoised vectors; kill -9, ranks, messages.

This file is also the program that is killed: ``python test_denoised_runs.py <directory>``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support import tiny_settings
from support.files import load, metrics_of, read_lines, write_lines
from support.letters import LettersAndSigns
from support.places import Place
from support.processes import ROOT, Warm
from unembed import launch
from unembed.commands import audit, invert
from unembed.core.errors import InputError
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.files import FilesDataModule
from unembed.defenses.denoisers.gaussian import GaussianDenoiser
from unembed.defenses.noise import Noise
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs import layout
from unembed.runs.trust import trusting

WHO, PLACES = ("ada", "bob", "cleo", "dan", "eve", "fay"), ("paris", "rome", "oslo")
TEXTS = [f"{a} {does} {b} in {place} ." for a in WHO for does in ("met", "saw") for b in WHO for place in PLACES]
COMMON = [*tiny_settings.NEIGHBOR, "datamodule.drop_repeated=false"]
NOISE = ["defense=noise", "defense.level=0.7"]
OWN = {"_target_": "support.letters.LettersAndSigns"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished lookup; every third training text is a test text, too."""
    folder = tmp_path_factory.mktemp("denoised")
    rows = [{"text": text, "split": "train"} for text in TEXTS]
    write_lines(folder / "data.jsonl", rows + [{"text": text, "split": "test"} for text in TEXTS[::3]])
    place_of(folder).train("run")
    return folder


def place_of(folder: Path) -> Place:
    return Place(folder, folder / "data.jsonl", COMMON, OWN)


def one_by_one(base: Path, name: str) -> Path:
    return place_of(base).evaluate(base / "run", name, *NOISE, "denoiser=gaussian", "datamodule.eval_batch_size=1")


def test_an_evaluation_reads_denoised_vectors(base: Path) -> None:
    naive = place_of(base).evaluate(base / "run", "naive", *NOISE)
    found = place_of(base).evaluate(base / "run", "found", *NOISE, "denoiser=gaussian")
    # The cosine is with the vector that the attack has read.
    assert metrics_of(found)["cosine"] > metrics_of(naive)["cosine"] + 0.01
    # The lookup beside it reads the vectors as they lie in the store, where more of the known texts are nearest.
    lookups = [load(folder / layout.BASELINE) for folder in (naive, found)]
    assert lookups[0]["exact_match"] == lookups[1]["exact_match"] > metrics_of(found)["exact_match"]
    none = place_of(base).evaluate(base / "run", "none", "denoiser=gaussian", "denoiser.level=1.0e-6")
    assert metrics_of(none)["exact_match"] == metrics_of(base / "run")["exact_match"]


def test_ranks_and_batches_see_the_same_vectors(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: InversionDataModule = FilesDataModule(
        path=str(base / "data.jsonl"), split_field="split", drop_repeated=False, eval_batch_size=5
    )
    embedder = CachedEmbedder(LettersAndSigns(), tmp_path)
    seen = []
    for world in (1, 3):
        module.connect(embedder, Noise(level=0.7), denoiser=GaussianDenoiser(rows=150))
        vectors = torch.zeros(len(TEXTS[::3]), LettersAndSigns.dimension)
        for rank in range(world):
            monkeypatch.setattr(module, "_place", lambda rank=rank, world=world: (rank, world))
            module.setup("test")
            for batch in module.test_dataloader():
                vectors[batch["index"]] = batch["vectors"]
        seen.append(vectors)
    assert torch.allclose(seen[0], seen[1], rtol=1e-6)
    clean = module.clean_vectors("test", range(len(TEXTS[::3])))
    module.connect(embedder, Noise(level=0.7))
    module.setup("test")
    noisy = module.vectors("test", range(len(clean)))
    assert (seen[0] - clean).square().sum() < 0.7 * (noisy - clean).square().sum()


def test_a_file_of_noisy_vectors_is_inverted(base: Path, tmp_path: Path) -> None:
    clean = LettersAndSigns().embed(TEXTS)
    noisy = clean.numpy() + 0.7 * np.random.default_rng(0).standard_normal(clean.shape).astype(np.float32)
    np.save(tmp_path / "v.npy", noisy)
    found = []
    for line in ([], ["denoiser=gaussian"]):
        given = [f"run={base / 'run'}", f"vectors={tmp_path / 'v.npy'}", "trust=support.letters", *line]
        with trusting("support.letters"):
            invert.invert(*launch.on_run("invert", given))
        found.append(read_lines(tmp_path / "v.npy.texts.jsonl"))
    assert [row["text"] for row in found[0]] != [row["text"] for row in found[1]]
    assert np.mean([row["cosine"] for row in found[1]]) > np.mean([row["cosine"] for row in found[0]]) + 0.01


def test_an_audit_reads_denoised_vectors(base: Path, tmp_path: Path) -> None:
    clean = LettersAndSigns().embed(TEXTS)
    noisy = clean.numpy() + 0.7 * np.random.default_rng(0).standard_normal(clean.shape).astype(np.float32)
    np.save(tmp_path / "v.npy", noisy)
    write_lines(tmp_path / "t.jsonl", [{"index": row, "text": text} for row, text in enumerate(TEXTS)])
    shares = []
    for name, line in (("naive", []), ("found", ["denoiser=gaussian"])):
        given = [
            f"run={base / 'run'}", f"vectors={tmp_path / 'v.npy'}", f"texts={tmp_path / 't.jsonl'}",
            "trust_vectors=true", "trust=support.letters", "defenses=[]", "lookup=1000", "readable=100",
            f"output_dir={tmp_path / name}", *line,
        ]  # fmt: skip
        with trusting("support.letters"):
            audit.audit(*launch.on_run("audit", given))
        shares.append(load(tmp_path / name / "audit.json"))
    attack, lookup = (
        [next(one["readable"] for one in share["attackers"] if one["name"] == name) for share in shares]
        for name in ("attack", "lookup")
    )
    assert attack[0] != attack[1]
    assert lookup[0] == lookup[1]  # a lookup reads the vectors as they lie in the store
    assert any("denoiser=gaussian" in said for said in shares[1]["warnings"])


def test_messages(base: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", LettersAndSigns().embed(TEXTS[:1]).numpy())
    given = [f"run={base / 'run'}", f"vectors={tmp_path / 'one.npy'}", "trust=support.letters", "denoiser=gaussian"]
    with trusting("support.letters"), pytest.raises(InputError, match=r"1 vectors of dimension 28, and 56 are needed"):
        invert.invert(*launch.on_run("invert", given))
    with pytest.raises(InputError, match=r"denoiser: an attack that was trained with defense.adaptive=true reads"):
        place_of(base).train("adaptive", *NOISE, "defense.adaptive=true", "denoiser=gaussian")


@pytest.mark.slow
def test_a_killed_evaluation_resumes(base: Path, warm: Warm) -> None:
    killed, batches = base / "killed", base / "killed" / layout.TEST_BATCHES
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = warm.start([__file__, str(base)], environment={**os.environ, "PYTHONPATH": paths})
    process.kill_when(lambda: len(list(batches.glob("*.json"))) >= 3)
    assert not (killed / layout.METRICS).exists()
    one_by_one(base, "killed")
    whole = one_by_one(base, "unbroken")
    assert (killed / layout.PREDICTIONS).read_bytes() == (whole / layout.PREDICTIONS).read_bytes()
    assert not batches.exists()


if __name__ == "__main__":
    torch.set_num_threads(1)
    one_by_one(Path(sys.argv[1]), "killed")
