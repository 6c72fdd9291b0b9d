"""What an audit is computed from: recognisers, masks, calibration, and whether two sets of vectors share a space."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from errors import InputError
from examples import Span
from metrics import calibration, spaces
from reports.audit.masking import masked
from scoring.recognisers import LABELS, Recognisers


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
        ("Ada's card, 4111!", (), "Xxx'x xxxx, 0000!"),
        ("Ada's card is 4111.", (Span(0, 3, "PERSON"), Span(14, 18, "CARD")), "[PERSON]'x xxxx xx [CARD]."),
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


def test_groups_of_neighbours_are_pooled_until_their_shares_rise() -> None:
    # Groups of ten: 1, 0, 6 and 5 of 10 read; the first two and the last two fall, so they are pooled.
    cosines = [number / 40 for number in range(40)]
    read = [False] * 40
    for place in (0, *range(20, 26), *range(30, 35)):
        read[place] = True
    fitted = calibration.fit(cosines, read)
    assert [(group.size, group.read) for group in fitted.groups] == [(20, 1), (20, 11)]
    assert fitted.size == 40
    low, high = 1.5 / 21, 11.5 / 21
    # Between the ends 19/40 and 20/40, the nearer one decides.
    assert fitted.probabilities([-1, 0.48, 0.49, 1]).tolist() == pytest.approx([low, low, high, high])
    estimate = fitted.share([0, 0, 0, 0.9])
    assert estimate.value == pytest.approx((3 * low + high) / 4)
    assert estimate.interval.low < estimate.value < estimate.interval.high


def test_pooling_is_the_isotonic_regression() -> None:
    generator = np.random.default_rng(0)
    cosines = np.sort(generator.choice(9999, 500, replace=False)) / 1e4  # no ties after rounding
    read = generator.random(500) < cosines
    fitted = calibration.fit(cosines.tolist(), read.tolist())
    means = [read[start : start + 10].mean() for start in range(0, 500, 10)]
    expected = optimize.isotonic_regression(means, weights=[10] * 50).x
    places = fitted.places(cosines[::10].tolist())
    assert [fitted.groups[p].read / fitted.groups[p].size for p in places] == pytest.approx(expected.tolist())


def test_equal_cosines_stay_together_and_order_does_not_matter() -> None:
    cosines = [1.0] * 15 + [0.5] * 12 + [0.1] * 3
    read = [True] * 15 + [False] * 15
    fitted = calibration.fit(cosines, read)
    assert [(group.low, group.high, group.size, group.read) for group in fitted.groups] == [
        (0.1, 0.5, 15, 0), (1.0, 1.0, 15, 15),
    ]  # fmt: skip
    assert calibration.fit(cosines[::-1], read[::-1]) == fitted


def test_texts_at_cosine_one_are_a_group_of_their_own_whatever_the_last_bits() -> None:
    """Twenty texts with equal words, all read, and ten near ones of which none was: 20.5 of 21, and .5 of 11."""
    noise = np.random.default_rng(0).uniform(-2e-6, 2e-6, size=40)
    known = [*(1.0 + noise[:20]), *([0.9991] * 10)]
    fitted = calibration.fit(known, [True] * 20 + [False] * 10)
    assert [(group.size, group.read) for group in fitted.groups] == [(10, 0), (20, 20)]
    assert fitted.probabilities(1.0 + noise[20:]) == pytest.approx([20.5 / 21] * 20)
    assert fitted.probabilities([0.9999, 0.9, 0.99994]) == pytest.approx([0.5 / 11] * 3)
    few = calibration.fit([*([0.99] * 12), 1.0, 1.0], [False] * 12 + [True, True])  # two are a group, too
    assert [(group.size, group.read) for group in few.groups] == [(12, 0), (2, 2)]
    falling = calibration.fit([*([0.99] * 12), 1.0, 1.0], [True] * 12 + [True, False])  # unless its probability falls
    assert [(group.size, group.read) for group in falling.groups] == [(14, 13)]
    alone = calibration.fit([1.0 + 1e-7] * 10, [True] * 10)
    assert alone.probabilities([0.3]) == pytest.approx(10.5 / 11)


def test_none_read_still_leaves_room_above_zero() -> None:
    fitted = calibration.fit([0.1] * 100, [False] * 100)
    estimate = fitted.share([0.1] * 500)
    assert 0 <= estimate.interval.low < estimate.value < 0.01 < estimate.interval.high < 0.04


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    held = 0
    for trial in range(60):
        cosines, store = generator.random(300), generator.random(200) * 0.8
        read = generator.random(300) < cosines**3
        estimate = calibration.fit(cosines.tolist(), read.tolist()).share(store.tolist(), seed=trial)
        truth = 0.8**3 / 4  # the mean of x^3 for x uniform up to .8
        held += estimate.interval.low <= truth <= estimate.interval.high
    assert 52 <= held <= 60


def test_what_cannot_be_calibrated() -> None:
    with pytest.raises(ValueError, match="10 at least; got 9 and 9"):
        calibration.fit([0.5] * 9, [True] * 9)
    with pytest.raises(ValueError, match="got 10 and 9"):
        calibration.fit([0.5] * 10, [True] * 9)
    with pytest.raises(ValueError, match="no texts"):
        calibration.fit([0.5] * 10, [True] * 10).share([])


# -- spaces -----------------------------------------------------------------------------------------------------------


def uneven(rows: int, seed: int, axes: Tensor | None = None) -> Tensor:
    """Unit vectors of 32 dimensions, most of whose energy lies in the first few."""
    scales = torch.linspace(3, 0.1, 32) ** 2
    drawn = torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed)) * scales
    return torch.nn.functional.normalize(drawn if axes is None else drawn @ axes, dim=1)


def test_two_samples_of_one_space_and_of_two() -> None:
    axes, _ = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(5)))
    same, other = spaces.compare(uneven(80, 0), 3 * uneven(50, 1)), spaces.compare(uneven(80, 0), uneven(50, 1, axes))
    assert same.likeness == pytest.approx(1, abs=0.15)
    assert abs(other.likeness) < 0.3
    assert (same.norm, same.other_norm, same.ratio) == pytest.approx((1, 3, 3))
    # By hand: all energy of both in the first of two directions that hold anything.
    known = torch.eye(4)[[0, 0, 0, 0]]
    assert spaces.compare(known, torch.eye(4)[[0]]).likeness == pytest.approx(1)
    assert spaces.compare(known, torch.eye(4)[[1]]).likeness == pytest.approx(-0.25 / 0.75)


def test_spaces_that_cannot_be_compared() -> None:
    for known, other in (
        (torch.eye(4), torch.eye(3)),
        (torch.eye(4)[:3], torch.eye(4)),
        (torch.eye(4), torch.eye(4)[:0]),
    ):
        with pytest.raises(ValueError, match="cannot compare"):
            spaces.compare(known, other)
