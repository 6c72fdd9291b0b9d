"""Which number type is multiplied: chosen by measurement, and used by everything that trains."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.places import Place
from support.processes import ROOT
from unembed import launch
from unembed.attacks.parts import precision
from unembed.attacks.parts.precision import Rates, fast_dtype, measured, processor_name, training_precision
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


def test_rates_are_measured_once() -> None:
    rates = measured("cpu")
    assert rates.float32 > 0
    assert rates.bfloat16 > 0
    assert measured("cpu") is rates


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


def test_no_configuration_sets_the_precision_of_the_cpu() -> None:
    folder = ROOT / "configs"
    lines = [line for path in folder.rglob("*.yaml") for line in path.read_text().splitlines()]
    assert [line for line in lines if "bf16" in line.partition("#")[0]] == []


def test_the_processor_has_a_name() -> None:
    assert processor_name().strip()


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
        ["attack=geia_t5_random", *TINY_T5],
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


def test_the_guard_sees_mixed_precision(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    on(monkeypatch, FAST)
    with NoBfloat16Products(), pytest.raises(AssertionError, match="multiplies bfloat16"):
        place.train("guarded", "attack=geia", *TINY_GPT2, steps=2)
