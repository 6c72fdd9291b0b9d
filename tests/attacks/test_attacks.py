"""GEIA through its public surface, on tiny models of each kind: training, decoding, and what goes wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lightning import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor
from transformers import (
    GPT2LMHeadModel,
    OPTForCausalLM,
    T5ForConditionalGeneration,
)

from support.assembled import Texts, built, data_module, quiet_trainer
from support.letters import TEXTS, FewLetters
from support.tiny_models import pretrained_model
from unembed.attacks.geia import GEIA, GEIAEncoderDecoder, GenerativeAttack
from unembed.attacks.nearest_neighbor import NearestNeighbor
from unembed.attacks.parts.backbones import Backbone, Pretrained, RandomGPT2, RandomT5, load_tokenizer, train_tokenizer
from unembed.attacks.parts.decoding import BeamSearch
from unembed.attacks.parts.optimizers import AdamW, MuonAdamW
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.core.errors import InputError
from unembed.datamodules.inversion import InversionDataModule

DIMENSION = FewLetters.dimension


def backbone(tmp_path: Path, kind: str, *, random_weights: bool = False) -> Backbone:
    if kind == "random-gpt2":
        return RandomGPT2(layers=2, width=32, heads=2, vocabulary=300)
    if kind == "random-t5":
        return RandomT5(encoder_layers=1, decoder_layers=1, width=32, heads=2, vocabulary=300)
    architecture = "encoder_decoder" if kind.startswith("t5") else "causal"
    return Pretrained(pretrained_model(tmp_path / "hub" / kind, kind), architecture, random_weights=random_weights)  # type: ignore[arg-type]


def geia(model: Backbone, tokens: int = 32, prefix: Prefix | None = None, optimizer: Any = None) -> GenerativeAttack:
    kind = GEIAEncoderDecoder if isinstance(model, RandomT5) or "t5" in getattr(model, "name", "") else GEIA
    return kind(
        backbone=model,
        prefix=prefix or Prefix(vectors=2 if kind is GEIAEncoderDecoder else 1),
        optimizer=optimizer or AdamW(lr=3e-3),
        decoding=BeamSearch(beams=2, max_new_tokens=tokens),
    )


def datamodule(tmp_path: Path) -> InversionDataModule:
    source = Texts(train=TEXTS, test=TEXTS[3:4])
    return data_module(source, FewLetters(), tmp_path, batch_size=8, drop_repeated=False)


class Watch(Callback):
    """Losses, and whether modules with dropout were in train mode, in training and in test."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.modes: dict[str, set[bool]] = {"train": set(), "test": set()}

    def note(self, stage: str, module: LightningModule) -> None:
        self.modes[stage] |= {part.training for part in module.modules()}

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, index: int) -> None:
        self.note("train", module)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        self.losses.append(float(outputs["loss"]))

    def on_test_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, index: int, loader: int = 0
    ) -> None:
        self.note("test", module)


def trainer(tmp_path: Path, steps: int, *callbacks: Callback) -> Trainer:
    return quiet_trainer(
        max_steps=steps, max_epochs=-1, default_root_dir=tmp_path, callbacks=list(callbacks), gradient_clip_val=1.0,
        num_sanity_val_steps=0,
    )  # fmt: skip


KINDS = [
    ("random-gpt2", False),
    ("random-t5", False),
    ("gpt2", False),
    ("gpt2", True),
    ("opt", False),
    ("opt", True),
    ("t5", False),
    ("t5", True),
]


@pytest.mark.parametrize(("kind", "random_weights"), KINDS)
def test_training_lowers_the_loss_and_a_restored_attack_predicts_the_same(
    tmp_path: Path, kind: str, random_weights: bool
) -> None:
    seed_everything(0, verbose=False)
    model = backbone(tmp_path, kind, random_weights=random_weights)
    attack = geia(model, optimizer=MuonAdamW(warmup_steps=0) if kind.startswith("random") else None)
    attack.connect(tmp_path / "artifacts", None)
    data, watch = datamodule(tmp_path), Watch()
    fitting = trainer(tmp_path, 40, watch)
    fitting.fit(attack, data)
    assert sum(watch.losses[-4:]) < 0.75 * sum(watch.losses[:4])
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    fitting.test(attack, data, verbose=False)
    assert watch.modes == {"train": {True}, "test": {False}}

    targets = Targets(FewLetters().embed(TEXTS[:6]), torch.arange(6))
    expected = attack.eval().invert(targets, None)
    again = geia(model)
    again.connect(tmp_path / "artifacts", None, from_checkpoint=True)
    again.restore(tmp_path / "last.ckpt", DIMENSION)
    assert not any(part.training for part in again.modules())
    assert again.invert(targets, None) == expected
    labels = torch.tensor([attack.encode(TEXTS[:1])[0]] * 6)  # the texts of a short training may all be alike
    assert torch.equal(again.loss(targets.vectors, labels), attack.loss(targets.vectors, labels))


@pytest.mark.parametrize("random_weights", [False, True])
def test_a_head_of_its_own_stays_so_from_a_checkpoint(tmp_path: Path, random_weights: bool) -> None:
    attack = geia(backbone(tmp_path, "t5-own-head", random_weights=random_weights))
    attack.connect(tmp_path / "artifacts", None)
    fitting = trainer(tmp_path, 3)
    fitting.fit(attack, datamodule(tmp_path))
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    model = attack.decoder.model
    assert not torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)
    again = geia(backbone(tmp_path, "t5-own-head", random_weights=random_weights))
    again.connect(tmp_path / "artifacts", None, from_checkpoint=True)
    again.restore(tmp_path / "last.ckpt", DIMENSION)
    for name, tensor in attack.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize("kind", ["gpt2", "opt", "t5"])
def test_random_weights_keep_the_architecture_only(tmp_path: Path, kind: str) -> None:
    pretrained = built(geia(backbone(tmp_path, kind)), tmp_path / "a").decoder.state_dict()
    random = built(geia(backbone(tmp_path, kind, random_weights=True)), tmp_path / "b").decoder.state_dict()
    original = {"gpt2": GPT2LMHeadModel, "opt": OPTForCausalLM, "t5": T5ForConditionalGeneration}[kind]
    weights = original.from_pretrained(tmp_path / "hub" / kind).state_dict()
    assert {name: tensor.shape for name, tensor in pretrained.items()} == {n: t.shape for n, t in random.items()}
    matrices = [name for name, tensor in weights.items() if tensor.ndim == 2]
    assert all(torch.equal(pretrained[f"model.{name}"], tensor) for name, tensor in weights.items())
    assert not any(torch.equal(random[f"model.{name}"], weights[name]) for name in matrices)


@pytest.mark.parametrize(("kind", "random_weights"), KINDS[:3] + KINDS[4:5] + KINDS[6:7])
def test_padding_is_never_trained_on(tmp_path: Path, kind: str, random_weights: bool) -> None:
    attack = built(geia(backbone(tmp_path, kind)), tmp_path / "artifacts")
    vectors = FewLetters().embed(TEXTS[:4])
    ids = attack.encode([TEXTS[0], "ada", "bob lives", TEXTS[5] + " and so on"])
    width = max(map(len, ids))

    def loss_and_gradient(padding: int) -> tuple[Tensor, list[Tensor]]:
        labels = torch.full((4, width + padding), -100)
        for row, values in enumerate(ids):
            labels[row, : len(values)] = torch.tensor(values)
        attack.zero_grad()
        loss = attack.loss(vectors, labels)
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in attack.parameters() if p.grad is not None]

    plain, padded = loss_and_gradient(0), loss_and_gradient(7)
    assert torch.allclose(plain[0], padded[0], rtol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain[1], padded[1], strict=True))
    with torch.no_grad():
        alone = [float(attack.loss(vectors[row : row + 1], torch.tensor([ids[row]]))) for row in range(4)]
    weighted = sum(loss * len(values) for loss, values in zip(alone, ids, strict=True)) / sum(map(len, ids))
    assert float(plain[0]) == pytest.approx(weighted, rel=1e-4)  # each token counts once, wherever it stands


def test_the_end_is_a_target_and_no_special_token_is_read_from_a_text(tmp_path: Path) -> None:
    attack = built(geia(RandomGPT2(1, 8, 1, 300), tokens=6), tmp_path)
    eos = attack.tokenizer.eos_token_id
    assert eos != attack.tokenizer.pad_token_id
    first, second, empty = attack.encode(["ada", TEXTS[0] * 3, ""])
    assert first[-1] == eos
    assert first.count(eos) == 1
    assert eos not in second  # longer than can be decoded: its end is not where it was cut
    assert len(second) == 6
    assert empty == [eos]
    assert attack.encode([]) == []
    attack = built(geia(RandomGPT2(1, 8, 1, 300)), tmp_path)
    (ids,) = attack.encode(["a <eos> b <pad>"])
    assert ids.count(attack.tokenizer.eos_token_id) == 1
    assert attack.text(ids) == "a <eos> b <pad>"


@pytest.fixture(scope="module")
def own_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    artifacts = tmp_path_factory.mktemp("artifacts")
    RandomGPT2(1, 8, 1, 320).prepare(TEXTS, artifacts, 40)
    return load_tokenizer(artifacts)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(" two  spaces \t\n and 's n't . , ? ")
@example("Cafe\u0301 Café ﬁ \u200b 日本 😀 \x00\x7f")
@example("<eos><pad>")
def test_own_bpe_reads_back_every_character(own_tokenizer: Any, text: str) -> None:
    ids = own_tokenizer([text], add_special_tokens=False, split_special_tokens=True)["input_ids"][0]
    assert own_tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text
    assert len(own_tokenizer) <= 320
    assert all(id_ < len(own_tokenizer) for id_ in ids)


def test_dropout_and_noise_are_active_in_training_only(tmp_path: Path) -> None:
    attack = built(geia(RandomGPT2(1, 32, 2, 300, dropout=0.5)), tmp_path)
    vectors, labels = FewLetters().embed(TEXTS[:2]), torch.tensor(attack.encode(["ada", "dan"]))
    assert attack.loss(vectors, labels) == attack.loss(vectors, labels)
    attack.train()
    assert attack.loss(vectors, labels) != attack.loss(vectors, labels)
    torch.manual_seed(0)
    prefix = Prefix(noise=0.5)
    prefix.build(400, 400)
    prefix.layers = torch.nn.Identity()
    embeddings = torch.randn(50, 400)
    quiet = prefix.eval()(embeddings)
    assert torch.equal(quiet, prefix(embeddings))
    noise = prefix.train()(embeddings) - quiet
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("model", [RandomGPT2(1, 32, 2, 300), RandomT5(1, 1, 32, 2, 300)])
def test_label_smoothing_spreads_the_targets_of_training_only(tmp_path: Path, model: Backbone) -> None:
    attack = built(geia(model), tmp_path)
    assert attack.label_smoothing == 0
    vectors, labels = FewLetters().embed(TEXTS[:1]), torch.tensor(attack.encode(["ada"]))
    attack.train()
    plain = attack.loss(vectors, labels)
    logits: list[Tensor] = []
    attack.decoder.model.register_forward_hook(lambda module, arguments, output: logits.append(output.logits.detach()))
    attack.label_smoothing = 0.25
    smoothed = attack.loss(vectors, labels)
    # (1 - e) of the loss on the token itself, and e of the mean over all tokens as if each were the right one
    everywhere = -torch.log_softmax(logits[0], -1).mean()
    assert smoothed.item() == pytest.approx(0.75 * plain.item() + 0.25 * everywhere.item(), rel=1e-5)
    attack.eval()
    assert torch.equal(attack.loss(vectors, labels), plain)


@pytest.mark.parametrize("name", ["no/such-model", "./nowhere"])
def test_a_missing_model_is_one_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"attack.backbone.name={name}: no such local directory.*attack=geia works"):
        Pretrained(name).prepare(TEXTS, tmp_path, 40)
    assert not (tmp_path / "decoder").exists()


def test_a_folder_without_weights_or_end_token_is_refused(tmp_path: Path) -> None:
    name = pretrained_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no such local directory"):
        built(geia(Pretrained(name)), tmp_path / "artifacts")
    name = pretrained_model(tmp_path / "model")
    tokenizer = train_tokenizer(TEXTS, 300)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(name)
    with pytest.raises(InputError, match="no end-of-text token"):
        Pretrained(name).prepare(TEXTS, tmp_path, 40)


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_more_tokens_than_the_model_has_positions(tmp_path: Path, kind: str) -> None:
    model = backbone(tmp_path, kind)
    attack = geia(model, tokens=48)
    with pytest.raises(InputError, match=r"max_new_tokens: .* 48 .* 49"):
        attack.prepare(TEXTS, tmp_path / "artifacts")
    built(geia(model, tokens=47), tmp_path / "artifacts")


def test_a_checkpoint_of_another_size_is_one_error(tmp_path: Path) -> None:
    """As by evaluate.py run=... attack.decoding.max_new_tokens=50."""
    built(geia(RandomGPT2(1, 8, 1, 300), tokens=20), tmp_path)
    longer = geia(RandomGPT2(1, 8, 1, 300), tokens=50)
    longer.connect(tmp_path, None, from_checkpoint=True)
    with pytest.raises(InputError, match="max_new_tokens: the decoder has 21 positions"):
        longer.restore(None, DIMENSION)
    attack = built(geia(RandomGPT2(1, 8, 1, 300)), tmp_path)
    torch.save({"state_dict": attack.state_dict()}, tmp_path / "last.ckpt")
    other = geia(RandomGPT2(1, 8, 1, 300))
    other.connect(tmp_path, None, from_checkpoint=True)
    with pytest.raises(InputError, match=r"prefix.layers.weight is \(8, 12\) in the file, \(8, 13\) here"):
        other.restore(tmp_path / "last.ckpt", DIMENSION + 1)


def test_own_model_decodes_to_its_very_last_position_and_heads_divide_its_width(tmp_path: Path) -> None:
    attack = built(geia(RandomGPT2(1, 8, 1, 300), tokens=5, prefix=Prefix(vectors=3)), tmp_path)
    with torch.no_grad():  # make the end impossible
        attack.decoder.model.lm_head.weight[attack.tokenizer.eos_token_id] = 0
        attack.decoder.model.transformer.ln_f.bias += 1
    attack.invert(Targets(torch.randn(3, DIMENSION), torch.arange(3)), None)
    assert attack.decoder.model.config.n_positions == 8
    for kind in (RandomGPT2, RandomT5):
        with pytest.raises(ValueError, match="width=10: must be a multiple of heads=3"):
            kind(width=10, heads=3)


@pytest.mark.parametrize(("kind", "vectors"), [("linear", 1), ("linear", 3), ("mlp", 2)])
def test_prefix_does_not_see_the_length_of_a_vector(kind: Any, vectors: int) -> None:
    torch.manual_seed(0)
    prefix = Prefix(vectors=vectors, kind=kind)
    prefix.build(DIMENSION, 8)
    embeddings = torch.randn(5, DIMENSION)
    assert prefix(embeddings).shape == (5, vectors, 8)
    assert torch.allclose(prefix(embeddings), prefix(embeddings * 7), atol=1e-5)
    plain = Prefix(vectors=vectors, kind=kind, normalize=False)
    plain.build(DIMENSION, 8)
    plain.load_state_dict(prefix.state_dict())
    scaled = embeddings / embeddings.norm(dim=1, keepdim=True) * math.sqrt(DIMENSION)
    assert torch.allclose(plain(scaled), prefix(embeddings), atol=1e-5)
    assert not torch.allclose(plain(embeddings), plain(embeddings * 7), atol=1e-3)


class Ranks:
    """As much of a trainer of two ranks as an attack asks for when training begins."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.global_rank, self.world_size = rank, world_size
        self.optimizers: list[torch.optim.Optimizer] = []


@pytest.mark.parametrize(("world_size", "kept"), [(2, True), (3, False)])
def test_each_rank_resumes_with_its_own_random_numbers(world_size: int, kept: bool) -> None:
    states = [{"cpu": torch.Generator().manual_seed(seed).get_state()} for seed in (7, 8)]
    wanted = torch.rand(3, generator=torch.Generator().manual_seed(8))
    attack, trainer = NearestNeighbor(), Ranks(1, world_size)
    attack.on_load_checkpoint({"random_states": states, "state_dict": {}})
    attack.trainer = trainer  # type: ignore[assignment]
    torch.manual_seed(0)
    attack.on_train_start()
    assert torch.equal(torch.rand(3), wanted) == kept
    saved: dict[str, Any] = {"state_dict": {}}
    attack.on_save_checkpoint(saved)
    assert [list(own) for own in saved["random_states"]] == [["cpu"]]  # of the one process that there is
