"""Refiners improve predictions with the embedder at hand, one after the other.

    python train.py attack/refine=[rerank,correction] attack.refine.correction.corrector_run=<dir>
    python evaluate.py run=<dir> attack/refine=[rerank] attack.refine.rerank.proposals=64

    ["my name is bob", "my name is ada"] of one target -> embed both -> ["my name is ada", "my name is bob"]

A refiner is a class here or anywhere else, and a file configs/attack/refine/<name>.yaml whose one key is that name:

    shorter:
      _target_: refiners.shorter.Shorter

Its queries count as the attack's. Its result for a target must not depend on the other targets of the batch.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from omegaconf import DictConfig, open_dict
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.writing import Writer
from unembed.core.errors import InputError
from unembed.core.ranks import is_first
from unembed.defenses.base import perturbs
from unembed.defenses.threat import Threat
from unembed.embedders.base import QueryLimitError, Remote
from unembed.embedders.cache.cached import CachedEmbedder, Purpose
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.metrics.vectors import cosine_rows

log = logging.getLogger("train")

FOLDER = "refine"  # among the artifacts; a folder in it for each refiner
Texts = Callable[[], Sequence[str]]


class Refiner:
    """Base of all refiners; a subclass gives ``refine``, and the other methods where it needs them.

    Attributes:
        proposals: Number of candidates per target requested from the attack, which may find fewer.
        required: False: left out where it cannot work or would cost money (``leave_out``).
        writer: The attack's decoder, where it has one; set before ``check``.
        at_once: Targets that are refined together at the most; few where they take minutes, since progress is shown
            and kept by batch.
    """

    at_once = 10**9
    proposals = 1
    required = True
    writer: Writer | None = None

    def check_sources(self) -> None:
        """Check the files and packages that its settings name, before anything else is read."""

    def check(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        """Check, before anything is embedded, that vectors of this dimension can be refined."""
        comparable(dimension, oracle)

    def prepare(self, texts: Sequence[str], artifacts: Path, oracle: CachedEmbedder | None) -> None:
        """Write the refiner's files to the folder ``artifacts``; what is there is of the same embedder.

        Called once by the first process before training; or, for a run trained without this refiner, by every process
        before refining. ``texts`` are the training texts, empty if they are unknown, as in unembed invert.
        """

    def prepared(self, artifacts: Path) -> bool:
        """Whether ``artifacts`` holds what ``prepare`` would write with the present settings."""
        return type(self).prepare is Refiner.prepare or artifacts.is_dir()

    def load(self, artifacts: Path, dimension: int) -> None:
        """Read back what ``prepare`` wrote; every process, before the first target."""

    def all_weights(self) -> dict[str, Tensor]:
        return {}

    def in_lexicon(self, texts: Sequence[str], oracle: CachedEmbedder) -> list[bool] | None:
        """For a refiner that takes words from a list: whether it has each text, or each of its words; else None."""
        return None

    @abstractmethod
    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        """Better predictions, one a target.

        If the embedder reaches its limit (``QueryLimitError``), returns the best texts until then, marked ``partial``.
        ``targets.index`` seeds any sampling; ``oracle.embed(texts, "attack")`` embeds texts.
        """


class Refiners:
    """A chain of refiners, by the names of their options."""

    def __init__(self, named: Mapping[str, Refiner] | None = None) -> None:
        self.named = dict(named or {})
        self._temporary: list[tempfile.TemporaryDirectory[str]] = []

    @property
    def proposals(self) -> int:
        """The most candidates a target that one of them wants."""
        return max((refiner.proposals for refiner in self.named.values()), default=1)

    def check_sources(self) -> None:
        for name, refiner in self.named.items():
            with named(f"attack/refine=[{name}]"):
                refiner.check_sources()

    def check(self, dimension: int, oracle: CachedEmbedder | None, writer: Writer | None = None) -> None:
        for name, refiner in self.named.items():
            refiner.writer = writer
            with named(f"attack/refine=[{name}]"):
                refiner.check(dimension, oracle)

    def prepare(self, texts: Texts, artifacts: Path, oracle: CachedEmbedder | None) -> None:
        """Write missing files of the refiners to the attack's ``artifacts``."""
        for name, refiner in self.named.items():
            folder = artifacts / FOLDER / name
            if not refiner.prepared(folder):
                folder.mkdir(parents=True, exist_ok=True)
                refiner.prepare(texts(), folder, oracle)

    def load(self, artifacts: Path, dimension: int, texts: Texts, oracle: CachedEmbedder | None) -> None:
        """Load the refiners' files; missing ones are prepared in a temporary folder (a run is not changed)."""
        for name, refiner in self.named.items():
            folder = artifacts / FOLDER / name
            if not refiner.prepared(folder):
                self._temporary.append(tempfile.TemporaryDirectory(prefix="unembed-"))
                own, folder = folder, Path(self._temporary[-1].name)
                if own.is_dir():
                    shutil.copytree(own, folder, dirs_exist_ok=True)
                refiner.prepare(texts(), folder, oracle)
            refiner.load(folder, dimension)

    def all_weights(self) -> dict[str, Tensor]:
        weights = ((name, refiner.all_weights()) for name, refiner in self.named.items())
        return {f"{FOLDER}.{name}.{key}": tensor for name, own in weights for key, tensor in own.items()}

    def in_lexicon(self, texts: Sequence[str], oracle: CachedEmbedder | None) -> list[bool] | None:
        """Whether one of them has each text; None if none has a list of words."""
        if oracle is None:
            return None
        found = [refiner.in_lexicon(texts, oracle) for refiner in self.named.values()]
        known = [one for one in found if one is not None]
        return [any(of_text) for of_text in zip(*known, strict=True)] if known else None

    def refine(
        self, targets: Targets, predictions: list[Prediction], oracle: CachedEmbedder | None
    ) -> list[Prediction]:
        for refiner in self.named.values():
            assert oracle is not None  # checked
            predictions = refiner.refine(targets, predictions, oracle)
        return predictions


@contextmanager
def named(key: str) -> Iterator[None]:
    """Within it, messages begin with the ``key`` that they are about, unless they name a key of a refiner."""
    try:
        yield
    except InputError as error:
        if str(error).startswith("attack.refine."):
            raise
        raise InputError(f"{key}: {error}") from error


def comparable(dimension: int, oracle: CachedEmbedder | None) -> None:
    """Check that texts can be compared with targets of this dimension by their vectors."""
    if oracle is None:
        raise InputError("needs the embedder to compare texts with the vector, and there is none")
    if isinstance(oracle.source.embedder, LanguageModelEmbedder):
        raise InputError("compares vectors of texts, and the targets are outputs of a language model")
    if oracle.dimension != dimension:
        raise InputError(
            f"the attacked vectors have dimension {dimension} and the embedder's {oracle.dimension}, so texts cannot "
            "be compared with them: the defense changes the dimension; take defense.hypotheses=defended, or leave this "
            "out"
        )


def embedded(texts: Sequence[str], oracle: CachedEmbedder, purpose: Purpose = "attack") -> dict[str, Tensor]:
    """The vector (d,) of each distinct text; those that a limit of the embedder cut off are missing."""
    distinct = list(dict.fromkeys(texts))
    try:
        return dict(zip(distinct, oracle.embed(distinct, purpose), strict=True))
    except QueryLimitError as error:
        return {distinct[place]: vector for place, vector in zip(error.done, error.vectors, strict=True)}


def optional_refiners(config: DictConfig) -> list[str]:
    refine = config.attack.get("refine") or {}
    return [str(name) for name, node in refine.items() if not node.get("required", True)]


def leave_out(config: DictConfig, embedder: CachedEmbedder, threat: Threat) -> None:
    """Delete the optional refiners from ``config`` where there is a reason, and log it."""
    reason, names = _reason_against(embedder, threat), optional_refiners(config)
    if reason is None:
        return
    with open_dict(config):
        for name in names:
            del config.attack.refine[name]
    if is_first():
        log.info("attack/refine=[%s] is left out: %s", ",".join(names), reason)


def _reason_against(embedder: CachedEmbedder, threat: Threat) -> str | None:
    """Why texts are not compared with the attacked vectors unless the user asks for it; None without a reason."""
    if isinstance(embedder.embedder, Remote):
        return "each text that is sent to a server may cost money; to have it, name it"
    if isinstance(embedder.embedder, LanguageModelEmbedder):
        return "the targets are outputs of a language model, not vectors of texts"
    if threat.adaptive and threat.hypotheses == "clean" and not perturbs(threat.defense):
        return "texts embedded without the defense lie elsewhere than defended ones; add defense.hypotheses=defended"
    return None


# The last bits of a vector depend on its batch in the embedder. Cosines closer than this count as equal, and the text
# that is more probable for the attack comes first.
EQUAL = 1e-6
FOUND = 1 - 2e-5  # cosine of a text with its own vector, less the last bits of float32 and of another batch


class Rerank(Refiner):
    """Orders the distinct candidates of each target by the cosine of their vectors with it.

    Candidates without a vector, where a limit of the embedder was reached, stand last; such a prediction is partial.
    """

    def __init__(self, proposals: PositiveInt = 16) -> None:
        self.proposals = proposals

    def refine(self, targets: Targets, predictions: Sequence[Prediction], oracle: CachedEmbedder) -> list[Prediction]:
        vectors = embedded([text for prediction in predictions for text in prediction.candidates], oracle)
        refined = []
        for target, prediction in zip(targets.vectors.cpu(), predictions, strict=True):
            texts = list(dict.fromkeys(prediction.candidates))
            known = [text for text in texts if text in vectors]
            unknown = [text for text in texts if text not in vectors]
            cosines = cosines_with(target, [vectors[text] for text in known])
            ordered = [known[place] for place in closest_first(cosines.tolist())]
            refined.append(prediction.refined((*ordered, *unknown), partial=bool(unknown)))
        return refined


def cosines_with(target: Tensor, vectors: Sequence[Tensor]) -> Tensor:
    """Of the target (d,) with n vectors (d,), (n,)."""
    return cosine_rows(torch.stack(list(vectors)), target.expand(len(vectors), -1)) if vectors else torch.empty(0)


def closest_first(cosines: Sequence[float]) -> list[int]:
    """Places from the highest cosine to the lowest; those that differ by ``EQUAL`` or less keep their order."""
    order: list[int] = []
    alike: list[int] = []
    for place in sorted(range(len(cosines)), key=lambda place: -cosines[place]):
        if alike and cosines[alike[-1]] - cosines[place] > EQUAL:
            order += sorted(alike)
            alike = []
        alike.append(place)
    return order + sorted(alike)
