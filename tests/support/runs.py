"""Run directories with a handful of predictions, whose metrics are scored as a test scores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.files import write_lines
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import score

PAIRS = [
    ("my name is ada and i live in paris", "my name is ada and i live in rome"),
    ("i have two dogs and a cat", "i have two cats and a dog"),
    ("what do you do for a living", "what do you do for fun"),
    ("the weather is nice today", "the weather is nice today"),
    ("i love to read old books", "she likes films"),
    ("hello how are you doing", "hello how are you doing"),
] * 5


def write_run(
    path: Path,
    pairs: list[tuple[str, str]] = PAIRS,
    *,
    kind: Any = "sequence",
    attack: str = "geia",
    embedder: str = "minilm",
    parameters: int | None = 1_814_592,
    analyses: dict[str, Any] | None = None,
    baseline: dict[str, Any] | None = None,
    config: str = "",
    metrics: dict[str, Any] | None = None,
) -> Path:
    """A run directory whose metrics are scored as a test scores them."""
    path.mkdir(parents=True)
    scored = [Scored(reference, prediction, kind=kind, cosine=0.5) for reference, prediction in pairs]
    rows = [
        {"index": place, "reference": one.reference, "prediction": one.prediction, "kind": kind, "cosine": 0.5}
        for place, one in enumerate(scored)
    ]
    metrics_found = score(scored) | {"queries": 0, "seconds": 1.5} | (metrics or {})
    choices = f"choices: {{attack: {attack}, embedder: {embedder}, datamodule: synthetic, defense: none}}\n"
    (path / "config.yaml").write_text(choices + config)
    (path / "metrics.json").write_text(json.dumps(metrics_found))
    write_lines(path / "predictions.jsonl", rows)
    if parameters is not None:
        record = {"parameters": parameters, "training": {"seconds": 423.0}}
        (path / "record.json").write_text(json.dumps(record))
    if analyses is not None:
        (path / "analyses.json").write_text(json.dumps(analyses))
    if baseline is not None:
        (path / "baseline.json").write_text(json.dumps(baseline))
    return path
