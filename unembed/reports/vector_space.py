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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unembed.core.atomic_files import write_file
from unembed.core.errors import InputError
from unembed.datamodules.vector_stores.vector_files import DimensionError
from unembed.embedders.base import Embedder, QueryLimitError
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.transformer import variants
from unembed.metrics import spaces
from unembed.metrics.spaces import Space
from unembed.reports import vector_faults
from unembed.reports.reading import Reader
from unembed.reports.vector_faults import FEWEST, Fault
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
    """The statistics of a run's vectors; None if it has none, or those of another embedder or defense.

    Raises:
        InputError: The file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    path = run / ARTIFACTS / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata() != _about(session):
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found = Space.restored(tensors)
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, RuntimeError, OSError) as error:
        raise InputError(f"{path}: the statistics of the run's vectors cannot be read: {error}") from error
    sound = all(tensor.isfinite().all() for tensor in tensors.values()) and bool((found.norm > 0).all())
    if not sound or found.dimension != session.dimension:
        raise InputError(f"{path}: not the statistics of vectors of dimension {session.dimension}, or damaged")
    return found


def _about(session: Session) -> dict[str, str]:
    """What the vectors depend on: the embedder, and the defense that the attacker was trained with."""
    defense = json.dumps(session.threat.settings, sort_keys=True) if session.threat.adaptive else ""
    return {"embedder": session.embedder.fingerprint, "defense": defense}


@contextmanager
def dimension_explained(space: Space | None, session: Session) -> Iterator[None]:
    """Add to an error about the dimension of vectors what they seem to be.

    Raises:
        InputError: In place of the DimensionError.
    """
    try:
        yield
    except DimensionError as error:
        fault = None if space is None else vector_faults.of_dimension(torch.from_numpy(error.vectors), space)
        if fault is None:
            raise
        title = title_of(session.embedder.embedder)
        raise InputError(f"{error}. These are not {title} vectors ({fault.cause}): {fault.remedy}") from error


def check_space(
    name: str, vectors: Tensor, space: Space | None, session: Session, texts: Sequence[str], trusted: bool
) -> list[str]:
    """Compare vectors, (n, d), with those of the run's embedder.

    With fewer than ``FEWEST`` vectors, only numbers, lengths and the embedder's quiet directions are compared.

    Args:
        name: Name of the vectors, as in ``vectors=``.
        vectors: The vectors.
        space: From ``reference_space``; None compares nothing.
        session: The run.
        texts: Test texts of the run, which variants of the embedder may embed.
        trusted: Whether to warn instead of raising.

    Returns:
        Warnings for the user.

    Raises:
        InputError: The vectors do not match the run's embedder, and are not ``trusted``.
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
    if fault := vector_faults.of_values(vectors, space) or vector_faults.of_repeats(vectors):
        return fault
    lengths = vector_faults.of_lengths(vectors, space)
    if not vector_faults.is_foreign(vectors, space):
        return lengths
    if lengths is not None and lengths.cause.startswith("standardised"):
        return lengths
    fault = vector_faults.of_directions(vectors, space, _alternatives(session, texts))
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
    found = []
    noise, foreign, likeness = space.noise(vectors), space.foreign(vectors), space.likeness(vectors)
    if noise is not None and noise >= NOISE and noise**2 > 2 * space.rest[-2:].mean().item():
        found.append(
            f"The vectors carry noise of about {noise:.2g} in each dimension: they were defended or quantised. An "
            "attacker who denoises them (denoiser=gaussian) or trains on such vectors (defense=noise, "
            "defense.adaptive=true) reads more."
        )
        likeness /= max(1 - (foreign or 0.0), 0.1)
    values = len(np.unique(vectors[:FEWEST].numpy()))
    if values <= VALUES and vectors.shape[1] > VALUES:
        found.append(f"The vectors are coarsely quantised: ten of them have {values} distinct numbers.")
    most = max(Counter(row.tobytes() for row in vectors.numpy()).values())
    if most >= REPEATED * len(vectors):
        found.append(f"{most} of {len(vectors)} rows are one and the same vector: the same text, or an empty one.")
    mean, chance = (vectors / vectors.norm(dim=1, keepdim=True)).mean(dim=0).norm().item(), len(vectors) ** -0.5
    if len(vectors) >= 100 and mean < 1.5 * chance and space.mean.norm().item() > 5 * chance:
        found.append("The vectors seem to be centred: their mean was subtracted. Add it again to read more.")
    if likeness < LIKE:
        found.append(
            f"The vectors point elsewhere than those of the run's own texts (likeness "
            f"{likeness:.2f}, where 1 is the same kind of text): text of another kind, or vectors that were "
            "defended. An attacker who trains on text like theirs reads more."
        )
    return found


def check_reading(
    name: str, vectors: Tensor, reader: Reader, known: Sequence[float | None], trusted: bool
) -> list[str]:
    """Read a few vectors, (n, d), and check that the texts are nearer to their own vectors than to the others.

    Nothing is read first of up to ``AT_ONCE`` vectors, nor for an attacker whose own test texts were not read.

    Args:
        name: Name of the vectors, as in ``vectors=``.
        vectors: The vectors.
        reader: Inverts them.
        known: Cosines of the run's test texts with their vectors (predictions.jsonl).
        trusted: Whether to warn instead of raising.

    Returns:
        Warnings for the user.

    Raises:
        InputError: What was read has nothing to do with the vectors, and they are not ``trusted``.
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
    cosines = torch.nn.functional.normalize(again, dim=1) @ torch.nn.functional.normalize(vectors[rows], dim=1).T
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
