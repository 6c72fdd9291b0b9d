"""ROUGE as metrics of a test set: F measures, each a mean over texts (``metrics.text``, ``metrics.clipped``)."""

from __future__ import annotations

from typing import Any, Literal

from metrics.base import Description, Mean
from metrics.clipped import clipped_bleu1, clipped_rouge1
from metrics.scored import Scored
from metrics.text import rouge_l, rouge_n
from metrics.tokens import overlap, rouge_words


class RougeN(Mean[Scored]):
    """Overlap of n-grams of words as F measure; undefined for a pair of texts that are shorter than the order."""

    def __init__(self, order: Literal[1, 2], **settings: Any) -> None:
        what = "single words, as F measure" if order == 1 else "pairs of neighbouring words"
        described = Description(f"rouge{order}", f"ROUGE-{order}", f"Overlap of {what}.", kind="score")
        super().__init__(described, ordered=order > 1, **settings)
        self.order = order

    def of_example(self, row: Scored) -> float | None:
        """The F measure of one text."""
        texts = rouge_words(row.reference), rouge_words(row.prediction)
        return overlap(*texts).f1 if self.order == 1 else rouge_n(*texts, order=self.order)


class RougeL(Mean[Scored]):
    """The longest common subsequence of words as F measure."""

    def __init__(self, **settings: Any) -> None:
        explanation = "Length of the longest common subsequence of words."
        super().__init__(Description("rougeL", "ROUGE-L", explanation, kind="score"), ordered=True, **settings)

    def of_example(self, row: Scored) -> float:
        """The F measure of one text."""
        return rouge_l(rouge_words(row.reference), rouge_words(row.prediction))


class ClippedBleu1(Mean[Scored]):
    """Clipped precision of single words times a brevity penalty, of each text alone (Zhu et al. 2024, equation 11)."""

    def __init__(self, **settings: Any) -> None:
        explanation = "Precision of single words times a brevity penalty, of each text alone (Zhu et al. 2024)."
        reference = "Zhu et al. 2024, equation 11"
        described = Description("clipped_bleu1", "BLEU-1, clipped", explanation, "higher", "score", True, reference)
        super().__init__(described, ordered=True, **settings)

    def of_example(self, row: Scored) -> float:
        """The score of one text."""
        return clipped_bleu1(row.reference.split(), row.prediction.split())


class ClippedRouge1(Mean[Scored]):
    """Clipped recall of single words, of each text alone (Zhu et al. 2024, equation 12)."""

    def __init__(self, **settings: Any) -> None:
        explanation = "Recall of single words, of each text alone (Zhu et al. 2024)."
        reference = "Zhu et al. 2024, equation 12"
        described = Description("clipped_rouge1", "ROUGE-1, clipped", explanation, "higher", "score", True, reference)
        super().__init__(described, ordered=True, **settings)

    def of_example(self, row: Scored) -> float:
        """The score of one text."""
        return clipped_rouge1(row.reference.split(), row.prediction.split())
