"""attack=vec2text_corrector: rewrites a hypothesis towards a target vector (Morris et al. 2023, section 3.1).

(target, vector of the hypothesis, their difference, "my name is bob") -> "my name is ada"

It is trained on a trained inverter's hypotheses of the training texts, and inverts by iteratively correcting the
inverter's prediction. Its run contains a copy of the inverter, so it is a complete attack.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from unembed.attacks.base import Attack
from unembed.attacks.geia import GenerativeAttack
from unembed.attacks.parts.backbones import Pretrained, label_ids, token_ids
from unembed.attacks.parts.decoders import EncoderDecoder
from unembed.attacks.parts.decoding import BeamSearch, Decoding, NucleusSampling
from unembed.attacks.parts.optimizers import MuonAdamW, OptimizerSettings, scheduled, training_progress
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.refine.refining import comparable
from unembed.attacks.vec2text.network import CorrectorNetwork, Layout, NetworkRewriter
from unembed.attacks.vec2text.search import IterativeAttack, Proposal
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.core.examples import Split
from unembed.datamodules.arrow_examples import IGNORED
from unembed.datamodules.hypotheses import Hypotheses, HypothesisMixture, HypothesisStore, texts_key
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.vectors import cosine_rows
from unembed.runs import layout
from unembed.runs.stored_attack import attack_of, identity, weights_key

INVERTER = "inverter"  # the copy, among the artifacts
STATISTICS = "hypotheses.json"
BINS = 40  # of the histogram of cosines, from -1 to 1
BLOCK = 4096
MATCHED = 500  # texts that the noise is matched on


class Corrector(IterativeAttack):
    """A corrector beside its inverter."""

    def __init__(
        self,
        inverter_run: str,
        layout: Layout,
        hypotheses: HypothesisPlan,
        optimizer: OptimizerSettings,
        start_from_inverter: bool = True,
        label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        max_new_tokens: PositiveInt = 64,
        **iterative: Any,
    ) -> None:
        super().__init__(**iterative)
        self.layout, self.plan = layout, hypotheses
        self.runs = {INVERTER: Path(inverter_run)}
        self.optimizer_settings, self.start_from_inverter = optimizer, start_from_inverter
        self.label_smoothing, self.max_new_tokens = label_smoothing, max_new_tokens
        self.tokenizer: Any = None
        self._mixtures: dict[Split, HypothesisMixture] = {}
        self._later: list[str] = []  # folders of the sets that this corrector wrote itself

    # -- before training ------------------------------------------------------------------------------------------

    def check_inputs(self) -> None:
        super().check_inputs()
        self._hypothesis_embedder()
        backbone = self._checked(attack_of(self.runs[INVERTER], self.data.dimension)).backbone
        pretrained = isinstance(backbone, Pretrained) and not backbone.random_weights
        if pretrained and isinstance(self.optimizer_settings, MuonAdamW):
            rank_zero_warn(
                "attack.optimizer: the rates and the weight decay of Muon are for models from random weights; they "
                "overwrite the pretrained ones of attack.inverter_run; take attack=vec2text_corrector_t5_base"
            )

    def build(self, dimension: int) -> None:
        super().build(dimension)
        inverter = self.inverter.requires_grad_(False)
        self.tokenizer = inverter.tokenizer
        if self.start_from_inverter:
            model = copy.deepcopy(inverter.decoder.model).requires_grad_(True)
        else:
            folder = self.artifacts / INVERTER / layout.ARTIFACTS
            model = inverter.backbone.model(folder, weights=not self.from_checkpoint)
        self.network = CorrectorNetwork(model.train(), dimension, self.layout)
        if self.start_from_inverter and not self.from_checkpoint:
            self.network.read_vectors_as(inverter.prefix)

    def _checked(self, inverter: Attack) -> GenerativeAttack:
        if not isinstance(inverter, GenerativeAttack) or not isinstance(inverter.decoder, EncoderDecoder):
            raise InputError(
                f"attack.inverter_run={self.runs[INVERTER]}: a corrector is built from an encoder-decoder inverter "
                f"(attack=vec2text_inverter or mt5_inverter), and that run's is {type(inverter).__name__}"
            )
        return inverter

    @property
    def inverter(self) -> GenerativeAttack:
        return self._checked(self.frozen[INVERTER]).to(self.device)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return label_ids(self.tokens(texts), self.tokenizer.eos_token_id, self.max_new_tokens)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return token_ids(self.tokenizer, texts)

    # -- hypotheses -----------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            self.configure_model()
            self.to(self.trainer.strategy.root_device)
            self._write_first("train")
            self._write_first("valid")

    def _write_first(self, split: Split) -> None:
        """The sets that the inverter writes; for validation texts only the published one."""
        examples = self.data.examples(split)
        if not examples:
            return
        # The hash of a sample of vectors identifies embedder and defense.
        sample = self.data.vectors(split, range(0, len(examples), -(-len(examples) // BLOCK)), epoch=0)
        who = identity(self.artifacts / INVERTER), texts_key(examples.texts), weights_key({"vectors": sample})
        recipes = self.plan.recipes(self._matched_noise) if split == "train" else [Recipe()]
        for recipe in recipes:
            write = partial(self._write_with_inverter, split, recipe)
            self._add_hypotheses(split, self.plan.folder(*who, recipe), recipe.name, write)

    def _hypothesis_embedder(self) -> CachedEmbedder:
        """Embeds hypotheses of the training: a naive attacker never asked the defended service."""
        assert self.oracle is not None
        answers = self.oracle if self.data.adaptive else self.oracle.source
        comparable(self.data.dimension, answers)
        return answers

    def _matched_noise(self) -> float:
        """Every rank finds the same noise; vectors that one rank has embedded are read by the others."""
        if not self.data.examples("valid"):
            rank_zero_warn("attack.hypotheses.noise=matched: there is no validation text to match: no noise")
            return 0.0
        noise = matched_noise(lambda size: self._closeness("train", size), self._closeness("valid", 0.0))
        rank_zero_info(f"hypotheses of training texts are as close as those of validation texts with noise {noise:g}")
        return noise

    def _closeness(self, split: Split, noise: float) -> float:
        count = len(self.data.examples(split))
        sample = range(0, count, -(-count // MATCHED))
        texts = self._write_with_inverter(split, Recipe(noise=noise), sample)
        targets = self.data.vectors(split, sample, epoch=0)
        return float(cosine_rows(self._hypothesis_embedder().embed(texts, "training"), targets).mean())

    def _write_with_inverter(self, split: Split, recipe: Recipe, part: range) -> list[str]:
        vectors = self.data.vectors(split, list(part), epoch=0 if split == "train" else None)
        return write_hypotheses(self.inverter, recipe, vectors, part, self.device)

    def _add_hypotheses(self, split: Split, folder: Path, name: str, write: Any) -> None:
        """Fill a set together with the other ranks, embed it, and mix it in."""
        trainer = self.trainer
        place = {"rank": trainer.global_rank, "world_size": trainer.world_size}
        store = HypothesisStore(folder, len(self.data.examples(split)))
        store.fill(write, **place, barrier=lambda: trainer.strategy.barrier("hypotheses"))
        texts = store.read()
        embedder = self._hypothesis_embedder()
        embedder.fill(texts, "training", **place, barrier=lambda: trainer.strategy.barrier("embedded"))
        mixture = self._mixtures.setdefault(split, HypothesisMixture(embedder.dimension))
        mixture.sets.append(Hypotheses(texts, embedder, self._as_read))
        if trainer.is_global_zero:
            self._describe(split, name, texts, mixture.sets[-1])

    def _as_read(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(proposal.ids) for proposal in self.rewriter.read(texts)]

    def _describe(self, split: Split, name: str, texts: Sequence[str], made: Hypotheses) -> None:
        """Say how good a set is, and keep the histogram of its cosines (figure 4) for the report."""
        cosines: list[float] = []
        for begin in range(0, len(texts), BLOCK):
            block = list(range(begin, min(begin + BLOCK, len(texts))))
            targets = self.data.vectors(split, block, epoch=0 if split == "train" else None)
            vectors = made.vectors[block]
            if targets.shape == vectors.shape:
                cosines += cosine_rows(vectors, targets).tolist()
        exact = sum(map(operator.eq, texts, self.data.examples(split).texts)) / len(texts)
        rank_zero_info(
            f"hypotheses of the {split} texts, {name}: {100 * exact:.1f} % right, mean cosine {np.mean(cosines):.3f}"
        )
        counts, edges = np.histogram(cosines, bins=BINS, range=(-1, 1))
        path = self.artifacts / STATISTICS
        known = read_json(path) if path.is_file() else {}
        entry = {"exact": exact, "cosines": counts.tolist(), "edges": [round(float(edge), 4) for edge in edges]}
        write_json(path, {**known, f"{split}, {name}": entry})

    def on_train_epoch_start(self) -> None:
        """When due, correct the first set of hypotheses, to train on the inputs of later rounds."""
        due = int(training_progress(self.trainer) * (self.plan.later_rounds + 1))
        if len(self._later) >= min(due, self.plan.later_rounds):
            return
        first = self._mixtures["train"].sets[0]
        weights = weights_key(self.network.state_dict())
        folder = self.plan.folder("rewritten", weights, texts_key(first.texts), len(self._later))
        self.network.eval()
        write = partial(self._write_with_self, first)
        self._add_hypotheses("train", folder, f"rewritten {len(self._later) + 1}", write)
        self.network.train()
        self._later.append(folder.name)

    def _write_with_self(self, first: Hypotheses, part: range) -> list[str]:
        texts: list[str] = []
        rewriter = self.rewriter
        for begin in range(part.start, part.stop, self.search.rows):
            block = list(range(begin, min(begin + self.search.rows, part.stop)))
            targets = self.data.vectors("train", block, epoch=0).to(self.device)
            old = rewriter.read([first.texts[row] for row in block])
            with torch.autocast(self.device.type, enabled=False):
                new = rewriter.rewrite(
                    rewriter.project(targets), targets, old, first.vectors[block].to(self.device), beams=1
                )
            texts += [proposals[0].text for proposals in new]
        return texts

    def on_train_start(self) -> None:
        super().on_train_start()
        for number, name in enumerate(self._later):
            folder = Path(self.plan.directory, name)
            if not folder.is_dir():
                raise InputError(f"{folder}: the checkpoint was trained on these hypotheses, and they are gone")
            self._add_hypotheses("train", folder, f"rewritten {number + 1}", lambda part: [])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["rewritten"] = self._later

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._later = checkpoint["rewritten"]

    # -- training and inversion -----------------------------------------------------------------------------------

    def batch_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of one step with a sampled hypothesis per example; label smoothing in training only."""
        ids, vectors = self._mixtures["train" if self.training else "valid"].sample(batch["index"])
        return self.network.loss(
            batch["vectors"],
            vectors.to(batch["vectors"]),
            ids.masked_fill(ids == IGNORED, self.network.model.config.pad_token_id).to(batch["labels"].device),
            batch["labels"],
            self.label_smoothing if self.training else 0.0,
        )

    def configure_optimizers(self) -> Any:
        return scheduled(self.optimizer_settings, self)

    @property
    def rewriter(self) -> NetworkRewriter:
        return NetworkRewriter(self.network, self.tokenizer, self.max_new_tokens)

    def guess(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Proposal]:
        """The inverter's text, decoded as its own run decodes."""
        return self.rewriter.read([p.candidates[0] for p in self.inverter.invert(targets, oracle)])


# -- the hypotheses that a corrector is trained on, and how an inverter writes them
#
# The published corrector sees one greedy hypothesis per training text. But an inverter trained on the same texts
# generates better hypotheses for them than for unseen texts. Noise on the inverter's input vector, and sampling, remove
# this mismatch; texts that the corrector has rewritten itself prepare it for later rounds.
ROWS = 256  # vectors that are decoded together
NOISE_STEP = 0.02


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one set of hypotheses.

    Attributes:
        noise: Norm of Gaussian noise on the vector, as a share of the vector's norm.
        temperature: Of sampling; None writes greedily.
        seed: Of noise and sampling.
    """

    noise: float = 0.0
    temperature: float | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        parts = ["greedy" if self.temperature is None else f"sampled at {self.temperature:g}"]
        return ", ".join(parts + ([f"noise {self.noise:g}"] if self.noise else []))

    def decoding(self, max_new_tokens: int) -> Decoding:
        if self.temperature is None:
            return BeamSearch(beams=1, max_new_tokens=max_new_tokens)
        return NucleusSampling(p=1.0, temperature=self.temperature, max_new_tokens=max_new_tokens, seed=self.seed)

    def noised(self, vectors: Tensor, index: Sequence[int]) -> Tensor:
        """Vectors (n, d) of the examples ``index``, whose noise depends on seed and example alone."""
        if self.noise == 0:
            return vectors
        rows = []
        for example in index:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + example)
            rows.append(torch.randn(vectors.shape[-1], generator=generator))
        size: Tensor = self.noise * vectors.norm(dim=-1, keepdim=True) / math.sqrt(vectors.shape[-1])
        return vectors + size * torch.stack(rows)


@dataclass
class HypothesisPlan:
    """The sets of hypotheses; each training example samples one of its hypotheses in every epoch."""

    directory: str
    noise: Annotated[list[NonNegativeFloat | Literal["matched"]], Field(min_length=1)]
    sampled: NonNegativeInt = 0
    temperature: PositiveFloat = 1.0
    later_rounds: NonNegativeInt = 0
    seed: NonNegativeInt = 0

    def recipes(self, matched: Callable[[], float]) -> list[Recipe]:
        """One a set; ``matched`` finds the noise of that name, where it is asked for."""
        found = matched() if "matched" in self.noise else 0.0
        sizes = [found if size == "matched" else float(size) for size in self.noise]
        recipes = [Recipe(noise=size, seed=self.seed + number) for number, size in enumerate(sizes)]
        return recipes + [Recipe(temperature=self.temperature, seed=self.seed + n) for n in range(self.sampled)]

    def folder(self, *parts: object) -> Path:
        """The folder of one set: a hash of everything that determines its content."""
        return Path(self.directory, blake2b(repr(parts).encode(), digest_size=12).hexdigest())


def matched_noise(closeness: Callable[[float], float], wanted: float) -> float:
    """The noise, to a hundredth, with which the mean cosine of hypotheses falls to ``wanted``; 0 where it is no higher
    without noise."""
    if closeness(0.0) <= wanted:
        return 0.0
    low, high = 0.0, 2.0
    while high - low > NOISE_STEP:
        middle = (low + high) / 2
        if closeness(middle) > wanted:
            low = middle
        else:
            high = middle
    return round(high, 2)


def write_hypotheses(
    inverter: GenerativeAttack, recipe: Recipe, vectors: Tensor, index: Sequence[int], device: torch.device
) -> list[str]:
    """What ``inverter`` says of vectors (n, d), the vectors of the examples ``index``, by ``recipe``."""
    own = inverter.decoding
    inverter.decoding = recipe.decoding(own.max_new_tokens)
    texts: list[str] = []
    try:
        for begin in range(0, len(index), ROWS):
            chosen = list(index[begin : begin + ROWS])
            block = recipe.noised(vectors[begin : begin + ROWS], chosen).to(device)
            found = inverter.propose(Targets(block, torch.tensor(chosen)), None)
            texts += [prediction.candidates[0] for prediction in found]
    finally:
        inverter.decoding = own
    return texts
