"""ALGEN, TEIA and unpaired translation over their whole path: what is asked and read, resuming, messages, losses.

This file is also the program that is killed: ``python test_transfer.py <directory>``.
"""

from __future__ import annotations

import codecs
import operator
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support import tiny_settings
from support.files import load, metrics_of, read_lines, write_lines
from support.letters import Letters, LettersAndSigns, Rotated
from support.own_space import DECODER, OWN, PLACES, SHORT, TEXTS, VICTIM, WHO
from support.places import Place
from support.processes import ROOT, Warm
from unembed import launch
from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.optimizers import AdamW
from unembed.attacks.transfer.algen import ALGEN
from unembed.attacks.transfer.aligners import LeaveOneOut
from unembed.attacks.transfer.teia import TEIA, Surrogate, pivot
from unembed.attacks.transfer.translation import Translator
from unembed.commands import export, invert
from unembed.core.errors import InputError
from unembed.runs import layout
from unembed.runs.trust import trusting

ABOUT = f"{layout.ARTIFACTS}/alignment.json"
TEIA_SETTINGS = ["attack=teia", "attack.public_batch=16"]
UNPAIRED = ["attack=unpaired", "attack.translator.axes=8", "attack.translator.matchings=2"]
KEY = "0123456789abcdef0123456789abcdef"
FEW_VECTORS = pytest.mark.filterwarnings("ignore:.*with fewer than 1,000 a map is rarely found")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained decoder on the attacker's own encoder."""
    folder = tmp_path_factory.mktemp("transfer")
    Place(folder, TEXTS, SHORT, OWN).train("own", *DECODER, steps=60)
    return folder


def attacked(base: Path, name: str, *overrides: str, embedder: dict[str, str] = VICTIM, steps: int = 10) -> Path:
    given = [f"attack.source_run={base / 'own'}", *overrides]
    return Place(base, base / "data.jsonl", SHORT, embedder).train(name, *given, steps=steps)


def name_of(attack: list[str]) -> str:
    return attack[0].partition("=")[2]


def predictions(run: Path) -> list[str]:
    return [row["prediction"] for row in read_lines(run / layout.PREDICTIONS)]


@pytest.mark.filterwarnings("ignore:.*so there is nothing to map")
def test_behind_a_lock_texts_are_compared_where_the_map_leads(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", KEY)
    given = ["attack=algen", "attack.rounds=0", "attack/refine=[rerank]", "attack.refine.rerank.proposals=2"]
    plain = attacked(base, "unlocked", *given, embedder=OWN)
    locked = attacked(base, "locked", *given, "defense=rotation", "defense.adaptive=true", embedder=OWN)
    assert metrics_of(locked)["queries"] == metrics_of(plain)["queries"] > 0
    assert predictions(locked) == predictions(plain)


@pytest.mark.filterwarnings("ignore:.*so there is nothing to map")
def test_behind_a_lock_the_decoder_writes_for_a_search_with_its_own_surrogate(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", KEY)
    budget = [
        f"attack.refine.sentences.{key}"
        for key in ("surrogate_steps=3", "max_queries=8", "samples=4", "ahead=0", "vocabulary=false")
    ]
    few, search = "datamodule.limit_test=8", ["attack/refine=[sentences]", *budget]
    source = Place(base, base / "data.jsonl", SHORT, OWN).train("searching", *DECODER, *search, few)
    given = [f"attack.source_run={source}", "attack=algen", "attack.rounds=0", few]
    plain = attacked(base, "unlocked_search", *given, *search, embedder=OWN)
    lock = ["defense=rotation", "defense.adaptive=true"]
    locked = attacked(base, "locked_search", *given, *search, *lock, embedder=OWN)
    assert metrics_of(plain)["cosine"] > metrics_of(source)["cosine"] - 0.1
    assert predictions(locked) == predictions(plain)
    stored = f"{layout.ARTIFACTS}/refine/sentences/surrogate-3.pt"
    assert (locked / stored).read_bytes() == (source / stored).read_bytes()
    assert not (attacked(base, "abroad", *given) / stored).exists()  # it is of another embedder
    later = attacked(base, "later", *given, *lock, embedder=OWN)
    monkeypatch.setattr("unembed.attacks.refine.lexicon.refiner.fit", None)  # nor is one trained for a finished run
    found = Place(base, base / "data.jsonl", SHORT, OWN).evaluate(later, "later_search", *search)
    assert predictions(found) == predictions(locked)


@pytest.mark.parametrize("attack", [["attack=algen"], TEIA_SETTINGS], ids=["algen", "teia"])
def test_known_texts_are_all_that_is_asked(base: Path, monkeypatch: pytest.MonkeyPatch, attack: list[str]) -> None:
    asked: list[str] = []
    embed = Rotated.embed
    monkeypatch.setattr(Rotated, "embed", lambda self, texts: asked.extend(texts) or embed(self, texts))
    name = name_of(attack)
    fresh = ["datamodule.limit_train=30", f"cache_dir={base / name / 'cache'}"]
    run = attacked(base, f"{name}-thirty", *attack, *fresh)
    splits: dict[str, list[str]] = {}
    for row in read_lines(base / "data.jsonl"):
        splits.setdefault(row["split"], []).append(row["text"])
    written = set(predictions(run))  # asked for the score, not by the attack
    assert set(asked) - written == {*splits["train"][:30], *splits["test"]} - written  # no validation text
    assert metrics_of(run)["queries"] == 0
    about = load(run / ABOUT)
    assert about["pairs"] == 30
    assert 0 < about["error"] < 0.5


def test_algen_reads_as_much_as_the_decoder_with_its_own_vectors(base: Path) -> None:
    """The two spaces are linear images of each other, so a hundred pairs are enough, and two are not."""
    alone = ["attack=algen", "attack.rounds=0"]
    runs = {pairs: attacked(base, f"with{pairs}", *alone, f"datamodule.limit_train={pairs}") for pairs in (2, 100)}
    assert load(runs[100] / ABOUT)["error"] < 0.01 < 0.3 < load(runs[2] / ABOUT)["error"]
    own = predictions(base / "own")
    same = {pairs: sum(map(operator.eq, predictions(run), own)) / len(own) for pairs, run in runs.items()}
    assert same[2] < same[100]
    assert same[100] > 0.8
    with pytest.raises(InputError, match=r"attack\.rounds=3: the run was trained with attack\.rounds=0"):
        Place(base, base / "data.jsonl", SHORT, VICTIM).evaluate(runs[2], "more", "attack.rounds=3")


@pytest.mark.filterwarnings("ignore:.*so there is nothing to map")
def test_of_a_text_in_place_of_another_the_original_is_read(base: Path) -> None:
    rows = [{**row, "shadow": codecs.encode(row["text"], "rot13")} for row in read_lines(base / "data.jsonl")]
    place = Place(base, write_lines(base / "shadow.jsonl", rows), SHORT, OWN)
    fields = ["datamodule.text_field=shadow", "datamodule.original_field=text"]
    run = place.train("shadow", "attack=algen", "attack.rounds=0", f"attack.source_run={base / 'own'}", *fields)
    assert metrics_of(run)["rougeL"] > 0.95 * metrics_of(base / "own")["rougeL"]


def test_teia_and_the_papers_map_read_as_much(base: Path) -> None:
    run = attacked(base, "hundred", *TEIA_SETTINGS, "datamodule.limit_train=100")
    assert metrics_of(run)["rougeL"] > 0.95 * metrics_of(base / "own")["rougeL"]
    run = attacked(base, "paper", "attack=algen", "attack/aligner=pseudo_inverse", "datamodule.limit_train=100")
    assert load(run / ABOUT)["pairs"] == 100
    assert metrics_of(run)["rougeL"] > 0


@FEW_VECTORS
def test_a_secret_rotation_is_read_and_a_fitted_translation_kept(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_ROTATION_KEY", KEY)
    run = attacked(base, "turned", *UNPAIRED, "defense=rotation", "defense.adaptive=true", embedder=OWN)
    found, own = metrics_of(run), metrics_of(base / "own")
    assert found["queries"] == 0
    assert found["rougeL"] >= own["rougeL"] - 5
    compared = [row for row in read_lines(base / "data.jsonl") if row["split"] != "valid"]
    assert load(run / ABOUT)["victim"] == len(compared)
    fits: list[int] = []
    fit = Translator.fit
    monkeypatch.setattr(Translator, "fit", lambda self, x, y: fits.append(len(x)) or fit(self, x, y))
    run = attacked(base, "kept", *UNPAIRED)
    attacked(base, "kept", *UNPAIRED, "ckpt_path=last")
    assert len(fits) == 1
    attacked(base, "kept", *UNPAIRED, "ckpt_path=last", "attack.vectors=30")
    assert fits[1:] == [30]
    assert load(run / ABOUT)["victim"] == 30


@FEW_VECTORS
@pytest.mark.parametrize("attack", [["attack=algen"], TEIA_SETTINGS, UNPAIRED], ids=["algen", "teia", "unpaired"])
def test_evaluates_and_inverts_without_the_source(base: Path, tmp_path: Path, attack: list[str]) -> None:
    run = attacked(base, f"moved-{name_of(attack)}", *attack)
    (base / "own").rename(base / "away")
    try:
        again = Place(base, base / "data.jsonl", SHORT, VICTIM).evaluate(run, f"again-{name_of(attack)}")
        assert (again / layout.PREDICTIONS).read_bytes() == (run / layout.PREDICTIONS).read_bytes()
        np.save(tmp_path / "v.npy", Rotated().embed(TEXTS[:5]).numpy())
        with trusting("support.letters"):
            given = [f"run={run}", f"vectors={tmp_path / 'v.npy'}", "trust=support.letters"]
            invert.invert(*launch.on_run("invert", given))
        expected = {row["index"]: row["prediction"] for row in read_lines(run / layout.PREDICTIONS)}
        assert read_lines(tmp_path / "v.npy.texts.jsonl")[0]["text"] == expected[0]  # it is the first test text
    finally:
        (base / "away").rename(base / "own")


def test_warns_where_the_decoder_has_seen_the_test_texts(base: Path, recwarn: pytest.WarningsRecorder) -> None:
    rows = read_lines(base / "data.jsonl")
    seen = [row["text"] for row in rows if row["split"] == "train"][-2:]
    tests = [*(text.upper() for text in seen), "nobody has seen this"]
    known = [row for row in rows if row["split"] == "train"][:5]
    path = write_lines(base / "seen.jsonl", [*known, *({"text": text, "split": "test"} for text in tests)])
    attacked(base, "seen", "attack=algen", f"datamodule.path={path}", "attack.rounds=0")
    said = [str(one.message) for one in recwarn if "has seen them" in str(one.message)]
    assert len(said) == 1
    assert "own: 2 of 3 test texts are among its training texts" in said[0]


def test_few_known_texts_are_shown_as_the_map_without_them_gives_them(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[np.ndarray] = []
    loss = GenerativeAttack.loss

    def recorded(self: GenerativeAttack, vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        entered.append(vectors.numpy())
        return loss(self, vectors, labels)

    monkeypatch.setattr(GenerativeAttack, "loss", recorded)
    texts = [" ".join([PLACES[n % 3], *(WHO[(n // 3 + k) % 6] for k in range(n % 8 + 1))]) for n in range(40)]
    splits = {"train": texts, "test": texts[:3]}
    rows = [{"text": text, "split": split} for split, some in splits.items() for text in some]
    path = write_lines(base / "lengths.jsonl", rows)
    run = attacked(base, "shown", *TEIA_SETTINGS, "datamodule.limit_train=30", f"datamodule.path={path}", steps=12)
    held_out = np.load(run / layout.ARTIFACTS / "held_out.npy")
    assert held_out.shape == (30, LettersAndSigns.dimension)
    assert [len(vectors) for vectors in entered] == [16 + 3] * 12  # public ones; 8 % of 30
    shown = (np.concatenate([vectors[16:] for vectors in entered])[:, None] == held_out).all(axis=2)
    assert shown.any(axis=1).all()
    assert shown.any(axis=0).sum() > 15  # not only the shortest of each batch, which is sorted by length


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
    empty = write_lines(tmp_path / "tests.jsonl", [{"text": TEXTS[0], "split": "test"}])
    for kind, settings in {"algen": ["attack=algen"], "teia": TEIA_SETTINGS}.items():
        few = [*settings, "datamodule.limit_train=5"]
        with pytest.raises(InputError, match=r"attack.source_run=.*owm: not a run directory \(no .*did you mean"):
            attacked(base, f"x1-{kind}", *few, f"attack.source_run={base / 'owm'}")
        aligned = attacked(base, f"aligned-{kind}", *few)
        with pytest.raises(InputError, match=rf"attack.source_run=.*trained decoder .* is a run of {kind.upper()}"):
            attacked(base, f"x2-{kind}", *few, f"attack.source_run={aligned}")
        with pytest.raises(InputError, match=rf"attack={kind} needs known texts .* datamodule.limit_train"):
            attacked(base, f"x3-{kind}", *few, f"datamodule.path={empty}")
        own = {"source_run": str(base / "own"), "cache_dir": str(tmp_path)}
        attack = {
            "algen": ALGEN(LeaveOneOut(), public=4000, **own),
            "teia": TEIA(Surrogate(), AdamW(), public=24_000, **own),
        }[kind]
        attack.connect(aligned / layout.ARTIFACTS, None, from_checkpoint=True)
        with pytest.raises(InputError, match=rf"maps vectors of dimension {Rotated.dimension}, .* {Letters.dimension}"):
            attack.restore(None, Letters.dimension)
        with trusting("support.letters"):
            given = [f"run={aligned}", "name=aligned", f"folder={tmp_path / kind}", "trust=support.letters"]
            with pytest.raises(InputError, match=rf"attack={kind} cannot be exported"):
                export.export(*launch.on_run("export", given))
    with pytest.raises(InputError, match=r"attack.translator.axes=500: the store's vectors, .* too few"):
        attacked(base, "x4", "attack=unpaired", "attack.translator.axes=500", embedder=OWN)
    with pytest.raises(InputError, match=r"defense.adaptive=false: attack=unpaired .* set defense.adaptive=true"):
        attacked(base, "x5", "attack=unpaired", "defense=noise", embedder=OWN)


@FEW_VECTORS
@pytest.mark.parametrize("attack", [["attack=algen", "datamodule.limit_train=5"], UNPAIRED], ids=["algen", "unpaired"])
def test_its_own_embedder_is_warned_of(base: Path, attack: list[str]) -> None:
    with pytest.warns(UserWarning, match="is the victim's embedder itself"):
        attacked(base, f"same-{name_of(attack)}", *attack, embedder=OWN)


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
    given = [*TEIA_SETTINGS, "datamodule.limit_train=60", *tiny_settings.SAVE_OFTEN, *overrides]
    return attacked(base, name, *given, steps=40)


if __name__ == "__main__":
    torch.set_num_threads(1)
    often(Path(sys.argv[1]), "killed")
