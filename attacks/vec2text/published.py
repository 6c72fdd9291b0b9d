"""Released checkpoints of Vec2Text (Morris et al. 2023; Chen et al. 2024) in our modules.

    published = load_published("jxm/gtr__nq__32__correct")         # or a folder
    published.guess(vectors)                                       # greedy texts of the inverter
    CorrectionSearch(steps=20)(published.rewriter, vectors, published.guess(vectors), embed)

The layouts that were released: an inverter's ``embedding_transform.{0,3}``, in older files ``.{0,2}``; a corrector's
three transforms with a layer norm over the encoder's input, without it, or one transform for all three; a head that is
tied to the input embeddings, of its own (mT5), or stored as zeros and to be tied. The frozen embedder that is in a file
is not loaded as part of the attack: check_space compares it with the user's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unembed.attacks.parts.backbones import decoded_text, untied
from unembed.attacks.parts.decoders import EncoderDecoder
from unembed.attacks.parts.decoding import BeamSearch
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.vec2text.network import CorrectorNetwork, Layout, NetworkRewriter, as_read
from unembed.attacks.vec2text.search import Proposal
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.model_files import locate, parts_of, read_json
from unembed.runs.checkpoints import is_dense, load_tensors

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
        from transformers import AutoTokenizer

        super().__init__()
        self.name = name
        self.embedder_weights = {
            key.removeprefix(EMBEDDER): tensor for key, tensor in inverter.weights.items() if key.startswith(EMBEDDER)
        }
        config = inverter.config
        self.embedder = str(config.get("embedder_model_api") or config.get("embedder_model_name"))
        self.max_new_tokens = int(config["max_seq_length"]) - 1
        self.dimension = _dimension(inverter, "embedding_transform.0.weight")
        self.tokenizer = AutoTokenizer.from_pretrained(_language_model_folder(inverter), trust_remote_code=False)
        model, tied = _language_model(inverter)
        self.prefix = Prefix(vectors=int(config["num_repeat_tokens"]), kind="mlp", normalize=False)
        self.prefix.build(self.dimension, int(model.config.d_model))
        fill(nn.ModuleDict({"prefix": self.prefix, "model": model}), inverter, _INVERTER, tied=tied)
        self.inverter = EncoderDecoder(model)
        self.corrector = None if corrector is None else _corrector(corrector, self.dimension)
        self.eval().requires_grad_(False)

    @property
    def rewriter(self) -> NetworkRewriter:
        if self.corrector is None:
            raise InputError(f"attack.pretrained={self.name}: no corrector was found beside this inverter")
        return NetworkRewriter(self.corrector, self.tokenizer, self.max_new_tokens)

    @torch.no_grad()
    def guess(self, vectors: Tensor) -> list[Proposal]:
        """The inverter's greedy text for each of n vectors (n, d)."""
        config = self.inverter.model.config
        greedy = BeamSearch(beams=1, max_new_tokens=self.max_new_tokens)
        index = torch.arange(len(vectors))
        rows = [row[0] for row in greedy(self.inverter, self.prefix(vectors), eos=config.eos_token_id, index=index)]
        return [Proposal(decoded_text(self.tokenizer, ids), as_read(ids, config, self.max_new_tokens)) for ids in rows]


def load_published(name: str, revision: str | None = None) -> Published:
    return Published(name, *find_pair(name, revision))


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


# Everyday English on five subjects; the released models were trained on questions and passages of the web.
SENTENCES = (
    "The harbour was quiet before the storm reached the coast.",
    "She earned a doctorate in chemistry at the university of Vienna.",
    "How long should I boil an egg for breakfast?",
    "The company repaid its loan of four million dollars in 1998.",
    "Our football team lost the final match against Brazil.",
)
CLOSE = 0.99  # rounding and half precision leave more than .999
# The multilingual authors' code takes the pooler's output wherever a model has one, and no prefix.
_E5_POOLER = 'embedder=me5_base embedder.pooling=pooler embedder.normalize=false embedder.prefix=""'
# What checkpoints call their embedder -> the override that gives its vectors.
OVERRIDES = {
    "gtr_base": "embedder=gtr",
    "gtr_base_st": "embedder=gtr_st",
    "intfloat/multilingual-e5-base": _E5_POOLER,
    "multilingual_e5_base": _E5_POOLER,
    "sentence-transformers/all-MiniLM-L6-v2": "embedder=minilm",
    "text-embedding-ada-002": "embedder=openai embedder.model=text-embedding-ada-002",
}

Embed = Callable[[list[str]], Tensor]


def check_space(published: Published, oracle: CachedEmbedder) -> None:
    """Compare the spaces; the sentences count as asked for scoring, not as queries of the attack.

    Warns where only the third check is possible and fails: an inverter may also be weak on these sentences.
    """
    wanted = f"embedder {published.embedder}"
    if published.embedder in OVERRIDES:
        wanted += f": {OVERRIDES[published.embedder]}"
    if oracle.dimension != published.dimension:
        raise InputError(
            f"attack.pretrained={published.name} reads vectors of {published.dimension} dimensions, and the embedder "
            f"gives {oracle.dimension}; the checkpoint names the {wanted}"
        )
    sentences = list(SENTENCES)
    own = oracle.embed(sentences, "scoring").float()
    stored = stored_embedder(published)
    if stored is not None:
        _compare(published, own, stored(sentences), wanted)
        return
    returned = oracle.embed([one.text for one in published.guess(own)], "scoring").float()
    normal = torch.nn.functional.normalize
    nearest = (normal(returned, dim=1) @ normal(own, dim=1).T).argmax(1)
    right = int((nearest == torch.arange(len(sentences))).sum())
    if right < len(sentences) - 1:
        warnings.warn(
            f"attack.pretrained={published.name}: what its inverter makes of {len(sentences)} known sentences is "
            f"closest to the right one for {right} of them only, so its vectors are probably of another space than the "
            f"embedder's; the checkpoint names the {wanted}",
            stacklevel=2,
        )


def _compare(published: Published, own: Tensor, stored: Tensor, wanted: str) -> None:
    cosine = float(torch.nn.functional.cosine_similarity(own, stored).min())
    length = float((own.norm(dim=1) / stored.norm(dim=1)).mean())
    if cosine < CLOSE:
        raise InputError(
            f"attack.pretrained={published.name} was trained on vectors of another space than the embedder's: known "
            f"sentences have a cosine of {cosine:.3f} with their vectors by the embedder in the checkpoint, where "
            f"at least {CLOSE} is wanted; the checkpoint names the {wanted}. Look at model, pooling and prefix"
        )
    if abs(length - 1) > 1 - CLOSE:
        raise InputError(
            f"attack.pretrained={published.name}: the embedder's vectors are {length:.3g} times as long as those that "
            f"the checkpoint was trained on ({float(stored.norm(dim=1).mean()):.3g}); the checkpoint names the "
            f"{wanted}. Look at normalisation"
        )


def stored_embedder(published: Published) -> Embed | None:
    """The frozen embedder in the inverter's file; None where there is none that can be rebuilt from its tensors.

    Only a T5 encoder over the inverter's own vocabulary can: its tensors tell its whole architecture.
    """
    from transformers import T5Config, T5EncoderModel

    weights = published.embedder_weights
    bias = weights.get("block.0.layer.0.SelfAttention.relative_attention_bias.weight")
    table = weights.get("embed_tokens.weight")
    # Rows beyond the tokenizer's entries only fill up.
    if bias is None or table is None or len(published.tokenizer) > len(table):
        return None
    gated = "block.0.layer.1.DenseReluDense.wi_0.weight" in weights
    inner = weights[f"block.0.layer.1.DenseReluDense.{'wi_0' if gated else 'wi'}.weight"]
    config = T5Config(
        vocab_size=table.shape[0],
        d_model=table.shape[1],
        d_ff=inner.shape[0],
        num_heads=bias.shape[1],
        d_kv=weights["block.0.layer.0.SelfAttention.q.weight"].shape[0] // bias.shape[1],
        num_layers=1 + max(int(name.split(".")[1]) for name in weights if name.startswith("block.")),
        relative_attention_num_buckets=bias.shape[0],
        feed_forward_proj="gated-gelu" if gated else "relu",
        dropout_rate=0.0,
    )
    model = T5EncoderModel(config).eval()
    model.encoder.load_state_dict(weights)

    @torch.no_grad()
    def embed(texts: list[str]) -> Tensor:
        batch = published.tokenizer(texts, padding=True, return_tensors="pt")
        mask = batch["attention_mask"]
        hidden = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        vectors: Tensor = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return vectors

    return embed


# -- the files of a checkpoint: where they are, which two belong together, what their weights are called
#
# A released checkpoint is a config.json and weights (safetensors or pickled tensors, in one file or several). An
# inverter and its corrector are two of them, whose names differ in their ending.

# How the names of an inverter and of its corrector end; the last pair is that of jxm/gtr__nq__32.
ENDINGS = (("inverter", "corrector"), ("hypothesizer", "corrector"), ("inversion", "corrector"), ("", "__correct"))
EMBEDDER = "embedder."  # how the names of the frozen embedder's weights begin
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# One matrix under three names; a file may hold any of them.
_EMBEDDINGS = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_HEAD = "model.lm_head.weight"


@dataclass(frozen=True, slots=True)
class ReleasedFiles:
    """One checkpoint on this machine: its name, its folder, its config.json, its tensors by the names of the file."""

    name: str
    folder: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]

    @property
    def is_corrector(self) -> bool:
        """Whether these weights correct a hypothesis. Old correctors have one transform, as inverters have, and only
        their configuration tells them apart."""
        named = str((self.config.get("architectures") or [""])[0])
        return named.startswith("Corrector") or any(name.startswith("embedding_transform_") for name in self.weights)


def find_pair(name: str, revision: str | None = None) -> tuple[ReleasedFiles, ReleasedFiles | None]:
    """The inverter and the corrector that belong together, from the name of either; an inverter may have none.

    Args:
        name: A folder that holds config.json, or that holds the folders ``inverter`` and ``corrector``; or a name
            on the hub.
        revision: Branch, tag or commit of ``name`` on the hub; its counterpart is taken from its main branch.
    """
    both = Path(name).expanduser()
    if (both / "inverter").is_dir() and (both / "corrector").is_dir():
        return _read(str(both / "inverter")), _read(str(both / "corrector"))
    files = _read(name, revision)
    if not files.is_corrector:
        return files, _counterpart(name, wanted=1)
    named = files.config.get("corrector_model_from_pretrained")
    inverter = _read(str(named)) if named else _counterpart(name, wanted=0)
    if inverter is None:
        raise InputError(
            f"attack.pretrained={name} is a corrector, and its inverter is nowhere to be found: put both into one "
            "folder, as <folder>/inverter and <folder>/corrector, and give attack.pretrained=<folder>"
        )
    return inverter, files


def _counterpart(name: str, wanted: int) -> ReleasedFiles | None:
    """The other of the pair by its name: ``wanted`` 0 is the inverter, 1 the corrector; None where there is none."""
    stem = name.rstrip("/")
    for ending in ENDINGS:
        other = stem.removesuffix(ending[1 - wanted]) + ending[wanted]
        is_pair = stem.endswith(ending[1 - wanted]) and other != stem
        if is_pair and (Path(other).is_dir() or not Path(stem).is_dir()):
            with suppress(InputError):
                files = _read(other)
                if files.is_corrector == bool(wanted):
                    return files
    return None


def _read(name: str, revision: str | None = None) -> ReleasedFiles:
    folder = find(name, revision, "checkpoint", weights=True)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or "model_name_or_path" not in config:
        raise InputError(
            f"attack.pretrained={name}: {folder / 'config.json'} is missing or names no model_name_or_path: not a "
            "released inverter or corrector of Vec2Text"
        )
    for file in _WEIGHTS:
        parts = parts_of(folder / f"{file}.index.json") or [file]
        if all((folder / part).is_file() for part in parts):
            weights = {key: tensor for part in parts for key, tensor in _tensors(folder / part).items()}
            return ReleasedFiles(name, folder, config, weights)
    raise InputError(f"attack.pretrained={name}: {folder} holds neither {_WEIGHTS[0]} nor {_WEIGHTS[1]}")


def find(name: str, revision: str | None, what: str, *, weights: bool) -> Path:
    """The folder of a checkpoint or language model; from the hub's cache or the hub where there is no such folder."""
    for file in _WEIGHTS if weights else ():
        parts_of(Path(name).expanduser() / f"{file}.index.json")  # else a broken one would read as a missing folder
    try:
        files = locate(name, revision)
        return files.with_weights() if weights else files.folder
    except InputError as error:
        from huggingface_hub.constants import HF_HUB_CACHE

        at = f" (revision {revision})" if revision else ""
        raise InputError(
            f"attack.pretrained: the {what} {name}{at} is not on this machine: there is no folder of that name with "
            f"its files, it is not in the hub's cache {HF_HUB_CACHE}, and the hub does not have it or cannot be "
            f"reached. `hf download {name}` fetches it on a machine with a connection; a copy of its folder works too"
        ) from error


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path}: not a file of weights, or a damaged one: {error}") from error
    content = load_tensors(path, "a file of weights")
    if not isinstance(content, dict) or not all(map(is_dense, content.values())):
        raise InputError(f"{path}: not a file of weights: it holds more than tensors by their names")
    return content


def fill(module: nn.Module, files: ReleasedFiles, names: Mapping[str, str], *, tied: bool) -> None:
    """Copy released weights into a module; all missing, unknown and misshapen ones are named together.

    Args:
        module: Holds the encoder-decoder as ``model``.
        files: The checkpoint; the embedder's weights in it are left out.
        names: Beginning of a name in the file -> beginning in ``module``; the first that fits is taken.
        tied: Whether the language model's head is its input embedding, whatever the file has under its name.
    """
    given: dict[str, Tensor] = {}
    for key, tensor in files.weights.items():
        name = next((new + key.removeprefix(old) for old, new in names.items() if key.startswith(old)), key)
        if not key.startswith(EMBEDDER) and not (tied and name == _HEAD):
            given[_EMBEDDINGS[0] if name in _EMBEDDINGS else name] = tensor
    wanted = dict(module.named_parameters())  # a matrix under two names is listed once, under the first
    faults = {
        "missing": wanted.keys() - given.keys(),
        "unknown": given.keys() - wanted.keys(),
        "of another shape": {
            f"{name} is {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in given.keys() & wanted.keys()
            if given[name].shape != wanted[name].shape
        },
    }
    if any(faults.values()):
        listed = "; ".join(f"{what}: {', '.join(sorted(found))}" for what, found in faults.items() if found)
        raise InputError(f"attack.pretrained={files.name}: weights that do not fit the model; {listed}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(given[name])
