"""Say which embedder made vectors: model, pooling and prefix, from the vectors alone.

    unembed identify mine.npy                                  # a file, or any store that unembed audit reads
    unembed identify vectors=chroma:mydata/db collection=notes
    unembed identify mine.npy --json                           # for programs

One vector is enough. Spaces of the embedders that run offline are known, secretly rotated ones from 100 vectors on;
vectors of other embedders are said to be unknown. docs/embedders.md says how often it is right.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from unembed.core.commands import arguments, command
from unembed.core.errors import InputError, did_you_mean, printable
from unembed.launch import console
from unembed.launch.console import ending
from unembed.launch.locations import attacker_of

_KEYS = ("vectors", "collection")
_LIMIT = 2000  # vectors that are fetched


def identify(address: str, collection: str | None = None, *, as_json: bool = False) -> None:
    """Open the store -> fetch a sample -> name its space -> print."""
    from unembed.datamodules.vector_stores.sampling import sample_of
    from unembed.datamodules.vector_stores.vector_files import dimension_of
    from unembed.metrics.identify import identify as identity_of

    identity = identity_of(sample_of(address, dimension_of(address), collection, _LIMIT))
    attacker = attacker_of(identity)
    if as_json:
        print(json.dumps({**asdict(identity), "attacker": attacker}))
        return
    print(printable(f"{address}: {identity}"))
    if attacker is not None:
        where = {"vectors": address} | ({} if collection is None else {"collection": collection})
        scaled = identity.length is None or abs(identity.length - 1) > 0.02
        how = ", once each is divided by its length" if scaled else ""
        print(printable(f"read by the shipped attacker {attacker}{how}: {command('audit', **where)}"))


def main() -> None:
    """``unembed identify``."""
    words = arguments()
    console.begin()
    with ending():
        if {"--help", "-h"} & set(words):
            print(__doc__)
            return
        values: dict[str, str] = {}
        for word in (word for word in words if word != "--json"):
            key, equals, value = word.partition("=")
            if word.startswith("--"):
                raise InputError(f"{word}: unknown option, {did_you_mean(word, ['--json', '--help'])}")
            if not equals or (key not in _KEYS and Path(word).exists()):
                key, value = "vectors", word
            elif key not in _KEYS:
                raise InputError(f"{word}: unknown key {key}, {did_you_mean(key, _KEYS)}")
            if key in values:
                raise InputError(f"{word}: {key} is given twice")
            values[key] = value
        if "vectors" not in values:
            raise InputError(f"give the vectors: {command('identify', '<file or store>')}")
        identify(values["vectors"], values.get("collection"), as_json="--json" in words)
