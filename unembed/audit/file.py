"""The published form of audit.json, version 1: docs/audit-1.schema.json is made from it.

file = read_audit(Path("audits/may/audit.json"))
file.readable.high
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from unembed.core.atomic_files import read_json
from unembed.core.errors import InputError

VALUES, VERSION = "audit.json", 1
_Share = Annotated[float, Field(ge=0, le=1)]
_Cosine = Annotated[float, Field(ge=-1.001, le=1.001)]


class _Part(BaseModel):
    # Later versions of one number may add keys; they never change or remove one.
    model_config = ConfigDict(extra="allow")


class ShareIn(_Part):
    """A share with its 95 % interval, of ``rows`` rows; estimated without true texts unless ``measured``."""

    value: _Share
    low: _Share
    high: _Share
    rows: NonNegativeInt
    measured: bool


class KindIn(_Part):
    """A kind of entity, how often it occurs, and the share of it that leaks."""

    label: str
    total: NonNegativeInt
    share: ShareIn | None


class ClassIn(_Part):
    """A class of what texts hold, how often it occurs, the share that leaks, and how such parts were found."""

    name: str
    total: NonNegativeInt
    share: ShareIn | None
    found: Literal["labels", "tagger", "form"]


class RowIn(_Part):
    """An exposed row; ``text`` is masked unless the whole file is not."""

    id: str
    position: NonNegativeInt
    cosine: _Cosine
    probability: _Share | None
    kinds: list[str]
    text: str
    truth: str | None
    f1: Annotated[float, Field(ge=0, le=100)] | None
    exact: bool | None
    same: NonNegativeInt = 1
    entities: NonNegativeInt = 0


class AttackerIn(_Part):
    """An attacker by itself: the run's attack, with search, of another run, the lookup, or the closest text of all."""

    name: Literal["attack", "search", "other", "lookup", "closest"]
    readable: ShareIn | None
    exact: ShareIn | None
    cosine: _Cosine
    label: str = ""
    cost: str = ""


class TriedIn(_Part):
    """A defense, and what the run's attack and a lookup that knows the defense still read."""

    name: str
    readable: ShareIn | None
    lookup: ShareIn | None
    exact: ShareIn | None
    entities: ShareIn | None
    cosine: _Cosine | None
    neighbours: _Share
    width: PositiveInt


class ThresholdIn(_Part):
    """A condition of ``fail_on`` in percent, and whether the upper end of the interval keeps it."""

    name: str
    percent: Annotated[float, Field(ge=0, le=100)]
    passed: bool
    said: str


class ChangeIn(_Part):
    """A share in this audit and in the one of ``baseline``."""

    name: str
    before: ShareIn
    after: ShareIn
    apart: bool


class AuditFile(_Part):
    """audit.json. Shares are between 0 and 1."""

    version: Literal[1]
    store: str
    size: NonNegativeInt
    sampled: NonNegativeInt
    width: PositiveInt
    run: dict[str, str]
    threshold: float
    masked: bool
    tagged: str
    readable: ShareIn | None
    exact: ShareIn | None
    entities: ShareIn | None = None
    attackers: list[AttackerIn]
    insider: AttackerIn | None = None
    estimated: dict[str, ShareIn]
    rows: list[RowIn]
    examples: list[RowIn] = []
    cosines: list[_Cosine]
    known: list[_Cosine]
    curve: list[tuple[float, float]]
    kinds: list[KindIn]
    held_out: list[KindIn]
    classes: list[ClassIn] = []
    tried: list[TriedIn]
    tried_on: NonNegativeInt
    warnings: list[str]
    unjudged: str = ""
    thresholds: list[ThresholdIn]
    changes: list[ChangeIn]


def read_audit(path: Path) -> AuditFile:
    """Read audit.json of an earlier audit.

    Raises:
        InputError: Missing, not an audit, or of a version that is not known; names the key ``baseline``.
    """
    if not path.is_file():
        raise InputError(f"baseline={path}: no such file; give the audit.json of an earlier audit")
    content = read_json(path)
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        said = "it has no version" if version is None else f"its version is {version}"
        raise InputError(f"baseline={path}: {said}; version {VERSION} can be compared: run that audit again")
    try:
        return AuditFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"baseline={path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def schema() -> str:
    """The JSON Schema (2020-12) of the file, as docs/audit-1.schema.json publishes it."""
    content = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | AuditFile.model_json_schema()
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
