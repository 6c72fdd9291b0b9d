"""Ridge regressions with all leave-one-out errors in closed form, by one eigendecomposition.

    path = RidgePath(x, y)                # (n, p), (n, k); no intercept
    path.residuals(0.1)                   # (n, k): of each row, predicted by the regression on the other n - 1
    path.weight(0.1)                      # (p, k)

With x = U S V', the fitted values are H y with the hat matrix H = U diag(s^2 / (s^2 + penalty)) U'. The residual of a
row that was left out is its residual divided by 1 - H_ii.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RidgePath:
    """The ridge regressions of y on x for all penalties.

    Args:
        x: (n, p) float64.
        y: (n, k) float64.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.y = y
        if x.shape[0] < x.shape[1]:
            squares, left = torch.linalg.eigh(x @ x.T)
        else:
            squares, right = torch.linalg.eigh(x.T @ x)
        kept = squares > squares[-1] * len(squares) * torch.finfo(x.dtype).eps  # others are rounding
        self.squares = squares[kept]
        if x.shape[0] < x.shape[1]:
            self.left = left[:, kept]
            self.right = x.T @ (self.left / self.squares.sqrt())
        else:
            self.right = right[:, kept]
            self.left = x @ (self.right / self.squares.sqrt())
        self.shares = self.left.T @ y

    def residuals(self, penalty: float, rows: int | None = None) -> Tensor:
        """Leave-one-out residuals of the first ``rows`` rows (None: all), (rows, k); ``penalty`` is above 0."""
        factors = self.squares / (self.squares + penalty)
        left = self.left[:rows]
        residuals = self.y[:rows] - left @ (factors[:, None] * self.shares)
        leverage: Tensor = left.square() @ factors
        left_out: Tensor = residuals / (1 - leverage)[:, None]
        return left_out

    def weight(self, penalty: float) -> Tensor:
        """The coefficients, (p, k)."""
        factors = self.squares.sqrt() / (self.squares + penalty)
        weight: Tensor = self.right @ (factors[:, None] * self.shares)
        return weight
