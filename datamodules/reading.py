"""From a source's texts to the examples of each split: in the languages asked for, cut, without repeats, limited.

texts = Languages(train=["de"], test=["fr"]).select(source.load())     # a cross-lingual attack (Chen et al. 2024, 5.2)
splits = read_splits(texts, Truncation(32, "minilm"), {"train": 1000, "valid": None, "test": None})
splits["train"][0].reference
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from unembed.core.errors import InputError, did_you_mean, listed
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow
from unembed.datamodules.sources.base import SPLITS, folded
from unembed.datamodules.truncation import CHUNK, Truncation
from unembed.embedders.cache.shards import ABSENT, KeyIndex, Positions, distinct, text_keys


class Languages:
    """The selected languages of all texts, of training and validation texts, and of test texts; None keeps all."""

    def __init__(
        self, every: Sequence[str] | None = None, train: Sequence[str] | None = None, test: Sequence[str] | None = None
    ) -> None:
        for key, languages in (("languages", every), ("train_languages", train), ("test_languages", test)):
            if languages is not None and not languages:
                raise InputError(f"datamodule.{key}=[] keeps no text; null keeps all languages")
        trained = ("languages", every) if train is None else ("train_languages", train)
        tested = ("languages", every) if test is None else ("test_languages", test)
        self._wanted: dict[Split, tuple[str, Sequence[str] | None]]
        self._wanted = {"train": trained, "valid": trained, "test": tested}

    @property
    def named(self) -> list[str] | None:
        """Every language that is asked for; None where a split takes all."""
        lists = [wanted for _, wanted in self._wanted.values()]
        return None if None in lists else list(dict.fromkeys(one for some in lists for one in some or ()))

    def select(self, texts: Mapping[Split, Sequence[Example]]) -> Mapping[Split, Sequence[Example]]:
        """The examples in the languages asked for, in order."""
        return {split: self._select(split, texts) for split in texts}

    def _select(self, split: Split, texts: Mapping[Split, Sequence[Example]]) -> Sequence[Example]:
        key, wanted = self._wanted[split]
        if wanted is None:
            return texts[split]
        together = (to_arrow(texts.get(other, ())) for other, (name, _) in self._wanted.items() if name == key)
        present = Counter(language for examples in together for language in examples.column("language"))
        for language in wanted:
            if present and language not in present:
                known = sorted(name for name in present if name is not None)
                problem = f"no text is in {language!r}; present: {listed(known)}; {did_you_mean(language, known)}"
                if not known:
                    problem = "no text says which language it is in; datamodule.language_field=<field> names the field"
                raise InputError(f"datamodule.{key}: {problem}")
        examples = to_arrow(texts[split])
        return examples.select(np.flatnonzero([language in wanted for language in examples.column("language")]))


def shared_out(examples: Sequence[Example], limit: int | None) -> ArrowExamples:
    """At most ``limit`` examples, in order: the first ones of each language, about equally many.

    Otherwise, a data set sorted by language would be cut to its first language. If a language has too few examples,
    the others fill up its share.
    """
    stored = to_arrow(examples)
    if limit is None or len(stored) <= limit:
        return stored
    counts = Counter(stored.column("language"))
    shares: dict[str | None, int] = {}
    for place, language in enumerate(sorted(counts, key=lambda name: (counts[name], name or ""))):
        left = limit - sum(shares.values())
        shares[language] = min(counts[language], left // (len(counts) - place))
    chosen = []
    for place, language in enumerate(stored.column("language")):
        if shares[language]:
            shares[language] -= 1
            chosen.append(place)
    return stored.select(np.array(chosen, np.int64))


def read_splits(
    texts: Mapping[Split, Sequence[Example]],
    truncation: Truncation,
    limits: Mapping[Split, int | None],
    *,
    drop_repeated: bool = True,
) -> dict[Split, ArrowExamples]:
    """The examples of every split, numbered by position.

    Args:
        texts: The texts of each split, not truncated.
        truncation: Cuts them to references; texts without a reference are dropped.
        limits: The most examples of each split, the first ones after deduplication (see ``shared_out``); None: all.
        drop_repeated: Drop repeats within a split, and texts of a split that are also in a later one. Between splits,
            case and punctuation are ignored.
    """
    remaining, splits = dict(texts), {}
    held_out = KeyIndex()
    for split in reversed(SPLITS):  # test first: what repeats it is dropped from the others
        cut = to_arrow(e for e in truncation.cut(remaining.pop(split, ())) if e.tokens or (e.text and e.reference))
        examples = cut.select(_new(cut, held_out)) if drop_repeated else cut
        if dropped := len(cut) - len(examples):
            rank_zero_info(f"{split}: {dropped} of {len(cut)} texts dropped, repeats of this or a held-out split")
        if drop_repeated and split != "train":
            keys = text_keys([folded(text) for example in examples for text in _texts(example)])
            held_out.add(keys, np.zeros(len(keys), np.int64))
        splits[split] = shared_out(examples, limits[split])
    sizes = ", ".join(f"{len(splits[split])} {split}" for split in SPLITS)
    rank_zero_info(f"texts: {sizes}; {truncation.cut_texts} were cut to {truncation.max_tokens} tokens")
    if truncation.cut_texts and any(original is not None for original in splits["test"].column("original")):
        rank_zero_warn(
            f"datamodule.max_tokens={truncation.max_tokens}: {truncation.cut_texts} texts were cut, and what was added "
            "to an original may have been cut off again; give more, the same for all evaluations to be compared"
        )
    return splits


def check_attributes(splits: Mapping[Split, ArrowExamples], names: Sequence[str]) -> None:
    """Check that the texts have these labels, and the test texts more than one value of each."""
    if not names:
        return
    known = {name for split in SPLITS for found in splits[split].column("attributes") for name in found or ()}
    test = splits["test"]
    for name in names:
        if name not in known:
            raise InputError(f"datamodule.attributes: no text has {name!r}; {did_you_mean(name, known)}")
        values = {example.attributes[name] for example in test if name in example.attributes}
        if test and len(values) < 2:
            have = f"one value, {values.pop()!r}," if values else "no value"
            raise InputError(
                f"datamodule.attributes: {name!r} has {have} in the {len(test)} test texts, so there is nothing to "
                "tell apart; leave it out, or change the test texts (datamodule.test_fraction, .split_seed, "
                ".limit_test)"
            )


def _new(examples: ArrowExamples, held_out: KeyIndex) -> Positions:
    """Positions of the first example of each reference, without examples whose folded texts are held out.

    References are compared, so that a data set and its lengthened version keep the same examples.
    """
    keys, free = np.empty(len(examples), "S16"), np.ones(len(examples), bool)
    for begin in range(0, len(examples), CHUNK):
        place = slice(begin, begin + CHUNK)
        some = examples[place]
        keys[place] = text_keys([e.reference if e.tokens is None else e.query for e in some])
        if len(held_out):
            owners = np.repeat(np.arange(len(some)), [len(_texts(e)) for e in some])
            repeated = held_out.find(text_keys([folded(text) for e in some for text in _texts(e)])) != ABSENT
            free[begin + owners[repeated]] = False
    places = np.flatnonzero(free)
    return places[distinct(keys[places])]


def _texts(example: Example) -> tuple[str, ...]:
    """The text and its original."""
    return (example.query,) if example.original is None else (example.query, example.original)
