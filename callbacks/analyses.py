"""How the training text relates to a result: similarity of both corpora, and recovery of words by their frequency.

    analyses.json   {"training_texts": 17000, "corpus_similarity": 0.93, "similarity_texts": [17000, 2000],
                     "embedded_words": 9.7,
                     "word_frequency": [{"from": 0, "to": 0, "words": 12, "occurrences": 14, "recovered": 1}, ...]}

Written beside metrics.json. The report shows the word frequencies; unembed compare compares the other values over runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from lightning import Callback, LightningModule, Trainer

from unembed.attacks.base import Attack
from unembed.core.atomic_files import write_json
from unembed.datamodules.inversion import InversionDataModule
from unembed.metrics.statistics import corpus_similarity, evenly
from unembed.metrics.tokens import words
from unembed.runs import layout
from unembed.runs.files import Row, read_rows

SIMILARITY_TEXTS = 20_000  # sampled evenly from each corpus: a million 4-grams settle the 5,000 most common ones


class Analyses(Callback):
    """Writes analyses.json when a test ends, from predictions.jsonl.

    Args:
        directory: Directory that contains predictions.jsonl.
        training: Data module of the attack's training text.
    """

    def __init__(self, directory: Path, training: InversionDataModule) -> None:
        self.directory, self.training = directory, training

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count on rank 0."""
        assert isinstance(pl_module, Attack)
        if not trainer.is_global_zero:
            return
        texts = self.training.examples("train").texts
        if not texts:  # data for attacks that only search has no training text
            return
        rows = read_rows(self.directory / layout.PREDICTIONS)
        known, attacked = (evenly(some, SIMILARITY_TEXTS) for some in (texts, [row.reference for row in rows]))
        content = {
            "training_texts": len(texts),
            "corpus_similarity": corpus_similarity(known, attacked),
            "similarity_texts": [len(known), len(attacked)],
            "embedded_words": embedded_words(pl_module.data.examples("test")[row.index].text for row in rows),
            "word_frequency": word_frequency(texts, rows),
        }
        write_json(self.directory / layout.ANALYSES, content)


def embedded_words(texts: Iterable[str]) -> float:
    """Mean number of words of the embedded texts. It exceeds that of the references if texts were lengthened before
    embedding (llm_attackers_zhu2024, section 2.3 and figure 4)."""
    return fmean(len(words(text)) for text in texts)


def word_frequency(training: Iterable[str], rows: Sequence[Row]) -> list[dict[str, int]]:
    """Occurrences of words in the references and how many were recovered, by the word's count in the training text.

    vec2text_morris2023, figure 6. Each occurrence of a word in the prediction recovers one occurrence in the reference,
    so that the share of recovered occurrences over all bins is the micro recall of words.

    Returns:
        Non-empty bins in ascending order: ``from`` and ``to`` (both included) are counts in the training text, 0 and
            then half decades; ``words`` is the number of distinct words.
    """
    counts: Counter[str] = Counter()
    for text in training:
        counts.update(words(text))
    occurrences: Counter[str] = Counter()
    recovered: Counter[str] = Counter()
    for row in rows:
        wanted = Counter(words(row.reference))
        occurrences.update(wanted)
        recovered.update(wanted & Counter(words(row.prediction)))
    bins: dict[tuple[int, int], dict[str, int]] = {}
    for word, times in occurrences.items():
        low, high = _bin(counts[word])
        found = bins.setdefault((low, high), {"from": low, "to": high, "words": 0, "occurrences": 0, "recovered": 0})
        found["words"] += 1
        found["occurrences"] += times
        found["recovered"] += recovered[word]
    return [bins[edges] for edges in sorted(bins)]


def _bin(count: int) -> tuple[int, int]:
    """0; 1 to 2, 3 to 9, 10 to 29, 30 to 99, and so on."""
    if count == 0:
        return 0, 0
    decade = 10 ** (len(str(count)) - 1)
    return (decade, 3 * decade - 1) if count < 3 * decade else (3 * decade, 10 * decade - 1)
