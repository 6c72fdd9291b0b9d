"""GEIA with an open vocabulary: it writes names that training lacks, and is restored with its words."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from lightning import seed_everything

from support.assembled import Texts, data_module, quiet_trainer
from support.letters import Letters
from unembed.attacks.geia_copy import GEIACopy, WordList
from unembed.attacks.parts.backbones import Backbone, RandomGPT2, RandomT5
from unembed.attacks.parts.decoding import BeamSearch
from unembed.attacks.parts.optimizers import AdamW
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.core.errors import InputError
from unembed.datamodules.inversion import InversionDataModule
from unembed.embedders.cache.cached import CachedEmbedder

NAMES = ["".join(letters) for letters in itertools.combinations("bdfgjklmpvwyz", 3)][::3]  # no two alike in letters
NEW = ["zyxxa", "hhqyv", "wazzh"]
TEXTS = [f"{name.capitalize()} is in {place}." for name in NAMES for place in ("town", "court")]


def attack(words: WordList, backbone: Backbone | None = None) -> GEIACopy:
    return GEIACopy(
        backbone=backbone or RandomGPT2(layers=1, width=32, heads=2, vocabulary=300),
        prefix=Prefix(),
        optimizer=AdamW(lr=1e-2),
        decoding=BeamSearch(beams=2, max_new_tokens=16),
        words=words,
        shortlist=8,
    )


def words(tmp_path: Path, frequent: int = 10) -> WordList:
    (tmp_path / "staff.txt").write_text("\n".join([*NEW, "two words"]))
    return WordList(frequent=frequent, vocabulary=False, numbers=0, path=str(tmp_path / "staff.txt"))


def data(tmp_path: Path) -> InversionDataModule:
    source = Texts(train=TEXTS, test=[f"{name.capitalize()} is in court." for name in NEW])
    return data_module(source, Letters(), tmp_path, batch_size=16)


def test_it_writes_names_that_training_lacks_and_asks_for_nothing(tmp_path: Path) -> None:
    seed_everything(0, verbose=False)
    trained, module = attack(words(tmp_path)), data(tmp_path)
    oracle = CachedEmbedder(Letters(), tmp_path / "cache")
    trained.connect(tmp_path / "artifacts", oracle)
    trainer = quiet_trainer(max_steps=150, max_epochs=-1, default_root_dir=tmp_path, num_sanity_val_steps=0)
    trainer.fit(trained, module)
    trainer.save_checkpoint(tmp_path / "last.ckpt")

    targets = Targets(Letters().embed([f"{name.capitalize()} is in court." for name in NEW]), torch.arange(3))
    found = trained.eval().invert(targets, oracle)
    assert sum(name in one.candidates[0].lower() for name, one in zip(NEW, found, strict=True)) >= 2
    assert oracle.queries.asked.get("attack", 0) == 0
    again = attack(words(tmp_path))
    again.connect(tmp_path / "artifacts", oracle, from_checkpoint=True)
    again.restore(tmp_path / "last.ckpt", Letters.dimension)
    assert again.invert(targets, oracle) == found


def test_frequent_words_are_spelled_and_other_weights_are_those_of_another_list(tmp_path: Path) -> None:
    one, other = attack(words(tmp_path)), attack(WordList(frequent=10, vocabulary=False, numbers=3))
    for each in (one, other):
        each.connect(tmp_path / "artifacts", CachedEmbedder(Letters(), tmp_path / "cache"))
        each.prepare(TEXTS, tmp_path / "artifacts")
        each.restore(None, Letters.dimension)
    assert {"is", "in", "court"}.isdisjoint(one.words.copied)
    assert {NAMES[0], "zyxxa"} <= {*one.words.copied}
    assert "two words" not in one.words.copied
    assert "0" in other.words.copied
    assert "1" not in other.words.copied  # the embedder does not tell it from 0
    assert not torch.equal(one.all_weights()["words"], other.all_weights()["words"])
    assert one.text(one.tokens(["Zyxxa is in Court."])[0]) == "Zyxxa is in Court."


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (WordList(vocabulary=False, numbers=0, frequent=1), "attack.words: no word to copy"),
        (WordList(path="staff.text"), "attack.words.path=staff.text: no such file"),
    ],
)
def test_words_that_cannot_be_had(tmp_path: Path, given: WordList, message: str) -> None:
    made = attack(given)
    made.connect(tmp_path, CachedEmbedder(Letters(), tmp_path / "cache"))
    with pytest.raises(InputError, match=message):
        made.prepare(TEXTS, tmp_path)


def test_what_it_cannot_work_with(tmp_path: Path) -> None:
    made = attack(words(tmp_path), RandomT5(encoder_layers=1, decoder_layers=1, width=32, heads=2, vocabulary=300))
    made.connect(tmp_path, CachedEmbedder(Letters(), tmp_path / "cache"))
    made.prepare(TEXTS, tmp_path)
    with pytest.raises(InputError, match="copies words with a GPT-2, and the backbone is a T5"):
        made.restore(None, Letters.dimension)
    with pytest.raises(InputError, match="attack=geia_copy: needs the embedder"):
        made.check_refining(Letters.dimension, None)
    with pytest.raises(InputError, match="attack=geia_copy: the attacked vectors have dimension 5"):
        made.check_refining(5, CachedEmbedder(Letters(), tmp_path / "cache"))
