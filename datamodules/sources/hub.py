"""Named data sets of the Hugging Face hub: each a declaration in configs/datamodule/<name>.yaml, read by the same code.

A conversation of PersonaChat, and the texts that the path ``utterances.-1.history.*`` finds in it:

    {"personality": [...], "utterances": [{"history": ["Hi."], ...}, {"history": ["Hi.", "Hello!"], ...}]}
    "Hi.", "Hello!"

The files of a set are downloaded as they are, so a set that was downloaded once works offline, and the folder's name is
the commit that a revision stood for. They are read here, since ``datasets`` neither takes lists of mixed types nor say
where a mistake is; no code of a data set is run.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from lightning.pytorch.utilities import rank_zero_warn
from pydantic import Field, NonNegativeInt, PositiveInt

from unembed.core.errors import InputError, did_you_mean
from unembed.core.examples import Example, Split
from unembed.datamodules.arrow_examples import ArrowExamples, to_arrow
from unembed.datamodules.sources.base import SPLITS, completed, entity_spans, plain_rows, rows, split_sentences

TABLES = ("*.parquet", "*.jsonl", "*.jsonl.gz", "*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz")
ONE_OBJECT = (".json", ".json.gz")


@dataclass(frozen=True)
class HubSet:
    """Texts of a data set on the hub, of a folder laid out like one, or of files behind a web address.

    Attributes:
        path: ``owner/name`` on the hub, a local folder, or an address ``https://...`` to which the files' names are
            added (``{revision}`` in it is filled in).
        files: Names of each split's files in the repository, with ``*``; .parquet, .jsonl, .csv, .tsv, .json.
        texts: Paths of the texts in a row: keys and positions joined by dots; ``*`` selects every element, and
            ``key!=value`` selects the elements whose ``key`` differs from ``value``.
        sizes: Maximum number of texts of each split. A validation or test split without files is split off the training
            texts with this size, by a hash of the text.
        licence: Licence of the data set, as stated by its owner.
        revision: Branch, tag or commit.
        rows: Where a .json file keeps the rows of each split; left out where it is one list.
        language: ISO 639-1 code of all texts.
        split_seed: Chooses which training texts are cut off.
        attributes: Labels of a row's texts by name, and where in the row their values are.
        fill: Placeholders in the texts that stand for a value, such as ``<mask>``, and where in the row that is.
        spans: Path of the labelled entities of the row's text, of which there is then one a row (see base.Fields).
        plain: Whether the files hold a text a line, whatever they are called; ``texts`` is then ``[text]``.
        one_object: Whether each file is one JSON object or list, whatever it is called.
        conversation: Whether the texts of a row are turns of one conversation: each has those before it as its context.
        sentences: Split texts into sentences, and keep those of at least and at most so many words; None keeps texts.
    """

    path: str
    files: Mapping[Split, Sequence[str]]
    texts: Sequence[str]
    sizes: Mapping[Split, PositiveInt]
    licence: str
    revision: str = "main"
    rows: Mapping[Split, str] = field(default_factory=dict)
    language: str | None = "en"
    split_seed: NonNegativeInt = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, str] = field(default_factory=dict)
    spans: str | None = None
    plain: bool = False
    one_object: bool = False
    conversation: bool = False
    sentences: tuple[PositiveInt, PositiveInt] | None = None

    def __post_init__(self) -> None:
        if self.spans is not None and (len(self.texts) != 1 or self.fill or self.sentences):
            raise ValueError("spans are those of one text a row: give one path in texts, no fill and no sentences")

    def download(self) -> str | None:
        """Download missing files; returns the commit of ``revision``, None for a local folder or a web address."""
        folder = self.folder
        return None if self._is_local or self._is_address else folder.name

    def load(self) -> Mapping[Split, Sequence[Example]]:
        """The texts of each split, uncut, blank ones left out."""
        cut = {split: self.sizes[split] for split in SPLITS if split in self.sizes and split not in self.files}
        splits: dict[Split, ArrowExamples] = {}
        for split in self.files:
            most = self.sizes[split] + (sum(cut.values()) if split == "train" else 0) if split in self.sizes else None
            splits[split] = to_arrow(islice(self._examples(split), most))
            if not splits[split]:
                raise InputError(f"{self._name}: the {split} files {list(self.files[split])} hold no text")
        return completed(splits, cut, self.split_seed)

    def data_files(self) -> list[Path]:
        """The files of all splits, fetched where they are not here."""
        return [file for split in self.files for file in self._split_files(split)]

    def _examples(self, split: Split) -> Iterator[Example]:
        blank = 0
        for file in self._split_files(split):
            for number, row in self._rows(file, split):
                where = f"{file}:{number}"
                labels = {name: value for name, path in self.attributes.items() if (value := _single(row, path, where))}
                fill = {placeholder: _single(row, path, where) for placeholder, path in self.fill.items()}
                turns: list[str] = []
                for path in self.texts:
                    for text in found_at(row, path, where):
                        if not isinstance(text, str):
                            raise InputError(f"{where}: {path} holds {type(text).__name__}, not a text")
                        for placeholder, value in fill.items():
                            text = text.replace(placeholder, value)
                        if not text.strip():
                            blank += 1
                            continue
                        context = "\n".join(turns) if self.conversation and turns else None
                        entities = None if self.spans is None else next(found_at(row, self.spans, where), None)
                        spans = entity_spans(entities, text, where)
                        for part in [text] if self.sentences is None else split_sentences(text, *self.sentences):
                            yield Example(0, part, spans, self.language, labels, context=context)
                        turns.append(text)
        if blank:
            rank_zero_warn(f"{self._name}, {split}: {blank} blank texts skipped")

    def _rows(self, file: Path, split: Split) -> Iterator[tuple[int, Any]]:
        if self.plain:
            return plain_rows(file, "text")
        if not self.one_object and not file.name.endswith(ONE_OBJECT):
            paths = (*self.texts, *self.attributes.values(), *self.fill.values(), *filter(None, [self.spans]))
            return rows(file, "text", {path.partition(".")[0].partition("!=")[0] for path in paths})
        try:
            whole = file.read_bytes()
            content = json.loads(gzip.decompress(whole) if file.suffix == ".gz" else whole)
        except (ValueError, RecursionError, OSError, EOFError, zlib.error) as error:
            raise InputError(f"{file}: not JSON ({error})") from error
        where = f"{self.rows[split]}.*" if split in self.rows else "*"
        return enumerate(found_at(content, where, str(file)), start=1)

    def _split_files(self, split: Split) -> Sequence[Path]:
        """Files of a split, in the order of their names."""
        files = sorted({file for name in self.files[split] for file in self.folder.glob(name)})
        if not files:
            present = [str(file.relative_to(self.folder)) for kind in TABLES for file in self.folder.rglob(kind)]
            wanted = self.files[split][0]
            raise InputError(f"{self._name}: there is no {split} file {wanted}; {did_you_mean(wanted, present[:50])}")
        return files

    @property
    def _name(self) -> str:
        return f"data set {self.path} (revision {self.revision})"

    @property
    def _is_local(self) -> bool:
        return Path(self.path).expanduser().is_dir()

    @property
    def _is_address(self) -> bool:
        return self.path.startswith("https://")

    @cached_property
    def folder(self) -> Path:
        """The folder of the files on this machine; missing files are downloaded."""
        if self._is_local:
            return Path(self.path).expanduser()
        return self._from_address() if self._is_address else self._from_hub()

    def _from_hub(self) -> Path:
        import httpx
        from huggingface_hub import snapshot_download

        patterns = [name for names in self.files.values() for name in names]
        try:
            folder = snapshot_download(self.path, repo_type="dataset", revision=self.revision, allow_patterns=patterns)
        except (OSError, ValueError, httpx.HTTPError) as error:
            raise InputError(self._not_found(error)) from error
        commit = Path(folder).name
        if commit != self.revision:
            rank_zero_warn(f"{self._name} may change; pin what is read now by datamodule.source.revision={commit}")
        return Path(folder)

    def _from_address(self) -> Path:
        import torch

        base = self.path.replace("{revision}", self.revision)
        folder = Path(torch.hub.get_dir()) / "texts" / base.removeprefix("https://")
        names = list(dict.fromkeys(name for names in self.files.values() for name in names))
        for name in (base.removeprefix("https://"), *names):  # a run's configuration may be untrusted
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise InputError(f"{self._name}: {name} leads out of the folder that the files are kept in")
        try:
            for name in names:
                if not (file := folder / name).exists():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    torch.hub.download_url_to_file(f"{base}/{name}", str(file))
        except (OSError, ValueError) as error:
            raise InputError(self._not_found(error)) from error
        return folder

    def _not_found(self, error: Exception) -> str:
        reason = str(error).strip().partition("\n")[0]
        return (
            f"{self._name} is neither on this machine nor to be had ({type(error).__name__}: {reason}); "
            "datamodule=synthetic, and datamodule=files with your own text, work offline"
        )


def _single(row: Any, path: str, where: str) -> str:
    """The first value that a path leads to; empty where there is none."""
    value = next(found_at(row, path, where), None)
    return "" if value is None else str(value)


def found_at(value: Any, path: str, where: str) -> Iterator[Any]:
    """What a path leads to (see HubSet.texts), in order; nothing where a list on the way is empty."""
    if not path:
        yield value
        return
    step, _, rest = path.partition(".")
    key, unequal, unwanted = step.partition("!=")
    if key == "*":
        for element in value.values() if isinstance(value, Mapping) else value or ():
            yield from found_at(element, rest, where)
    elif unequal:
        if str(next(found_at(value, key, where))) != unwanted:
            yield from found_at(value, rest, where)
    elif isinstance(value, Mapping):
        if key not in value:
            raise InputError(f"{where}: no field {key!r}; {did_you_mean(key, map(str, value))}")
        yield from found_at(value[key], rest, where)
    elif isinstance(value, Sequence) and not isinstance(value, str) and key.lstrip("-").isdigit():
        if -len(value) <= int(key) < len(value):
            yield from found_at(value[int(key)], rest, where)
    else:
        raise InputError(f"{where}: {step!r} leads nowhere in {type(value).__name__} {value!r:.40}")


@dataclass(frozen=True)
class LanguageSets(HubSet):
    """The texts of a data set in several languages: ``path``, and the names and paths in ``files`` and ``texts``, may
    hold ``{language}``.

    Attributes:
        languages: ISO 639-1 codes of the languages that are used; ``sizes`` are those in each of them.
    """

    languages: Annotated[Sequence[str], Field(min_length=1)] = field(kw_only=True)

    @cached_property
    def _sets(self) -> list[HubSet]:
        return [self._set(language) for language in self.languages]

    def _set(self, language: str) -> HubSet:
        def filled(names: Sequence[str]) -> list[str]:
            return [name.replace("{language}", language) for name in names]

        own = {one.name: getattr(self, one.name) for one in fields(HubSet)}
        own |= {"files": {split: filled(names) for split, names in self.files.items()}, "texts": filled(self.texts)}
        return HubSet(**own | {"path": filled([self.path])[0], "language": language})

    def only(self, languages: Sequence[str]) -> LanguageSets:
        for language in languages:
            if language not in self.languages:
                raise InputError(
                    f"datamodule.languages: {language!r} is none of datamodule.source.languages "
                    f"({', '.join(self.languages)}); {did_you_mean(language, self.languages)}"
                )
        return replace(self, languages=tuple(languages))

    def download(self) -> str | None:
        """Download the files of all languages; returns their commit, if it is known and the same."""
        commits = {one.download() for one in self._sets}
        return commits.pop() if len(commits) == 1 else None

    def data_files(self) -> list[Path]:
        return [file for one in self._sets for file in one.data_files()]

    def load(self) -> Mapping[Split, Sequence[Example]]:
        loaded = [one.load() for one in self._sets]
        return {
            split: to_arrow(example for texts in loaded for example in texts.get(split, ()))
            for split in SPLITS
            if any(split in texts for texts in loaded)
        }
