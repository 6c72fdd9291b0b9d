"""Few-shot alignment (ALGEN; Chen, Xu and Bjerva 2025, arXiv 2502.11308): few known texts instead of the embedder.

python train.py attack=algen attack.source_run=runs/own embedder=minilm datamodule=files datamodule.limit_train=100 ...

victim vector --map fitted to n pairs--> vector in the attacker's own space --its decoder--> text

The training texts are the known pairs: texts whose vectors in the victim's space the attacker has. No victim vectors
are read but theirs and the attacked ones. The decoder was trained on the own encoder's vectors of public text before
(``attack.source_run``). The victim's embedder is asked for nothing: texts are compared with a target by the own encoder
and a map from its space to the victim's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from atomic_files import read_json, write_json
from attacks.base import Attack
from attacks.generative import GenerativeAttack
from embedders.cache.cached import CachedEmbedder
from errors import InputError
from models.alignment.aligners import Aligner, Known, LeaveOneOut
from models.alignment.feedback import Feedback, Proposals
from models.alignment.maps import Map, read_maps, write_maps
from models.predictions import Prediction, Targets
from models.refining import Refiner
from run_directory import layout
from run_directory.config_file import read_config
from run_directory.embedder_check import check_embedder
from run_directory.session import Session
from run_directory.stored_attack import attack_of, class_of, keep
from run_directory.trust import check_trusted

COPY, MAPS, ABOUT = "source", "alignment.safetensors", "alignment.json"  # among the artifacts
START, BACK, FORTH = "start", "back", "forth"
KEY = "attack.source_run"


class ALGEN(Attack):
    """A trained decoder of another embedder, behind a map from the victim's space.

    Its run keeps a copy of the decoder's run and the maps.

    Args:
        source_run: A finished run of attack=geia (or another decoder of vectors) on the attacker's own encoder.
        aligner: How the map is fitted.
        cache_dir: Cache of the own encoder.
        rounds: Rounds of feedback by the own encoder (see models/alignment/feedback.py); 0: the map alone.
        proposals: Texts decoded for a target in each round.
        public: Training texts of ``source_run`` whose own vectors say how vectors of that space are distributed.
        refine: See Attack; these refiners ask the victim's embedder.
    """

    trainable = False
    reads_training_text = False

    def __init__(
        self,
        source_run: str,
        aligner: Aligner,
        cache_dir: str,
        rounds: NonNegativeInt = 3,
        proposals: PositiveInt = 4,
        public: PositiveInt = 4000,
        refine: Mapping[str, Refiner] | None = None,
    ) -> None:
        super().__init__(refine)
        self.source_run, self.aligner, self.cache_dir = Path(source_run), aligner, Path(cache_dir)
        self.rounds, self.proposals, self.public = rounds, proposals, public
        self._held: list[GenerativeAttack] = []  # no submodule: it is not trained
        self._maps: dict[str, Map] = {}
        self._encoder: CachedEmbedder | None = None

    # -- fitting --------------------------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Check before anything is embedded that there are a decoder, its encoder, and pairs."""
        if not self.from_checkpoint:
            self._source()
            if not self.data.examples("train"):
                raise InputError(
                    "attack=algen fits its map to known texts and their vectors, and there is no training text: give "
                    "datamodule.train or datamodule.path; datamodule.limit_train says how many texts are known"
                )
        super().prepare_data()

    def setup(self, stage: str) -> None:
        """See Attack; the vectors of the known texts are the only training vectors."""
        if not self.from_checkpoint:
            self.data.embed("train")
            self.data.fit_defense()
        super().setup(stage)

    def prepare(self, texts: Sequence[str], artifacts: Path) -> None:
        """Fit the maps, and copy the decoder's run."""
        source = self._source()
        pairs, store = self.data.examples("train"), self.data.examples("test")
        public = list(source.training_texts()[: self.public])
        if len(public) < 2:
            raise InputError(f"{KEY}={self.source_run}: its training text, which the attacker knows, cannot be read")
        known = Known(
            victim=self.data.vectors("train", range(len(pairs))).double(),
            own=source.embedder.embed(pairs.texts, "training").double(),
            store=self.data.vectors("test", range(len(store))).double(),
            public=source.embedder.embed(public, "training").double(),
        )
        found = self.aligner.fit(known)
        maps: dict[str, Map] = {START: found.map}
        if self.rounds:
            maps |= {BACK: found.plain, FORTH: LeaveOneOut().fit(known.reversed()).plain}
        keep(self.source_run, artifacts / COPY)
        write_maps(artifacts / MAPS, maps)
        write_json(artifacts / ABOUT, {**found.about, "encoder": source.embedder.fingerprint})
        rank_zero_info("aligned: " + ", ".join(f"{name} {value:.4g}" for name, value in found.about.items()))

    def _source(self) -> Session:
        """The run of the decoder.

        Raises:
            InputError: It is not a finished run of a decoder, or its embedder is not what it was trained with.
        """
        run = self.source_run
        if not (run / layout.CONFIG).is_file():
            reason = f"{layout.CONFIG} is missing" if run.is_dir() else layout.missing_directory(run)
            raise InputError(f"{KEY}={run}: not a run directory ({reason})")
        config = read_config(run)
        check_trusted(config, run)
        if not issubclass(kind := class_of(run), GenerativeAttack):
            raise InputError(
                f"{KEY}={run}: a trained decoder of vectors is wanted (attack=geia, vec2text_inverter), and that is a "
                f"run of {kind.__name__}"
            )
        config.cache_dir = str(self.cache_dir)
        session = Session.open(run, config)
        check_embedder(run, KEY, session.embedder.fingerprint, session.embedder.dimension)
        if self.oracle is not None and self.oracle.source.fingerprint == session.embedder.fingerprint:
            rank_zero_warn(f"{KEY}={run}: its encoder is the victim's embedder itself, so there is nothing to align")
        return session

    # -- inversion ------------------------------------------------------------------------------------------------

    def build(self, dimension: int) -> None:
        """Read maps and decoder.

        Raises:
            InputError: The maps are for vectors of another dimension.
        """
        assert self.artifacts is not None
        path = self.artifacts / MAPS
        self._maps = read_maps(path, [START, BACK, FORTH] if self.rounds else [START])
        fitted, own = self._maps[START].dimensions
        if fitted != dimension:
            raise InputError(f"{path}: maps vectors of dimension {fitted}, and these have {dimension}")
        decoder = attack_of(self.artifacts / COPY, own)
        assert isinstance(decoder, GenerativeAttack)
        decoder.decoding.propose(self.proposals if self.rounds else self.refiners.proposals)
        self._held = [decoder.requires_grad_(False)]

    @property
    def decoder(self) -> GenerativeAttack:
        """The decoder, where this attack is."""
        return self._held[0].to(self.device)

    @property
    def encoder(self) -> CachedEmbedder:
        """The attacker's own encoder.

        Raises:
            InputError: It is not the one that the maps were fitted to.
        """
        if self._encoder is None:
            assert self.artifacts is not None
            folder = self.artifacts / COPY
            config = read_config(folder)
            check_trusted(config, folder, built="embedder")
            config.cache_dir = str(self.cache_dir)
            encoder = Session(config, folder).embedder
            if encoder.fingerprint != read_json(self.artifacts / ABOUT)["encoder"]:
                raise InputError(f"{folder}: the attacker's own encoder has changed since the maps were fitted")
            self._encoder = encoder
        return self._encoder

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Those of the decoder."""
        return self.decoder.tokens(texts)

    def begin_trial(self, number: int) -> None:
        """See GenerativeAttack."""
        self.decoder.begin_trial(number)

    def all_weights(self) -> dict[str, Tensor]:
        """The decoder's weights and the maps."""
        held = {f"{COPY}.{name}": tensor for name, tensor in self.decoder.all_weights().items()}
        maps = {f"{name}.{part}": one for name, fitted in self._maps.items() for part, one in fitted.tensors().items()}
        return super().all_weights() | held | maps

    def propose(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        """Map, decode, and compare by the own encoder; asks the victim's embedder for nothing."""

        def decode(vectors: Tensor) -> Proposals:
            aligned = replace(targets, vectors=vectors.to(targets.vectors))
            return [list(one.candidates) for one in self.decoder.propose(aligned, None)]

        start = self._maps[START](targets.vectors)
        if self.rounds:
            feedback = Feedback(self._maps[BACK], self._maps[FORTH], self.rounds)
            texts = feedback(targets.vectors, start, decode, lambda new: self.encoder.embed(new, "attack"))
        else:
            texts = decode(start)
        count = max(1, self.refiners.proposals)
        return [Prediction(tuple(found[:count])) for found in texts]
