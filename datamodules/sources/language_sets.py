"""Named data sets that hold each language in files, folders or columns of its own.

    LanguageSets(["de", "fr"], path="multi30k/dataset", files={"train": ["train.{language}.gz"]}, texts=["text"], ...)

is one HubSet a language, ``{language}`` filled in everywhere, and their texts one language after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import to_arrow
from unembed.datamodules.sources.base import SPLITS
from unembed.datamodules.sources.hub import HubSet

PLACE = "{language}"


class LanguageSets:
    """The texts of a data set in several languages; see HubSet for the arguments that both have.

    Args:
        languages: ISO 639-1 codes of the languages that are used.
        path: Owner and name on the hub, a local folder, or a web address; may hold ``{language}``.
        files: Names of each split's files; may hold ``{language}``.
        texts: Where the texts of a row are; may hold ``{language}``.
        sizes: Use at most the first so many texts of each split, in each language.
        licence: What the set's owner says.
        revision: Branch, tag or commit.
        plain: Whether the files hold a text a line, whatever they are called.
        split_seed: Chooses which training texts are cut off where a split has no files.
    """

    def __init__(
        self,
        languages: Annotated[Sequence[str], Field(min_length=1)],
        path: str,
        files: Mapping[Split, Sequence[str]],
        texts: Sequence[str],
        sizes: Mapping[Split, PositiveInt],
        licence: str,
        revision: str = "main",
        plain: bool = False,
        split_seed: NonNegativeInt = 0,
    ) -> None:
        self.languages, self.path, self.files, self.texts, self.sizes = tuple(languages), path, files, texts, sizes
        self.licence, self.revision, self.plain, self.split_seed = licence, revision, plain, split_seed
        self._sets = {language: self._set(language) for language in self.languages}

    def _set(self, language: str) -> HubSet:
        return HubSet(
            path=self.path.replace(PLACE, language),
            files={split: [name.replace(PLACE, language) for name in names] for split, names in self.files.items()},
            texts=[path.replace(PLACE, language) for path in self.texts],
            sizes=self.sizes,
            licence=self.licence,
            revision=self.revision,
            language=language,
            split_seed=self.split_seed,
            plain=self.plain,
        )

    def only(self, languages: Sequence[str]) -> LanguageSets:
        """See unembed.datamodules.languages.InLanguages."""
        for language in languages:
            if language not in self.languages:
                raise InputError(
                    f"datamodule.languages: {language!r} is none of datamodule.source.languages "
                    f"({', '.join(self.languages)}); {did_you_mean(language, self.languages)}"
                )
        return LanguageSets(
            languages, self.path, self.files, self.texts, self.sizes, self.licence, self.revision, self.plain,
            self.split_seed,
        )  # fmt: skip

    def download(self) -> str | None:
        """Fetch the files of all languages; gives the commit that they are of, where it is known and one.

        Raises:
            InputError: They are neither here nor to be had.
        """
        commits = {found.download() for found in self._sets.values()}
        return commits.pop() if len(commits) == 1 else None

    def data_files(self) -> list[Path]:
        """The files of all languages; see HubSet."""
        return [file for found in self._sets.values() for file in found.data_files()]

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """The texts of each split, uncut.

        Raises:
            InputError: See HubSet.load.
        """
        loaded = [found.load() for found in self._sets.values()]
        return {
            split: to_arrow(example for found in loaded for example in found.get(split, ()))
            for split in SPLITS
            if any(split in found for found in loaded)
        }
