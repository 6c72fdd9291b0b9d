"""What a run declares of its cell in the access table: the node ``access`` of its configuration.

    access:
      attack: my attack
      has: pairs_100
      presumes: 100 texts of the store with their stored vectors.

declaration_errors({"attack": "my attack", "has": "pairs_50"})
# ["access.has=pairs_50: no column of the access table, did you mean pairs_10?", "access.presumes: missing"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unembed.core.errors import did_you_mean
from unembed.reports.access.columns import KNOWN

Title = Annotated[str, Field(min_length=1, max_length=60)]
Sentence = Annotated[str, Field(min_length=1, max_length=400)]


class Declared(BaseModel):
    """A run's row, its column, and in one sentence what the attack presumes."""

    model_config = ConfigDict(extra="forbid")

    attack: Title
    has: str
    presumes: Sentence


def declaration_errors(node: object) -> list[str]:
    """One line for each mistake in the node ``access``; none for null, which declares no cell."""
    if node is None:
        return []
    if not isinstance(node, Mapping):
        return [f"access={node}: must be a mapping with the keys {', '.join(Declared.model_fields)}, or null"]
    messages = []
    if isinstance(has := node.get("has"), str) and (wrong := KNOWN.check(has)) is not None:
        messages.append(f"access.has={has}: {wrong}")
    try:
        Declared.model_validate(node)
    except ValidationError as error:
        messages += [f"access.{said(one['loc'], one, Declared.model_fields)}" for one in error.errors()]
    return messages


def said(key: Sequence[str | int], error: Mapping[str, Any], known: Collection[str]) -> str:
    """A key and what pydantic found wrong with it; a key that nobody knows is compared with the ``known`` ones."""
    name = ".".join(map(str, key))
    if error["type"] == "extra_forbidden":
        return f"{name}: unknown key, {did_you_mean(str(key[-1]), known)}"
    message = "missing" if error["type"] == "missing" else str(error["msg"])
    return f"{name}: {message}" if name else message
