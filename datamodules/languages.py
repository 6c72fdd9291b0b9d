"""Selection of languages, the same in all splits or different ones for training and test.

Languages(train=["de"], test=["fr"]).kept(source.load())     # a cross-lingual attack (Chen et al. 2024, section 5.2)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from unembed.core.errors import InputError, did_you_mean, listed
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow
from unembed.datamodules.sources.base import Source


@runtime_checkable
class InLanguages(Protocol):
    """A source that can read selected languages only."""

    def only(self, languages: Sequence[str]) -> Source:
        """The same source with these languages alone.

        Raises:
            InputError: It does not have one of them.
        """
        ...


class Languages:
    """The selected languages.

    Args:
        every: Languages of all texts; None keeps all.
        train: Languages of training and validation texts; None means ``every``.
        test: Languages of test texts; None means ``every``.

    Raises:
        InputError: A list is empty.
    """

    def __init__(
        self,
        every: Sequence[str] | None = None,
        train: Sequence[str] | None = None,
        test: Sequence[str] | None = None,
    ) -> None:
        for key, given in (("languages", every), ("train_languages", train), ("test_languages", test)):
            if given is not None and not given:
                raise InputError(f"datamodule.{key}=[] keeps no text; null keeps all languages")
        trained = ("languages", every) if train is None else ("train_languages", train)
        tested = ("languages", every) if test is None else ("test_languages", test)
        self._wanted: Mapping[Split, tuple[str, Sequence[str] | None]] = {
            "train": trained,
            "valid": trained,
            "test": tested,
        }

    @property
    def named(self) -> list[str] | None:
        """Every language that is asked for; None where a split takes all."""
        lists = [wanted for _, wanted in self._wanted.values()]
        return None if None in lists else list(dict.fromkeys(one for some in lists for one in some or ()))

    def kept(self, found: Mapping[Split, Sequence[Example]]) -> Mapping[Split, Sequence[Example]]:
        """The examples in the languages asked for, in order.

        Raises:
            InputError: No text of the splits that are there is in one of them; names those present.
        """
        return {split: self._kept(split, found) for split in found}

    def _kept(self, split: Split, found: Mapping[Split, Sequence[Example]]) -> Sequence[Example]:
        key, wanted = self._wanted[split]
        if wanted is None:
            return found[split]
        together = (to_arrow(found.get(other, ())) for other, (name, _) in self._wanted.items() if name == key)
        present = Counter(language for examples in together for language in examples.column("language"))
        for language in wanted:
            if present and language not in present:
                known = sorted(name for name in present if name is not None)
                if not known:
                    raise InputError(
                        f"datamodule.{key}=[{listed(wanted)}]: no text says which language it is in; "
                        "datamodule.language_field=<field> names the field that does"
                    )
                raise InputError(
                    f"datamodule.{key}: no text is in {language!r}; present: {listed(known)}; "
                    f"{did_you_mean(language, known)}"
                )
        examples = to_arrow(found[split])
        return examples.select(np.flatnonzero([language in wanted for language in examples.column("language")]))


def shared_out(examples: Sequence[Example], limit: int | None) -> ArrowExamples:
    """At most ``limit`` examples, in order: the first ones of each language, about equally many.

    Otherwise, a data set sorted by language would be cut to its first language. If a language has too few examples,
    the others fill up its share.
    """
    found = to_arrow(examples)
    if limit is None or len(found) <= limit:
        return found
    counts = Counter(found.column("language"))
    shares: dict[str | None, int] = {}
    for place, language in enumerate(sorted(counts, key=lambda name: (counts[name], name or ""))):
        left = limit - sum(shares.values())
        shares[language] = min(counts[language], left // (len(counts) - place))
    chosen = []
    for place, language in enumerate(found.column("language")):
        if shares[language]:
            shares[language] -= 1
            chosen.append(place)
    return found.select(np.array(chosen, np.int64))
