"""How well texts of a vector store are told from others, by what was done to its vectors.

    python benchmarks/members.py general.jsonl --rows 5000 --others 10000
    python benchmarks/members.py locks/corpus.jsonl --rows 2500 --others 2000 --pairs 4000 --near 200

Texts are read from a file of JSON lines with ``text`` and embedded by all-MiniLM-L6-v2. The first part is the store,
the next are other texts of the same kind. A row is a condition. The columns are the area under the ROC curve and the
share of members found at 0.1 % false positives, with 95 % bootstrap intervals; the latter by the largest cosine alone;
and of near members, texts of the store with a change. "errors" is the share of other texts above a threshold of 1 %,
which was set on half of them, and on sentences of the built-in corpus. Below the table stands how many threes of texts
are found under a rotation with an unknown key, by their cosines with each other. The last line is JSON.

With ``--pairs`` the conditions are locks at a recall of .90 (docs/locks.md), before and after the attacker maps their
vectors back, as it learned from so many other texts that the service locked.
"""

from __future__ import annotations

import json
import random
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import command_line, read_rows
from torch import Tensor

from unembed.attacks.transfer.aligners import Aligner, Known, LeaveOneOut
from unembed.attacks.transfer.cell_maps import PerCell
from unembed.core.examples import Example
from unembed.datamodules.sources.synthetic import SyntheticCorpus
from unembed.defenses.base import Defense, Fitted
from unembed.defenses.cells import Cells
from unembed.defenses.identity import Identity
from unembed.defenses.noise import Noise
from unembed.defenses.pca import PrincipalComponents
from unembed.defenses.product_quantization import ProductQuantization
from unembed.defenses.rotation import Rotation
from unembed.defenses.sap import SAP
from unembed.defenses.scalar_quantization import ScalarQuantization
from unembed.defenses.truncation import Truncation
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.metrics.membership import Threshold, roc_auc, roc_intervals, true_positive_rate
from unembed.reports.membership import Nearest, nearest

RATE = 0.001
EQUAL = 5e-7  # difference of two cosines that float32 explains


def distinct(path: Path, most: int) -> list[str]:
    """The first distinct texts of a file; case and punctuation make no difference."""
    found: dict[str, str] = {}
    for row in read_rows(path):
        found.setdefault(" ".join(re.findall(r"\w+", row["text"].lower())), row["text"])
        if len(found) == most:
            return [*found.values()]
    raise SystemExit(f"{path}: has {len(found):,} distinct texts, {most:,} are needed")


def near_members(texts: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Kinds of changes with the changed texts; a text that a change leaves as it is stands in none."""
    chance = random.Random(0)
    words = [word for text in texts for word in text.split()]
    names = [word for text in texts for word in re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text)]

    def another_word(text: str) -> str:
        parts = text.split()
        parts[chance.randrange(len(parts))] = chance.choice(words)
        return " ".join(parts)

    def another_name(text: str) -> str:
        return re.sub(r"(?<=[a-z,] )[A-Z][a-z]+", lambda _: chance.choice(names), text, count=1)

    changes: dict[str, Callable[[str], str]] = {
        "lower case": str.lower,
        "no punctuation": lambda text: re.sub(r"[^\w\s]", "", text),
        "a word replaced": another_word,
        "a name replaced": another_name,
        "a sentence more": lambda text: f"{text} {chance.choice(texts)}",
    }
    for name, change in changes.items():
        pairs = [(text, change(text)) for text in texts]
        yield name, [changed for text, changed in pairs if changed != text and changed.strip()]


def stores(vectors: Tensor, texts: Sequence[str], key: Path) -> Iterator[tuple[str, Tensor, Defense]]:
    """Condition, the store's vectors, and what the attacker does to a text's vector before comparing."""
    examples = [Example(place, text) for place, text in enumerate(texts)]

    def defended(defense: Defense) -> Tensor:
        if isinstance(defense, Fitted):
            defense.fit(vectors, examples)
        return defense(vectors, examples, "document")

    plain = Identity()
    yield "clean", vectors, plain
    for level in (0.001, 0.01, 0.03, 0.1, 0.2):
        yield f"noise {level:g}", defended(Noise(level)), plain
    for releases in (4, 16):
        mean = torch.stack([defended(Noise(0.2, seed=seed)) for seed in range(releases)]).mean(dim=0)
        yield f"noise 0.2, {releases} releases averaged", mean, plain
    yield "int8", defended(ScalarQuantization()), plain
    yield "product quantisation, 48 bytes", defended(ProductQuantization()), plain
    yield "product quantisation, 16 bytes", defended(ProductQuantization(subvectors=16)), plain
    for dimensions in (128, 32):
        cut = Truncation(dimensions)
        yield f"first {dimensions} dimensions", defended(cut), cut
    rotation = Rotation(key_file=str(key))
    yield "rotation, key known", defended(rotation), rotation
    yield "rotation, key unknown", defended(rotation), plain


def locks(vectors: Tensor, known: Tensor, key: Path) -> Iterator[tuple[str, Tensor, Defense]]:
    """As ``stores``, of the locks: as they are, if the dimension is the same, and mapped back."""
    linear = LeaveOneOut(whitening=[0.5], widths=[0.15])
    conditions: list[tuple[str, Defense, Aligner]] = [
        ("rotation", Rotation(key_file=str(key)), linear),
        ("sap", SAP(0.7704), linear),
        ("pca, 181 dimensions", PrincipalComponents(181), linear),
        ("16 cells, prefix 32", Cells(key_file=str(key)), PerCell(prefix=32)),
        ("256 cells, prefix 32", Cells(256, key_file=str(key)), PerCell(cells=256, prefix=32)),
    ]
    for name, lock, aligner in conditions:
        if isinstance(lock, Fitted):
            lock.fit(vectors, [])
        roles = ((vectors, "document"), (known, "train"))
        store, victim = (lock(some, [Example(place, "") for place in range(len(some))], role) for some, role in roles)
        if store.shape == vectors.shape:
            yield name, store, Identity()
        found = aligner.fit(Known(*(some.double() for some in (victim, known, store, known))))
        yield f"{name}, mapped back", found.map(store).float(), Identity()


class Pairs:
    """The cosines of all pairs of rows, in ascending order; a rotation does not change them."""

    def __init__(self, store: Tensor) -> None:
        units = torch.nn.functional.normalize(store.double(), dim=1)
        self.cosines = (units @ units.T).numpy()
        ends = np.triu_indices(len(self.cosines), 1)
        order = np.argsort(self.cosines[ends])
        self.ordered, self.one, self.other = self.cosines[ends][order], ends[0][order], ends[1][order]

    def like(self, cosine: float) -> list[tuple[int, int]]:
        """Pairs of rows with this cosine, in both directions."""
        low, high = np.searchsorted(self.ordered, [cosine - EQUAL, cosine + EQUAL])
        found = list(zip(self.one[low:high].tolist(), self.other[low:high].tolist(), strict=True))
        return found + [(b, a) for a, b in found]

    def threes(self, vectors: Tensor) -> list[tuple[int, int, int]]:
        """Rows with the same cosines as three texts, (3, d)."""
        units = torch.nn.functional.normalize(vectors.double(), dim=1)
        wanted = (units @ units.T).numpy()
        thirds: dict[int, list[int]] = {}
        for first, third in self.like(wanted[0, 2]):
            thirds.setdefault(first, []).append(third)
        return [
            (first, second, third)
            for first, second in self.like(wanted[0, 1])
            for third in thirds.get(first, [])
            if third != second and abs(self.cosines[second, third] - wanted[1, 2]) < EQUAL
        ]


def threes_found(pairs: Pairs, texts: Tensor, count: int) -> list[tuple[tuple[int, ...], list[tuple[int, int, int]]]]:
    """Places of ``count`` random threes among the texts, and the rows that are like them."""
    chance = random.Random(0)
    chosen = [tuple(chance.sample(range(len(texts)), 3)) for _ in range(count)]
    return [(places, pairs.threes(texts[list(places)])) for places in chosen]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rows", type=int, default=5000, help="of the store; all of them are candidates")
    parser.add_argument("--others", type=int, default=10_000, help="candidates that are no members")
    parser.add_argument("--near", type=int, default=1000, help="members that are changed, in each of five ways")
    parser.add_argument("--pairs", type=int, default=0, help="other texts that the service locked for the attacker")
    parser.add_argument("--threes", type=int, default=300, help="of texts, looked for under a rotation")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--cache", type=Path, default=None, help="of vectors (default: none that stays)")
    options = parser.parse_args(argv)

    if options.others < 1 / RATE:
        parser.error(f"--others {options.others}: a rate of {RATE:.1%} needs at least {1 / RATE:.0f}")
    texts = distinct(options.texts, options.rows + options.others + options.pairs)
    held, others = texts[: options.rows], texts[options.rows : options.rows + options.others]
    paired = texts[options.rows + options.others :]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_text(secrets.token_hex(16))
        service = CachedEmbedder(MiniLM(), options.cache or Path(folder))
        corpus = [row.text for row in SyntheticCorpus(sentences=1200, valid=10, test=10).load()["train"]]
        near = {name: service.embed(changed) for name, changed in near_members(held[: options.near]) if changed}
        vectors, rest, foreign = (service.embed(some) for some in (held, others, corpus))
        conditions = locks(vectors, service.embed(paired), key) if paired else stores(vectors, held, key)
        service.flush()  # before the folder goes
        kinds = "".join(f"{name:>18}" for name in near)
        print(f"{'store':<34}{'AUC':>28}{'at 0.1 %':>28}{'cosine alone':>14}{kinds}{'errors: own':>14}{'corpus':>8}")
        for name, store, way in conditions:

            def found(some: Tensor, store: Tensor = store, way: Defense = way) -> Nearest:
                marked = [Example(place, "") for place in range(len(some))]
                return nearest(way(some, marked, "hypothesis"), store)

            members, strangers = found(vectors), found(rest)
            inside, outside = members.scores, strangers.scores
            alone = true_positive_rate(members.cosines, strangers.cosines, RATE)
            auc, share = roc_auc(inside, outside), true_positive_rate(inside, outside, RATE)
            intervals = roc_intervals(inside, outside, RATE, options.resamples)
            changed = {kind: true_positive_rate(found(some).scores, outside, RATE) for kind, some in near.items()}
            errors = [
                float((outside[1::2] > Threshold.at(known, 0.01).value).mean())
                for known in (outside[::2], found(foreign).scores)
            ]
            result = {"store": name, "auc": auc, "tpr": share, "alone": alone}
            results.append({**result, "intervals": intervals, "near": changed, "errors": errors})
            ends = [
                f"{one:.4f} ({both.low:.4f} to {both.high:.4f})" if both else "-"
                for one, both in zip((auc, share), intervals, strict=True)
            ]
            print(
                f"{name:<34}{ends[0]:>28}{ends[1]:>28}{alone:>14.3f}"
                + "".join(f"{one:>18.3f}" for one in changed.values())
                + f"{errors[0]:>14.3f}{errors[1]:>8.3f}",
                flush=True,
            )
        pairs = Pairs(Rotation(key_file=str(key))(vectors, [], "document"))
        members_of, others_of = (threes_found(pairs, some, options.threes) for some in (vectors, rest))
        right = sum(rows == [places] for places, rows in members_of)
        wrong = sum(bool(rows) for _, rows in others_of)
    print(f"rotation, key unknown: {right} of {options.threes} threes of members, {wrong} of as many of other texts")
    sizes = {"rows": options.rows, "others": options.others}
    print(json.dumps({**sizes, "results": results, "threes": [right, wrong, options.threes]}))


if __name__ == "__main__":
    main()
