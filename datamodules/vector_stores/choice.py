"""The part of a store that ``collection=`` names: ``<collection>``, or ``<collection>/<vector>``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from unembed.core.errors import InputError, did_you_mean, listed


def chosen_collection(name: str, collection: str | None, names: Iterable[str]) -> str:
    """The collection of that name, or the only one.

    Args:
        name: Of the store, as messages begin.
        collection: What ``collection=`` gives.
        names: Collections of the store.

    Raises:
        InputError: There is none of that name, or no choice was made between several.
    """
    present = sorted(names)
    if collection is None and len(present) != 1:
        raise InputError(f"vectors={name}: which collection? give collection=<one of {listed(present) or 'none'}>")
    wanted = present[0] if collection is None else collection
    if wanted not in present:
        raise InputError(f"vectors={name}: no collection {wanted}; {did_you_mean(wanted, present)}")
    return wanted


def chosen_vector(
    name: str, collection: str | None, names: Sequence[str], vectors_of: Callable[[str], Sequence[str] | None]
) -> tuple[str, str | None]:
    """The collection, and the name of one of its vectors; None where the only one has no name.

    Raises:
        InputError: As ``chosen_collection``; of the vectors, too.
    """
    wanted, _, vector = (None, "", "") if collection is None else collection.partition("/")
    chosen = chosen_collection(name, wanted, names)
    kinds = vectors_of(chosen)
    if kinds is None:
        return chosen, None
    vector = vector or (kinds[0] if len(kinds) == 1 else "")
    if vector not in kinds:
        raise InputError(
            f"vectors={name}: collection {chosen} has the vectors {listed(sorted(kinds)) or 'none'}; "
            f"give collection={chosen}/<one of them>"
        )
    return chosen, vector
