"""How much of a language model's input an attack read back, token by token (Skapars et al. 2025, section 5.1).

    rows = [Inverted(true=(5, 7), found=(5, 9), claimed=False), Inverted(true=(3,), found=(3,), claimed=True, cost=40)]
    token_inversion(rows)           # {"token_exact": 50.0, "token_partial": 66.7, "false_discovery_rate": 0.0, ...}
    exact_by_cost(rows, [10, 100])  # [0.0, 50.0]

All is counted on ids: random tokens do not survive decoding and encoding. An attack *claims* an input where it has run
it through the model and got the output that it was given; a claim may still be wrong, where another input gives that
output too. Figures are whole counts divided once, so they do not depend on the order of the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metrics.statistics import wilson

Figures = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Inverted:
    """One input of a language model, and what an attack says that it was.

    Attributes:
        true: The input's token ids.
        found: The attack's best candidate; of another length where it did not know the right one.
        claimed: Whether the attack verified that its candidate gives the output.
        cost: What the search had spent when it claimed, iterations or forward passes; None where it did not count, and
            read only where the attack claimed or found the input.
        labels: What each token of ``true`` belongs to, such as ``city``, or None; empty where nothing is labelled.
    """

    true: tuple[int, ...]
    found: tuple[int, ...]
    claimed: bool = False
    cost: float | None = None
    labels: tuple[str | None, ...] = ()

    @property
    def exact(self) -> bool:
        """Every token, in its place, and none more."""
        return self.found == self.true

    @property
    def matches(self) -> tuple[bool, ...]:
        """For each place of ``true``, whether the same token stands there in ``found``."""
        padded = (*self.found, *(None for _ in self.true))
        return tuple(a == b for a, b in zip(self.true, padded, strict=False))


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole, both counted."""

    part: int
    whole: int

    @property
    def rate(self) -> float | None:
        """0 to 100; None of nothing."""
        return 100 * self.part / self.whole if self.whole else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval, 0 to 100; None of nothing."""
        if not self.whole:
            return None
        low, high = wilson(self.part, self.whole)
        return 100 * low, 100 * high


def exact(rows: Iterable[Inverted]) -> Share:
    """Inputs that came back whole."""
    return _share(row.exact for row in rows)


def partial(rows: Iterable[Inverted]) -> Share:
    """Tokens that came back in their places, of all tokens of all inputs."""
    return _share(match for row in rows for match in row.matches)


def false_discovery(rows: Iterable[Inverted]) -> Share:
    """Claims that are wrong, of all claims (tables 8 and 9)."""
    return _share(not row.exact for row in rows if row.claimed)


def by_length(rows: Iterable[Inverted]) -> dict[int, list[Inverted]]:
    """The rows of each input length, shortest first."""
    groups: defaultdict[int, list[Inverted]] = defaultdict(list)
    for row in rows:
        groups[len(row.true)].append(row)
    return dict(sorted(groups.items()))


def by_position(rows: Iterable[Inverted]) -> dict[int, list[Share]]:
    """For each input length, how often each place came back, first to last (figure 3)."""
    return {
        length: [_share(row.matches[place] for row in group) for place in range(length)]
        for length, group in by_length(rows).items()
    }


def by_label(rows: Iterable[Inverted]) -> dict[str, Share]:
    """Tokens of each label that came back in their places, in alphabetical order (table 10)."""
    found: defaultdict[str, list[bool]] = defaultdict(list)
    for row in rows:
        for label, match in zip(row.labels, row.matches, strict=False):
            if label is not None:
                found[label].append(match)
    return {label: _share(matches) for label, matches in sorted(found.items())}


def exact_by_cost(rows: Sequence[Inverted], costs: Sequence[float]) -> list[float | None]:
    """Percent of the inputs that had come back whole when each of ``costs`` was spent (figure 2); None of no rows.

    An input whose attack did not count, such as a decoder's, was there from the start.
    """
    shares = [_share(row.exact and (row.cost is None or row.cost <= cost) for row in rows) for cost in costs]
    return [share.rate for share in shares]


def token_inversion(rows: Sequence[Inverted]) -> Figures:
    """The figures of a test set; percentages 0-100, None where a figure has no meaning.

    Keys: ``token_exact`` with ``token_exact_low`` and ``token_exact_high`` (Wilson, 95 %), ``token_partial``,
    ``claims`` (how many inputs were claimed), ``false_discovery_rate``; where tokens are labelled ``token_labelled``
    (all labels) and ``token_labelled/<label>``; and ``token_exact/<length>`` for each length where there are several.

    Raises:
        ValueError: No rows, or a row whose labels are not as many as its tokens.
    """
    if not rows:
        raise ValueError("there is nothing to score: no rows")
    for place, row in enumerate(rows):
        if row.labels and len(row.labels) != len(row.true):
            raise ValueError(f"row {place}: {len(row.labels)} labels for {len(row.true)} tokens")
    whole, claims, labels = exact(rows), false_discovery(rows), by_label(rows)
    low, high = whole.interval or (None, None)
    figures: Figures = {
        "token_exact": whole.rate,
        "token_exact_low": low,
        "token_exact_high": high,
        "token_partial": partial(rows).rate,
        "claims": claims.whole,
        "false_discovery_rate": claims.rate,
    }
    if labels:
        every = labels.values()
        figures["token_labelled"] = Share(sum(s.part for s in every), sum(s.whole for s in every)).rate
        figures.update({f"token_labelled/{label}": share.rate for label, share in labels.items()})
    lengths = by_length(rows)
    if len(lengths) > 1:
        figures.update({f"token_exact/{length}": exact(group).rate for length, group in lengths.items()})
    return figures


def _share(hits: Iterable[bool]) -> Share:
    found = list(hits)
    return Share(sum(found), len(found))
