"""The Python API, imported from ``unembed``; docs/python.md shows every call.

    attacker = unembed.load("minilm")
    attacker.invert(attacker.embed(["I have two cats."]))      # ["I have two cats."]
    unembed.audit_vectors(vectors).readable.low
    unembed.embed(["I have two cats."], "mpnet")               # (1, 768) float32

Mistakes raise InputError with the message of the command line. Warnings are logged.
"""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import numpy as np
from hydra.errors import InstantiationException
from numpy.typing import NDArray
from omegaconf import DictConfig

from unembed import launch
from unembed.core.atomic_files import read_json
from unembed.core.commands import quoted
from unembed.core.errors import InputError
from unembed.launch import console, locations
from unembed.launch.overrides import titles
from unembed.runs import layout
from unembed.runs.config_file import read_config
from unembed.runs.trust import trusting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from unembed.attacks.parts.predictions import Prediction
    from unembed.audit.results import Audit
    from unembed.datamodules.vector_stores.vector_files import VectorRows
    from unembed.embedders.cache.cached import CachedEmbedder
    from unembed.metrics.spaces import Space
    from unembed.reports.reading import Reader
    from unembed.runs.files import Row

    Vectors = NDArray[Any] | Tensor | Sequence[Sequence[float]] | str | Path


class Reading(Protocol):
    """Predictions for the vectors from ``begin`` to ``end`` (excluded), with their cosines."""

    def __call__(self, begin: int, end: int, *, shown: bool = False) -> list[tuple[Prediction, float | None]]: ...


ARRAY = "array"  # the name of vectors in messages that come from no file
log = logging.getLogger("unembed")


def load(run: str | Path, *overrides: str, trust: str | Sequence[str] = (), device: str | None = None) -> Attacker:
    """Open a trained attack.

    Args:
        run: A run directory, a shipped attacker by its name, or ``hub:<owner>/<name>``.
        overrides: As on the command line of ``unembed invert``: ``"attack.decoding.beams=1"``. Of an embedder with
            several prefixes the run's first one is taken, unless this names another: ``'embedder.prefix="passage: "'``.
        trust: What the run may name besides our own classes: modules, models with code, servers, variables.
        device: Of attack and embedder, such as ``"cpu"`` or ``"cuda:1"``; None: a GPU if there is one.

    Raises:
        InputError: There is no such run, it cannot be rebuilt, or an override is wrong.
    """
    lines = [*_lines(run=run, vectors=ARRAY), *overrides, *(_lines(trust=trust) if trust else [])]
    with _in_one_sentence():
        if not any(line.startswith("embedder.prefix=") for line in overrides):
            lines += [f"embedder.prefix={quoted(prefix)}" for prefix in locations.prefixes_of(str(run))[:1]]
        attacker = Attacker(*launch.on_run("invert", lines), device)
        with trusting(attacker.settings.trust):
            attacker.session.checkpoint(attacker.settings.ckpt_path)  # is there
    return attacker


class Attacker:
    """A trained attack and its embedder; made by ``load``.

    Args:
        settings: Those of configs/invert.yaml.
        config: The run's configuration with overrides, as ``launch.on_run`` returns it.
        device: See ``load``.

    Attributes:
        session: The objects of the run.
    """

    def __init__(self, settings: DictConfig, config: DictConfig, device: str | None = None) -> None:
        from unembed.session import Session

        self.settings, self.device = settings, _device(device)
        if self.device is not None:
            config.trainer.accelerator = "cpu" if self.device.type == "cpu" else config.trainer.accelerator
            if "device" in config.embedder:
                config.embedder.device = device
        self.session = Session.open(Path(settings.run), config)
        self._opened: tuple[int | None, Reader] | None = None

    @property
    def dimension(self) -> int:
        """Dimension of the vectors that the attack reads."""
        return self.session.dimension

    @overload
    def invert(
        self, vectors: Vectors, max_queries: int | None = 0, *, return_cosines: Literal[False] = False,
        trust_vectors: bool = False,
    ) -> list[str]: ...  # fmt: skip

    @overload
    def invert(
        self, vectors: Vectors, max_queries: int | None = 0, *, return_cosines: Literal[True],
        trust_vectors: bool = False,
    ) -> tuple[list[str], list[float | None]]: ...  # fmt: skip

    def invert(
        self, vectors: Vectors, max_queries: int | None = 0, *, return_cosines: bool = False,
        trust_vectors: bool = False,
    ) -> list[str] | tuple[list[str], list[float | None]]:  # fmt: skip
        """The text behind each vector, in order.

        Args:
            vectors: An array or tensor (n, d), or a file of vectors.
            max_queries: Texts that the attack may have embedded for a vector. 0: none, its decoder alone; n: then the
                run's search (docs/lexicon.md); None: as the run is configured, which is what ``unembed invert`` does.
            return_cosines: Also return the cosine of each text, embedded again, with its vector.
            trust_vectors: Warn of vectors that seem to come from another embedder instead of refusing them.

        Raises:
            InputError: Vectors of another dimension or of another embedder; NaN; an attack that needs queries.
        """
        with _in_one_sentence(), trusting(self.settings.trust):
            read = self.read(vectors, max_queries, cosines=return_cosines, trusted=trust_vectors)
        texts = [prediction.candidates[0] for prediction, _ in read]
        return (texts, [cosine for _, cosine in read]) if return_cosines else texts

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts as the attack reads them, (n, d); texts that were embedded before come from the cache."""
        with _in_one_sentence(), trusting(self.settings.trust):
            return _vectors_of(texts, self.session.service)

    def read(
        self, given: Vectors, max_queries: int | None, *, cosines: bool, trusted: bool
    ) -> list[tuple[Prediction, float | None]]:
        """A prediction for each vector, with its cosine if ``cosines``; see ``invert``."""
        rows = self.rows(given)
        return self.reading(rows, max_queries, cosines=cosines, trusted=trusted)(0, len(rows), shown=True)

    def rows(self, given: Vectors, limit: int | None = None) -> VectorRows:
        """The first ``limit`` vectors, checked; of a .npy file only the part that is read is in memory."""
        from unembed.datamodules.vector_stores.vector_files import VectorRows
        from unembed.reports.vector_space import dimension_explained

        with dimension_explained(self._space, self.session):
            if isinstance(given, str | Path):
                return VectorRows(Path(given), str(given), self.session.dimension, limit)
            return VectorRows(_array(given), ARRAY, self.session.dimension, limit)

    def reading(self, rows: VectorRows, max_queries: int | None, *, cosines: bool, trusted: bool) -> Reading:
        """What reads the vectors from a first to a last one, after a look at a sample of all."""
        from unembed.reports.vector_space import MOST, check_reading, check_space

        session = self.session
        sample = rows.sample(MOST)
        references = [row.reference for row in self.known]
        for warning in check_space(rows.name, sample, self._space, session, references, trusted):
            log.warning(warning)
        if session.denoiser is not None:
            sample = session.denoised(rows.sample(session.denoiser.rows))  # fits the denoiser
        reader = self.reader(max_queries)
        for warning in check_reading(rows.name, sample, reader, [row.cosine for row in self.known], trusted):
            log.warning(warning)

        def read(begin: int, end: int, *, shown: bool = False) -> list[tuple[Prediction, float | None]]:
            vectors = rows[begin:end]
            vectors = vectors if session.denoiser is None else session.denoiser(vectors)
            predictions = reader.read(vectors, range(begin, end), shown=shown)
            of_each = reader.cosines(predictions, vectors) if cosines else [None] * len(predictions)
            return list(zip(predictions, of_each, strict=True))

        return read

    @functools.cached_property
    def known(self) -> list[Row]:
        """The run's test texts that vectors are compared with."""
        from unembed.embedders.language_model import LanguageModelEmbedder
        from unembed.reports.reading import known_rows

        # Outputs of a language model are not text embeddings, and a defense without its fitted state cannot be applied.
        of_texts = not isinstance(self.session.embedder.embedder, LanguageModelEmbedder)
        applicable = self.session.is_fitted or not self.session.threat.adaptive
        return known_rows(self.session.run) if of_texts and applicable else []

    @functools.cached_property
    def _space(self) -> Space | None:
        from unembed.embedders.base import QueryLimitError
        from unembed.reports.vector_space import reference_space

        try:
            return reference_space(self.session, [row.reference for row in self.known])
        except QueryLimitError as error:
            log.warning("the vectors are not compared with those of the run's test texts. %s", error)
            return None

    def reader(self, max_queries: int | None) -> Reader:
        """The attack with at most this many queries, as ``invert`` uses it; the last one is kept."""
        from unembed.reports.reading import Reader
        from unembed.session import Session

        if self._opened is None or self._opened[0] != max_queries:
            run = self.session.run
            session = Session.open(run, launch.with_queries(self.session.config, run, max_queries))
            session.embedder = self.session.embedder
            with _own_random_numbers():
                attack = session.restored_attack(session.oracle, session.dimension, self.settings.ckpt_path)
            attack = attack if self.device is None else attack.to(self.device)
            self._opened = max_queries, Reader(attack, session.oracle, self.settings.batch_size, partial=True)
        return self._opened[1]


def audit_vectors(
    vectors: Vectors | object,
    texts: Sequence[str | None] | str | Path | None = None,
    attacker: str | Path | None = None,
    **settings: Any,
) -> Audit:
    """How much of the text behind vectors can be recovered; ``unembed audit`` as a function (docs/audit.md).

    Args:
        vectors: An array or tensor (n, d), what ``vectors=`` takes, which is a file or a store, or a store of LangChain
            or LlamaIndex in memory.
        texts: The true texts of an array's rows, None where one is unknown; or what ``texts=`` takes, such as
            ``"store"`` for the texts beside the vectors. None: estimate.
        attacker: A run as for ``load``; None: the shipped one for vectors of this dimension.
        settings: Keys of configs/audit.yaml (``limit=500``), and overrides of the run (``**{"denoiser": "gaussian"}``).

    Raises:
        InputError: As ``load`` and ``Attacker.invert``; or the texts are others than those of the vectors.
    """
    from unembed.commands.audit import audited, check_given
    from unembed.datamodules.vector_stores.in_memory import in_memory
    from unembed.datamodules.vector_stores.sampling import STORE, ArrayStore, TextArray, VectorStore
    from unembed.datamodules.vector_stores.vector_files import checked

    if (contents := in_memory(vectors)) is not None:
        vectors, texts = contents[0], contents[1] if texts == STORE else texts
    given: dict[str, Any] = {"vectors": vectors, "texts": texts, "run": attacker}
    array = None if isinstance(vectors, str | Path) else _array(vectors)
    known = None if texts is None or isinstance(texts, str | Path) else [text or "" for text in texts]
    if array is not None:
        given["vectors"] = ARRAY
    if known is not None:
        given["texts"] = "store:text"
        if array is None or len(known) != len(array):
            rows = "no array of" if array is None else f"{len(array):,}"
            raise InputError(f"texts: {len(known):,} for {rows} vectors; give None where one is unknown")

    def stored(dimension: int) -> VectorStore:
        rows = checked(array, ARRAY, dimension).numpy()  # type: ignore[arg-type]
        return ArrayStore(ARRAY, rows) if known is None else TextArray(ARRAY, rows, known)

    with _in_one_sentence(), _own_random_numbers(), tempfile.TemporaryDirectory(prefix="unembed-") as folder:
        lines = _lines(**{**given, "output_dir": folder, **settings})
        if array is not None and array.ndim == 2:
            lines += _of_vectors(array, attacker, settings)
        found, config = launch.on_run("audit", lines, check_given if array is None else None)
        with trusting(found.trust):
            return audited(found, config, None if array is None else stored)


def _of_vectors(array: NDArray[Any], attacker: str | Path | None, settings: Mapping[str, Any]) -> list[str]:
    """Overrides that name the attacker for an array, and the prefix of its texts if the attacker knows several."""
    from unembed.datamodules.vector_stores.vector_files import checked

    def sample() -> Tensor:
        return checked(array[:200], ARRAY, array.shape[1])

    run = None if attacker is None else str(attacker)
    name, prefix = locations.attacker_for(ARRAY, run, array.shape[1], sample)
    chosen = [] if attacker is not None else _lines(run=name)
    return chosen if "embedder.prefix" in settings else [*chosen, *prefix]


def embed(texts: Sequence[str], embedder: str = "minilm", *overrides: str) -> NDArray[np.float32]:
    """Vectors of texts, (n, d), by an option of ``embedder=``.

    Args:
        texts: Those that were embedded before come from the cache.
        embedder: Its name (``list_embedders()``).
        overrides: As on the command line: ``"embedder.model=<name>"``.

    Raises:
        InputError: No such embedder, or an override is wrong.
    """
    with _in_one_sentence():
        return _vectors_of(texts, _embedder(f"embedder={quoted(embedder)}", *overrides))


def list_attacks() -> dict[str, str]:
    """The options of ``attack=`` with a line each, those of installed packages included."""
    return titles("attack")


def list_embedders() -> dict[str, str]:
    """The options of ``embedder=`` with a line each."""
    return titles("embedder")


def list_defenses() -> dict[str, str]:
    """The options of ``defense=`` with a line each."""
    return titles("defense")


def list_attackers() -> dict[str, str]:
    """The shipped attackers with a line each."""
    found = {}
    for name in locations.shipped():
        run = locations.SHIPPED / name
        choices, record = read_config(run).choices, read_json(run / layout.RECORD)
        found[name] = (
            f"{choices.attack}, {record['parameters']:,} parameters: reads vectors of embedder={choices.embedder}, "
            f"dimension {record['embedder']['dimension']}"
        )
    return found


@functools.cache
def _embedder(*overrides: str) -> CachedEmbedder:
    """An embedder of the configuration; kept, since loading its weights takes time."""
    from unembed.session import Session

    config = launch.compose("train", overrides)
    if wrong := [line for line in launch.check(config) if line.startswith("embedder")]:
        raise InputError("\n".join(wrong))
    return Session(config, Path(config.run_dir)).embedder


def _vectors_of(texts: Sequence[str], embedder: CachedEmbedder) -> NDArray[np.float32]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InputError("texts: expected a list of texts")
    vectors: NDArray[np.float32] = embedder.embed(list(texts), "scoring").numpy()
    return vectors


def _array(vectors: Any) -> NDArray[Any]:
    """Vectors as an array; of a tensor on any device, of any type of floating-point numbers."""
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().cpu()
        vectors = vectors.float() if vectors.is_floating_point() else vectors  # numpy knows no bfloat16
    try:
        return np.asarray(vectors)
    except (ValueError, TypeError) as error:
        raise InputError(f"vectors={ARRAY}: expected an array (n, d): {error}") from error


def _lines(**values: Any) -> list[str]:
    """Overrides for values of Python; None stands for a default."""
    return [f"{key}={_override_value(value)}" for key, value in values.items() if value is not None]


def _override_value(value: Any) -> str:
    if isinstance(value, str | Path):
        return quoted(value)
    if isinstance(value, Sequence):
        return f"[{','.join(map(_override_value, value))}]"
    return {None: "null", True: "true", False: "false"}.get(value, str(value))


def _device(name: str | None) -> torch.device | None:
    """The device of this name, which this machine has."""
    if name is None:
        return None
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device={name}: {str(error).splitlines()[0]}") from error
    return device


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """What the command line would say of an error of the user, as an InputError."""
    try:
        yield
    except InstantiationException as error:
        message = console.user_message(error)
        if message is None:
            raise
        raise InputError(message) from error


def _own_random_numbers() -> AbstractContextManager[None]:
    """Leaves the caller's generators of random numbers as they are: a run is opened with its own seed."""
    from lightning.pytorch.utilities.seed import isolate_rng

    return isolate_rng()
