"""Find which of your texts are in a vector store, exactly or nearly, and write what was found of each.

    unembed membership vectors=mine.npy candidates=letters.txt           # writes mine.npy.members.jsonl
    unembed membership vectors=chroma:db candidates=letters.txt references=other_letters.txt false_positives=0.1
    unembed membership vectors=mine.npy candidates=letters.txt defense=truncation defense.dimensions=128

A candidate is reported where one of the store's vectors is much nearer to its own than the next is, more so than for
texts that are not in the store, the references. Nothing is inverted: of the run only the embedder, the defense and the
test texts are used. docs/membership.md says what is found where vectors are defended.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from unembed import launch
from unembed.core.errors import InputError, printable

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("membership")


def membership(settings: DictConfig, config: DictConfig) -> None:
    """Open the store -> embed the texts -> compare -> write."""
    from unembed.core.atomic_files import write_json_lines
    from unembed.datamodules.vector_stores.sampling import open_store, sample_store
    from unembed.metrics.membership import fewest
    from unembed.metrics.spaces import FEWEST, Space
    from unembed.reports.membership import comparisons, fit_to_store, look_up, read_texts
    from unembed.reports.numbers import counted, interval
    from unembed.reports.reading import known_rows
    from unembed.reports.vector_space import check_space, dimension_explained
    from unembed.session import Session

    run, output, rate = Path(settings.run), Path(settings.output), settings.false_positives / 100
    lines = read_texts(settings.candidates, "candidates")
    candidates = list(lines.values())
    if settings.references is None:
        references, key = [row.reference for row in known_rows(run)], f"run={settings.run}"
    else:
        references, key = (
            list(read_texts(settings.references, "references").values()),
            f"references={settings.references}",
        )
    wanted = set(candidates)
    references = [text for text in dict.fromkeys(references) if text not in wanted]
    if len(references) < fewest(rate):
        raise InputError(
            f"false_positives={settings.false_positives:g}: needs {counted(fewest(rate), 'text')} that are neither "
            f"candidates nor in the store, and {key} has {len(references):,}; name more by references=<file>, or ask "
            f"for {100 / (len(references) + 1):.2g} or more"
        )
    if settings.references is None:
        log.warning(
            "references: none given, so the run's test texts are compared, and the store's rows with each other. On a "
            "store of noisy vectors of other text, many more than %g %% may be reported as near; name texts of the "
            "same kind",
            settings.false_positives,
        )
    session = Session.open(run, config)
    defense = session.threat.defense
    dimension = defense.output_dimension(session.embedder.dimension)
    with dimension_explained(None, session):
        store = sample_store(open_store(settings.vectors, dimension, settings.collection), dimension)
    if not session.is_fitted and not fit_to_store(defense, store.vectors):
        raise InputError(
            f"defense={config.choices.defense}: is fitted to texts, run={settings.run} keeps no state of it with these "
            f"settings, and vectors={settings.vectors} do not show it; leave it out to compare the texts as they are"
        )
    ways = comparisons(candidates, references, session.embedder, defense)
    space = Space.of(ways[0].stored) if len(references) >= FEWEST else None
    for warning in check_space(settings.vectors, store.vectors, space, session, references, settings.trust_vectors):
        log.warning(warning)

    found = look_up(ways, store.vectors, rate, by_store=settings.references is None)
    rows, answers = found.lines(lines, store.ids), found.answers
    write_json_lines(output, rows)
    for row, text in list(zip(rows, candidates, strict=True))[:10]:
        print(printable(f"{row['line']:>6}  {row['member']:<5}  {row['cosine']:.3f}  {' '.join(text.split())}"))
    like = "the store's own, each compared with the others" if found.by_store else f"the {len(references):,} references"
    exact, near = answers.count("exact"), answers.count("near")
    print(
        f"{exact + near:,} of {counted(len(candidates), 'candidate')} are in the store of {counted(store.size, 'row')} "
        f"(score above {found.threshold.value:.2f}), {exact:,} of them with a vector as near as the text's own. Of "
        f"texts like {like}, {settings.false_positives:g} % at most are expected above it "
        f"by chance (95 % interval of the rate: {interval('share', found.threshold.actual)})."
    )
    print(printable(f"Written: {output}"))


def main() -> None:
    """``unembed membership``."""
    launch.main(membership, "membership")
