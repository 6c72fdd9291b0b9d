"""What an audit is computed from: recognisers, masks, calibration, and whether two sets of vectors share a space."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from unembed.audit.exposure import masked
from unembed.core.errors import InputError
from unembed.core.examples import Span
from unembed.metrics import calibration
from unembed.metrics.spaces import Space
from unembed.scoring.recognisers import LABELS, Recognisers


def found(text: str) -> list[tuple[str, str]]:
    (spans,) = Recognisers().tag([text])
    return [(span.label, text[span.start : span.end]) for span in spans]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail Ada.L+x@mail.example.org, now", [("EMAIL", "Ada.L+x@mail.example.org")]),
        ("see https://example.org/a?b=1). and www.example.com!", [
            ("URL", "https://example.org/a?b=1"), ("URL", "www.example.com")]),
        ("to GB82 WEST 1234 5698 7654 32 or DE89370400440532013000", [
            ("IBAN", "GB82 WEST 1234 5698 7654 32"), ("IBAN", "DE89370400440532013000")]),
        ("GB82 WEST 1234 5698 7654 33", []),
        ("card 4111 1111 1111 1111 and 378282246310005", [
            ("CARD", "4111 1111 1111 1111"), ("CARD", "378282246310005")]),
        ("card 4111 1111 1111 1112", []),
        ("0000000000000000", []),
        ("from 192.168.0.255 and 2001:db8::1", [("IP", "192.168.0.255"), ("IP", "2001:db8::1")]),
        ("version 1.2.3.400, at 12:30", []),
        ("on 2021-02-28, 3/14/2015, 14.3.15, 3 May 2021, March 3rd, 1990", [
            ("DATE", "2021-02-28"), ("DATE", "3/14/2015"), ("DATE", "14.3.15"), ("DATE", "3 May 2021"),
            ("DATE", "March 3rd, 1990")]),
        ("2021-02-30 and 13/14/2015", []),
        ("call +49 (0)30 1234567 or (555) 123-4567, 030 1234567, 5551234567", [
            ("PHONE", "+49 (0)30 1234567"), ("PHONE", "(555) 123-4567"), ("PHONE", "030 1234567"),
            ("PHONE", "5551234567")]),
        ("in 1977 1998 and 12345", []),
        ("", []),
        ("Ada lives in Paris.", []),
    ],
)  # fmt: skip
def test_recognisers(text: str, expected: list[tuple[str, str]]) -> None:
    assert found(text) == expected


def test_recognisers_of_some_kinds() -> None:
    text = "ada@example.org, 4111111111111111"
    assert Recognisers(["CARD"]).tag([text, ""]) == [(Span(17, 33, "CARD"),), ()]
    # A card is no phone number where cards are not asked for either.
    assert Recognisers(["PHONE"]).tag([text]) == [()]
    with pytest.raises(InputError, match=r"scoring\.tagger\.labels=MAIL: did you mean EMAIL\?"):
        Recognisers(["MAIL"])
    assert LABELS == ("EMAIL", "URL", "IBAN", "CARD", "IP", "DATE", "PHONE")


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        ("Ada's card, 4111!", (), "Xxx'x card, 0000!"),
        ("Ada's card is 4111.", (Span(0, 3, "PERSON"), Span(14, 18, "CARD")), "[PERSON]'x card is [CARD]."),
        (
            "I think he\u2019s late. Will you go to Will, in the Good House?",
            (),
            "I think he\u2019s late. Will you go to Xxxx, in the Xxxx Xxxxx?",
        ),
        ("A. Bell, D. M. and a T. saw it. A house.", (), "X. Xxxx, X. X. and a X. saw it. A house."),
        ("my name is ada and I'm a 76-year-old pilot", (), "my name is xxx and I'm a 00-year-old xxxxx"),
        (
            "see the.house@home.now or /is/not or what_is or good.city",
            (),
            "see xxx.xxxxx@xxxx.xxx or /xx/xxx or xxxx_xx or xxxx.xxxx",
        ),
        ("WE LIVE AT THE SEA", (), "WE XXXX XX XXX XXX"),
        ("Ada Bell", (Span(0, 8, "NAME"), Span(4, 8, "LAST")), "[NAME]"),
        ("abcdef", (Span(0, 3, "A"), Span(2, 5, "B")), "[A][B]x"),
        ("Straße\n  Ωmega 北京 ٣ e\u0301", (), "Xxxxxx Xxxxx xx 0 x"),
        ("💊\x1b[31m\u202eab", (), "•[00x•xx".replace("[", "•[", 1)),
        ("", (), ""),
        ("Ada", (Span(5, 9, "X"),), "Xxx"),
    ],
)
def test_masks(text: str, spans: tuple[Span, ...], expected: str) -> None:
    assert masked(text, spans) == expected


def test_no_letter_or_digit_of_any_script_is_left() -> None:
    text = "".join(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x2FA20)]))
    left = {character for character in masked(text) if character.isalnum()}
    assert left == {"X", "x", "0"}


# -- calibration ------------------------------------------------------------------------------------------------------

SLOPE, LENGTH = 8.0, -1.0  # of a cosine and of a word's logarithm


def simulated(
    generator: np.random.Generator, size: int, domains: int, tau: float = 0.0, lowest: float = 0.0
) -> tuple[list[float], list[int], list[bool], list[str]]:
    """Texts of domains whose intercepts have the deviation tau; cosines are uniform, from ``lowest``."""
    cosines = generator.uniform(lowest, 0.99, size)
    words = generator.integers(4, 40, size)
    domain = generator.integers(domains, size=size)
    shifts = tau * generator.standard_normal(domains)
    logits = SLOPE * (cosines - 0.6) + LENGTH * (np.log(words) - 2.5) + shifts[domain]
    read = generator.random(size) < 1 / (1 + np.exp(-logits))
    return cosines.tolist(), words.tolist(), read.tolist(), [f"domain {one}" for one in domain]


def test_things_of_one_text_are_read_together() -> None:
    generator = np.random.default_rng(3)
    cosines, words, read, sources = simulated(generator, 600, 6)
    one = calibration.fit(cosines, words, read, sources)
    # Ten things a text, all read or none, count as one.
    ten = calibration.fit(cosines, words, [10 * hit for hit in read], sources, [10] * 600)
    assert ten.dispersion == pytest.approx(10, rel=0.2)
    store = (cosines[:100], words[:100])
    alone, together = one.share(*store), ten.share(*store, weights=[10] * 100)
    assert together.value == pytest.approx(alone.value, abs=0.01)
    assert together.interval == pytest.approx(alone.interval, abs=0.03)
    # A text with more things counts more.
    weights = [1.0 if cosine < 0.5 else 9.0 for cosine in store[0]]
    assert ten.share(*store, weights=weights).value > together.value


def test_probabilities_are_those_of_the_regression() -> None:
    cosines, words, read, _ = simulated(np.random.default_rng(0), 4000, 1)
    fitted = calibration.fit(cosines, words, read)
    assert fitted.known.shape == (2, 4000)
    for cosine, length in ((0.3, 12), (0.6, 12), (0.6, 30), (0.9, 5)):
        expected = 1 / (1 + np.exp(-SLOPE * (cosine - 0.6) - LENGTH * (np.log(length) - 2.5)))
        assert fitted.probabilities([cosine], [length])[0] == pytest.approx(expected, abs=0.04)
    value = fitted.share([0.3, 0.9], [12, 5]).value
    assert value == pytest.approx(fitted.probabilities([0.3, 0.9], [12, 5]).mean())


def test_order_and_last_bits_do_not_matter() -> None:
    cosines, words, read, _ = simulated(np.random.default_rng(0), 100, 1)
    one = calibration.fit(cosines, words, read)
    other = calibration.fit(cosines[::-1], words[::-1], read[::-1])
    moved = calibration.fit([round(cosine, 4) + 1e-6 for cosine in cosines], words, read)
    for fitted in (other, moved):
        assert fitted.probabilities([0.5], [9]) == pytest.approx(one.probabilities([0.5], [9]), abs=1e-6)


def test_texts_at_cosine_one_are_not_pooled_with_others_whatever_the_last_bits() -> None:
    """Twenty texts with equal words, all read, and thirty near ones of which none was."""
    noise = np.random.default_rng(0).uniform(-2e-6, 2e-6, size=40)
    known = [*(1.0 + noise[:20]), *([0.9991] * 30)]
    fitted = calibration.fit(known, [9] * 50, [True] * 20 + [False] * 30)
    assert min(fitted.probabilities(1.0 + noise[20:], [9] * 20)) > 0.9
    assert max(fitted.probabilities([0.9991, 0.9999, 0.99994], [9] * 3)) < 0.05


@pytest.mark.parametrize("read", [False, True])
def test_none_or_all_read_still_leaves_room(read: bool) -> None:
    generator = np.random.default_rng(0)
    cosines, words = generator.uniform(0.1, 0.5, 100).tolist(), [9] * 100
    estimate = calibration.fit(cosines, words, [read] * 100).share(cosines * 5, words * 5)
    ends = (estimate.interval.low, estimate.value, estimate.interval.high)
    low, value, high = tuple(1 - end for end in reversed(ends)) if read else ends
    assert 0 <= low < value < 0.02 < high < 0.06  # of none of 100, Wilson's interval ends at 3.7 %


def test_the_interval_holds_the_truth_of_a_store_of_the_same_text() -> None:
    generator = np.random.default_rng(1)
    held = 0
    for trial in range(60):
        cosines, words, read, _ = simulated(generator, 200, 1)
        store = simulated(generator, 300, 1)
        interval = calibration.fit(cosines, words, read).share(store[0], store[1], seed=trial).interval
        held += interval.low <= np.mean(store[2]) <= interval.high
    assert held >= 56


def test_the_interval_holds_the_truth_of_a_store_of_an_unseen_domain() -> None:
    """Domains differ by one logit; a calibration that did not know it would hold fewer than half of the shares."""
    generator = np.random.default_rng(2)
    held, blind, widths = 0, 0, []
    for trial in range(40):
        cosines, words, read, sources = simulated(generator, 600, 20, tau=1.0)
        store = simulated(generator, 300, 1, tau=1.0, lowest=0.3)
        fitted = calibration.fit(cosines, words, read, sources)
        assert 0.5 < calibration.TAUS @ fitted.taus < 1.8
        interval = fitted.share(store[0], store[1], seed=trial).interval
        held += interval.low <= np.mean(store[2]) <= interval.high
        widths.append(interval.high - interval.low)
        certain = replace(fitted, taus=np.eye(len(calibration.TAUS))[0])  # tau is 0
        narrow = certain.share(store[0], store[1], seed=trial).interval
        blind += narrow.low <= np.mean(store[2]) <= narrow.high
    assert held >= 37
    assert blind < 20
    assert np.mean(widths) < 0.65


def test_a_domain_with_many_texts_does_not_determine_the_estimate_for_others() -> None:
    """Of nineteen domains about half is read, of a twentieth with twenty times as many texts nearly nothing."""
    generator = np.random.default_rng(5)
    sizes = [*([50] * 19), 1000]
    sources = [f"domain {number}" for number, size in enumerate(sizes) for _ in range(size)]
    cosines = generator.uniform(0.4, 0.8, len(sources)).tolist()
    read = [bool(generator.random() < (0.05 if one == "domain 19" else 0.5)) for one in sources]
    share = calibration.fit(cosines, [9] * len(read), read, sources).share(cosines[:300], [9] * 300)
    assert 0.4 < share.value < 0.55
    assert np.mean(read) < 0.3  # what one weight for all texts would give


def test_domains_that_do_not_differ_widen_little() -> None:
    cosines, words, read, sources = simulated(np.random.default_rng(3), 2000, 20)
    fitted = calibration.fit(cosines, words, read, sources)
    assert fitted.domains == 20
    assert calibration.TAUS @ fitted.taus < 0.25
    assert np.ptp(fitted.share(cosines, words).interval) < 0.1


def test_of_one_domain_a_store_that_is_unlike_has_a_wider_interval() -> None:
    cosines, words, read, _ = simulated(np.random.default_rng(4), 1000, 1)
    fitted = calibration.fit(cosines, words, read)
    middle = [cosine for cosine in cosines if 0.4 < cosine < 0.6]
    same, other = fitted.share(cosines, words).interval, fitted.share(middle, words[: len(middle)]).interval
    assert fitted.unlikeness(cosines, words) == 0
    assert fitted.unlikeness(middle, words[: len(middle)]) > 0.35
    assert np.ptp(same) < 0.1
    assert np.ptp(other) > 0.4


def test_few_rows_of_which_none_is_expected_to_be_read_do_not_look_safe() -> None:
    generator = np.random.default_rng(7)
    cosines = generator.uniform(0.05, 0.95, 4000).tolist()
    fitted = calibration.fit(cosines, [9] * 4000, [cosine > 0.8 for cosine in cosines])
    few, many = (fitted.share([0.1] * size, [9] * size) for size in (40, 4000))
    assert few.value < 0.001
    assert few.interval.low == 0
    # Jeffreys' interval of 0 in 40: the .975 quantile of Beta(.5, 40.5) is .0608.
    assert 0.05 < few.interval.high < 0.09
    assert many.interval.high < 0.005


def test_what_cannot_be_calibrated() -> None:
    with pytest.raises(ValueError, match=r"needs 10 texts at least, got 9"):
        calibration.fit([0.5] * 9, [3] * 9, [True] * 9)
    with pytest.raises(ValueError, match="could not be broadcast"):
        calibration.fit([0.5] * 10, [3] * 10, [True] * 9)
    with pytest.raises(ValueError, match="no texts"):
        calibration.fit([0.5] * 10, [3] * 10, [True] * 10).share([], [])


# -- spaces -----------------------------------------------------------------------------------------------------------


def uneven(rows: int, seed: int, axes: Tensor | None = None) -> Tensor:
    """Unit vectors of 32 dimensions, most of whose energy lies in the first few."""
    scales = torch.linspace(3, 0.1, 32) ** 2
    drawn = torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed)) * scales
    return torch.nn.functional.normalize(drawn if axes is None else drawn @ axes, dim=1)


def test_two_samples_of_one_space_and_of_two() -> None:
    axes, _ = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(5)))
    space = Space.of(uneven(80, 0))
    assert space.likeness(3 * uneven(50, 1)) == pytest.approx(1, abs=0.15)
    assert abs(space.likeness(uneven(50, 1, axes))) < 0.3
    assert (space.norm.item(), Space.of(3 * uneven(50, 1)).norm.item()) == pytest.approx((1, 3))
    assert space.foreign(uneven(50, 1)) is space.noise(uneven(50, 1)) is None  # of 80 vectors, no direction is quiet
    # By hand: all energy of both in the first of two directions that hold anything.
    known = Space.of(torch.eye(4)[[0, 0, 0, 0]])
    assert known.likeness(torch.eye(4)[[0]]) == pytest.approx(1)
    assert known.likeness(torch.eye(4)[[1]]) == pytest.approx(-0.25 / 0.75)


def test_quiet_directions_tell_spaces_apart_whatever_the_texts() -> None:
    axes, _ = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(5)))
    space = Space.restored(Space.of(uneven(2000, 0)).tensors())
    topic = torch.nn.functional.normalize(uneven(50, 1) + torch.eye(32)[12], dim=1)  # texts that are all alike
    assert space.likeness(topic) < 0.5
    assert space.foreign(topic) == pytest.approx(0, abs=0.01)
    assert space.foreign(uneven(50, 1, axes)) == pytest.approx(1, abs=0.8)
    for level in (0.01, 0.1):
        noisy = uneven(500, 1) + level * torch.randn(500, 32, generator=torch.Generator().manual_seed(2))
        assert space.noise(noisy) == pytest.approx(level, rel=0.2)
    assert space.first(uneven(50, 1)[:, :16]) == pytest.approx(1, abs=0.2)
    assert space.first(uneven(50, 1)[:, :16].flip(1)) < 0.3


def test_spaces_that_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="cannot describe a space by 3 vectors"):
        Space.of(torch.eye(4)[:3])
    space = Space.of(torch.eye(4))
    for other in (torch.eye(3), torch.eye(4)[:0]):
        with pytest.raises(ValueError, match="cannot compare"):
            space.likeness(other)
    with pytest.raises(ValueError, match="no part of dimension 4"):
        space.first(torch.eye(4))
    with pytest.raises(ValueError, match="no space has tensors of the shapes"):
        Space.restored({**space.tensors(), "mean": torch.zeros(3)})
