"""Titles and explanations of metrics, a summary sentence of a run, and the warnings above it."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from unembed.metrics.entities import EntityRecovery
from unembed.metrics.scored import Description
from unembed.metrics.scoring import BY_LENGTH, text_metrics
from unembed.metrics.token_inversion import (
    Claimed,
    Claims,
    FalseDiscovery,
    TokenExact,
    TokenLabelled,
    TokenPartial,
    TokenPartialMean,
    TokenUnlabelled,
)
from unembed.reports.numbers import in_words, number, signed

MEASURES = (
    *(metric.description for metric in text_metrics(lexicon=True)),
    *(kind.description for kind in (TokenExact, TokenPartial, TokenPartialMean)),
    Description("token_exact_low", "Inputs recovered, from", "Lower end of the share's 95 % interval.", secondary=True),
    Description("token_exact_high", "Inputs recovered, to", "Upper end of the share's 95 % interval.", secondary=True),
    *(metric.description for metric in (TokenLabelled(), TokenUnlabelled(), Claims(), Claimed(), FalseDiscovery())),
    Description("examples", "Examples", "Texts attacked.", None, "count"),
    Description("queries", "Queries", "Distinct texts that the attack asked the embedder for.", None, "count"),
    Description("queries_per_target", "Queries a text", "The same, divided by the texts attacked.", None, "score"),
    Description("partial", "Cut short", "Texts whose search ended at a limit of queries.", None, "count"),
    Description("partial_reason", "Why cut short", "What the embedder said.", None, "other", secondary=True),
    Description("seconds", "Time", "Time spent on these texts, training apart.", None, "seconds"),
)
_BY_KEY = {measure.key: measure for measure in MEASURES}
_BY_LABEL = "entity_recovery/"
_TRANSLATED = "translated/"
_OF_LENGTH, _CLAIMED_OF_LENGTH, _OF_LABEL = "token_exact/", "claimed/", "token_labelled/"


# Descriptions of the user's own metrics in the run that is shown.
_own: contextvars.ContextVar[tuple[Description, ...]] = contextvars.ContextVar("own", default=())


@contextmanager
def knowing(described: Sequence[Description]) -> Iterator[None]:
    """Inside, the user's own metrics have their titles and units too."""
    token = _own.set(tuple(described))
    try:
        yield
    finally:
        _own.reset(token)


def own_keys() -> list[str]:
    """Keys of the user's own metrics."""
    return [one.key for one in _own.get()]


def measure(key: str) -> Description:
    """The description of a metric; an unknown key gets its own name and no explanation."""
    if key.startswith(_BY_LABEL):
        return EntityRecovery(key.removeprefix(_BY_LABEL)).description
    if key.startswith(_OF_LENGTH):
        title = f"Inputs recovered, of {key.removeprefix(_OF_LENGTH)} tokens"
        return Description(key, title, "The same share of the inputs of this length.", secondary=True)
    if key.startswith(_CLAIMED_OF_LENGTH) and (length := key.removeprefix(_CLAIMED_OF_LENGTH)).isdigit():
        return Claimed(int(length)).description
    if key.startswith(_OF_LABEL):
        return TokenLabelled(key.removeprefix(_OF_LABEL)).description
    if key.startswith(_TRANSLATED) and (base := measure(key.removeprefix(_TRANSLATED))).explanation:
        said = "The same, of predictions translated into the texts' language."
        return replace(base, key=key, title=f"{base.title}, translated", explanation=said)
    if key.startswith(BY_LENGTH) and (base := measure(key.split("/")[1])).explanation:
        length = key.rpartition("/")[2]
        title = f"{base.title}, {f'up to {length} tokens' if length.isdigit() else 'longer texts'}"
        return replace(base, key=key, title=title, explanation="The same, of the texts of this length.")
    known = {**_BY_KEY, **{one.key: one for one in _own.get()}}
    return known.get(key) or Description(key, key.replace("_", " "), "", None, "other")


def ordered(keys: Mapping[str, object]) -> list[Description]:
    """The descriptions of ``keys``: known ones in the order of ``MEASURES``, then the others in the given order."""
    known = [one for one in MEASURES if one.key in keys]
    return known + [measure(key) for key in keys if key not in _BY_KEY]


def difference(one: Description, mine: float | None, other: float | None) -> str:
    """``mine - other`` with its sign; empty if a difference is meaningless."""
    if mine is None or other is None or one.more is None:
        return ""
    return signed(one.kind, mine - other)


def verdict(metrics: Mapping[str, object], baseline: Mapping[str, object] | None, texts: int) -> str:
    """A summary sentence, and a second one on the nearest neighbour.

    ``texts`` is the number of predictions. Null metrics are not mentioned. The sentence does not claim that the texts
    were unseen in training, which a run directory does not tell.
    """
    exact, recall, entities = (number(metrics, key) for key in ("exact_match", "token_recall", "entity_recovery"))
    clauses = []
    if exact is not None:
        clauses.append(f"{in_words(exact)} came back exactly")
    if recall is not None and not (exact == 100 and recall == 100):
        words = {"none": "no word of any text", "all": "every word of every text"}.get(
            in_words(recall), f"on average {in_words(recall)} of a text's words"
        )
        clauses.append(f"{words} {'was' if recall <= 0 or recall >= 100 else 'were'} recovered")
    if entities is not None:
        clauses.append(f"{in_words(entities)} of the labelled names, places and other entities were read")
    count = f"{texts:,} test text{'s' if texts != 1 else ''}"
    if not clauses:
        return f"{count} {'were' if texts != 1 else 'was'} attacked; no metric of this run counts whole texts or words."
    last = f", and {clauses[-1]}" if len(clauses) > 2 else f"; {clauses[-1]}" if len(clauses) == 2 else ""
    first = ", ".join(clauses[:-1]) if len(clauses) > 1 else clauses[0]
    return f"Of {count}, {first}{last}.{_neighbour(baseline, exact, recall)}"


def _neighbour(baseline: Mapping[str, object] | None, exact: float | None, recall: float | None) -> str:
    """The nearest neighbour's values of the run's own metrics."""
    parts = []
    their_exact, their_recall = number(baseline, "exact_match"), number(baseline, "token_recall")
    if exact is not None and their_exact is not None:
        texts = {"none": "no text", "all": "every text"}.get(in_words(their_exact), in_words(their_exact))
        parts.append(f"{texts} exactly")
    if recall is not None and their_recall is not None:
        parts.append(f"{in_words(their_recall)} of the words")
    return f" Merely looking up the nearest training text gives {' and '.join(parts)}." if parts else ""


def partial(metrics: Mapping[str, object]) -> str | None:
    """A warning that a query limit cut the test short, and how to resume it; else None."""
    reason, count = metrics.get("partial_reason"), number(metrics, "partial")
    if reason is None or count is None:
        return None
    return (
        f"CUT SHORT: the search for {count:,.0f} of the texts ended early, and their best until then counts. {reason}. "
        "The same command with the directory of these results (evaluate.py output_dir=<dir>, or train.py run_dir=<dir> "
        "ckpt_path=last) and a higher limit resumes it."
    )


def below_baseline(
    metrics: Mapping[str, object], baseline: Mapping[str, object] | None, *, trained: bool = True
) -> str | None:
    """A warning that the nearest training text scores higher than the attack; else None.

    Compared by BLEU, or by word F1 for sets of words. Advice on training is given if the attack was ``trained``.
    """
    for key, name in (("bleu", "BLEU"), ("token_f1", "word F1")):
        ours, theirs = number(metrics, key), number(baseline, key)
        if ours is None or theirs is None:
            continue
        if ours >= theirs:
            return None
        advice = ": train it longer (trainer.max_steps), on more text, or on text more like the test texts"
        return (
            f"This attack reads less than a lookup of the nearest training text ({name} {ours:.1f} against "
            f"{theirs:.1f}), so its metrics say little about what the vectors disclose{advice if trained else ''}."
        )
    return None
