"""Train, evaluate and defend against text inversion attacks.

In a clone, the folders that a user extends stand beside this one: attacks/ is ``unembed.attacks``.
"""

from pathlib import Path

_CLONE = Path(__file__).resolve().parent.parent
if (_CLONE / "setup.py").is_file():  # so that scripts of a clone run its own code, however unembed is installed
    __path__.append(str(_CLONE))
