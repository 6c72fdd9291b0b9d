"""How much of a language model's input an attack read back, token by token (Skapars et al. 2025, section 5.1).

    rows = [Inverted(true=(5, 7), found=(5, 9), claimed=False), Inverted(true=(3,), found=(3,), claimed=True, cost=40)]
    token_inversion(rows)           # {"token_exact": 50.0, "token_partial": 66.7, "false_discovery_rate": 0.0, ...}
    exact_by_cost(rows, [10, 100])  # [0.0, 50.0]

All is counted on ids: random tokens do not survive decoding and encoding. An attack *claims* an input where it has run
it through the model and got the output that it was given; a claim may still be wrong, where another input gives that
output too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from metrics.base import Description, ExampleMetric, Ratio, Successes, Values
from metrics.statistics import Floats, Share


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


class TokenExact(Successes[Inverted]):
    """Inputs that came back whole."""

    description = Description(
        "token_exact", "Inputs recovered", "Share of a language model's inputs found token for token."
    )

    def succeeds(self, row: Inverted) -> bool:
        """Every token, in its place, and none more."""
        return row.exact


class TokenPartial(Ratio[Inverted]):
    """Tokens that came back in their places, of all tokens of all inputs."""

    description = Description("token_partial", "Tokens recovered", "Share of the inputs' tokens found in their places.")

    def of_example(self, row: Inverted) -> tuple[int, int]:
        """Of one input."""
        return sum(row.matches), len(row.true)


class Claims(ExampleMetric[Inverted]):
    """How many inputs were claimed."""

    description = Description(
        "claims", "Claims", "Inputs whose output the attack saw to be the given one.", None, "count"
    )

    def statistics(self, rows: Sequence[Inverted]) -> Floats:
        """(n, 1): 1 for a claim."""
        return np.array([[row.claimed] for row in rows], np.float64)

    def combine(self, sums: Floats) -> Floats:
        """The sum."""
        return sums[..., 0]


class FalseDiscovery(Ratio[Inverted]):
    """Claims that are wrong, of all claims (tables 8 and 9)."""

    description = Description(
        "false_discovery_rate", "False discoveries", "Share of the claims that are another input.", "lower"
    )

    def of_example(self, row: Inverted) -> tuple[int, int]:
        """Of one input."""
        return int(row.claimed and not row.exact), int(row.claimed)


class TokenLabelled(Ratio[Inverted]):
    """Labelled tokens that came back in their places (table 10).

    Args:
        label: The label; None for all.
    """

    def __init__(self, label: str | None = None) -> None:
        super().__init__()
        self.label = label
        self.description = Description(
            "token_labelled", "Private tokens", "Share of the tokens of labelled entities found in their places."
        ) if label is None else Description(
            f"token_labelled/{label}",
            f"Private tokens: {label.replace('_', ' ')}",
            "The same share of the tokens of this label.",
            secondary=True,
        )  # fmt: skip

    def of_example(self, row: Inverted) -> tuple[int, int]:
        """Of one input."""
        pairs = zip(row.labels, row.matches, strict=False)
        found = [match for label, match in pairs if label is not None and self.label in (None, label)]
        return sum(found), len(found)


def by_length(rows: Iterable[Inverted]) -> dict[int, list[Inverted]]:
    """The rows of each input length, shortest first."""
    groups: defaultdict[int, list[Inverted]] = defaultdict(list)
    for row in rows:
        groups[len(row.true)].append(row)
    return dict(sorted(groups.items()))


def by_position(rows: Iterable[Inverted]) -> dict[int, list[Share]]:
    """For each input length, how often each place came back, first to last (figure 3)."""
    return {
        length: [Share(sum(row.matches[place] for row in group), len(group)) for place in range(length)]
        for length, group in by_length(rows).items()
    }


def exact_by_cost(rows: Sequence[Inverted], costs: Sequence[float]) -> list[float | None]:
    """Percent of the inputs that had come back whole when each of ``costs`` was spent (figure 2); None of no rows.

    An input whose attack did not count, such as a decoder's, was there from the start.
    """
    counts = [sum(row.exact and (row.cost is None or row.cost <= cost) for row in rows) for cost in costs]
    return [Share(count, len(rows)).rate for count in counts]


def token_inversion(rows: Sequence[Inverted]) -> Values:
    """The metrics of a test set; percentages 0-100, None where a metric is undefined.

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
    exact = TokenExact()
    low, high = exact.interval(exact.statistics(rows), np.empty(0)) or (None, None)
    labels = sorted({label for row in rows for label in row.labels if label is not None})
    labelled = [TokenLabelled(), *map(TokenLabelled, labels)] if labels else []
    metrics: list[ExampleMetric[Inverted]] = [TokenPartial(), Claims(), FalseDiscovery(), *labelled]
    found: Values = {"token_exact": exact.of(rows), "token_exact_low": low, "token_exact_high": high}
    found.update({metric.description.key: metric.of(rows) for metric in metrics})
    lengths = by_length(rows)
    if len(lengths) > 1:
        found.update({f"token_exact/{length}": exact.of(group) for length, group in lengths.items()})
    return found
