"""Token-level metrics of language model inversion (Skapars et al. 2025, section 5.1).

    rows = [Inverted(true=(5, 7), found=(5, 9), claimed=False), Inverted(true=(3,), found=(3,), claimed=True, cost=40)]
    token_inversion(rows)           # {"token_exact": 50.0, "token_partial": 66.7, "false_discovery_rate": 0.0, ...}
    exact_by_cost(rows, [10, 100])  # [0.0, 50.0]

Everything is counted on token ids, because random tokens change when they are decoded and encoded again. An attack
*claims* an input if it has verified that the input reproduces the given output. A claim is wrong if several inputs give
that output and the claimed one is not the true one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from unembed.metrics.base import Description, ExampleMetric, Mean, Ratio, Successes, Values
from unembed.metrics.statistics import Floats, Share


@dataclass(frozen=True, slots=True)
class Inverted:
    """One input of a language model with an attack's prediction.

    Attributes:
        true: The input's token ids.
        found: The attack's best candidate; may have another length.
        claimed: Whether the attack verified that its candidate reproduces the output.
        cost: Cost of the search until the claim, in iterations or forward passes; None if it was not counted. Only
            used if the attack claimed or found the input.
        labels: Label of each token of ``true``, such as ``city``, or None; empty without labels.
    """

    true: tuple[int, ...]
    found: tuple[int, ...]
    claimed: bool = False
    cost: float | None = None
    labels: tuple[str | None, ...] = ()

    @property
    def exact(self) -> bool:
        return self.found == self.true

    @property
    def matches(self) -> tuple[bool, ...]:
        """For each position of ``true``, whether ``found`` has the same token there."""
        padded = (*self.found, *(None for _ in self.true))
        return tuple(a == b for a, b in zip(self.true, padded, strict=False))


class TokenExact(Successes[Inverted]):
    """Share of inputs that are recovered exactly."""

    description = Description(
        "token_exact", "Inputs recovered", "Share of a language model's inputs found token for token."
    )

    def succeeds(self, row: Inverted) -> bool:
        return row.exact


class TokenPartial(Ratio[Inverted]):
    """Share of tokens that are recovered at their positions, over the tokens of all inputs."""

    description = Description("token_partial", "Tokens recovered", "Share of the inputs' tokens found in their places.")

    def of_example(self, row: Inverted) -> tuple[int, int]:
        return sum(row.matches), len(row.true)


class TokenPartialMean(Mean[Inverted]):
    """Mean over inputs of the share of tokens that are recovered at their positions: the paper's partial matches."""

    description = Description(
        "token_partial_mean",
        "Tokens recovered, mean",
        "The same share of each input, averaged over the inputs.",
        secondary=True,
        reference="Skapars et al. 2025, section 5.1",
    )

    def of_example(self, row: Inverted) -> float:
        return 100 * sum(row.matches) / len(row.true)


class Claimed(Successes[Inverted]):
    """Share of inputs that the attack claims (table 9).

    Args:
        length: Of the inputs of this length; None: of all.
    """

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.description = Description(
            "claimed" if length is None else f"claimed/{length}",
            "Claimed" if length is None else f"Claimed, of {length} tokens",
            "Share of the inputs whose output the attack saw to be the given one.",
            None,
            secondary=True,
            reference="Skapars et al. 2025, table 9",
        )

    def succeeds(self, row: Inverted) -> bool:
        return row.claimed


class Claims(ExampleMetric[Inverted]):
    """Number of claimed inputs."""

    description = Description(
        "claims", "Claims", "Inputs whose output the attack saw to be the given one.", None, "count"
    )

    def statistics(self, rows: Sequence[Inverted]) -> Floats:
        return np.array([[row.claimed] for row in rows], np.float64)

    def combine(self, sums: Floats) -> Floats:
        return sums[..., 0]


class FalseDiscovery(Ratio[Inverted]):
    """Share of wrong claims among all claims (tables 8 and 9)."""

    description = Description(
        "false_discovery_rate", "False discoveries", "Share of the claims that are another input.", "lower"
    )

    def of_example(self, row: Inverted) -> tuple[int, int]:
        return int(row.claimed and not row.exact), int(row.claimed)


class TokenLabelled(Ratio[Inverted]):
    """Share of labelled tokens that are recovered at their positions (table 10).

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
        labels = zip(row.labels, row.matches, strict=False)
        matches = [match for label, match in labels if label is not None and self.label in (None, label)]
        return sum(matches), len(matches)


class TokenUnlabelled(Ratio[Inverted]):
    """Share of the tokens without a label that are recovered at their positions (table 10)."""

    description = Description(
        "token_unlabelled",
        "Other tokens",
        "Share of the tokens of no labelled entity found in their places.",
        secondary=True,
        reference="Skapars et al. 2025, table 10",
    )

    def of_example(self, row: Inverted) -> tuple[int, int]:
        matches = [match for label, match in zip(row.labels, row.matches, strict=False) if label is None]
        return sum(matches), len(matches)


def by_length(rows: Iterable[Inverted]) -> dict[int, list[Inverted]]:
    """The rows of each input length, shortest first."""
    groups: defaultdict[int, list[Inverted]] = defaultdict(list)
    for row in rows:
        groups[len(row.true)].append(row)
    return dict(sorted(groups.items()))


def by_position(rows: Iterable[Inverted]) -> dict[int, list[Share]]:
    """For each input length, how often each position was recovered, first to last (figure 3)."""
    return {
        length: [Share(sum(row.matches[place] for row in group), len(group)) for place in range(length)]
        for length, group in by_length(rows).items()
    }


def exact_by_cost(rows: Sequence[Inverted], costs: Sequence[float]) -> list[float | None]:
    """Percentage of inputs recovered exactly within each of ``costs`` (figure 2); None without rows.

    Inputs without a counted cost, such as a decoder's, have cost 0.
    """
    counts = [sum(row.exact and (row.cost is None or row.cost <= cost) for row in rows) for cost in costs]
    return [Share(count, len(rows)).rate for count in counts]


def token_inversion(rows: Sequence[Inverted]) -> Values:
    """The metrics of a test set; percentages 0-100, None if a metric is undefined.

    Keys: ``token_exact`` with ``token_exact_low`` and ``token_exact_high`` (Wilson, 95 %), ``token_partial``,
    ``token_partial_mean``, ``claims``, ``claimed``, ``false_discovery_rate``; with labelled tokens, ``token_labelled``
    (all labels), ``token_unlabelled`` and ``token_labelled/<label>``; and with several input lengths,
    ``token_exact/<length>`` and ``claimed/<length>`` for each.
    """
    if not rows:
        raise ValueError("there is nothing to score: no rows")
    for place, row in enumerate(rows):
        if row.labels and len(row.labels) != len(row.true):
            raise ValueError(f"row {place}: {len(row.labels)} labels for {len(row.true)} tokens")
    exact, claimed = TokenExact(), Claimed()
    low, high = exact.interval(exact.statistics(rows), np.empty(0)) or (None, None)
    labels = sorted({label for row in rows for label in row.labels if label is not None})
    labelled = [TokenLabelled(), TokenUnlabelled(), *map(TokenLabelled, labels)] if labels else []
    metrics: list[ExampleMetric[Inverted]] = [
        *(TokenPartial(), TokenPartialMean(), Claims(), claimed, FalseDiscovery(), *labelled),
    ]
    values: Values = {"token_exact": exact.of(rows), "token_exact_low": low, "token_exact_high": high}
    values.update({metric.description.key: metric.of(rows) for metric in metrics})
    lengths = by_length(rows)
    for metric in (exact, claimed) if len(lengths) > 1 else ():
        values.update({f"{metric.description.key}/{length}": metric.of(group) for length, group in lengths.items()})
    return values
