"""Personal data recognised by its format, without a model: scoring/tagger=patterns.

    Recognisers().tag(["mail ada@example.org by 3 May 2021"])
    # [(Span(5, 20, "EMAIL"), Span(24, 34, "DATE"))]

Finds mail addresses, web addresses, IBANs, card numbers, IP addresses, dates and phone numbers. Checksums and ranges
(the modulus of an IBAN, the Luhn checksum of a card, the range of an IP address) must be valid: a number recovered with
one wrong digit does not leak that number. Names and places have no fixed format; use a tagger with a model for those.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from datetime import date

from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Span

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?P<month>(?:{'|'.join(_MONTHS)})[a-z]*)\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_WHOLE_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")


def _any(_: str) -> bool:
    return True


def _is_iban(text: str) -> bool:
    """ISO 13616: with the first four characters moved to the end and letters as numbers, the value modulo 97 is 1."""
    characters = re.sub(r"\s", "", text).upper()
    turned = characters[4:] + characters[:4]
    return 15 <= len(turned) <= 34 and int("".join(str(int(c, 36)) for c in turned)) % 97 == 1


def _is_card(text: str) -> bool:
    """Luhn checksum: double every second digit from the right; the sum of all digits is a multiple of 10."""
    digits = [int(c) for c in text if c.isdigit()]
    doubled = [d if place % 2 == 0 else sum(divmod(2 * d, 10)) for place, d in enumerate(reversed(digits))]
    return 13 <= len(digits) <= 19 and any(digits) and sum(doubled) % 10 == 0


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    """Whether a numeric date exists in the calendar, with the month first or second."""
    if (found := _WHOLE_DATE.fullmatch(text)) is not None:
        year, month, day = map(int, found.groups())
        return _exists(year, month, day)
    day, month, year = map(int, re.findall(r"\d+", text))
    return _exists(year, month, day) or _exists(year, day, month)


def _exists(year: int, month: int, day: int) -> bool:
    try:
        date(year if year > 99 else 2000 + year, month, day)
    except ValueError:
        return False
    return True


def _is_phone(text: str) -> bool:
    return 7 <= sum(character.isdigit() for character in text) <= 15


# Kind, pattern, check. A later pattern cannot match inside an earlier match: digits of a card are not a phone number.
_PATTERNS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("EMAIL", r"(?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+", _any),
    ("URL", r"(?<!\w)(?:https?://|www\.)[^\s<>\"']*[^\s<>\"'.,;:!?)\]]", _any),
    ("IBAN", r"(?<!\w)[a-z]{2}\d{2}(?: ?[a-z0-9]{4}){2,7}(?: ?[a-z0-9]{1,3})?(?!\w)", _is_iban),
    ("CARD", r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])", _is_card),
    ("IP", r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7})(?![\w:])", _is_address),
    ("DATE", r"(?<![\w-])\d{4}-\d{1,2}-\d{1,2}(?![\w-])", _is_date),
    ("DATE", r"(?<![\w./])\d{1,2}([./-])\d{1,2}\1(?:\d{4}|\d{2})(?![\w/])", _is_date),
    ("DATE", rf"(?<!\w){_DAY}(?: of)? {_MONTH},? {_YEAR}(?!\w)", _any),
    ("DATE", rf"(?<!\w){_MONTH} {_DAY},? {_YEAR}(?!\w)", _any),
    ("PHONE", r"(?<![\w+.])(?:\+|00)\d{1,3}(?:[ .\-/]?\(?\d{1,4}\)?){2,7}(?!\w)", _is_phone),
    ("PHONE", r"(?<![\w(.-])\(?\d{3}\)?[ .\-/]?\d{3}[ .-]\d{4}(?!\w)", _is_phone),
    ("PHONE", r"(?<![\w(.-])\(?0\d{1,5}\)?[ .\-/]\d{2,5}(?:[ .\-/]?\d{2,5}){0,4}(?!\w)", _is_phone),
    ("PHONE", r"(?<![\w.-])\d{10,11}(?![\w-])", _is_phone),
)
_COMPILED = tuple((label, re.compile(pattern, re.IGNORECASE), check) for label, pattern, check in _PATTERNS)
LABELS = tuple(dict.fromkeys(label for label, _, _ in _PATTERNS))


class Recognisers:
    """A tagger (see unembed.scoring.taggers.Tagger) of EMAIL, URL, IBAN, CARD, IP, DATE and PHONE.

    Args:
        labels: Kinds to find, such as [EMAIL, CARD]; None finds all.

    Raises:
        InputError: An unknown kind.
    """

    def __init__(self, labels: list[str] | None = None) -> None:
        for label in labels or ():
            if label not in LABELS:
                raise InputError(f"scoring.tagger.labels={label}: {did_you_mean(label, LABELS)}")
        self.labels = LABELS if labels is None else tuple(labels)

    def tag(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
        """The entities of each text, in order of their start; none overlaps another."""
        return [self._of(text) for text in texts]

    def _of(self, text: str) -> tuple[Span, ...]:
        spans: list[Span] = []
        taken = bytearray(len(text))
        for label, pattern, check in _COMPILED:
            for match in pattern.finditer(text):
                start, end = match.span()
                if not any(taken[start:end]) and check(match.group()):
                    taken[start:end] = b"\1" * (end - start)
                    spans.append(Span(start, end, label))
        return tuple(sorted((span for span in spans if span.label in self.labels), key=lambda span: span.start))
