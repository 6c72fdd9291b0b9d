"""What the trainer is given: the number type that is multiplied fast, sharding, a time limit that ends it early."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from support.files import read_lines
from support.places import Place
from support.processes import ROOT
from unembed import launch
from unembed.attacks.parts import precision
from unembed.attacks.parts.optimizers import AdamW, MuonAdamW
from unembed.attacks.parts.precision import Rates, fast_dtype, measured, processor_name, training_precision
from unembed.attacks.parts.sharding import Sharded, check_sharding, is_block, is_sharded
from unembed.core.errors import InputError
from unembed.runs import layout

SLOW, FAST = Rates(float32=134.0, bfloat16=1.1), Rates(float32=180.0, bfloat16=430.0)
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "dot", "linear", "matmul", "convolution"}


class NoBfloat16Products(TorchDispatchMode):
    """Raises where a matrix product, attention or convolution is asked for in bfloat16."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.lstrip("_")
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if (name in PRODUCTS or "attention" in name) and any(value.dtype is torch.bfloat16 for value in tensors):
            raise AssertionError(f"{func} multiplies bfloat16 matrices on a processor without them")
        return func(*args, **(kwargs or {}))


def on(monkeypatch: pytest.MonkeyPatch, rates: Rates) -> None:
    monkeypatch.setattr(precision, "measured", lambda device: rates)


def test_rates_are_measured_once_and_no_configuration_sets_the_precision() -> None:
    rates = measured("cpu")
    assert rates.float32 > 0
    assert rates.bfloat16 > 0
    assert measured("cpu") is rates
    folder = ROOT / "configs"
    lines = [line for path in folder.rglob("*.yaml") for line in path.read_text().splitlines()]
    assert [line for line in lines if "bf16" in line.partition("#")[0]] == []
    assert processor_name().strip()


@pytest.mark.parametrize(
    ("rates", "dtype", "chosen"),
    [
        (SLOW, torch.float32, "32-true"),
        (FAST, torch.bfloat16, "bf16-mixed"),
        (Rates(float32=100.0, bfloat16=105.0), torch.float32, "32-true"),  # conversions would cost more
    ],
)
def test_bfloat16_is_chosen_where_it_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, rates: Rates, dtype: torch.dtype, chosen: str
) -> None:
    on(monkeypatch, rates)
    assert fast_dtype("cpu") is dtype
    assert training_precision("cpu") == chosen


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_an_accelerator_that_is_not_here_is_not_chosen_by_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, FAST)
    assert training_precision("gpu") == training_precision("cuda") == "32-true"
    assert training_precision("auto") == "bf16-mixed"


@pytest.mark.parametrize("trainer", ["default", "cpu", "ddp"])
def test_the_trainer_gets_the_measured_precision(monkeypatch: pytest.MonkeyPatch, trainer: str) -> None:
    for rates, chosen in ((SLOW, "32-true"), (FAST, "bf16-mixed")):
        on(monkeypatch, rates)
        config = launch.compose("train", [f"trainer={trainer}", "trainer.accelerator=cpu"])
        assert config.trainer.precision == chosen


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    texts = [
        f"{name} has {number} {thing}"
        for name in ("Ada", "Bob", "Cy")
        for number in "23456"
        for thing in ("cats", "dogs")
    ]
    common = [
        "datamodule=files", "trainer.accelerator=cpu", "trainer.max_time=null", "trainer.log_every_n_steps=1",
        "logger=none", "~callbacks.progress", "datamodule.batch_size=8",
    ]  # fmt: skip
    return Place(tmp_path_factory.mktemp("precision"), texts, common)


TINY_GPT2 = ["attack.backbone.layers=1", "attack.backbone.width=32", "attack.backbone.heads=2"]
TINY_T5 = ["attack.backbone.encoder_layers=1", "attack.backbone.decoder_layers=1", *TINY_GPT2[1:]]


@pytest.mark.parametrize(
    "attack",
    [
        ["attack=geia", *TINY_GPT2],
        ["attack=vec2text_inverter", *TINY_T5],
        ["attack=mt5_inverter_random", *TINY_T5],
        ["attack=multiset"],
        ["attack=bag_of_words"],
    ],
    ids=lambda lines: lines[0].partition("=")[2],
)
def test_training_multiplies_no_bfloat16_on_a_processor_without_it(
    monkeypatch: pytest.MonkeyPatch, place: Place, attack: list[str]
) -> None:
    on(monkeypatch, SLOW)
    with NoBfloat16Products():
        run = place.train(attack[0].replace("=", "-"), *attack, steps=2)
    record = json.loads((run / layout.RECORD).read_text())
    assert record["processor"]["gflops"] == {"float32": 134.0, "bfloat16": 1.1}
    assert record["training"]["steps"] == 2


def test_the_guard_sees_mixed_precision_and_muon_is_refused_where_weights_are_sharded(
    monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    on(monkeypatch, FAST)
    with NoBfloat16Products(), pytest.raises(AssertionError, match="multiplies bfloat16"):
        place.train("guarded", "attack=geia", *TINY_GPT2, steps=2)
    attack = nn.Module()
    attack.optimizer = MuonAdamW()  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"attack\.optimizer=muon: .* take attack/optimizer=adamw"):
        check_sharding(Sharded(), attack)
    check_sharding(object(), attack)
    attack.optimizer = AdamW()  # type: ignore[assignment]
    check_sharding(Sharded(), attack)


def test_the_strategy_is_made_as_configured() -> None:
    config = launch.compose("train", ["trainer=fsdp", "attack=llm_gpt2_xl", "trainer.devices=8"])
    assert launch.check(config) == []
    strategy = instantiate(config.trainer.strategy, _convert_="all")
    assert isinstance(strategy, Sharded)
    assert is_sharded(strategy)
    assert not is_sharded(object())
    assert strategy.sharding_strategy.name == "FULL_SHARD"
    assert strategy.kwargs["auto_wrap_policy"] is is_block
    assert strategy.kwargs["use_orig_params"]  # weight decay falls on matrices only: groups of parameters must last
    config = launch.compose("train", ["trainer=fsdp", "trainer.strategy.sharding_strategy=FULL"])
    assert launch.check(config)[0].endswith("valid: FULL_SHARD, HYBRID_SHARD, SHARD_GRAD_OP")


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_each_block_is_a_unit_and_nothing_else(name: str) -> None:
    with torch.device("meta"):
        model: nn.Module
        if name == "gpt2":
            model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=8, n_head=2, vocab_size=16))
        else:
            model = T5ForConditionalGeneration(T5Config(num_layers=2, num_decoder_layers=1, d_model=8, vocab_size=16))
    units = [path for path, module in model.named_modules() if is_block(module, recurse=False, nonwrapped_numel=0)]
    gpt2 = [f"transformer.h.{layer}" for layer in range(3)]
    t5 = ["encoder.block.0", "encoder.block.1", "decoder.block.0"]
    assert sorted(units) == sorted(gpt2 if name == "gpt2" else t5)
    assert all(is_block(module, recurse=True, nonwrapped_numel=0) for module in model.modules())


@pytest.mark.parametrize("option", ["cpu", "gpu", "ddp", "ddp_slurm", "fsdp"])
def test_every_trainer_has_nodes_devices_and_a_precision(option: str) -> None:
    config = launch.compose("train", [f"trainer={option}", "trainer.num_nodes=4", "trainer.devices=2"])
    assert launch.check(config) == []
    assert (config.trainer.num_nodes, config.trainer.devices) == (4, 2)
    assert config.trainer.precision
    assert not config.trainer.use_distributed_sampler


def test_a_training_that_is_cut_short_says_so_everywhere(
    place: Place, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    run = place.train(
        "cut",
        "attack=geia",
        *TINY_GPT2,
        "trainer.max_time=00:00:00:01",
        "callbacks.pace.first_seconds=0.2",
        steps=100_000,
    )
    training = json.loads((run / layout.RECORD).read_text())["training"]
    assert training["planned_steps"] == 100_000
    assert training["steps"] < 100_000
    assert training["cut_short"] is True
    said = f"stopped at {training['steps']:,} of 100,000 steps"
    assert any(said in message for message in caplog.messages)
    assert any("of 100,000 (epoch" in message and "left" in message for message in caplog.messages)
    assert said in (run / "report.html").read_text()
    assert said in " ".join(capsys.readouterr().out.split())
    evaluation = place.evaluate(run, "again")
    assert said in (evaluation / "report.html").read_text()
    # The learning rate follows the planned steps, not the time: it is still near its height.
    rows = read_lines(run / layout.HISTORY)
    rates = [row["learning_rate"] for row in rows]
    assert rates[-1] > 0.9 * max(rates)


def test_a_training_of_all_its_steps_says_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    run = place.train("whole", "attack=geia", *TINY_GPT2, "trainer.max_time=00:01:00:00", steps=3)
    assert json.loads((run / layout.RECORD).read_text())["training"]["cut_short"] is False
    assert "CUT SHORT" not in capsys.readouterr().out
    assert "CUT SHORT" not in Path(run / "report.html").read_text()
