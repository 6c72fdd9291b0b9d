"""Log-probabilities of several generated tokens in as few numbers as the model has hidden dimensions (PILS).

    model = LogRatioEmbedder("gpt2", output_tokens=8)
    rows = model.embed(["My name is"])     # (1, 8 x 768) float32
    rows.view(1, 8, 768)[0, 0, 5]          # log p(tokens[6]) - log p(tokens[0]) of the first output token

A language model's logits are W h, with a row of W (V, d) for each token. So all V log-probabilities of a step follow
from d of their differences, the additive log-ratios log p(tokens[i]) - log p(tokens[0]) of d + 1 tokens with
independent rows (Nazir et al. 2025, arXiv 2506.17090, section 3; log p and the logits have the same differences).

``tokens`` are fixed for a model: token 0, and d others whose rows, minus that of token 0, are chosen one after another,
each the farthest from the span of those before (Gram-Schmidt with pivoting), so that the ratios determine h as well as
any greedy choice can.

With ``top_k``, only the k highest log-probabilities of each step are seen, as services return them. Their differences
are k - 1 linear equations for h, solved by least squares with a small penalty: from k = d + 1 on, h is determined; with
fewer, the solution is the shortest h that explains what is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from unembed.core.errors import InputError
from unembed.embedders.base import fingerprint_of
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.outputs import Seen

_PENALTY = 1e-8  # of |h|^2: float32 logits have errors of 1e-4 or less where h has coordinates of about 1


class LogRatioEmbedder:
    """Texts to the additive log-ratios of each greedily generated token, (n, m x d).

    Attributes:
        language_model: What it is computed from.
    """

    def __init__(
        self,
        model: str,
        output_tokens: PositiveInt = 8,
        top_k: Annotated[int, Field(ge=2)] | None = None,
        revision: str | None = None,
        max_tokens: PositiveInt | None = None,
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        """The arguments are those of configs/embedder/log_ratios.yaml; the model is loaded on first use."""
        self.language_model = LanguageModelEmbedder(
            model,
            output_tokens=output_tokens,
            top_k=top_k,
            revision=revision,
            max_tokens=max_tokens,
            device=device,
            trust_remote_code=trust_remote_code,
        )

    @property
    def dimension(self) -> int:
        return self.language_model.observation.output_tokens * self._rows.shape[1]

    @property
    def max_tokens(self) -> int:
        return self.language_model.max_tokens

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(kind="log_ratios", outputs=self.language_model.fingerprint)

    @cached_property
    def tokens(self) -> Tensor:
        """Ids of the d + 1 tokens, (d + 1,) int64."""
        rows = self._rows - self._rows[0]
        return torch.cat([torch.zeros(1, dtype=torch.long), independent_rows(rows, rows.shape[1])])

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Log-ratios of ``texts``, (n, m x d) float32 on the CPU."""
        model, found = self.language_model, torch.empty(len(texts), self.dimension)
        for places, ids in model.batches(texts):
            seen = model.observation.parse(model.observe(ids).cpu())
            found[places] = self.ratios(seen).flatten(1).float()
        return found

    def ratios(self, seen: Seen) -> Tensor:
        """Log-ratios (B, m, d) float64 of what is seen of B outputs: all logits or log-probabilities, or the top k."""
        assert seen.logits is not None
        values, first, others = seen.logits.double(), self.tokens[0], self.tokens[1:]
        if seen.places is None:
            return values[..., others] - values[..., [0]]
        hidden = [
            least_squares(self._rows[ids[1:]] - self._rows[ids[0]], logits[1:] - logits[0])
            for ids, logits in zip(seen.places.flatten(0, 1), values.flatten(0, 1), strict=True)
        ]
        ratios: Tensor = torch.stack(hidden) @ (self._rows[others] - self._rows[first]).T
        return ratios.view(*values.shape[:2], -1)

    @cached_property
    def _rows(self) -> Tensor:
        """W, float64."""
        return self.language_model.output_vectors.double().cpu()


def least_squares(matrix: Tensor, values: Tensor) -> Tensor:
    """The x (d,) for which ``matrix`` (n, d) @ x is closest to ``values`` (n,), with a small penalty on its length."""
    few = len(matrix) < matrix.shape[1]
    gram = matrix @ matrix.T if few else matrix.T @ matrix
    gram.diagonal().add_(_PENALTY)
    solved: Tensor = torch.linalg.solve(gram, values if few else matrix.T @ values)
    return matrix.T @ solved if few else solved


def independent_rows(matrix: Tensor, count: int) -> Tensor:
    """Ids (count,) of rows of ``matrix`` (n, d): each the farthest from the span of those before.

    Raises:
        InputError: The rank of the matrix is less than ``count``.
    """
    left, basis = matrix.square().sum(dim=1), matrix.new_zeros(count, matrix.shape[1])
    smallest, chosen = left.max() * 1e-16, []
    for place in range(count):
        row = int(left.argmax())
        if left[row] <= smallest:
            raise InputError(
                f"embedder.model: its output matrix has rank {place}, and not {count} as its hidden size is: there are "
                "no independent log-ratios for embedder=log_ratios"
            )
        direction = matrix[row]
        for _ in range(2):  # once more for what rounding left
            direction = direction - (basis[:place] @ direction) @ basis[:place]
        basis[place] = direction / direction.norm()
        left -= (matrix @ basis[place]).square()
        left[row] = 0.0
        chosen.append(row)
    return torch.tensor(chosen)
