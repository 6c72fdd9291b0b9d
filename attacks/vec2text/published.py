"""Released checkpoints of Vec2Text (Morris et al. 2023; Chen et al. 2024) in our modules.

    published = load_published("jxm/gtr__nq__32__correct")         # or a folder
    published.guess(vectors)                                       # greedy texts of the inverter
    CorrectionSearch(steps=20)(published.rewriter, vectors, published.guess(vectors), embed)

The layouts that were released: an inverter's ``embedding_transform.{0,3}``, in older files ``.{0,2}``; a corrector's
three transforms with a layer norm over the encoder's input, without it, or one transform for all three; a head that is
tied to the input embeddings, of its own (mT5), or stored as zeros and to be tied. The frozen embedder that is in a file
is not loaded as part of the attack; published_space.py compares it with the user's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unembed.attacks.parts.backbones import untied
from unembed.attacks.parts.decoders import EncoderDecoder
from unembed.attacks.parts.decoding import BeamSearch
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.vec2text.network import CorrectorNetwork, Layout, NetworkRewriter, as_read
from unembed.attacks.vec2text.published_files import EMBEDDER, ReleasedFiles, fill, find, find_pair
from unembed.attacks.vec2text.search import Proposal
from unembed.core.errors import InputError
from unembed.embedders.model_files import read_json

_T5 = ("t5", "mt5")
_INVERTER = {
    "embedding_transform.0.": "prefix.layers.0.",
    "embedding_transform.3.": "prefix.layers.3.",
    "embedding_transform.2.": "prefix.layers.3.",
    "encoder_decoder.": "model.",
}
_ROLES = {"_1": "target", "_2": "difference", "_3": "hypothesis", "": "target"}
_CORRECTOR = {
    f"embedding_transform{number}.{layer}.": f"{role}.{ours}."
    for number, role in _ROLES.items()
    for layer, ours in ((0, 0), (3, 2), (2, 2))
} | {"layernorm.": "norm.", "encoder_decoder.": "model."}


class Published(nn.Module):
    """An inverter, and its corrector where there is one, in eval mode.

    Attributes:
        name: As the user gave it.
        dimension: Dimension d of the vectors that they were trained on.
        embedder: What the checkpoint calls the embedder of these vectors.
        tokenizer: Of both language models.
        max_new_tokens: Longest text that is written: the length of the training texts, in which the authors count the
            start token.
        embedder_weights: Of the frozen embedder in the inverter's file, empty where it holds none.
    """

    def __init__(self, name: str, inverter: ReleasedFiles, corrector: ReleasedFiles | None) -> None:
        super().__init__()
        self.name = name
        self.embedder_weights = {
            key.removeprefix(EMBEDDER): tensor for key, tensor in inverter.weights.items() if key.startswith(EMBEDDER)
        }
        config = inverter.config
        self.embedder = str(config.get("embedder_model_api") or config.get("embedder_model_name"))
        self.max_new_tokens = int(config["max_seq_length"]) - 1
        self.dimension = _dimension(inverter, "embedding_transform.0.weight")
        self.tokenizer = _tokenizer(inverter)
        head = _Inverter(inverter, self.dimension)
        self.prefix, self.inverter = head.prefix, EncoderDecoder(head.model)
        self.corrector = None if corrector is None else _corrector(corrector, self.dimension)
        self.eval().requires_grad_(False)

    @property
    def rewriter(self) -> NetworkRewriter:
        """The corrector, for ``CorrectionSearch``.

        Raises:
            InputError: An inverter without a corrector was loaded.
        """
        if self.corrector is None:
            raise InputError(f"attack.pretrained={self.name}: no corrector was found beside this inverter")
        return NetworkRewriter(self.corrector, self.tokenizer, self.max_new_tokens)

    @torch.no_grad()
    def guess(self, vectors: Tensor) -> list[Proposal]:
        """The inverter's greedy text for each of n vectors (n, d)."""
        config = self.inverter.model.config
        greedy = BeamSearch(beams=1, max_new_tokens=self.max_new_tokens)
        index = torch.arange(len(vectors))
        found = greedy(self.inverter, self.prefix(vectors), eos=config.eos_token_id, index=index)
        return [self._proposal(rows[0]) for rows in found]

    def _proposal(self, ids: list[int]) -> Proposal:
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip()
        return Proposal(text, as_read(ids, self.inverter.model.config, self.max_new_tokens))


def load_published(name: str, revision: str | None = None) -> Published:
    """Load a released inverter and corrector.

    Args:
        name: Of either, on the hub or as a folder; or a folder with ``inverter`` and ``corrector`` in it.
        revision: Branch, tag or commit on the hub.

    Raises:
        InputError: Files are nowhere to be found; weights are missing, unknown or of another shape (all are listed);
            the corrector was trained on vectors of another width.
    """
    return Published(name, *find_pair(name, revision))


class _Inverter(nn.Module):
    """Prefix and language model, to be filled."""

    def __init__(self, files: ReleasedFiles, dimension: int) -> None:
        super().__init__()
        self.model, tied = _language_model(files)
        self.prefix = Prefix(vectors=int(files.config["num_repeat_tokens"]), kind="mlp", normalize=False)
        self.prefix.build(dimension, int(self.model.config.d_model))
        fill(self, files, _INVERTER, tied=tied)


def _corrector(files: ReleasedFiles, dimension: int) -> CorrectorNetwork:
    shared = not any(name.startswith("embedding_transform_") for name in files.weights)
    width = _dimension(files, f"embedding_transform{'' if shared else '_1'}.0.weight")
    if width != dimension:
        raise InputError(
            f"attack.pretrained={files.name}: the corrector reads vectors of {width} dimensions, its inverter those of "
            f"{dimension}"
        )
    layout = Layout(
        vectors=int(files.config["num_repeat_tokens"]),
        shared=shared,
        layer_norm=any(name.startswith("layernorm.") for name in files.weights),
        feedback=not files.config.get("corrector_ignore_hypothesis_embedding", False),
        normalize=False,
    )
    model, tied = _language_model(files)
    network = CorrectorNetwork(model, dimension, layout)
    fill(network, files, _CORRECTOR, tied=tied)
    return network


def _dimension(files: ReleasedFiles, name: str) -> int:
    if name not in files.weights:
        raise InputError(
            f"attack.pretrained={files.name}: {name} is not among its weights, so this is no inverter or corrector of "
            f"Vec2Text; it holds {', '.join(sorted({key.split('.')[0] for key in files.weights}))}"
        )
    return int(files.weights[name].shape[1])


def _language_model_folder(files: ReleasedFiles) -> Path:
    """Where the language model's configuration and tokenizer are: a released checkpoint has neither, only a name. A
    relative path is one from the current folder, or from the one in which the checkpoint's own folder lies."""
    name = str(files.config["model_name_or_path"])
    beside = files.folder.parent / name
    return beside if beside.is_dir() else find(name, None, "language model", weights=False)


def _language_model(files: ReleasedFiles) -> tuple[Any, bool]:
    """The architecture of the checkpoint's encoder-decoder, and whether its head is tied.

    transformers 5 ties the head of every T5, and scales a decoder's output by its own idea of the class. Here both
    follow from the configuration as those versions read it that the checkpoints were trained with.
    """
    from transformers import AutoConfig, T5Config, T5ForConditionalGeneration

    folder = _language_model_folder(files)
    raw = read_json(folder / "config.json")
    if not isinstance(raw, dict):
        raise InputError(f"attack.pretrained={files.name}: {folder / 'config.json'} is missing, or describes no model")
    if raw.get("model_type") not in _T5:
        raise InputError(
            f"attack.pretrained={files.name}: its language model {folder} is a {raw.get('model_type')}; "
            f"valid: {', '.join(_T5)}"
        )
    tied = bool(raw.get("tie_word_embeddings", raw["model_type"] == "t5"))
    values = AutoConfig.from_pretrained(folder, trust_remote_code=False).to_dict() | {"tie_word_embeddings": tied}
    values = {key: value for key, value in values.items() if key not in ("model_type", "architectures", "dtype")}
    config = T5Config(**values)
    model = T5ForConditionalGeneration._from_config(config, dtype=torch.float32, attn_implementation="eager")
    return (model if tied else untied(model)), tied


def _tokenizer(files: ReleasedFiles) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(_language_model_folder(files), trust_remote_code=False)
