"""A task of Inspect AI (inspect.aisi.org.uk): the samples are vectors, the solver an attack.

    inspect eval unembed/read_back --model none                      # the shipped attacker on its own test texts
    inspect eval unembed/read_back --model none -T attacker=runs/mine -T texts=mine.jsonl -T vectors=mine.npy
    inspect view

The package's entry point makes the task known to Inspect. No language model takes part, so any ``--model`` will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Score, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState, solver

from unembed import Attacker, InputError, load


@task
def read_back(
    attacker: str = "minilm", texts: str | None = None, vectors: str | None = None, max_queries: int = 0
) -> Task:
    """Read texts back from their vectors.

    Args:
        attacker: What ``unembed.load`` opens.
        texts: A .jsonl file with ``text`` and, for the score of entities, ``spans`` a line; None: the texts that the
            attacker was tested on.
        vectors: A file with the vector of each text, such as one from a store; None: the attacker's embedder makes it.
        max_queries: Texts that the attack may have embedded for each vector.
    """
    opened = load(attacker)
    examples = _examples(opened, attacker, texts)
    embedded = opened.embed([text for text, _ in examples]) if vectors is None else opened.rows(vectors)[:].numpy()
    if len(embedded) != len(examples):
        raise InputError(f"vectors={vectors}: {len(embedded):,} vectors for {len(examples):,} texts")
    samples = [
        Sample(
            id=number,
            input=f"vector {number} of {len(examples)}, dimension {len(vector)}",
            target=text,
            metadata={"vector": vector.tolist(), "spans": spans},
        )
        for number, ((text, spans), vector) in enumerate(zip(examples, embedded, strict=True), 1)
    ]
    return Task(dataset=samples, solver=attack(attacker, max_queries), scorer=recovery())


@solver
def attack(attacker: str = "minilm", max_queries: int = 0) -> Callable[..., Any]:
    """Answers a sample with the text that an attack reads from ``metadata["vector"]``."""
    lock = anyio.Lock()  # an attack reads one batch at a time

    async def solve(state: TaskState, generate: object) -> TaskState:
        vector = np.array([state.metadata["vector"]], np.float32)
        async with lock:
            text = (await anyio.to_thread.run_sync(_opened(attacker).invert, vector, max_queries))[0]
        state.output = ModelOutput.from_content(f"unembed/{attacker}", text)
        return state

    return solve


@scorer(metrics={name: [mean(), stderr()] for name in ("word_f1", "exact", "entities")})
def recovery() -> Callable[..., Any]:
    """Word F1, exact match and the share of entities that came back, each 0 to 1; no entities: not scored."""
    from unembed.core.examples import Span
    from unembed.metrics.entities import EntityRecovery
    from unembed.metrics.scored import Scored
    from unembed.metrics.tokens import token_overlap

    async def score(state: TaskState, target: Target) -> Score:
        read, spans = state.output.completion, tuple(Span(*span) for span in state.metadata["spans"])
        recovered, count = EntityRecovery().of_example(Scored(target.text, read, spans))
        value = {
            "word_f1": token_overlap(target.text, read).f1 / 100,
            "exact": float(target.text.strip() == read.strip()),
            "entities": recovered / count if count else math.nan,
        }
        return Score(value=value, answer=read)

    return score


@cache
def _opened(attacker: str) -> Attacker:
    return load(attacker)


def _examples(opened: Attacker, attacker: str, texts: str | None) -> list[tuple[str, list[tuple[int, int, str]]]]:
    """Texts with the entities in them."""
    from unembed.core import limits
    from unembed.datamodules.sources.base import Fields, rows

    if texts is None:
        if not opened.known:
            raise InputError(f"attacker={attacker}: was not tested on texts; give texts=<file>")
        return [(row.reference, row.spans) for row in opened.known]
    file, found = limits.existing(texts, "texts"), []
    for line, row in rows(Path(file), "text"):
        example = Fields(spans="spans" if "spans" in row else None).example(row, f"{file}:{line}")
        if example is not None:
            found.append((example.text, [(span.start, span.end, span.label) for span in example.spans]))
    return found
