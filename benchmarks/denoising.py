"""How much of noisy vectors is read: by a naive attack, behind a denoiser, and by an attack trained on such vectors.

    python benchmarks/denoising.py personachat.jsonl --run minilm --texts 300 --store 10000
    python benchmarks/denoising.py personachat.jsonl --adaptive 0.03=runs/adaptive --conditions noise=0.03

The file has JSON lines with ``text`` and ``split``. The test texts are attacked; the store holds them and training
texts, all with noise of their own, and nothing else is known to the denoiser. A row is a condition; the columns are the
noise that the store's vectors show, the mean cosine of the attacked vectors with the clean ones before and after, and
word F1 in percent: naive, denoised, their ratio with a 95 % bootstrap interval over the texts, and the adaptive
attack's. With --rerank, the same two with that many proposals, of which the one whose vector is nearest is taken. The
last line is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from measuring import command_line, read_rows
from numpy.typing import NDArray
from torch import Tensor

from unembed import launch
from unembed.core.examples import Example
from unembed.defenses.base import Fitted
from unembed.defenses.denoisers.gaussian import GaussianDenoiser
from unembed.defenses.noise import Noise
from unembed.defenses.product_quantization import ProductQuantization
from unembed.defenses.scalar_quantization import ScalarQuantization
from unembed.metrics.tokens import token_overlap
from unembed.reports.reading import Reader
from unembed.session import Session

RESAMPLES = 2000
NOISE = [f"noise={level}" for level in ("0.001", "0.003", "0.01", "0.03", "0.1")]
CONDITIONS = [*NOISE, "normalized=0.03", "releases=0.03", "releases=0.1", "bits=8", "bits=4", "pq=48"]
RELEASES = 4  # of each vector, with "releases"


def changed(condition: str, vectors: Tensor, texts: Sequence[str], seed: int = 0) -> Tensor:
    """Vectors (n, d) as the store has them."""
    kind, _, value = condition.partition("=")
    examples = [Example(row, text) for row, text in enumerate(texts)]
    if kind in ("noise", "normalized", "releases"):
        noisy = Noise(level=float(value), seed=seed)(vectors, examples, "document")
        return torch.nn.functional.normalize(noisy, dim=1) if kind == "normalized" else noisy
    defense: Fitted = (
        ScalarQuantization(bits=int(value)) if kind == "bits" else ProductQuantization(subvectors=int(value))
    )
    defense.fit(vectors, examples)
    return defense(vectors, examples, "document")


def opened(run: str, *overrides: str) -> tuple[Callable[[Tensor], list[str]], Session]:
    """The attack of a run, from vectors to texts, and its session."""
    settings, config = launch.on_run("invert", [f"run={run}", "vectors=none.npy", *overrides])
    session = Session.open(Path(settings.run), config)
    attack = session.restored_attack(session.oracle, session.dimension)
    reader = Reader(attack, session.oracle, 128)
    return lambda vectors: [prediction.candidates[0] for prediction in reader.read(vectors)], session


def scores(references: Sequence[str], texts: Sequence[str]) -> NDArray[np.float64]:
    """Word F1 of each text, in percent."""
    pairs = zip(references, texts, strict=True)
    return np.array([token_overlap(reference, text).f1 for reference, text in pairs])


def ratio(before: NDArray[np.float64], after: NDArray[np.float64]) -> list[float]:
    """Ratio of the means, and the ends of its interval."""
    rows = np.random.default_rng(0).integers(0, len(before), (RESAMPLES, len(before)))
    low, high = np.quantile(after[rows].mean(axis=1) / before[rows].mean(axis=1), [0.025, 0.975])
    return [after.mean() / before.mean(), low, high]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--run", default="minilm", help="a naive attack")
    parser.add_argument("--texts", type=int, default=300, help="that are attacked")
    parser.add_argument("--store", type=int, default=10_000, help="vectors of the store, these texts' included")
    parser.add_argument("--conditions", nargs="+", default=CONDITIONS, help="for example noise=0.03")
    parser.add_argument("--adaptive", nargs="*", default=[], help="attacks trained on noisy vectors: 0.03=<run>")
    parser.add_argument("--rerank", type=int, default=0, help="proposals, for conditions noise=")
    options = parser.parse_args(argv)
    parts: dict[str, dict[str, None]] = {"test": {}, "train": {}}  # distinct texts, in order
    for row in read_rows(options.data):
        if row["split"] in parts:
            parts[row["split"]][row["text"]] = None
    test = list(parts["test"])[: options.texts]
    texts = list(dict.fromkeys([*test, *parts["train"]]))[: options.store]
    naive, session = opened(options.run)
    clean = session.embedder.embed(texts, "training")
    adaptive = {f"noise={line.partition('=')[0]}": opened(line.partition("=")[2])[0] for line in options.adaptive}
    rerank = ["attack/refine=[rerank]", f"attack.refine.rerank.proposals={options.rerank}"]
    reranked = opened(options.run, *rerank)[0] if options.rerank else None
    print(f"undefended: word F1 {scores(test, naive(clean[: len(test)])).mean():.1f}", flush=True)
    results = []
    for condition in options.conditions:
        store = changed(condition, clean, texts)
        several = condition.startswith("releases")
        again = [changed(condition, clean, texts, number) for number in range(1, RELEASES)] if several else []
        denoiser = GaussianDenoiser(releases=several)
        denoiser.fit(torch.cat([store, *again]))
        noisy, own = store[: len(test)], clean[: len(test)]
        found = denoiser(noisy)
        before, after = scores(test, naive(noisy)), scores(test, naive(found))
        cosines = [torch.cosine_similarity(one, own).mean().item() for one in (noisy, found)]
        result = {
            "condition": condition, "level": denoiser.level, "cosines": cosines, "naive": before.mean(),
            "denoised": after.mean(), "ratio": ratio(before, after),
        }  # fmt: skip
        line = f"{condition:<16}{denoiser.level:>8.4f}{cosines[0]:>8.3f}{cosines[1]:>7.3f}"
        line += f"{before.mean():>7.1f}{after.mean():>7.1f}  {result['ratio'][0]:.2f} ({result['ratio'][1]:.2f}-"
        line += f"{result['ratio'][2]:.2f})"
        if condition in adaptive:
            result["adaptive"] = scores(test, adaptive[condition](noisy)).mean()
            line += f"  adaptive {result['adaptive']:.1f}"
        if reranked is not None and condition.startswith("noise"):
            both = [scores(test, reranked(one)) for one in (noisy, found)]
            result |= {"reranked": [one.mean() for one in both], "reranked_ratio": ratio(before, both[1])}
            line += f"  reranked {both[0].mean():.1f} {both[1].mean():.1f}, "
            line += "{:.2f} ({:.2f}-{:.2f}) of naive".format(*result["reranked_ratio"])
        print(line, flush=True)
        results.append(result)
    print(json.dumps({"run": options.run, "texts": len(test), "store": len(texts), "results": results}))


if __name__ == "__main__":
    main()
