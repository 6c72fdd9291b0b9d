"""Base of attacks on vectors of another space: a map into the attacker's own, then a trained decoder of that space.

victim vector --map--> vector in the attacker's own space --decoder of attack.source_run--> text

A subclass writes the maps in ``prepare``; the first one, ``start``, is from the victim's space to the own one.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from hydra.utils import instantiate
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from omegaconf import DictConfig
from pydantic import PositiveInt
from torch import Tensor

from unembed.attacks.finished import COPY, KEY, FrozenDecoder
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.parts.writing import Writer
from unembed.attacks.refine.lexicon.refiner import SURROGATES
from unembed.attacks.refine.refining import FOLDER
from unembed.attacks.transfer.aligners import Known, Map, read_maps, write_maps
from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.core.limits import existing
from unembed.datamodules.inversion import training_data
from unembed.datamodules.sources.base import folded, rows
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.runs.config_file import read_config
from unembed.runs.layout import ARTIFACTS
from unembed.runs.stored_attack import check_directory, check_embedder
from unembed.runs.trust import check_trusted

MAPS, ABOUT = "alignment.safetensors", "alignment.json"  # among the artifacts
START = "start"


class Aligned(FrozenDecoder):
    """A trained decoder behind a map; its run keeps a copy of the decoder's run and the maps."""

    exportable = False

    def __init__(self, cache_dir: str, public_file: str | None = None, **frozen: Any) -> None:
        super().__init__(**frozen)
        self.cache_dir, self.public_file = Path(cache_dir), public_file
        self._maps: dict[str, Map] = {}

    @property
    def decoded(self) -> int:
        return self.refiners.proposals

    def source(self) -> CachedEmbedder:
        """The attacker's own encoder, that of the decoder's run."""
        check_directory(self.source_run, KEY)
        self.check_kind()
        encoder = self.encoder_of(self._config())
        check_embedder(self.source_run, KEY, encoder.fingerprint, encoder.dimension)
        return encoder

    def encoder_of(self, config: DictConfig) -> CachedEmbedder:
        """The embedder of a run's configuration, which is trusted, with the attacker's cache."""
        return CachedEmbedder(instantiate(config.embedder, _convert_="all"), self.cache_dir)

    def public_texts(self, most: int) -> list[str]:
        """Texts that the attacker knows anyway, at most so many: of ``public_file``, or of the decoder's training."""
        if self.public_file is not None:
            read = rows(existing(self.public_file, "attack.public_file"), "text", ["text"])
            return [str(row["text"]) for _, row in islice(read, most)]
        remedy = "give other texts that the attacker knows: attack.public_file=<file with a field text>"
        try:
            texts = training_data(self.source_run, self._config(), None).examples("train").texts
        except InputError as error:
            raise InputError(f"{KEY}={self.source_run}: its training text cannot be read: {error}; {remedy}") from error
        if len(texts) < 2:
            raise InputError(f"{KEY}={self.source_run}: has no training text; {remedy}")
        tests = {folded(text) for text in self.data.examples("test").texts}
        if shared := len(tests.intersection(map(folded, texts))):
            rank_zero_warn(
                f"{KEY}={self.source_run}: {shared} of {len(tests)} test texts are among its training texts, so its "
                "decoder has seen them: the metrics say little of other texts"
            )
        return list(texts[:most])

    def _config(self) -> DictConfig:
        config = read_config(self.source_run)
        check_trusted(config, self.source_run)
        return config

    def _leads_home(self, oracle: CachedEmbedder | None) -> bool:
        """Whether the map leads to the space of ``oracle``: the decoder's own embedder is the victim's, undefended."""
        path = self.artifacts / ABOUT
        own = read_json(path).get("encoder") if path.is_file() else self.source().fingerprint
        return oracle is not None and oracle.source is oracle and oracle.fingerprint == own

    def check_refining(self, dimension: int, oracle: CachedEmbedder | None) -> None:
        """Where the map leads home, refiners compare texts in the decoder's own space, and the decoder writes them."""
        if self.refiners.named and oracle is not None and self._leads_home(oracle):
            self.refiners.check(oracle.dimension, oracle, Writer(lambda: self.decoder))
        else:
            super().check_refining(dimension, oracle)

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Proposed, then refined; where the map undoes a defense, texts are compared with the mapped targets."""
        if not self.refiners.named or not self._leads_home(oracle):
            return super().invert(targets, oracle)
        self.check_refining(targets.vectors.shape[1], oracle)
        mapped = replace(targets, vectors=self._maps[START](targets.vectors).to(targets.vectors))
        return self.refiners.refine(mapped, self.propose(targets, oracle), oracle)

    def check_other_space(self, encoder: CachedEmbedder, defended: bool = False) -> None:
        """Warn where the attacker's own encoder is the victim's embedder, and no defense has changed its space."""
        if not defended and self.oracle is not None and self.oracle.source.fingerprint == encoder.fingerprint:
            rank_zero_warn(
                f"{KEY}={self.source_run}: its encoder is the victim's embedder itself, so there is nothing to map"
            )

    def setup(self, stage: str) -> None:
        """Maps are fitted to the victim's vectors of the training texts, which are embedded first."""
        if not self.from_checkpoint:
            self.data.embed("train")
            self.data.fit_defense()
        super().setup(stage)

    def write(self, artifacts: Path, maps: Mapping[str, Map], about: Mapping[str, Any], fitted: str) -> None:
        """Write what ``prepare`` makes: a copy of the decoder's run, the maps, and at last what is ``about`` them."""
        (artifacts / ABOUT).unlink(missing_ok=True)  # a kill in between would leave it beside another map
        super().prepare((), artifacts)
        write_maps(artifacts / MAPS, maps)
        write_json(artifacts / ABOUT, about)
        for surrogate in self.surrogates(artifacts) if self._leads_home(self.oracle) else ():
            own = artifacts / FOLDER / surrogate.parent.name
            own.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(surrogate, own / surrogate.name)
        numbers = (f"{name} {value:.4g}" for name, value in about.items() if not isinstance(value, str))
        rank_zero_info(f"{fitted}: {', '.join(numbers)}")

    def surrogates(self, artifacts: Path) -> list[Path]:
        """The files of the surrogates that the copied run has for its refiners."""
        return sorted((artifacts / COPY / ARTIFACTS / FOLDER).glob(f"*/{SURROGATES}"))

    def build(self, dimension: int) -> None:
        path = self.artifacts / MAPS
        self._maps = read_maps(path)
        fitted, own = self._maps[START].dimensions
        if fitted != dimension:
            raise InputError(f"{path}: maps vectors of dimension {fitted}, and these have {dimension}")
        self.load_decoder(own, self.decoded)

    def all_weights(self) -> dict[str, Tensor]:
        maps = {f"{name}.{part}": one for name, fitted in self._maps.items() for part, one in asdict(fitted).items()}
        return super().all_weights() | maps


class Paired(Aligned):
    """Base of those that know some texts and their vectors in the victim's space: the training texts.

    Attributes:
        option: The name of the attack's option.
    """

    option: ClassVar[str]

    def __init__(self, public: PositiveInt, **aligned: Any) -> None:
        super().__init__(**aligned)
        self.public = public

    def check_inputs(self) -> None:
        self.check_other_space(self.source(), defended=not isinstance(self.data.defense, Identity))
        if not self.data.examples("train"):
            raise InputError(
                f"attack={self.option} needs known texts with their vectors, and there is no training "
                "text: give datamodule.train or datamodule.path; datamodule.limit_train says how many texts are known"
            )

    def known(self, encoder: CachedEmbedder, public: Sequence[str]) -> Known:
        pairs, store = self.data.examples("train"), self.data.examples("test")
        return Known(
            victim=self.data.vectors("train", range(len(pairs))).double(),
            own=encoder.embed([pair.reference for pair in pairs], "training").double(),
            store=self.data.vectors("test", range(len(store))).double(),
            public=encoder.embed(public, "training").double(),
        )

    @cached_property
    def encoder(self) -> CachedEmbedder:
        """The attacker's own encoder, that which the maps were fitted to."""
        folder = self.artifacts / COPY
        config = read_config(folder)
        check_trusted(config, folder, built=["embedder"])
        encoder = self.encoder_of(config)
        if encoder.fingerprint != read_json(self.artifacts / ABOUT)["encoder"]:
            raise InputError(f"{folder}: the attacker's own encoder has changed since the maps were fitted")
        return encoder
