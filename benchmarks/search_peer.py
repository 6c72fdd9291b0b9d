"""The other side of benchmarks/search.py: the search of the package vec2text 0.0.13, in an environment of its own.

    python -m venv peer
    peer/bin/pip install torch==2.13.0 transformers==4.46.3 accelerate==1.1.1 vec2text==0.0.13

Reads an exported pair and target vectors; writes the final texts, the seconds and the number of texts embedded as JSON.
Nothing of the package's search is changed. Around it: the embedder gives the very vectors of embedder=minilm; the
corrector's layers are as wide as these (its constructor knows 768 and 1,536 only); metrics that the package would
fetch from the hub, and does not use for inversion, are left out; and texts are generated up to the length that the
embedder is given, instead of 128 tokens.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
import vec2text
from measuring import command_line
from safetensors.torch import load_file
from vec2text.models.config import InversionConfig


class MiniLM(torch.nn.Module):
    """Mean over the tokens, divided by its norm; counts what it embeds."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(folder).eval()
        self.config = self.encoder.config
        self.embedded = 0

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        self.embedded += len(input_ids)
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mean = (hidden * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        return SimpleNamespace(pooler_output=torch.nn.functional.normalize(mean, dim=1))


def load(folder: Path, embedder: MiniLM, tokenizer: Any) -> Any:
    """The package's inference object."""
    with mock.patch("vec2text.models.inversion.load_embedder_and_tokenizer", return_value=(embedder, tokenizer)):
        inverter: Any = vec2text.models.InversionModel(_config(folder / "inverter"))
    corrector: Any = vec2text.models.CorrectorEncoderModel(_config(folder / "corrector"))
    weights = load_file(folder / "corrector" / "model.safetensors")
    corrector.embedder_dim = weights["embedding_transform_1.0.weight"].shape[1]
    for number in (1, 2, 3):
        first, last = (weights[f"embedding_transform_{number}.{layer}.weight"] for layer in (0, 3))
        layers = [torch.nn.Linear(*reversed(first.shape)), torch.nn.Dropout(0.0), torch.nn.GELU()]
        transform = torch.nn.Sequential(*layers, torch.nn.Linear(*reversed(last.shape)))
        setattr(corrector, f"embedding_transform_{number}", transform)
    for model, name in ((inverter, "inverter"), (corrector, "corrector")):
        missing, unknown = model.load_state_dict(load_file(folder / name / "model.safetensors"), strict=False)
        left = [key for key in missing if not key.startswith("embedder.") and "embed_tokens" not in key]
        tied = model.encoder_decoder.config.tie_word_embeddings
        if unknown or [key for key in left if not (tied and "lm_head" in key)]:
            raise SystemExit(f"{name}: missing {left}, unknown {unknown}")
    with mock.patch("evaluate.load", return_value=SimpleNamespace()):
        return vec2text.load_corrector(inverter, corrector)


def _config(folder: Path) -> Any:
    return InversionConfig(**json.loads((folder / "config.json").read_text(encoding="utf-8")))


@torch.no_grad()
def invert(pair: Any, vectors: torch.Tensor, steps: int, beams: int) -> list[str]:
    """As the package's ``invert_embeddings``."""
    pair.inversion_trainer.model.eval()
    pair.model.eval()
    pair.return_best_hypothesis = beams > 0
    options = {**pair.gen_kwargs, "min_length": 1, "max_length": pair.model.config.max_seq_length}
    found = pair.generate({"frozen_embeddings": vectors}, options, num_recursive_steps=steps, sequence_beam_width=beams)
    texts: list[str] = pair.tokenizer.batch_decode(found, skip_special_tokens=True)
    return texts


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an exported pair")
    parser.add_argument("--vectors", required=True, help="targets (n, d), .npy")
    parser.add_argument("--minilm", required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--beams", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="targets inverted together")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    embedder = MiniLM(options.minilm)
    pair = load(options.folder, embedder, transformers.AutoTokenizer.from_pretrained(options.minilm))
    vectors = torch.from_numpy(np.load(options.vectors))
    invert(pair, vectors[:2], 1, options.beams)  # warms up
    embedder.embedded = 0
    began, began_own = time.perf_counter(), time.process_time()
    texts: list[str] = []
    for batch in vectors.split(options.batch):
        texts += invert(pair, batch, options.steps, options.beams)
    result = {
        "seconds": time.perf_counter() - began,
        "own_seconds": time.process_time() - began_own,
        "embedded": embedder.embedded,
        "texts": texts,
    }
    options.out.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
