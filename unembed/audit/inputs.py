"""Check the true texts given for an audit against the store before inverting anything.

Texts assigned to the wrong vectors would make the store look safe. So each text is embedded and compared with its
vector. vector_space.py checks the vectors themselves.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from omegaconf import DictConfig
from torch import Tensor

from unembed.audit.results import Truth
from unembed.core import limits
from unembed.core.commands import command
from unembed.core.errors import InputError, did_you_mean, shortened
from unembed.core.examples import Example
from unembed.datamodules.sources.base import Fields, rows
from unembed.datamodules.truncation import Truncation
from unembed.datamodules.vector_stores.sampling import Sample, VectorStore, stored_texts
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.transformer import variants
from unembed.metrics.vectors import cosine_rows
from unembed.reports.vector_space import TRIED, TRUST

SAME = 0.995  # median cosine of texts with their own vectors, at least, where nothing else changed them
BESIDE = 0.8  # smallest accepted median cosine of true texts with the store's vectors


def read_truths(name: str, store: VectorStore) -> dict[int, Truth]:
    """True texts by position in the store.

    A row names its vector by ``index`` (position, from 0) or ``id`` (the store's); without either, the
    texts are assigned to the vectors in order. ``spans`` and ``language`` of a row are read too.
    """
    file = limits.existing(name, "texts")
    ordered = 0
    places = {one: place for place, one in enumerate(store.ids)}
    truths: dict[int, Truth] = {}
    for line, row in rows(file, "text"):
        where = f"{file}:{line}"
        fields = Fields(spans="spans" if "spans" in row else None, language="language" if "language" in row else None)
        example = fields.example(row, where)
        if example is None:
            continue
        if "index" in row:
            place = row["index"]
            place = int(place) if isinstance(place, str) and place.isdecimal() else place
            if not isinstance(place, int) or not 0 <= place < len(places):
                raise InputError(
                    f"{where}: index {shortened(repr(place))}: the store has the positions 0 to {len(places) - 1}"
                )
        elif "id" in row:
            if (wanted := str(row["id"])) not in places:
                raise InputError(f"{where}: no vector has the id {shortened(wanted)!r}; {did_you_mean(wanted, places)}")
            place = places[wanted]
        else:
            place, ordered = line - 1, line
        if place in truths and place < len(places):
            raise InputError(f"{where}: a second text for the vector {store.ids[place]}")
        truths[place] = Truth(example.text, example.spans, example.language)
    if not truths:
        raise InputError(f"texts={name}: holds no text")
    if ordered and ordered != len(places):
        raise InputError(
            f"texts={name}: {ordered:,} texts in order for {len(places):,} vectors; name the vector of each by "
            "index or id"
        )
    return truths


def stored_truths(texts: str, store: VectorStore, positions: Sequence[int]) -> tuple[dict[int, Truth], list[str]]:
    """The texts that the store holds beside the vectors at these positions; and warnings."""
    wanted = texts.partition(":")[2] or None
    field, known = stored_texts(store, positions, wanted)
    warnings = []
    if wanted is None or len(known) < len(positions):
        warnings.append(
            f"The true texts are those in {field!r} of the store, which {len(known):,} of {len(positions):,} rows have."
        )
    return {place: Truth(text) for place, text in known.items()}, warnings


def check_truths(
    truths: Mapping[int, Truth], sample: Sample, embedder: CachedEmbedder, config: DictConfig, trusted: bool
) -> tuple[dict[int, Truth], list[str]]:
    """The true texts whole or cut like the run's texts, whichever matches the vectors better; and warnings."""
    places = [place for place in sample.positions if place in truths]
    rows_of = {place: row for row, place in enumerate(sample.positions)}
    vectors = sample.vectors[[rows_of[place] for place in places]]
    whole = [Example(0, truths[place].text, truths[place].spans, truths[place].language) for place in places]
    data = config.datamodule
    cutter = Truncation(data.get("max_tokens", 32), data.get("tokenizer", "minilm"))
    cut = list(cutter.cut(whole))
    cosines = {name: _cosines(part, vectors, embedder) for name, part in (("whole", whole), ("cut", cut))}
    # In a tie take the whole text: a text below the limit is the same either way.
    best = max(cosines, key=lambda name: (statistics.median(cosines[name]), name == "whole"))
    median, chosen = statistics.median(cosines[best]), {"whole": whole, "cut": cut}[best]
    other = _made_otherwise(chosen, vectors, embedder, median)
    warnings = [] if other is None else [other]
    if median < BESIDE and other is None:
        low = min(range(len(places)), key=lambda row: cosines[best][row])
        wrong = (
            f"texts: the vectors of these texts have a median cosine of {median:.2f} with those of the store "
            f"({cosines[best][low]:.2f} in row {sample.ids[rows_of[places[low]]]}): other texts, another order, or "
            "another embedder"
        )
        if not trusted:
            raise InputError(wrong + TRUST)
        warnings.append(wrong + ".")
    elif other is None and (strays := sum(cosine < BESIDE / 2 for cosine in cosines[best])):
        warnings.append(f"{strays} of {len(places)} true texts seem to belong to other vectors (cosine below 0.4).")
    if best == "whole" and cutter.cut_texts:
        warnings.append(
            f"{cutter.cut_texts} of {len(places)} texts are longer than the {cutter.max_tokens} tokens that the attack "
            "was trained on: an attacker who trains on longer texts reads more."
        )
    return {
        place: Truth(one.text, one.spans, one.language) for place, one in zip(places, chosen, strict=True)
    }, warnings


def _made_otherwise(
    examples: Sequence[Example], vectors: Tensor, embedder: CachedEmbedder, median: float
) -> str | None:
    """A warning where a variant of an undefended embedder gives vectors clearly nearer to the store's than its own."""
    if median > SAME or embedder.source is not embedder:
        return None
    step = -(-len(examples) // TRIED)
    texts = [one.text for one in examples[::step]]
    medians = {
        one: statistics.median(cosine_rows(one.embedder.embed(texts), vectors[::step]).tolist())
        for one in variants(embedder.embedder, prefixes=True)
    }
    nearest = max(medians, key=lambda one: medians[one], default=None)
    if nearest is None or medians[nearest] <= SAME or 1 - medians[nearest] > (1 - median) / 2:
        return None
    variant = {f"embedder.{nearest.key}": nearest.value}
    remedy = command("train", "embedder=transformer", "embedder.model=<that of the run>", **variant)
    return (
        f"The vectors are those of the texts with the {nearest.key} {nearest.value!r} (median cosine "
        f"{medians[nearest]:.3f}; {median:.3f} as the run's embedder makes them): an attacker who trains on such "
        f"vectors reads more: {remedy}."
    )


def _cosines(examples: Sequence[Example], vectors: Tensor, embedder: CachedEmbedder) -> list[float]:
    found: list[float] = cosine_rows(embedder.embed([one.text for one in examples], "scoring"), vectors).tolist()
    return found
