"""Surrogate transfer over its whole path: what is asked, what it reads, kill -9 and resume, messages, the losses.

This file is also the program that is killed: ``python test_teia.py <directory>``.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support import tiny_settings
from support.files import load, metrics_of, write_lines
from support.letters import Letters, LettersAndSigns, Rotated
from support.own_space import DECODER, OWN, PLACES, SHORT, TEXTS, VICTIM, WHO
from support.places import Place
from support.processes import ROOT, Warm
from unembed import launch
from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.optimizers import AdamW
from unembed.attacks.transfer.teia import TEIA, Surrogate, pivot
from unembed.commands import export, invert
from unembed.core.errors import InputError
from unembed.runs import layout
from unembed.runs.trust import trusting


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained decoder on the attacker's own encoder."""
    folder = tmp_path_factory.mktemp("teia")
    Place(folder, TEXTS, SHORT, OWN).train("own", *DECODER, steps=60)
    return folder


def attacked(base: Path, name: str, pairs: int, *overrides: str, steps: int = 10) -> Path:
    given = [
        "attack=teia", f"attack.source_run={base / 'own'}", f"datamodule.limit_train={pairs}",
        "attack.public_batch=16", *overrides,
    ]  # fmt: skip
    return Place(base, base / "data.jsonl", SHORT, VICTIM).train(name, *given, steps=steps)


def test_known_texts_are_all_that_is_asked(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    embed = Rotated.embed
    monkeypatch.setattr(Rotated, "embed", lambda self, texts: asked.extend(texts) or embed(self, texts))
    run = attacked(base, "thirty", 30, f"cache_dir={base / 'fresh'}")
    splits: dict[str, list[str]] = {}
    for row in _rows(base / "data.jsonl"):
        splits.setdefault(str(row["split"]), []).append(str(row["text"]))
    predictions = {row["prediction"] for row in _rows(run / layout.PREDICTIONS)}
    assert set(asked) - predictions == {*splits["train"][:30], *splits["test"]} - predictions  # no validation text
    assert metrics_of(run)["queries"] == 0
    assert load(run / layout.ARTIFACTS / "alignment.json")["pairs"] == 30


def test_reads_as_much_as_the_decoder_with_its_own_vectors(base: Path) -> None:
    """The two spaces are linear images of each other, so a hundred pairs are enough, and two are not."""
    runs = {pairs: attacked(base, f"with{pairs}", pairs) for pairs in (2, 100)}
    read = {name: [row["prediction"] for row in _rows(run / layout.PREDICTIONS)] for name, run in runs.items()}
    own = [row["prediction"] for row in _rows(base / "own" / layout.PREDICTIONS)]
    same = {pairs: sum(map(operator.eq, found, own)) / len(own) for pairs, found in read.items()}
    assert same[2] < same[100]
    assert metrics_of(runs[100])["rougeL"] > 0.95 * metrics_of(base / "own")["rougeL"]


def test_few_known_texts_are_shown_as_the_map_without_them_gives_them(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[np.ndarray] = []
    loss = GenerativeAttack.loss
    monkeypatch.setattr(
        GenerativeAttack,
        "loss",
        lambda self, vectors, labels: entered.append(vectors.numpy()) or loss(self, vectors, labels),
    )
    texts = [" ".join([PLACES[n % 3], *(WHO[(n // 3 + k) % 6] for k in range(n % 8 + 1))]) for n in range(40)]
    splits = {"train": texts, "test": texts[:3]}
    rows = [{"text": text, "split": split} for split, some in splits.items() for text in some]
    run = attacked(base, "shown", 30, f"datamodule.path={write_lines(base / 'lengths.jsonl', rows)}", steps=12)
    held_out = np.load(run / layout.ARTIFACTS / "held_out.npy")
    assert held_out.shape == (30, LettersAndSigns.dimension)
    assert [len(vectors) for vectors in entered] == [16 + 3] * 12  # public ones; 8 % of 30
    shown = (np.concatenate([vectors[16:] for vectors in entered])[:, None] == held_out).all(axis=2)
    assert shown.any(axis=1).all()
    assert shown.any(axis=0).sum() > 15  # not only the shortest of each batch, which is sorted by length


def test_evaluates_and_inverts_without_the_source(base: Path, tmp_path: Path) -> None:
    run = attacked(base, "moved", 100)
    (base / "own").rename(base / "away")
    try:
        place = Place(base, base / "data.jsonl", SHORT, VICTIM)
        again = place.evaluate(run, "again")
        assert (again / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()
        np.save(tmp_path / "v.npy", Rotated().embed(TEXTS[:5]).numpy())
        with trusting("support.letters"):
            given = [f"run={run}", f"vectors={tmp_path / 'v.npy'}", "trust=support.letters"]
            invert.invert(*launch.on_run("invert", given))
        expected = {row["index"]: row["prediction"] for row in _rows(run / layout.PREDICTIONS)}
        assert _rows(tmp_path / "v.npy.texts.jsonl")[0]["text"] == expected[0]  # the first text is the first test text
    finally:
        (base / "away").rename(base / "own")


def test_the_losses_by_hand() -> None:
    """Two texts whose vectors are (1, 0) and (0, 1) for the victim, and (1, 0) and (1, 0) for the surrogate."""
    made, victim = torch.tensor([[1.0, 0], [1, 0]]), torch.eye(2)
    assert float(pivot(made, victim)) == pytest.approx(2 / 4 + 2 / 4)  # coordinates; cosines 1 instead of 0, twice
    assert float(pivot(victim, victim)) == 0
    surrogate = Surrogate(pivot_weight=2.0, adversarial_weight=3.0)
    surrogate.build(own=3, victim=2)
    with torch.no_grad():
        for weight in surrogate.discriminator.parameters():
            weight.zero_()
    chance = float(np.log(2))  # of a discriminator that says 0 of everything: for the real, the made, and the head
    assert surrogate.loss(made, victim, made, victim).item() == pytest.approx(2 * 1 + 3 * 3 * chance)
    assert torch.equal(surrogate(torch.randn(2, 3), made), made)  # the head begins at 0


def test_the_head_is_trained_to_be_taken_for_the_victim() -> None:
    """Each loss moves its own weights: the discriminator those that tell apart, the head those that deceive."""
    torch.manual_seed(0)
    surrogate = Surrogate()
    surrogate.build(own=4, victim=2)
    own, real = torch.randn(64, 4), torch.randn(64, 2) + 2
    mapped = torch.zeros(64, 2)
    optimizer = AdamW(lr=1e-2).build(surrogate)
    before = (surrogate(own, mapped).mean(0) - real.mean(0)).norm().item()
    for _ in range(150):
        loss = surrogate.adversarial(surrogate(own, mapped), real)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert before > 2.5
    assert (surrogate(own, mapped).mean(0) - real.mean(0)).norm().item() < 1


def test_messages(base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"attack.source_run=.*owm: not a run directory \(no directory .*did you mean"):
        attacked(base, "x1", 5, f"attack.source_run={base / 'owm'}")
    aligned = attacked(base, "aligned", 5)
    with pytest.raises(InputError, match=r"attack.source_run=.*trained decoder of vectors .* is a run of TEIA"):
        attacked(base, "x2", 5, f"attack.source_run={aligned}")
    empty = write_lines(tmp_path / "tests.jsonl", [{"text": TEXTS[0], "split": "test"}])
    with pytest.raises(InputError, match=r"attack=teia needs known texts .* datamodule.limit_train"):
        attacked(base, "x3", 5, f"datamodule.path={empty}")
    with trusting("support.letters"):
        given = [f"run={aligned}", "name=aligned", f"folder={tmp_path / 'aligned'}", "trust=support.letters"]
        settings = launch.on_run("export", given)
        with pytest.raises(InputError, match=r"attack=teia cannot be exported"):
            export.export(*settings)
    attack = TEIA(str(base / "own"), Surrogate(), AdamW(), str(tmp_path))
    attack.connect(aligned / layout.ARTIFACTS, None, from_checkpoint=True)
    with pytest.raises(InputError, match=rf"maps vectors of dimension {Rotated.dimension}, .* {Letters.dimension}"):
        attack.restore(None, Letters.dimension)


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_weights(base: Path, warm: Warm) -> None:
    killed = base / "killed"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = warm.start([__file__, str(base)], environment={**os.environ, "PYTHONPATH": paths})
    process.kill_when(lambda: (killed / layout.CHECKPOINT).exists())
    assert not (killed / layout.RECORD).exists()
    often(base, "killed", "ckpt_path=last")
    whole = often(base, "unbroken")
    weights = [torch.load(run / layout.CHECKPOINT, weights_only=False) for run in (killed, whole)]
    assert weights[0]["global_step"] == weights[1]["global_step"] == 40
    for name, tensor in weights[0]["state_dict"].items():
        assert torch.allclose(tensor, weights[1]["state_dict"][name], rtol=0, atol=1e-5), name  # but for rounding
    assert (killed / layout.PREDICTIONS).read_bytes() == (whole / layout.PREDICTIONS).read_bytes()


def often(base: Path, name: str, *overrides: str) -> Path:
    return attacked(base, name, 60, *tiny_settings.SAVE_OFTEN, *overrides, steps=40)


def _rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    often(Path(sys.argv[1]), "killed")
