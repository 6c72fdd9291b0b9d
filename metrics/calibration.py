"""Calibration: the probability that a text was recovered, given the cosine of its vector with the target.

    calibration = fit(cosines, words, read, sources=sources)      # of texts whose reference is known
    calibration.probabilities([.3, .95], [12, 7])                 # of two texts without a known reference
    calibration.share([.3, .95], [12, 7])                         # Estimate(value, Interval(low, high))

A logistic regression with a random intercept: log p / (1 - p) = a + b cosine + c log(words) + d [cosine = 1] + u,
where ``words`` is the length of the recovered text and u, normal with standard deviation tau, belongs to the domain:
the same cosine means more in one kind of text than in another. Cosines are rounded to ``DIGITS``, since the last bits
of a vector differ between batch sizes and processors. A cosine of 1 is that of the same words, so these texts have a
term of their own (d) and are never pooled with others.

Coefficients are the mode under weak priors: normal with deviation ``SLOPE`` (Gelman et al. 2008, Annals of Applied
Statistics 2), and one text, half read, at the centre, which is Jeffreys' prior where nothing else is known. For
intervals, their posterior is sampled: a t distribution around the mode, resampled by importance (Rubin 1987), since a
normal one is far too wide where none or all were read.

tau is estimated from the domains of the known texts: each domain is predicted by the others, and the marginal
likelihood of what was read there, integrated over u by Gauss-Hermite quadrature, is taken over a grid with a half
normal prior of deviation ``SPREAD``. An interval is one for a domain that is not among the known ones. Where all known
texts are of one domain tau cannot be estimated. Then the prior is taken, times the square root of 2 (two domains
differ) and by how unlike the texts are: the larger Kolmogorov-Smirnov distance of cosines or lengths, divided by
``UNLIKE``.

The texts of a domain share its u, so many of them tell hardly more of the coefficients than a few. A domain counts by
the inverse of the variance of its mean logit, tau squared plus that of chance (DerSimonian and Laird 1986, Controlled
Clinical Trials 7): its texts are weighted by 1 / (1 + tau^2 i), where i is the information of all its texts, the sum of
p (1 - p). Without this, a domain of long texts with many words would determine the estimate for all others.

Where a text has several things, such as names, k of its n were recovered: ``totals``. Things of one text are recovered
or missed together, so all counts are divided by the dispersion, Pearson's chi-squared by degrees of freedom (McCullagh
and Nelder 1989, section 4.5). A store's texts then count by how many things they have: ``weights``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unembed.metrics.statistics import Floats, Interval

SMALLEST = 10  # texts that a calibration takes
DIGITS = 4  # of a cosine
SAMPLES = 1000  # for an interval
PROPOSED, FREEDOM = 2000, 4  # samples of the t distribution that the posterior is resampled from
SLOPE = 2.5  # deviation of the prior of the coefficients
SPREAD = 1.0  # deviation of the prior of tau, in logits; .2 to 1.2 were measured (docs/audit.md#measured)
UNLIKE = 0.3  # Kolmogorov-Smirnov distance from which a store is as unlike as another domain
TAUS = np.linspace(0, 3, 31)
_PRIOR: Floats = np.exp(-((TAUS / SPREAD) ** 2) / 2)  # of each of TAUS
_PRIOR /= _PRIOR.sum()
ROUNDS = 2  # of tau and the weights of domains, each from the other
_COSINE, _WORDS = (0.6, 0.2), (2.5, 0.8)  # centre and scale, so that the coefficients are of a size
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)


class Estimate(NamedTuple):
    """A share, 0 to 1, and its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Calibration:
    """A map from cosine and length to a probability.

    Attributes:
        coefficients: Of ``_terms``, (4,).
        samples: Of the coefficients, from their posterior, (SAMPLES, 4).
        taus: Probability of each of ``TAUS``.
        domains: Number of domains of the known texts.
        known: Their cosines and the logarithms of their lengths, (2, n).
        dispersion: Things that count as one, 1 where a text is one thing.
    """

    coefficients: Floats
    samples: Floats
    taus: Floats
    domains: int
    known: Floats
    dispersion: float = 1.0

    def probabilities(self, cosines: Sequence[float], words: Sequence[int]) -> Floats:
        """Probability that each text is recovered, (n,), 0 to 1; ``words`` are the lengths of the recovered texts."""
        return _logistic(_terms(cosines, words) @ self.coefficients)

    def unlikeness(self, cosines: Sequence[float], words: Sequence[int]) -> float:
        """The larger Kolmogorov-Smirnov distance, 0 to 1, of cosines or lengths from those of the known texts."""
        from scipy.stats import ks_2samp

        return max(float(ks_2samp(*pair).statistic) for pair in zip(self.known, _plain(cosines, words), strict=True))

    def share(
        self,
        cosines: Sequence[float],
        words: Sequence[int],
        seed: int = 0,
        weights: Sequence[float] | None = None,
    ) -> Estimate:
        """The expected share of what is recovered, given cosines and lengths of the recovered texts.

        Args:
            cosines: Of the texts, (n,).
            words: The lengths of the recovered texts.
            seed: Of the samples.
            weights: Things in each text, more than 0; None: one.

        The value is the mean probability with u = 0. The interval samples coefficients, tau and u, and then which texts
        are read: a binomial of n, of things n divided by the dispersion. The upper end is at least that of the share
        behind so many of n, by Jeffreys' Beta(k + 1/2, n - k + 1/2): where none of few rows is expected to be read,
        more of the store may be.
        """
        if not len(cosines):
            raise ValueError("a share of no texts has no meaning")
        generator = np.random.default_rng(seed)
        tau = generator.choice(TAUS, SAMPLES, p=self.taus / self.taus.sum())
        if self.domains < 2:
            tau = tau * np.sqrt(2) * min(1.0, self.unlikeness(cosines, words) / UNLIKE)
        between = tau * generator.standard_normal(SAMPLES)
        terms = _terms(cosines, words)
        counts = np.ones(len(cosines)) if weights is None else np.asarray(weights, np.float64)
        parts = counts / counts.sum()
        means = np.array(
            [parts @ _logistic(terms @ one + shift) for one, shift in zip(self.samples, between, strict=True)]
        )
        size = max(1, round(counts.sum() / self.dispersion))
        hits = generator.binomial(size, means)
        low = np.quantile(hits / size, 0.025)
        high = max(np.quantile(hits / size, 0.975), np.quantile(generator.beta(hits + 0.5, size - hits + 0.5), 0.975))
        value = float(parts @ self.probabilities(cosines, words))
        return Estimate(value, Interval(min(float(low), value), max(float(high), value)))


def fit(
    cosines: Sequence[float],
    words: Sequence[int],
    read: Sequence[float],
    sources: Sequence[str] | None = None,
    totals: Sequence[float] | None = None,
) -> Calibration:
    """Fit a calibration to texts with known references.

    Args:
        cosines: Of the n recovered texts with the vectors.
        words: Their lengths.
        read: Whether each was recovered; with ``totals`` how many of its things.
        sources: The domain of each; None: one.
        totals: Things in each text, more than 0; None: each text is one.
    """
    if len(cosines) < SMALLEST:
        raise ValueError(f"needs {SMALLEST} texts at least, got {len(cosines)}")
    total = np.ones(len(read)) if totals is None else np.asarray(totals, np.float64)
    hits, terms = np.asarray(read, np.float64), _terms(cosines, words)
    coefficients, covariance = _regression(terms, hits, total)
    dispersion = 1.0
    if totals is not None:
        dispersion = _dispersion(_logistic(terms @ coefficients), hits, total)
        hits, total = hits / dispersion, total / dispersion
        coefficients, covariance = _regression(terms, hits, total, coefficients)
    domain = np.unique(np.zeros(len(read)) if sources is None else np.asarray(sources), return_inverse=True)[1]
    domains = int(domain.max()) + 1
    taus, weights = _PRIOR, np.ones(len(read))
    for _ in range(ROUNDS if domains > 1 else 0):
        taus = _taus(terms, hits, total, coefficients, domain, weights)
        p = _logistic(terms @ coefficients)
        information = np.bincount(domain, total * p * (1 - p))
        weights = 1 / (1 + float(taus @ TAUS) ** 2 * information)[domain]
        coefficients, covariance = _regression(terms, weights * hits, weights * total, coefficients)
    samples = _posterior(terms, weights * hits, weights * total, coefficients, covariance)
    return Calibration(coefficients, samples, taus, domains, _plain(cosines, words), dispersion)


def _taus(
    terms: Floats, hits: Floats, total: Floats, start: Floats, domain: NDArray[np.intp], weights: Floats
) -> Floats:
    """The posterior probability of each of ``TAUS``, each domain predicted by the others."""
    likelihood = np.zeros(len(TAUS))
    for one in range(int(domain.max()) + 1):
        rows = domain == one
        kept = weights[~rows]
        others, _ = _regression(terms[~rows], kept * hits[~rows], kept * total[~rows], start)
        likelihood += _marginal(terms[rows] @ others, hits[rows], total[rows])
    weighted = _PRIOR * np.exp(likelihood - likelihood.max())
    return np.asarray(weighted / weighted.sum(), np.float64)


def _plain(cosines: Sequence[float], words: Sequence[int]) -> Floats:
    rounded = np.minimum(np.round(cosines, DIGITS), 1.0)
    return np.stack([rounded, np.log(np.maximum(words, 1))])


def _terms(cosines: Sequence[float], words: Sequence[int]) -> Floats:
    """The terms of the regression, (n, 4): 1, cosine and log(words) in units of a size, and whether the cosine is 1."""
    cosine, length = _plain(cosines, words)
    parts = [np.ones_like(cosine), (cosine - _COSINE[0]) / _COSINE[1], (length - _WORDS[0]) / _WORDS[1], cosine == 1]
    return np.stack(parts, axis=1).astype(np.float64)


def _logistic(logits: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))), np.float64)


def _regression(terms: Floats, hits: Floats, total: Floats, start: Floats | None = None) -> tuple[Floats, Floats]:
    """Coefficients and covariance by Newton's method."""
    centre = np.zeros((1, terms.shape[1]))
    centre[0, 0] = 1
    terms, hits, total = np.concatenate([terms, centre]), np.append(hits, 0.5), np.append(total, 1.0)
    penalty = np.diag([0.0, *[SLOPE**-2] * (terms.shape[1] - 1)])
    found = np.zeros(terms.shape[1]) if start is None else start.copy()
    for _ in range(100):
        p = _logistic(terms @ found)
        hessian = (terms * (total * p * (1 - p))[:, None]).T @ terms + penalty
        step = np.linalg.solve(hessian, terms.T @ (hits - total * p) - penalty @ found)
        found = found + step / max(1.0, float(np.abs(step).max()) / 2)
        if np.abs(step).max() < 1e-8:
            break
    return found, np.asarray(np.linalg.inv(hessian), np.float64)


def _dispersion(p: Floats, hits: Floats, total: Floats) -> float:
    """How much more than a binomial the counts vary, at least 1."""
    squared = (hits - total * p) ** 2 / (total * p * (1 - p))
    return max(1.0, float(squared.sum()) / max(1, len(p) - 4))


def _posterior(terms: Floats, hits: Floats, total: Floats, mode: Floats, covariance: Floats) -> Floats:
    """Samples of the coefficients, (SAMPLES, 4): a t distribution around the mode, resampled by the posterior."""
    generator = np.random.default_rng(0)
    factor = np.linalg.cholesky(covariance)
    normal = generator.standard_normal((PROPOSED, len(mode)))
    steps = normal / np.sqrt(generator.chisquare(FREEDOM, (PROPOSED, 1)) / FREEDOM)
    proposed = mode + steps @ factor.T
    logits = np.concatenate([terms, np.eye(1, terms.shape[1])]) @ proposed.T
    hits, total = np.append(hits, 0.5), np.append(total, 1.0)
    logs = hits @ logits - total @ np.logaddexp(0, logits) - ((proposed[:, 1:] / SLOPE) ** 2).sum(axis=1) / 2
    logs += (FREEDOM + len(mode)) / 2 * np.log1p((steps**2).sum(axis=1) / FREEDOM)
    weights = np.exp(logs - logs.max())
    chosen: Floats = proposed[generator.choice(PROPOSED, SAMPLES, p=weights / weights.sum())]
    return chosen


def _marginal(logits: Floats, hits: Floats, total: Floats) -> Floats:
    """Log likelihood of a domain's texts for each of ``TAUS``, u integrated out."""
    shifted = logits[:, None, None] + TAUS[:, None] * _NODES  # (n, taus, nodes)
    logs = (hits[:, None, None] * shifted - total[:, None, None] * np.logaddexp(0, shifted)).sum(axis=0)
    largest = logs.max(axis=1, keepdims=True)
    return np.asarray(largest[:, 0] + np.log(np.exp(logs - largest) @ (_WEIGHTS / _WEIGHTS.sum())), np.float64)
