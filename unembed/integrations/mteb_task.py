"""A task of MTEB: how much of a text comes back from its embedding, so that an embedder has privacy beside its score.

    import mteb
    from sentence_transformers import SentenceTransformer
    from unembed.integrations.mteb_task import TextRecovery

    mteb.evaluate(SentenceTransformer("all-MiniLM-L6-v2"), TextRecovery(steps=300, seed=0))

The budget of the attacker is the same for every embedder: a decoder (attack=geia) is trained for ``steps`` on vectors
of public text, and tested on other text of that kind, both of the built-in corpus. The more comes back, the worse.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property, partial
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset
from mteb.abstasks import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader

from unembed import launch
from unembed.core.atomic_files import read_json
from unembed.runs import layout
from unembed.train import train

PROBE = ["The probe that tells one embedder from another."]
KEYS = {"token_f1": "word_f1", "exact_match": "exact", "entity_recovery": "entities"}


class TextRecovery(AbsTask):
    """Word F1, exact texts and entities recovered, each 0 to 1; ``word_f1_<n>_pairs`` where fewer texts were known.

    Args:
        steps: Of each training.
        pairs: Numbers of texts with their vectors that an attacker trains on; the largest one gives the main score.
        texts: Tested.
        seed: Of the training.
        overrides: More overrides of train.py.
    """

    metadata = TaskMetadata(
        name="TextRecovery",
        description="Words of a text that a decoder, trained on public text, reads from its embedding.",
        reference="https://arxiv.org/abs/2305.03010",  # GEIA, the attack
        dataset={"path": "unembed/built-in-corpus", "revision": "1"},
        type="Regression",  # of the types that MTEB knows; none is of privacy
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="word_f1",
        date=("2026-01-01", "2026-12-31"),
        domains=["Written"],
        license="apache-2.0",
        annotations_creators="derived",
        sample_creation="LM-generated and verified",
        bibtex_citation="",
    )

    def __init__(
        self,
        steps: int = 1800,
        pairs: Sequence[int] = (100, 1000, 17000),
        texts: int = 500,
        seed: int = 0,
        overrides: Sequence[str] = (),
    ) -> None:
        super().__init__(seed=seed)
        self.steps, self.pairs, self.texts, self.overrides = steps, sorted(pairs), texts, list(overrides)

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        """The texts are those of ``datamodule=synthetic_public``."""
        self.dataset = {"default": {split: Dataset.from_dict({}) for split in self.metadata.eval_splits}}
        self.data_loaded = True

    def _evaluate_subset(
        self, model: Any, data_split: Any, *, encode_kwargs: Mapping[str, Any], hf_split: str, hf_subset: str, **_: Any
    ) -> dict[str, float]:
        encode = partial(
            model.encode, task_metadata=self.metadata, hf_split=hf_split, hf_subset=hf_subset, **encode_kwargs
        )
        name = str(model.mteb_model_meta.name)
        Encoded.models[name] = encode
        scores: dict[str, float] = {}
        for count in self.pairs:
            with tempfile.TemporaryDirectory(prefix="unembed-") as folder:
                found = self._attacked(name, count, Path(folder) / "run")
            scores[f"word_f1_{count}_pairs"] = found["word_f1"]
        return {**found, **scores}

    def _attacked(self, name: str, pairs: int, run: Path) -> dict[str, float]:
        lines = [
            "attack=geia", "datamodule=synthetic_public", f"datamodule.limit_train={pairs}",
            f"datamodule.limit_test={self.texts}", f"trainer.max_steps={self.steps}", "trainer.max_time=null",
            f"seed={self.seed}", f"run_dir={run}", *self.overrides,
        ]  # fmt: skip
        config = launch.compose("train", lines)
        config.embedder = OmegaConf.create({"_target_": f"{__name__}.Encoded", "name": name})
        config.choices.embedder = name
        with redirect_stdout(StringIO()):  # the tables of a training
            train(config)
        metrics = read_json(run / layout.METRICS)
        return {key: metrics[ours] / 100 for ours, key in KEYS.items()}

    def _calculate_descriptive_statistics_from_split(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the corpus is generated")

    def _push_dataset_to_hub(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("the corpus is generated")


class Encoded:
    """A model of MTEB as an embedder of unembed.

    Args:
        name: Its key in ``models``.

    Attributes:
        models: What embeds texts, by the name of the model.
    """

    models: ClassVar[dict[str, Callable[..., Any]]] = {}
    max_tokens = 512  # the built-in corpus has sentences, which no model cuts

    def __init__(self, name: str) -> None:
        self.name = self.title = name

    @cached_property
    def _probe(self) -> Tensor:
        return self.embed(PROBE)

    @property
    def dimension(self) -> int:
        return self._probe.shape[1]

    @property
    def fingerprint(self) -> str:
        """Of the name and of a vector, since a model may have been trained further under its name."""
        rounded = [round(value, 4) for value in self._probe[0].tolist()]
        return sha256(repr((self.name, rounded)).encode()).hexdigest()

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (n, d) float32."""
        loader = DataLoader(Dataset.from_dict({"text": list(texts)}), batch_size=32)
        return torch.as_tensor(self.models[self.name](loader)).detach().float().cpu()
