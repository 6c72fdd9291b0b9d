"""defense=rotation: all vectors turned by one secret random rotation, which keeps every length and every angle.

    UNEMBED_ROTATION_KEY=$(openssl rand -hex 32) python evaluate.py run=<dir> defense=rotation
    python evaluate.py run=<dir> defense=rotation defense.key_file=secret.key

Search among turned vectors is search among the undefended ones, to the last rounding. Who holds vectors and texts of
some d pairs can solve for the rotation (Schoenemann 1966, "A generalized solution of the orthogonal Procrustes
problem"; Liu, Giannella and Kargupta 2006 on rotation in privacy-preserving data mining): it is a lock, not a loss.

The key stands in an environment variable or a file. Neither it nor the matrix is ever written: a run keeps a slow hash,
so that another key is noticed. Without a key nothing runs; none is made up, since vectors under a lost key are lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import scrypt, shake_256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import limits
from defenses.base import BaseDefense, Role
from errors import InputError
from examples import Example

SHORTEST = 16  # bytes of a key
_LARGEST = 65_536  # bytes of its file
_CHECK, _MATRIX = b"unembed rotation: check", b"unembed rotation: matrix"


class Rotation(BaseDefense):
    """Rotates vectors; a hash of its key is stored with a run.

    Args:
        key_env: The environment variable that holds the key; read where there is no ``key_file``.
        key_file: A file that holds it; white space around the key does not count.

    Raises:
        InputError: There is no key, one of fewer than 16 bytes, or a file that is none.
    """

    def __init__(
        self,
        key_env: str = "UNEMBED_ROTATION_KEY",
        key_file: str | None = None,
    ) -> None:
        self._key = _read(key_env, key_file)
        self._matrices: dict[int, Tensor] = {}

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        """Turned vectors, (n, d) -> (n, d)."""
        return embeddings @ self._matrix(embeddings.shape[1]).to(embeddings)

    def state(self) -> dict[str, Tensor]:
        """A hash of the key, (16,) uint8: as slow to try keys against as it can be made."""
        return {"key_check": torch.tensor(list(_stretched(self._key, _CHECK, 16)), dtype=torch.uint8)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Compare the key with the one that ``state`` was made with.

        Raises:
            InputError: It is another.
        """
        if not torch.equal(state["key_check"], self.state()["key_check"]):
            raise InputError("defense=rotation: the key is not the one that this run was made with")

    def _matrix(self, dimension: int) -> Tensor:
        """A rotation or reflection, uniform over all orthogonal matrices (Mezzadri 2007), (d, d)."""
        if dimension not in self._matrices:
            stream = shake_256(_stretched(self._key, _MATRIX, 64) + str(dimension).encode())
            words = np.frombuffer(stream.digest(16 * dimension**2), dtype="<u8").reshape(2, dimension, dimension)
            uniform = ((words >> np.uint64(11)) + 0.5) / 2.0**53  # inside (0, 1)
            normal = np.sqrt(-2 * np.log(uniform[0])) * np.cos(2 * np.pi * uniform[1])  # Box and Muller
            orthogonal, triangular = np.linalg.qr(normal)
            # QR alone prefers some matrices: the signs of the diagonal make it unique, and the result uniform.
            self._matrices[dimension] = torch.from_numpy((orthogonal * np.sign(np.diag(triangular))).astype(np.float32))
        return self._matrices[dimension]


def _read(key_env: str, key_file: str | None) -> bytes:
    if key_file is not None:
        where = f"defense.key_file={key_file}"
        try:
            key = limits.content(Path(key_file).expanduser(), _LARGEST).strip()
        except OSError as error:
            raise InputError(f"{where}: the key of the rotation cannot be read: {error.strerror}") from error
    else:
        where = f"defense.key_env={key_env}"
        if key_env not in os.environ:
            raise InputError(
                f"{where}: defense=rotation needs a secret key, and this environment variable is not set; set it, or "
                "name a file by defense.key_file (a key: openssl rand -hex 32). Keep it: it is written nowhere"
            )
        key = os.environ[key_env].strip().encode()
    if len(key) < SHORTEST:
        raise InputError(f"{where}: a key of {len(key)} bytes can be guessed; give at least {SHORTEST}")
    return key


def _stretched(key: bytes, purpose: bytes, size: int) -> bytes:
    return scrypt(key, salt=purpose, n=2**14, r=8, p=1, dklen=size)
