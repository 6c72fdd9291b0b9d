"""trainer=fsdp, as far as it can be seen without a GPU: it composes, is made, and cuts at the blocks."""

from __future__ import annotations

import pytest
import torch
from hydra.utils import instantiate
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from unembed import launch
from unembed.attacks.parts.optimizers import AdamW, MuonAdamW
from unembed.attacks.parts.sharding import Sharded, check_sharding, is_block, is_sharded
from unembed.core.errors import InputError


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


def test_muon_is_refused() -> None:
    attack = nn.Module()
    attack.optimizer = MuonAdamW()  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"attack\.optimizer=muon: .* take attack/optimizer=adamw"):
        check_sharding(Sharded(), attack)
    check_sharding(object(), attack)
    attack.optimizer = AdamW()  # type: ignore[assignment]
    check_sharding(Sharded(), attack)


@pytest.mark.parametrize("option", ["cpu", "gpu", "ddp", "ddp_slurm", "fsdp"])
def test_every_trainer_has_nodes_devices_and_a_precision(option: str) -> None:
    config = launch.compose("train", [f"trainer={option}", "trainer.num_nodes=4", "trainer.devices=2"])
    assert launch.check(config) == []
    assert (config.trainer.num_nodes, config.trainer.devices) == (4, 2)
    assert config.trainer.precision
    assert not config.trainer.use_distributed_sampler
