"""How often an audit's estimated interval holds the true share, for stores of domains that the calibration lacks.

    python benchmarks/audit_coverage.py unembed/attackers/minilm
    python benchmarks/audit_coverage.py runs/mine --readable 40 60 80 --stores 200

The run directory has a calibration.jsonl: source, words, cosine, f1 and exact of recovered texts. Stores
are samples of the texts of one source, or of several; the calibration is fitted to all other
sources. Beside it, isotonic regression on the cosine alone with intervals of chance, as audits had before. Prints
a table in Markdown: how often the interval holds the share of the store, its mean width, and the mean error.

A second table has the exposure by class (names, numbers, ...), each source as a store, estimated from the others; a
third one the estimates and true shares of the sources of ``--show``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from measuring import command_line
from scipy.optimize import isotonic_regression

from unembed.audit.estimates import PartEstimator, Parts, Scored, read_scored, was_read
from unembed.audit.exposure import shown_classes
from unembed.audit.results import Reading
from unembed.metrics import calibration

SMALLEST = 20  # texts of a source that a store is sampled from


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--readable", type=float, nargs="+", default=[80.0])
    parser.add_argument("--stores", type=int, default=100, help="stores of each kind")
    parser.add_argument("--size", type=int, default=500, help="rows of a store")
    parser.add_argument("--show", nargs="*", default=[], help="sources whose exposure by class is listed")
    given = parser.parse_args(argv)
    rows = np.empty(len(scored := read_scored(given.run)), dtype=object)
    rows[:] = scored
    sources = np.array([row.source for row in rows])
    large = [source for source in np.unique(sources) if (sources == source).sum() >= SMALLEST]
    generator = np.random.default_rng(0)
    print(f"{len(rows):,} texts of {len(np.unique(sources))} sources; {given.stores} stores of {given.size:,} rows\n")
    print("| readable from | store | share, % | holds it | width | error | before: holds it | width |")
    print("|---|---|---|---|---|---|---|---|")
    for readable in given.readable:
        for count in (1, 2, 5):
            found = []
            for _ in range(given.stores):
                chosen = generator.choice(large, count, replace=False)
                inside = np.isin(sources, chosen)
                weights = generator.dirichlet(np.ones(count))
                parts = (
                    _sampled(generator, np.flatnonzero(sources == source), given.size * weight)
                    for source, weight in zip(chosen, weights, strict=True)
                )
                places = np.concatenate(list(parts))
                found.append(_one(rows[~inside].tolist(), rows[places].tolist(), readable))
            truth, held, width, error, held_before, width_before = np.mean(found, axis=0)
            name = "one source" if count == 1 else f"{count} sources"
            print(
                f"| {readable:g} | {name} | {100 * truth:.1f} | {100 * held:.0f} % | {100 * width:.0f} | "
                f"{100 * error:+.1f} | {100 * held_before:.0f} % | {100 * width_before:.0f} |",
                flush=True,
            )

    _by_class(scored, given.show)


def _by_class(scored: Sequence[Scored], shown: Sequence[str]) -> None:
    """Print how often the interval of a class holds the share of a source, and the sources of ``shown``."""
    counted = [row for row in scored if row.classes is not None]
    print("\n| class | sources | holds it | width | error | true share, % |\n|---|---|---|---|---|---|")
    lines: dict[str, list[str]] = {source: [] for source in shown}
    for name in shown_classes(()):
        found = []
        for source in sorted({row.source for row in counted}):
            store = [row for row in counted if row.source == source]
            total, back = (sum((row.classes or {}).get(name, (0, 0, 0))[part] for row in store) for part in (0, 1))
            if total < SMALLEST:
                continue
            texts = [Reading("word " * row.words, row.cosine) for row in store]
            parts = [Parts(row.classes or {}, {}) for row in store]
            share = PartEstimator(texts, parts, [row for row in counted if row.source != source]).share("classes", name)
            if share is None:
                continue
            truth = back / total
            found.append((share.low <= truth <= share.high, share.high - share.low, share.value - truth, truth))
            if source in shown:
                ends = f"{100 * share.low:.0f}-{100 * share.high:.0f}"
                lines[source].append(f"{name}: {100 * share.value:.1f} ({ends}) / {100 * truth:.1f} of {total:,}")
        if found:
            held, width, error, truth = 100 * np.mean(found, axis=0)
            print(f"| {name} | {len(found)} | {held:.0f} % | {width:.0f} | {error:+.1f} | {truth:.1f} |", flush=True)
    for source, said in lines.items():
        print(f"\n{source}: " + "; ".join(said))


def _sampled(generator: np.random.Generator, places: np.ndarray, size: float) -> np.ndarray:
    """So many of the rows at random, or all of them."""
    return generator.choice(places, min(len(places), max(1, round(size))), replace=False)


def _one(known: Sequence[Scored], store: Sequence[Scored], readable: float) -> tuple[float, ...]:
    """Truth, whether the interval holds it, width and error; holding and width of the isotonic regression."""
    truth = float(np.mean([was_read(row, readable) for row in store]))
    columns = zip(*((row.cosine, row.words, was_read(row, readable), row.source) for row in known), strict=True)
    fitted = calibration.fit(*map(list, columns))
    estimate = fitted.share([row.cosine for row in store], [row.words for row in store])
    low, high = estimate.interval
    plain_low, plain_high = _isotonic(known, store, readable)
    ours = low <= truth <= high, high - low, estimate.value - truth
    return truth, *ours, plain_low <= truth <= plain_high, plain_high - plain_low


def _isotonic(known: Sequence[Scored], store: Sequence[Scored], readable: float) -> tuple[float, float]:
    """The interval of isotonic regression on the cosine: a bootstrap of the known texts and of the store's rows."""
    generator = np.random.default_rng(0)
    order = np.argsort([row.cosine for row in known])
    cosines = np.array([known[place].cosine for place in order])
    read = np.array([was_read(known[place], readable) for place in order], np.float64)
    wanted, shares = np.array([row.cosine for row in store]), []
    for _ in range(100):
        sampled = np.sort(generator.integers(len(read), size=len(read)))
        levels = isotonic_regression(read[sampled]).x
        rows = wanted[generator.integers(len(wanted), size=len(wanted))]
        shares.append(np.interp(rows, cosines[sampled], levels).mean())
    return tuple(np.quantile(shares, [0.025, 0.975]).tolist())


if __name__ == "__main__":
    main()
