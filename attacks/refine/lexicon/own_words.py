"""The user's own entries of a lexicon, and which of them an embedder can tell from others.

entries = read_words(Path("staff.txt"))             # ["Zoltan", "Mary Ann", ...]
known = known_words(entries, Path("staff.txt"), embedder)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_warn

from unembed.attacks.refine.lexicon.units import Units
from unembed.core import limits
from unembed.core.errors import InputError, missing, printable
from unembed.embedders.base import Embedder

KEY = "attack.refine.lexicon.path"
_SHOWN, _LONGEST = 3, 40  # entries named in a warning, and characters of each
_AT_ONCE = 4096


def read_words(path: Path, key: str = KEY) -> list[str]:
    """The entries of a file: one a line, of one or several words; empty lines and repeats are left out.

    Raises:
        InputError: The file cannot be read, is no UTF-8, or has no entry.
    """
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
    """The entries that an embedder can represent; a warning counts the others.

    Left out are entries with control characters, entries with more words than the embedder reads, and, if the
    embedder shows its tokenizer, those of unknown characters only.

    Raises:
        InputError: None is left.
    """
    usable = [entry for entry in entries if printable(entry) == entry and len(Units.of(entry)) <= embedder.max_tokens]
    unknown = _unknown(usable, embedder)
    known = [entry for entry in usable if entry not in unknown]
    kept = set(known)
    if not known:
        raise InputError(f"{KEY}={path}: the embedder knows no character of its entries, such as {_named(entries)}")
    _warn(
        [entry for entry in entries if entry not in kept],
        f"of {len(entries):,} entries are left out, since they hold control characters, characters that the embedder "
        "does not know and no others, or more words than it reads",
        path,
    )
    return known


def warn_of_equals(entries: Sequence[str], has: Callable[[str], bool], path: Path) -> None:
    """Warn of entries that a lexicon lacks since the embedder gives them the vector of an earlier entry."""
    distinct = {entry.lower(): entry for entry in reversed(entries)}
    lost = [entry for entry in reversed(distinct.values()) if not has(entry)]
    _warn(lost, f"of {len(entries):,} entries have the vector of another one, which the search writes instead", path)


def _unknown(entries: Sequence[str], embedder: Embedder) -> set[str]:
    """Those whose tokens are all unknown, or that have none."""
    tokenizer = getattr(embedder, "tokenizer", None)
    if tokenizer is None:
        return set()
    found: set[str] = set()
    # Tokenizers know ASCII, except in words of great length; all entries of a long list would take a minute.
    doubtful = [entry for entry in entries if not entry.isascii() or len(entry) > _LONGEST]
    for begin in range(0, len(doubtful), _AT_ONCE):
        block = doubtful[begin : begin + _AT_ONCE]
        ids = tokenizer(block, add_special_tokens=False)["input_ids"]
        found.update(entry for entry, own in zip(block, ids, strict=True) if set(own) <= {tokenizer.unk_token_id})
    return found


def _warn(entries: Sequence[str], reason: str, path: Path) -> None:
    if entries:
        rank_zero_warn(f"{KEY}={path}: {len(entries):,} {reason}: {_named(entries)}")


def _named(entries: Sequence[str]) -> str:
    shown = [f'"{printable(entry[:_LONGEST])}"' for entry in entries[:_SHOWN]]
    return ", ".join(shown) + (", ..." if len(entries) > _SHOWN else "")
