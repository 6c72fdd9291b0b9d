"""Check that vectors given to unembed invert or unembed audit could come from the run's embedder.

    space = reference_space(session, ["a text of the run's test", ...])
    with dimension_explained(space, session):
        vectors = read_vectors(...)
    warnings = check_space("mine.npy", vectors, space, session, texts, trusted=False)
    warnings += check_reading("mine.npy", vectors, reader, known_cosines, trusted=False)
    keep_space(run, session, datamodule.training_sample(TEXTS))     # at the end of training

Vectors of another embedder or pooling, or with permuted or rescaled components, would be inverted to fluent but
unrelated text, or would make a store look safe. So their lengths and directions are compared with those of the run's
training vectors (their statistics are in artifacts/space.safetensors, some 100 kB and no text), or of its test texts.
docs/audit.md has the measurements behind the bounds.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.vector_files import DimensionError
from unembed.embedders.base import Embedder, QueryLimitError
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.transformer import variants
from unembed.metrics import spaces
from unembed.metrics.identify import ROTATED_FROM, identify
from unembed.metrics.spaces import Space
from unembed.reports.reading import Reader
from unembed.runs.layout import ARTIFACTS
from unembed.session import Session

FILE = "space.safetensors"
TEXTS = 5000  # number of vectors whose statistics are kept, evenly from the training texts
COMPARED = 2048  # number of the run's test texts to compare with
MOST = 5000  # vectors that are looked at, evenly
TRIED = 64  # texts that variants of the embedder embed, once directions do not match
LIKE = 0.3  # likeness of other text by the same embedder, at least
NOISE = 0.004  # standard deviation of noise in each dimension that is warned of
VALUES = 64  # distinct numbers of coarsely quantised vectors, at most
REPEATED = 0.2  # share of rows with one and the same vector that is warned of
READ = 32  # rows that are read first
AT_ONCE = 256  # rows that are read without a first look
TRUST = "; trust_vectors=true continues all the same"
FEWEST = 10  # smallest number of rows for a comparison of directions
LONGER = 1.5  # accepted ratio of lengths: noise lengthens vectors a little
UNLIKE = 0.05  # likeness of another embedder's vectors, at most, where the quiet directions are unknown
FOREIGN = 0.5  # share of energy that is spread as no vector of the embedder is, at least, of another embedder's vectors
LOUDER = 1.1  # the same, at least, where directions are alike; random ones have 1
STRANGE = 0.12  # likeness, at most, of what is foreign; 0.21 with noise of 0.1
ALTERNATIVE = 0.5  # likeness to what a variant of the embedder makes, at least, to name it
FLAT = 0.5  # deviation of the logarithm of a rotated vector's profile relative to the embedder's, at most
EVEN = 0.02  # relative deviation of lengths that are equal
CUT = 0.15  # likeness of cut vectors, at least; 0.69 and more where the known texts are of many kinds
BEFORE = "give the vectors as they were before quantisation, which stores often keep for rescoring"
WHICH = "find out which embedder made them, and train an attacker for it: embedder=<name> in train.py"
NORMALISE = "divide each by its length: vectors / np.linalg.norm(vectors, axis=1, keepdims=True)"
DIMENSIONS: Mapping[int, str] = {
    384: "of MiniLM, bge-small, e5-small or gte-small",
    512: "of distiluse or CLIP",
    768: "of BERT-base models, such as all-mpnet-base-v2, bge-base or e5-base",
    1024: "of BERT-large models, such as bge-large or e5-large, or of Cohere",
    1536: "of OpenAI's text-embedding-3-small or text-embedding-ada-002",
    3072: "of OpenAI's text-embedding-3-large",
}


def title_of(embedder: Embedder) -> str:
    """What an embedder is called in messages."""
    return str(getattr(embedder, "title", None) or getattr(embedder, "name", None) or "the run's embedder")


def reference_space(session: Session, references: Sequence[str]) -> Space | None:
    """Statistics of the run's vectors, stored in training or computed from its test texts; None with too few.

    Raises:
        QueryLimitError: A query limit does not allow embedding the test texts.
    """
    stored = read_space(session.run, session)
    if stored is not None or len(references) < FEWEST:
        return stored
    step = -(-len(references) // COMPARED)
    return Space.of(session.service.embed(list(references[::step]), "scoring"))


def keep_space(run: Path, session: Session, vectors: Tensor | None) -> None:
    """Write the statistics of vectors, (n, d), that the attack was trained on.

    Nothing is written where there are too few, or for a language model, whose output is no text's vector.
    """
    from safetensors.torch import save

    of_texts = not isinstance(session.embedder.embedder, LanguageModelEmbedder)
    if vectors is None or len(vectors) < spaces.FEWEST or not of_texts:
        return
    tensors = {name: tensor.contiguous() for name, tensor in Space.of(vectors).tensors().items()}
    folder = run / ARTIFACTS
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / FILE, save(tensors, _about(session)))


def read_space(run: Path, session: Session) -> Space | None:
    """The statistics of a run's vectors; None if it has none, or those of another embedder or defense."""
    from safetensors import SafetensorError, safe_open

    path = run / ARTIFACTS / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata() != _about(session):
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        space = Space.restored(tensors)
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, RuntimeError, OSError) as error:
        raise InputError(f"{path}: the statistics of the run's vectors cannot be read: {error}") from error
    sound = all(tensor.isfinite().all() for tensor in tensors.values()) and bool((space.norm > 0).all())
    if not sound or space.dimension != session.dimension:
        raise InputError(f"{path}: not the statistics of vectors of dimension {session.dimension}, or damaged")
    return space


def _about(session: Session) -> dict[str, str]:
    """What the vectors depend on: the embedder, and the defense that the attacker was trained with."""
    defense = json.dumps(session.threat.settings, sort_keys=True) if session.threat.adaptive else ""
    return {"embedder": session.trained_fingerprint, "defense": defense}


@contextmanager
def dimension_explained(space: Space | None, session: Session) -> Iterator[None]:
    """Add to an error about the dimension of vectors what they seem to be."""
    try:
        yield
    except DimensionError as error:
        fault = None if space is None else of_dimension(torch.from_numpy(error.vectors), space)
        if fault is None:
            raise
        title = title_of(session.embedder.embedder)
        raise InputError(f"{error}. These are not {title} vectors ({fault.cause}): {fault.remedy}") from error


def check_space(
    name: str, vectors: Tensor, space: Space | None, session: Session, texts: Sequence[str], trusted: bool
) -> list[str]:
    """Compare vectors, (n, d), with those of the run's embedder.

    With fewer than ``FEWEST`` vectors, only numbers, lengths and the embedder's quiet directions are compared.

    Returns warnings, or raises InputError where the vectors are not ``trusted``. ``space`` is that of
    ``reference_space``, None compares nothing; ``texts`` are test texts of the run, which variants of the embedder
    embed.
    """
    if not len(vectors) or space is None:
        return []
    vectors = vectors[:: -(-len(vectors) // MOST)]
    fault = _fault(vectors, space, session, texts)
    if fault is None:
        return _warnings(vectors, space)
    title = title_of(session.embedder.embedder)
    return _refused(f"vectors={name}: these are not {title} vectors ({fault.cause}): {fault.remedy}", trusted)


def _refused(wrong: str, trusted: bool) -> list[str]:
    if not trusted:
        raise InputError(wrong + TRUST)
    return [wrong + "."]


def _fault(vectors: Tensor, space: Space, session: Session, texts: Sequence[str]) -> Fault | None:
    if fault := of_values(vectors, space) or of_repeats(vectors):
        return fault
    lengths = of_lengths(vectors, space)
    if not is_foreign(vectors, space):
        return lengths
    if lengths is not None and lengths.cause.startswith("standardised"):
        return lengths
    fault = of_directions(vectors, space, _alternatives(session, texts))
    median = torch.linalg.vector_norm(vectors.double(), dim=1).median().item()
    long = f"; their median length is {median:.3g}, not {space.norm.item():.3g}" if lengths is not None else ""
    return Fault(fault.cause + long, fault.remedy)


def _alternatives(session: Session, texts: Sequence[str]) -> dict[str, Space]:
    """Spaces of variants of an undefended embedder that runs here, from a few of the run's test texts."""
    if session.service is not session.embedder or len(texts) < FEWEST:
        return {}
    some = list(texts[:: -(-len(texts) // TRIED)])
    return {one.title: Space.of(one.embedder.embed(some)) for one in variants(session.embedder.embedder)}


def _warnings(vectors: Tensor, space: Space) -> list[str]:
    if len(vectors) < FEWEST:
        return []
    warnings = []
    noise, foreign, likeness = space.noise(vectors), space.foreign(vectors), space.likeness(vectors)
    if noise is not None and noise >= NOISE and noise**2 > 2 * space.rest[-2:].mean().item():
        warnings.append(
            f"The vectors carry noise of about {noise:.2g} in each dimension: they were defended or quantised. An "
            "attacker who denoises them (denoiser=gaussian) or trains on such vectors (defense=noise, "
            "defense.adaptive=true) reads more."
        )
        likeness /= max(1 - (foreign or 0.0), 0.1)
    values = len(np.unique(vectors[:FEWEST].numpy()))
    if values <= VALUES and vectors.shape[1] > VALUES:
        warnings.append(f"The vectors are coarsely quantised: ten of them have {values} distinct numbers.")
    most = max(Counter(row.tobytes() for row in vectors.numpy()).values())
    if most >= REPEATED * len(vectors):
        warnings.append(f"{most} of {len(vectors)} rows are one and the same vector: the same text, or an empty one.")
    mean, chance = normalize(vectors, dim=1).mean(dim=0).norm().item(), len(vectors) ** -0.5
    if len(vectors) >= 100 and mean < 1.5 * chance and space.mean.norm().item() > 5 * chance:
        warnings.append("The vectors seem to be centred: their mean was subtracted. Add it again to read more.")
    if likeness < LIKE:
        warnings.append(
            f"The vectors point elsewhere than those of the run's own texts (likeness "
            f"{likeness:.2f}, where 1 is the same kind of text): text of another kind, or vectors that were "
            "defended. An attacker who trains on text like theirs reads more."
        )
    return warnings


def check_reading(
    name: str, vectors: Tensor, reader: Reader, known: Sequence[float | None], trusted: bool
) -> list[str]:
    """Read a few vectors, (n, d), and check that the texts are nearer to their own vectors than to the others.

    Nothing is read first of up to ``AT_ONCE`` vectors, nor for an attacker whose own test texts were not read.

    Returns warnings, or raises InputError where the vectors are not ``trusted``. ``known`` are the cosines of the run's
    test texts with their vectors (predictions.jsonl).
    """
    own = [cosine for cosine in known if cosine is not None]
    usual = statistics.median(own) if own else 0.0
    if len(vectors) <= AT_ONCE or usual < 2 * LIKE:
        return []
    rows = list(range(0, len(vectors), len(vectors) // READ))[:READ]
    predictions = reader.read(vectors[rows], rows, "reading a few rows")
    try:
        again = reader.oracle.embed([reader.attack.query(one) for one in predictions], "scoring")
    except QueryLimitError:
        return []
    if again.shape[1] != vectors.shape[1]:
        return []
    cosines = normalize(again, dim=1) @ normalize(vectors[rows], dim=1).T
    median = cosines.diagonal().median().item()
    nearer = (cosines.diagonal()[:, None] > cosines).sum().item() / (READ * (READ - 1))
    if median > usual / 2 or nearer > 0.65:
        return []
    return _refused(
        f"vectors={name}: these are not {title_of(reader.oracle.embedder)} vectors (of {READ} rows that were read, the "
        f"texts are embedded to a median cosine of {median:.2f} with their vectors, {usual:.2f} for the run's own "
        "test texts, and are no nearer to them than to the others): find out how they were made",
        trusted,
    )


# -- what may be wrong; docs/audit.md has the statistics of each case --------------------------------------------------


class Fault(NamedTuple):
    """The likely cause of a mismatch, and what the user can do about it."""

    cause: str
    remedy: str


def of_values(vectors: Tensor, space: Space) -> Fault | None:
    """Quantised numbers without their scale: bits, int8, uint8."""
    low, high, sizes = vectors.min().item(), vectors.max().item(), vectors.abs()
    if vectors.shape[1] > 1 and len(vectors) >= FEWEST and bool((sizes[sizes > 0] >= 0.999 * sizes.max()).all()):
        return Fault(f"binary: all numbers are {low:.3g} or {high:.3g}, so only signs are left", BEFORE)
    if high - low <= 1 or not bool((vectors == vectors.round()).all()):
        return None
    kind = "int8" if low >= -128 and high <= 127 else "uint8" if low >= 0 and high <= 255 else "quantised"
    cause = f"{kind}: integers from {low:.0f} to {high:.0f}"
    if len(vectors) >= FEWEST and low < 0 and not is_foreign(vectors, space):
        return Fault(f"{cause}, in the embedder's directions", NORMALISE)
    return Fault(
        f"{cause}, each dimension with a scale of its own" if kind != "quantised" else cause,
        "scale each dimension back with the ranges of the calibration, as sentence-transformers' quantize_embeddings "
        "takes them: low + (number + 128) * (high - low) / 255",
    )


def of_repeats(vectors: Tensor) -> Fault | None:
    """One vector in all rows."""
    if len(vectors) < FEWEST or not bool((vectors == vectors[0]).all()):
        return None
    return Fault(
        f"all {len(vectors)} rows are the same vector",
        "embed the texts again: a failed export or an empty field makes one vector of every text",
    )


def of_lengths(vectors: Tensor, space: Space) -> Fault | None:
    """Lengths unlike those of the embedder, where the directions may be right."""
    lengths = torch.linalg.vector_norm(vectors.double(), dim=1)
    median, own = lengths.median().item(), space.norm.item()
    if 1 / LONGER <= median / own <= LONGER:
        return None
    mismatch = f"their median length is {median:.3g}, but the run's embedder gives vectors of length {own:.3g}"
    spread = vectors.std(dim=0) if len(vectors) >= 50 else torch.zeros(1)
    if 0.9 < spread[spread > 0].median().item() < 1.1:
        return Fault(
            f"standardised: each dimension has the deviation 1; {mismatch}",
            "multiply each dimension by its deviation and add its mean again",
        )
    if median / own > 0 and len(lengths) > 1 and (lengths.std() / lengths.mean()).item() < EVEN:
        if abs(median - 1) < EVEN:
            return Fault(f"normalised: {mismatch}", "embed the texts without normalisation")
        return Fault(f"scaled: {mismatch}", f"divide them by {median / own:.4g}")
    if (noise := space.noise(vectors)) is not None and noise > 0.03 and not is_foreign(vectors, space):
        cause = f"noisy, about {noise:.2g} in each dimension: {mismatch}"
        return Fault(cause, f"to read them all the same, {NORMALISE}")
    if len(lengths) == 1:
        return Fault(mismatch, "scale it to the length of the embedder's vectors")
    return Fault(f"not normalised: {mismatch}", f"if the embedder is the right one, {NORMALISE}")


def is_foreign(vectors: Tensor, space: Space) -> bool:
    """Whether directions are those of another space, whatever the texts are; quiet ones tell of a single vector."""
    foreign = space.foreign(vectors)
    likeness = space.likeness(vectors)
    if foreign is None:
        return len(vectors) >= FEWEST and likeness < UNLIKE
    return foreign >= LOUDER or (foreign >= FOREIGN and likeness < STRANGE)


def of_directions(vectors: Tensor, space: Space, alternatives: Mapping[str, Space]) -> Fault:
    """The likely reason why directions are those of another space.

    ``alternatives`` are variants of the embedder by title, each described by vectors of the same texts.
    """
    foreign = space.foreign(vectors)
    strange = "" if foreign is None else f", {100 * foreign:.0f} % of the energy where this embedder has none"
    said = f"likeness {space.likeness(vectors):.2f}{strange}"
    likest = max(alternatives, key=lambda title: alternatives[title].likeness(vectors), default=None)
    if likest is not None and alternatives[likest].likeness(vectors) >= ALTERNATIVE:
        return Fault(
            f"the same model with {likest}: {said}, and {alternatives[likest].likeness(vectors):.2f} to that",
            "embed the texts as the embedder is meant to, or train an attacker with the embedder changed in this way",
        )
    units = vectors.double() / torch.linalg.vector_norm(vectors.double(), dim=1, keepdim=True)
    if _in_other_order(_profile(space.profile), _profile(units.square().mean(dim=0)), len(vectors)):
        return Fault(
            f"the same dimensions in another order: {said}, and the same spread in other places",
            "put the dimensions into the embedder's order",
        )
    identity = identify(vectors)
    if identity.space is not None and not identity.rotated:
        made = f"embedder={identity.space.embedder} {identity.space.overrides or ''}".strip()
        train = f"train an attacker for it: {made} in train.py; or give vectors as defended as those it was trained on"
        return Fault(
            f"as it seems those of {identity.space}: {said}", WHICH if identity.space.overrides is None else train
        )
    if len(vectors) < ROTATED_FROM:
        return Fault(f"another model, or no vectors of text at all: {said}", WHICH)
    # Without the mean, which is that of few texts and uneven after a rotation, too.
    mine, theirs = (_profile(one) for one in (space.profile - space.mean.square(), units.var(dim=0)))
    if theirs.std().item() < FLAT * mine.std().item():
        halves = Space.of(vectors)
        beyond = (halves.energy.sum() - len(halves.main) / halves.dimension).item()
        if beyond < 0.05:
            return Fault(
                f"random numbers, strong noise, or each row changed by itself: {said}, and no common directions", WHICH
            )
        whose = "rotated, or another model" if identity.space is None else f"those of {identity.space.title}, rotated"
        return Fault(
            f"{whose}: {said}, and every dimension holds as much as any other",
            "undo the rotation, whose matrix the owner has (defense=rotation); else " + WHICH,
        )
    return Fault(f"another model: {said}", WHICH)


def of_dimension(vectors: Tensor, space: Space) -> Fault | None:
    """The likely reason for another dimension: cut, packed or padded vectors, or a model known by its dimension."""
    dimension, wanted = vectors.shape[1], space.dimension
    sound = vectors[vectors.isfinite().all(dim=1) & (vectors != 0).any(dim=1)].float()
    if dimension > wanted and len(sound) and not sound[:, wanted:].any():
        cause = f"padded: the last {dimension - wanted} of {dimension} dimensions are zero"
        return Fault(cause, f"give the first {wanted}")
    if 8 * dimension == wanted and not vectors.is_floating_point():
        return Fault(f"binary: {dimension} bytes are {wanted} bits, so only signs are left", BEFORE)
    if 8 <= dimension < wanted and len(sound) >= FEWEST and (likeness := space.first(sound)) >= CUT:
        return Fault(
            f"cut short: the first {dimension} of its {wanted} dimensions, as it seems (likeness {likeness:.2f})",
            f"give whole vectors, or train an attacker of cut ones: defense=truncation defense.dimensions={dimension} "
            "defense.adaptive=true in train.py",
        )
    if dimension in DIMENSIONS:
        return Fault(f"another model: {dimension} dimensions are those {DIMENSIONS[dimension]}", WHICH)
    return None


def _profile(squares: Tensor) -> Tensor:
    """Logarithm of the mean square of each coordinate, (d,), of which very small ones count alike."""
    return (squares + 1 / (25 * len(squares))).log()


def _in_other_order(mine: Tensor, theirs: Tensor, rows: int) -> bool:
    """Whether two profiles have the same values in other places."""
    if rows < 30 or mine.std().item() < 0.1:
        return False
    values = (mine.sort().values - theirs.sort().values).abs()
    alike = torch.corrcoef(torch.stack([mine, theirs]))[0, 1].item()
    empty = [(profile < profile.median() - 2).sum().item() for profile in (mine, theirs)]
    return values.mean().item() < 0.12 and alike < 0.4 and empty[0] == empty[1]
