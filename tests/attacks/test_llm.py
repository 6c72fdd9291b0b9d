"""The attacker of LLM scale on tiny models: what it reads, what adapters train and save, trials, continued training.

The runs go through train.py, evaluate.py and unembed invert as functions, on a tiny pretrained GPT-2 in a folder.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from scipy import stats
from torch import Tensor, nn
from transformers import (
    GPT2LMHeadModel,
)

from support import tiny_settings
from support.assembled import built as built_on_texts
from support.assembled import padded
from support.files import metrics_of, predictions_of, read_lines, rows_of
from support.letters import CITIES, NAMES, FewLetters
from support.places import Place
from support.tiny_models import pretrained_model
from unembed import evaluate, launch
from unembed.attacks.llm import LLM
from unembed.attacks.parts.adapters import Adapter, FullFineTuning, LoRA, QLoRA
from unembed.attacks.parts.backbones import Pretrained, RandomGPT2
from unembed.attacks.parts.decoders import CausalDecoder, ClosedPrefixDecoder
from unembed.attacks.parts.decoding import BeamSearch, NucleusSampling
from unembed.attacks.parts.optimizers import AdamW
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.commands import invert
from unembed.core.atomic_files import write_json, write_json_lines
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.reports.trials import differences, find, summary
from unembed.runs import layout

DIMENSION = 12
TEXTS = [f"{name} lives in {city} ." for name in [*NAMES, "eve"] for city in CITIES]


def vectors(texts: Sequence[str] = TEXTS) -> Tensor:
    return FewLetters().embed(texts)


def llm(name: str, adapter: Adapter | None = None, decoding: Any = None, **options: Any) -> LLM:
    return LLM(
        backbone=Pretrained(name),
        prefix=Prefix(),
        optimizer=options.pop("optimizer", AdamW(lr=1e-2)),
        decoding=decoding or BeamSearch(beams=1, max_new_tokens=24),
        adapter=adapter or FullFineTuning(),
        **options,
    )


def built(attack: LLM, artifacts: Path) -> LLM:
    torch.manual_seed(3)
    return built_on_texts(attack, artifacts, TEXTS)


def labels_of(attack: LLM, texts: Sequence[str]) -> Tensor:
    return padded(attack.encode(texts))


def steps(attack: LLM, count: int) -> list[float]:
    """Losses of ``count`` training steps on all texts."""
    optimizer = attack.optimizer_settings.build(attack)
    labels, losses = labels_of(attack, TEXTS), []
    attack.train()
    for _ in range(count):
        loss = attack.loss(vectors(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    attack.eval()
    return losses


# -- the end token between embedding and text -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "opt", "llama"])
def test_loss_is_that_of_the_text_after_vector_and_end_token(tmp_path: Path, kind: str) -> None:
    attack = built(llm(pretrained_model(tmp_path / "hub", kind)), tmp_path / "run")
    texts = [TEXTS[0], "bob ."]
    model, embed = attack.decoder.model, attack.decoder.model.get_input_embeddings()
    total, count = 0.0, 0
    with torch.no_grad():
        for text, vector in zip(texts, attack.prefix(vectors(texts)), strict=True):
            (ids,) = attack.encode([text])
            inputs = torch.cat([vector, embed(torch.tensor([1, *ids[:-1]]))])
            probabilities = model(inputs_embeds=inputs[None]).logits[0].log_softmax(-1)
            total -= float(sum(probabilities[1 + place, token] for place, token in enumerate(ids)))
            count += len(ids)
        loss = float(attack.loss(vectors(texts), labels_of(attack, texts)))
    assert loss == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "opt", "llama"])
def test_greedy_decoding_is_that_of_generate_after_vector_and_end_token(tmp_path: Path, kind: str) -> None:
    attack = built(
        llm(pretrained_model(tmp_path / "hub", kind), decoding=BeamSearch(beams=1, max_new_tokens=12)),
        tmp_path / "run",
    )
    steps(attack, 10)
    predictions = attack.invert(Targets(vectors(TEXTS[:4]), torch.arange(4)), None)
    with torch.no_grad():
        prefix = attack.prefix(vectors(TEXTS[:4]))
        closing = attack.decoder.model.get_input_embeddings()(torch.ones(4, 1, dtype=torch.long))
        generated = attack.decoder.model.generate(
            inputs_embeds=torch.cat([prefix, closing], 1), attention_mask=torch.ones(4, 2), do_sample=False,
            max_new_tokens=12,
        )  # fmt: skip
    assert [one.candidates[0] for one in predictions] == [attack.text(row.tolist()) for row in generated]


def test_positions_hold_vector_end_token_and_text_and_geia_has_no_such_token(tmp_path: Path) -> None:
    name = pretrained_model(tmp_path / "hub")
    built(llm(name, decoding=BeamSearch(1, max_new_tokens=46)), tmp_path / "fits")  # 1 + 1 + 46 = 48
    with pytest.raises(InputError, match="48 positions, but prefix and text may take 49"):
        built(llm(name, decoding=BeamSearch(1, max_new_tokens=47)), tmp_path / "does_not")
    attack = built(llm(pretrained_model(tmp_path / "hub")), tmp_path / "run")
    plain, closed = CausalDecoder(attack.decoder.model), attack.decoder
    assert isinstance(closed, ClosedPrefixDecoder)
    with torch.no_grad():
        prefix, labels = attack.prefix(vectors(TEXTS[:3])), labels_of(attack, TEXTS[:3])
        token = attack.decoder.model.get_input_embeddings()(torch.ones(3, 1, dtype=torch.long))
        assert torch.allclose(closed.loss(prefix, labels), plain.loss(torch.cat([prefix, token], 1), labels))
        assert not torch.allclose(closed.loss(prefix, labels), plain.loss(prefix, labels))


# -- adapters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "opt", "llama"])
def test_lora_trains_matrices_and_projection_only(tmp_path: Path, kind: str) -> None:
    attack = built(llm(pretrained_model(tmp_path / "hub", kind), LoRA(rank=4)), tmp_path / "run")
    before = {name: tensor.clone() for name, tensor in attack.state_dict().items()}
    losses = steps(attack, 30)
    assert losses[-1] < losses[0] - 0.3
    changed = {name for name, tensor in attack.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == attack.checkpoint_weights().keys()
    assert all("lora_" in name or name.startswith("prefix.") for name in changed)
    assert not any("lm_head" in name for name in changed)


def test_lora_changes_nothing_at_first_and_is_low_rank(tmp_path: Path) -> None:
    name = pretrained_model(tmp_path / "hub")
    plain, adapted = (built(llm(name, adapter), tmp_path / str(n)) for n, adapter in enumerate([None, LoRA(rank=4)]))
    adapted.prefix.load_state_dict(plain.prefix.state_dict())
    labels = labels_of(plain, TEXTS)
    assert torch.allclose(adapted.loss(vectors(), labels), plain.loss(vectors(), labels), rtol=1e-6)
    attack = built(
        llm(pretrained_model(tmp_path / "hub"), LoRA(rank=4, alpha=12.0, modules=["c_attn"])), tmp_path / "run"
    )
    layer = attack.decoder.model.transformer.h[0].attn.c_attn
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (a.shape, b.shape) == ((4, 32), (96, 4))
    torch.nn.init.normal_(b)
    inputs = torch.randn(3, 32)
    expected = layer.base_layer(inputs) + 3.0 * inputs @ a.T @ b.T
    assert torch.allclose(layer(inputs), expected, atol=1e-5)
    assert {name.split(".lora_")[0] for name in attack.checkpoint_weights() if "lora_" in name} == {
        f"decoder.model.transformer.h.{n}.attn.c_attn" for n in range(2)
    }


def test_what_an_adapter_cannot_be_put_on(tmp_path: Path) -> None:
    attack = llm(pretrained_model(tmp_path / "hub"), LoRA(modules=["c_attn", "c_porj"]))
    attack.connect(tmp_path / "run", None)
    with pytest.raises(InputError, match=r"no linear layer c_porj: did you mean c_proj"):
        attack.prepare_data()
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="no linear layer ln_1"):  # a part that is there, but no matrix
        LoRA(modules=["ln_1"]).check(attack.backbone)
    for backbone in (RandomGPT2(), Pretrained(pretrained_model(tmp_path / "hub"), random_weights=True)):
        with pytest.raises(InputError, match=r"attack/adapter: .* random ones; take attack/adapter=none"):
            LoRA().check(backbone)
        FullFineTuning().check(backbone)


def test_adapters_of_a_bfloat16_model_are_float32(tmp_path: Path) -> None:
    attack = llm(pretrained_model(tmp_path / "hub"), LoRA(rank=2))
    attack.backbone = Pretrained(str(tmp_path / "hub"), dtype="bfloat16")
    built(attack, tmp_path / "run")
    dtypes = {parameter.requires_grad: parameter.dtype for parameter in attack.decoder.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    losses = steps(attack, 20)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("random_weights", [False, True])
def test_trained_weights_are_float32_and_their_second_moments_decay(
    tmp_path: Path, random_weights: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In bfloat16, .999 v is rounded to v again, so the largest gradient ever seen would divide all later steps."""
    bfloat16 = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    assert after_one_gradient(torch.optim.AdamW([bfloat16]), bfloat16) == pytest.approx(1e-3, rel=0.01)
    attack = llm(pretrained_model(tmp_path / "hub"))
    attack.backbone = Pretrained(str(tmp_path / "hub"), dtype="bfloat16", random_weights=random_weights)
    logging.getLogger("lightning.pytorch").propagate = True
    with caplog.at_level(logging.INFO):
        built(attack, tmp_path / "run")
    assert [record.message for record in caplog.records if "attack.backbone.dtype=bfloat16" in record.message] == [
        "attack.backbone.dtype=bfloat16: of frozen weights only, and here all are trained: they are float32, and "
        "trainer.precision=bf16-mixed multiplies them in bfloat16"
    ]
    assert {parameter.dtype for parameter in attack.parameters()} == {torch.float32}
    for weight in (attack.decoder.model.lm_head.weight, attack.decoder.model.transformer.ln_f.bias):
        expected = 1e-3 * 0.999**200
        assert after_one_gradient(AdamW().build(attack), weight) == pytest.approx(expected, rel=1e-3)


def after_one_gradient(optimizer: torch.optim.Optimizer, weight: Tensor) -> float:
    """Adam's second moment of a weight whose gradient is 1 in the first step and 0 in 200 more."""
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    weight.grad = torch.zeros_like(weight)
    for _ in range(200):
        optimizer.step()
    (state,) = (state for parameter, state in optimizer.state.items() if parameter is weight)
    return float(state["exp_avg_sq"].flatten()[0])


def test_qlora_on_the_cpu_is_lora_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = pretrained_model(tmp_path / "hub")
    logging.getLogger("lightning.pytorch").propagate = True
    with caplog.at_level(logging.INFO):
        attack = built(llm(name, QLoRA(rank=4)), tmp_path / "q")
    said = [record.message for record in caplog.records if "attack.adapter" in record.message]
    expected = (
        "attack.adapter: no 4-bit weights on cpu: the model stays in float32, and LoRA is trained without quantisation"
    )
    if not torch.cuda.is_available():
        assert said == [expected]
        lora = built(llm(name, LoRA(rank=4)), tmp_path / "l")
        assert {n: t.dtype for n, t in attack.state_dict().items()} == {
            n: t.dtype for n, t in lora.state_dict().items()
        }


def test_qlora_in_four_bits(tmp_path: Path) -> None:
    """The whole path of a GPU, with bitsandbytes' code for the CPU; its blocks have 64 weights."""
    name = pretrained_model(tmp_path / "hub", width=64)
    attack = built(llm(name, QLoRA(rank=4, quantize_on_cpu=True), gradient_checkpointing=True), tmp_path / "run")
    attack.cpu()
    layer = attack.decoder.model.transformer.h[0].attn.c_attn.base_layer
    assert (layer.weight.dtype, layer.weight.quant_state.quant_type, layer.weight.numel()) == (torch.uint8, "nf4", 6144)
    original = GPT2LMHeadModel.from_pretrained(name).transformer.h[0].attn.c_attn
    inputs = torch.randn(5, 64)
    with torch.no_grad():
        exact, rounded = original(inputs), layer(inputs).float()
    assert 0 < float((exact - rounded).norm() / exact.norm()) < 0.15  # nearly the same layer
    losses = steps(attack, 25)
    assert losses[-1] < losses[0] - 0.3
    assert all("lora_" in key or key.startswith("prefix.") for key in attack.checkpoint_weights())
    checkpoint: dict[str, Any] = {"state_dict": attack.state_dict()}
    attack.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    for adapter in (QLoRA(rank=4, quantize_on_cpu=True), LoRA(rank=4)):  # the adapters go with both
        again = llm(name, adapter)
        again.connect(tmp_path / "run", None, from_checkpoint=True)
        again.restore(tmp_path / "last.ckpt", DIMENSION)
        assert all(
            torch.equal(tensor.cpu(), attack.checkpoint_weights()[key])
            for key, tensor in again.checkpoint_weights().items()
        )


def test_gradient_checkpointing_keeps_less_and_gives_the_same_gradients(tmp_path: Path) -> None:
    name = pretrained_model(tmp_path / "hub")
    gradients, kept = [], []
    for adapter in (FullFineTuning(), LoRA(rank=2, dropout=0.0)):
        for checkpointing in (False, True):
            attack = built(llm(name, adapter, gradient_checkpointing=checkpointing), tmp_path / "run").train()
            for part in attack.modules():
                if isinstance(part, torch.nn.Dropout):
                    part.p = 0.0
            held = 0

            def hold(tensor: Tensor) -> Tensor:
                nonlocal held
                held += tensor.numel()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
                loss = attack.loss(vectors(), labels_of(attack, TEXTS))
            loss.backward()
            kept.append(held)
            gradients.append({n: p.grad for n, p in attack.named_parameters() if p.grad is not None})
    for plain, again in (gradients[:2], gradients[2:]):
        assert plain.keys() == again.keys()
        assert all(torch.allclose(plain[key], again[key], atol=1e-6) for key in plain)
    assert kept[1] < 0.7 * kept[0]
    assert kept[3] < 0.7 * kept[2]


# -- trials -----------------------------------------------------------------------------------------------------------


def test_trials_sample_other_texts_and_those_of_a_search_are_refused(tmp_path: Path) -> None:
    attack = built(
        llm(pretrained_model(tmp_path / "hub"), decoding=NucleusSampling(1.0, 1.0, 8, seed=5)), tmp_path / "run"
    )
    targets = Targets(vectors(TEXTS[:4]), torch.arange(4))
    plain, sampled = attack.invert(targets, None), []
    for number in (0, 1, 2, 0):
        attack.begin_trial(number)
        sampled.append(attack.invert(targets, None))
    assert sampled[0] == sampled[3] == plain
    assert len({str(one) for one in sampled}) == 3
    alone = attack.invert(Targets(vectors(TEXTS[2:3]), torch.tensor([2])), None)  # a trial does not depend on the batch
    assert alone == plain[2:3]
    with pytest.raises(InputError, match=r"trials: BeamSearch finds the same texts.*attack/decoding=sampling"):
        llm(pretrained_model(tmp_path / "hub")).begin_trial(0)


def test_mean_and_standard_error_by_hand() -> None:
    assert summary([1.0, 2.0, 3.0, 6.0]).model_dump() == {
        "mean": 3.0, "standard_error": pytest.approx(math.sqrt(14 / 3) / 2), "values": [1.0, 2.0, 3.0, 6.0],
    }  # fmt: skip
    assert summary([None, None]).mean is None
    values = np.random.default_rng(0).normal(size=10).tolist()
    assert summary(values).standard_error == pytest.approx(stats.sem(values))


def test_t_test_by_hand() -> None:
    one = {"bleu": summary([1.0, 2.0, 3.0]), "seconds": summary([1.0, 2.0, 3.0]), "cosine": summary([None] * 3)}
    other = {"bleu": summary([2.0, 4.0, 6.0, 8.0]), "seconds": summary([9.0, 8.0, 7.0, 6.0]), "rouge1": summary([1.0])}
    (row,) = differences(one, other)
    assert (row.key, row.one.mean, row.other.mean) == ("bleu", 2.0, 5.0)
    errors = 1 / 3, (20 / 3) / 4  # variance over n
    assert row.t == pytest.approx(-3 / math.sqrt(sum(errors)))
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 2 + errors[1] ** 2 / 3)  # Welch and Satterthwaite
    assert row.p == pytest.approx(2 * stats.t.sf(abs(row.t), freedom))
    constant = {"bleu": summary([1.0, 1.0])}
    (row,) = differences(constant, constant)
    assert (row.t, row.p) == (None, None)


# -- whole runs -------------------------------------------------------------------------------------------------------

SHORT = [
    *tiny_settings.FILES, *tiny_settings.SAVE_OFTEN, "datamodule.batch_size=4", "trainer.enable_progress_bar=false",
    "attack.optimizer.warmup_steps=0", "attack.optimizer.lr=0.01", "attack.decoding.max_new_tokens=24",
    "attack.decoding.beams=2",
]  # fmt: skip
ADAPTERS = [
    "attack/adapter=lora", "attack.adapter.rank=4", "attack.gradient_checkpointing=true", "attack.prefix.noise=0.1",
    "trainer.accumulate_grad_batches=2",
]  # fmt: skip


class Hub(Place):
    """A place with a model."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, TEXTS, SHORT)
        self.model = pretrained_model(base / "hub")

    def train(self, name: str, *overrides: str, steps: int = 12) -> Path:
        own = any(line.startswith("attack=") for line in overrides)
        given = [] if own else ["attack=llm", f"attack.backbone.name={self.model}"]
        return super().train(name, *given, *overrides, steps=steps)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    return Hub(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def lora_run(place: Hub) -> Path:
    """What most tests read: LoRA, two batches a step."""
    return place.train("lora", *ADAPTERS)


def content(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(run / layout.CHECKPOINT, weights_only=True)
    return loaded


def test_a_lora_checkpoint_holds_adapters_and_projection(lora_run: Path, place: Hub) -> None:
    checkpoint = content(lora_run)
    names = set(checkpoint["state_dict"])
    assert {name for name in names if "lora_" not in name} == {"prefix.layers.weight", "prefix.layers.bias"}
    assert len(names) == 2 + 2 * 2 * 4  # A and B, in two blocks of four layers
    assert (checkpoint["global_step"], checkpoint["epoch"]) == (12, 6)  # of 4 batches an epoch, two a step
    whole = (Path(place.model) / "model.safetensors").stat().st_size
    assert sum(4 * tensor.numel() for name, tensor in checkpoint["state_dict"].items() if "lora_" in name) < whole / 2


def test_parameters_are_said_before_training(place: Hub, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("lightning.pytorch").propagate = True
    with caplog.at_level(logging.INFO):
        run = place.train("said", *ADAPTERS, steps=1)
    trained = sum(tensor.numel() for tensor in content(run)["state_dict"].values())
    (said,) = [record.message for record in caplog.records if "trained " in record.message]
    assert f", trained {trained:,} (" in said
    total = sum(tensor.numel() for tensor in GPT2LMHeadModel.from_pretrained(place.model).parameters()) + trained
    assert said.startswith(f"parameters: {total:,},")


def test_evaluation_and_inversion_from_adapters(lora_run: Path, place: Hub) -> None:
    again = place.evaluate(lora_run, "again")
    assert (metrics_of(again), predictions_of(again)) == (metrics_of(lora_run), predictions_of(lora_run))
    references = [row["reference"] for row in rows_of(lora_run)]
    np.save(place.base / "mine.npy", CachedEmbedder(MiniLM("cpu"), place.base / "cache").embed(references).numpy())
    invert.invert(*launch.on_run("invert", [f"run={lora_run}", f"vectors={place.base / 'mine.npy'}"]))
    assert [row["text"] for row in read_lines(place.base / "mine.npy.texts.jsonl")] == predictions_of(lora_run)


@pytest.mark.slow
def test_killed_training_resumes_and_ends_with_the_same_adapters(
    lora_run: Path, place: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LLM.training_step

    def killed(self: LLM, batch: Any, index: int) -> Tensor:
        if self.global_step == 7:
            raise ConnectionError("the machine is gone")
        return step(self, batch, index)

    monkeypatch.setattr(LLM, "training_step", killed)
    with pytest.raises(ConnectionError):
        place.train("resumed", *ADAPTERS)
    monkeypatch.undo()
    run = place.base / "resumed"
    assert content(run)["global_step"] == 5
    place.train("resumed", *ADAPTERS, "ckpt_path=last")
    first, second = content(lora_run)["state_dict"], content(run)["state_dict"]
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert predictions_of(run) == predictions_of(lora_run)


def test_adapter_options_are_checked_before_anything_is_built(place: Hub) -> None:
    lines = ["attack=llm", "attack/adapter=qlora", "attack.adapter.rank=0", "attack.adapter.dropout=1.0",
             "attack.adapter.modules=c_attn", "attack.gradient_checkpointing=maybe"]  # fmt: skip
    assert launch.check(launch.compose("train", lines)) == [
        "attack.gradient_checkpointing=maybe: must be true or false",
        "attack.adapter.rank=0: must be at least 1",
        "attack.adapter.dropout=1.0: must be less than 1.0",
        "attack.adapter.modules=c_attn: must be a list or one of all-linear",
    ]
    for option in ("llm", "llm_gpt2_large", "llm_gpt2_xl"):
        assert launch.check(launch.compose("train", [f"attack={option}", "attack/adapter=lora"])) == []
    with pytest.raises(InputError, match="attack/adapter=qlor: did you mean qlora"):
        launch.compose("train", ["attack=llm", "attack/adapter=qlor"])


def test_a_run_with_a_missing_module_ends_before_anything_is_embedded(place: Hub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no linear layer q_proj: did you mean c_proj"):
        place.train("missing", *ADAPTERS, "attack.adapter.modules=[q_proj]", f"cache_dir={tmp_path / 'cache'}")
    assert not list(tmp_path.glob("cache/*/*.shard"))
    assert not (place.base / "missing" / layout.ARTIFACTS).exists()


# -- trials of whole runs ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_trials_and_a_t_test(lora_run: Path, place: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    sampled = ["attack/decoding=sampling", "attack.decoding.max_new_tokens=12"]
    one = place.evaluate(lora_run, "one", *sampled, "trials=3")
    trials = json.loads((one / "trials.json").read_text())
    assert trials["bleu"]["values"][0] == metrics_of(one)["bleu"]
    predicted = [predictions_of(one), *(predictions_of(one / "trials" / str(n)) for n in (1, 2))]
    assert len({str(texts) for texts in predicted}) == 3
    for key in ("rouge1", "token_f1", "edit_distance_mean"):
        values = [metrics_of(one)[key], *(metrics_of(one / "trials" / str(n))[key] for n in (1, 2))]
        assert trials[key]["values"] == values
        assert trials[key]["mean"] == pytest.approx(np.mean(values))
        assert trials[key]["standard_error"] == pytest.approx(stats.sem(values))
    assert predictions_of(one) == predictions_of(place.evaluate(lora_run, "alone", *sampled))

    other = place.evaluate(lora_run, "two", *sampled, "attack.decoding.temperature=3.0", "trials=4", f"compare={one}")
    assert "DIFFERENT TEXTS" not in capsys.readouterr().out
    test = json.loads((other / "t_test.json").read_text())
    theirs = json.loads((other / "trials.json").read_text())["edit_distance_mean"]
    expected = stats.ttest_ind(theirs["values"], trials["edit_distance_mean"]["values"], equal_var=False)
    assert test["edit_distance_mean"]["p"] == pytest.approx(expected.pvalue)
    assert test["edit_distance_mean"]["difference"] == pytest.approx(
        theirs["mean"] - trials["edit_distance_mean"]["mean"]
    )
    assert test["other"] == str(one)

    place.evaluate(lora_run, "fewer", *sampled, "trials=2", "datamodule.limit_test=2", f"compare={one}")
    assert "TESTED ON DIFFERENT TEXTS" in capsys.readouterr().out


def test_trials_that_are_there_are_compared_without_testing(
    lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"index": 0, "reference": "a", "prediction": "a", "kind": "sequence"}]
    for name, values in (("one", [1.0, 2.0]), ("evaluations/a", [3.0, 4.5])):
        write_json(tmp_path / name / "trials.json", {"bleu": summary(values).model_dump()})
        write_json_lines(tmp_path / name / layout.PREDICTIONS, rows)
    assert find(tmp_path, "compare") == tmp_path / "evaluations" / "a"
    with pytest.raises(InputError, match=r"compare=.*lora: no trials.json.*attack/decoding=sampling trials=10"):
        find(lora_run, "compare")
    with pytest.raises(InputError, match=r"compare=.*nowhere: there is no such directory"):
        find(tmp_path / "nowhere", "compare")
    (tmp_path / "one" / layout.CONFIG).write_text((lora_run / layout.CONFIG).read_text())
    settings, config = launch.on_run("evaluate", [f"run={tmp_path / 'one'}", f"compare={tmp_path}"])
    evaluate.evaluate(settings, config)
    expected = stats.ttest_ind([1.0, 2.0], [3.0, 4.5], equal_var=False)
    assert json.loads((tmp_path / "one" / "t_test.json").read_text())["bleu"]["t"] == pytest.approx(expected.statistic)
    assert f"{expected.pvalue:.3g}" in capsys.readouterr().out
    broken = {"[]": "expected an object", '{"bleu": 3}': "bleu: ", '{"bleu": {"mean": "a"}}': "bleu.mean: "}
    for content, said in broken.items():
        (tmp_path / "evaluations" / "a" / "trials.json").write_text(content)
        with pytest.raises(InputError, match=f"a/trials.json: {said}"):
            evaluate.evaluate(settings, config)


def test_other_adapters_and_trials_of_a_beam_search_are_refused(lora_run: Path, place: Hub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trials: BeamSearch finds the same texts in every trial"):
        place.evaluate(lora_run, "beam", "trials=2")
    assert not (place.base / "beam").exists()
    other = pretrained_model(tmp_path / "hub", seed=2)
    with pytest.raises(InputError, match="trained beside another model"):
        place.evaluate(lora_run, "other_model", f"attack.backbone.name={other}")
    with pytest.raises(InputError, match=r"lora_A.default.weight is \(4, 32\) in the file, \(8, 32\) here"):
        place.evaluate(lora_run, "other_rank", "attack.adapter.rank=8")


# -- training that begins from a run ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [["attack/adapter=lora", "attack.adapter.rank=4"], []])
def test_training_begins_from_a_run(place: Hub, adapter: list[str], tmp_path: Path) -> None:
    first = place.train(f"first{len(adapter)}", *adapter, steps=4)
    mine = place.write("mine.jsonl", [f"{text} and {city}" for text in TEXTS[:10] for city in CITIES])
    options = [*adapter, f"init_from={first}", f"datamodule.path={mine}"]
    # A step of size zero: what is saved is what it began with.
    still = place.train(f"still{len(adapter)}", *options, "attack.optimizer.lr=1e-30", steps=1)
    begun, ended = content(first)["state_dict"], content(still)["state_dict"]
    assert begun.keys() == ended.keys()
    assert all(torch.equal(begun[name], ended[name]) for name in begun)
    assert content(still)["global_step"] == 1
    tokenizers = [(run / layout.ARTIFACTS / "decoder" / "tokenizer.json").read_bytes() for run in (first, still)]
    assert tokenizers[0] == tokenizers[1]

    further = place.train(f"further{len(adapter)}", *options, steps=4)
    assert not all(torch.equal(begun[name], t) for name, t in content(further)["state_dict"].items())
    first.rename(tmp_path / "gone")  # the new run stands on its own
    assert predictions_of(place.evaluate(further, f"evaluated{len(adapter)}")) == predictions_of(further)


@pytest.mark.slow
def test_small_models_begin_from_a_run_with_its_tokenizer_and_what_cannot(
    place: Hub, lora_run: Path, tmp_path: Path
) -> None:
    small = ["attack=geia", "attack.backbone.layers=1", "attack.backbone.width=32", "attack.backbone.heads=2",
             "attack.backbone.vocabulary=300", "attack/optimizer=adamw"]  # fmt: skip
    first = place.train("small", *small, steps=2)
    mine = place.write("other.jsonl", [text.upper() for text in TEXTS])
    second = place.train("small2", *small, f"init_from={first}", f"datamodule.path={mine}", steps=2)
    tokenizers = [(run / layout.ARTIFACTS / "decoder" / "tokenizer.json").read_bytes() for run in (first, second)]
    assert tokenizers[0] == tokenizers[1]
    begin = [*ADAPTERS, f"init_from={lora_run}"]
    with pytest.raises(InputError, match=r"another attack: attack.adapter.rank=8, 4 there$"):
        place.train("no1", *begin, "attack.adapter.rank=8")
    with pytest.raises(InputError, match=r"attack._target_=unembed.attacks.llm.LLM|attack.adapter._target_"):
        place.train("no2", f"init_from={lora_run}")
    with pytest.raises(InputError, match=r"init_from=.*: not a run directory"):
        place.train("no3", *ADAPTERS, f"init_from={tmp_path}")
    record = json.loads((lora_run / layout.RECORD).read_text())
    copy = tmp_path / "copy"
    shutil.copytree(lora_run, copy)
    for key, value, message in (
        ("fingerprint", "00" * 32, "come from another embedder .*take embedder=minilm"),
        ("dimension", 512, "vectors of dimension 512, this one .* of 384; take embedder=minilm"),
    ):
        write_json(copy / layout.RECORD, {**record, "embedder": {**record["embedder"], key: value}})
        with pytest.raises(InputError, match=message):
            place.train(f"no-{key}", *ADAPTERS, f"init_from={copy}")
    (copy / layout.RECORD).unlink()
    with pytest.raises(InputError, match="its training has not ended"):
        place.train("no4", *ADAPTERS, f"init_from={copy}")


def test_the_papers_experiment_projects_the_vector_as_it_is() -> None:
    """A vector twice as long gives another prefix; of the preset's default, the same."""
    for given, same in (("experiment=llm/table2", False), ("attack=llm", True)):
        prefix = instantiate(launch.compose("train", [given]).attack.prefix)
        prefix.build(8, 4)
        vector = torch.randn(1, 8)
        assert torch.allclose(prefix(vector), prefix(2 * vector), atol=1e-5) == same
