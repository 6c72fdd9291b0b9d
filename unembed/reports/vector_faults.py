"""What may be wrong with vectors of unknown origin: each function finds one kind of fault, and says what to do.

fault = of_values(vectors) or of_lengths(vectors, space) or of_directions(vectors, space, alternatives)
fault.cause, fault.remedy          # "int8: integers from -127 to 127", "multiply them by ..."

docs/audit.md lists the cases with measured statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unembed.metrics.spaces import Space

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
NORMALISE = "divide each by its length: vectors / np.linalg.norm(vectors, axis=1, keepdims=True)"
DIMENSIONS: Mapping[int, str] = {
    384: "of MiniLM, bge-small, e5-small or gte-small",
    512: "of distiluse or CLIP",
    768: "of BERT-base models, such as all-mpnet-base-v2, bge-base or e5-base",
    1024: "of BERT-large models, such as bge-large or e5-large, or of Cohere",
    1536: "of OpenAI's text-embedding-3-small or text-embedding-ada-002",
    3072: "of OpenAI's text-embedding-3-large",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """The likely cause of a mismatch, and what the user can do about it."""

    cause: str
    remedy: str


def of_values(vectors: Tensor, space: Space) -> Fault | None:
    """Quantised numbers without their scale: bits, int8, uint8."""
    low, high, sizes = vectors.min().item(), vectors.max().item(), vectors.abs()
    if vectors.shape[1] > 1 and len(vectors) >= FEWEST and bool((sizes[sizes > 0] >= 0.999 * sizes.max()).all()):
        return Fault(f"binary: all numbers are {low:.3g} or {high:.3g}, so only signs are left", _BEFORE)
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
    found = f"their median length is {median:.3g}, but the run's embedder gives vectors of length {own:.3g}"
    spread = vectors.std(dim=0) if len(vectors) >= 50 else torch.zeros(1)
    if 0.9 < spread[spread > 0].median().item() < 1.1:
        return Fault(
            f"standardised: each dimension has the deviation 1; {found}",
            "multiply each dimension by its deviation and add its mean again",
        )
    if median / own > 0 and len(lengths) > 1 and (lengths.std() / lengths.mean()).item() < EVEN:
        if abs(median - 1) < EVEN:
            return Fault(f"normalised: {found}", "embed the texts without normalisation")
        return Fault(f"scaled: {found}", f"divide them by {median / own:.4g}")
    if (noise := space.noise(vectors)) is not None and noise > 0.03 and not is_foreign(vectors, space):
        return Fault(f"noisy, about {noise:.2g} in each dimension: {found}", f"to read them all the same, {NORMALISE}")
    if len(lengths) == 1:
        return Fault(found, "scale it to the length of the embedder's vectors")
    return Fault(f"not normalised: {found}", f"if the embedder is the right one, {NORMALISE}")


def is_foreign(vectors: Tensor, space: Space) -> bool:
    """Whether directions are those of another space, whatever the texts are; quiet ones tell of a single vector."""
    foreign = space.foreign(vectors)
    likeness = space.likeness(vectors)
    if foreign is None:
        return len(vectors) >= FEWEST and likeness < UNLIKE
    return foreign >= LOUDER or (foreign >= FOREIGN and likeness < STRANGE)


def of_directions(vectors: Tensor, space: Space, alternatives: Mapping[str, Space]) -> Fault:
    """The likely reason why directions are those of another space.

    Args:
        vectors: Vectors for which ``is_foreign`` is true, (n, d).
        space: The run's embedder.
        alternatives: Variants of the embedder by title, each described by vectors of the same texts.
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
    if len(vectors) < 100:
        return Fault(f"another model, or no vectors of text at all: {said}", _WHICH)
    # Without the mean, which is that of few texts and uneven after a rotation, too.
    mine, theirs = (_profile(one) for one in (space.profile - space.mean.square(), units.var(dim=0)))
    if theirs.std().item() < FLAT * mine.std().item():
        halves = Space.of(vectors)
        beyond = (halves.energy.sum() - len(halves.main) / halves.dimension).item()
        if beyond < 0.05:
            return Fault(
                f"random numbers, strong noise, or each row changed by itself: {said}, and no common directions", _WHICH
            )
        return Fault(
            f"rotated, or another model: {said}, and every dimension holds as much as any other",
            "undo the rotation, whose matrix the owner has (defense=rotation); else " + _WHICH,
        )
    return Fault(f"another model: {said}", _WHICH)


_BEFORE = "give the vectors as they were before quantisation, which stores often keep for rescoring"
_WHICH = "find out which embedder made them, and train an attacker for it: embedder=<name> in train.py"


def of_dimension(vectors: Tensor, space: Space) -> Fault | None:
    """The likely reason for another dimension: cut, packed or padded vectors, or a model known by its dimension."""
    found, wanted = vectors.shape[1], space.dimension
    sound = vectors[vectors.isfinite().all(dim=1) & (vectors != 0).any(dim=1)].float()
    if found > wanted and len(sound) and not sound[:, wanted:].any():
        return Fault(f"padded: the last {found - wanted} of {found} dimensions are zero", f"give the first {wanted}")
    if 8 * found == wanted and not vectors.is_floating_point():
        return Fault(f"binary: {found} bytes are {wanted} bits, so only signs are left", _BEFORE)
    if 8 <= found < wanted and len(sound) >= FEWEST and (likeness := space.first(sound)) >= CUT:
        return Fault(
            f"cut short: the first {found} of its {wanted} dimensions, as it seems (likeness {likeness:.2f})",
            f"give whole vectors, or train an attacker of cut ones: defense=truncation defense.dimensions={found} "
            "defense.adaptive=true in train.py",
        )
    if found in DIMENSIONS:
        return Fault(f"another model: {found} dimensions are those {DIMENSIONS[found]}", _WHICH)
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
