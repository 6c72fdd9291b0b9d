"""Run directories from the Hugging Face hub: ``run=hub:<owner>/<name>``, or with ``@<branch, tag or commit>``.

    download("hub:ada/inverter@v1", "run", cache)     # <cache>/attackers/ada--inverter/<commit>, a run directory

The hub's cache holds links, which a run directory must not (layout.check_links), so the files are copied. A downloaded
run is untrusted like any other (docs/security.md); files that no run has, such as code, are not downloaded.
"""

from __future__ import annotations

import functools
import logging
import re
import shutil
from pathlib import Path

from unembed.core.atomic_files import replacing
from unembed.core.errors import InputError
from unembed.runs import layout

log = logging.getLogger("runs")

HUB = "hub:"
_FORM = re.compile(r"hub:([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?")
# What unembed invert, unembed audit, evaluate.py and init_from= read of a run.
_FILES = (
    layout.CONFIG, layout.RESUMED, layout.RECORD, layout.DATA, layout.CHECKPOINT, f"{layout.ARTIFACTS}/*",
    layout.PREDICTIONS, layout.METRICS, layout.BASELINE, layout.ANALYSES, layout.DESCRIPTIONS, layout.CALIBRATION,
    layout.CARD,
)  # fmt: skip


@functools.cache
def download(named: str, key: str, cache: Path) -> Path:
    """The run directory of a repository; what an earlier command has downloaded works offline.

    Args:
        named: ``hub:<owner>/<name>`` or ``hub:<owner>/<name>@<revision>``.
        key: The config key that names it, for messages.
        cache: The folder that takes the copy.

    Raises:
        InputError: Another form, a repository that cannot be had, or one that is no run directory.
    """
    found = _FORM.fullmatch(named)
    if found is None:
        raise InputError(f"{key}={named}: write hub:<owner>/<name>, or hub:<owner>/<name>@<revision>")
    owner, name, revision = found.groups()
    snapshot = _snapshot(f"{owner}/{name}", revision, f"{key}={named}")
    commit = snapshot.name
    if not (snapshot / layout.CONFIG).is_file():
        raise InputError(f"{key}={named}: holds no {layout.CONFIG}: not the repository of a run directory")
    if revision is None:
        log.warning("%s=%s may change; pin what is read now by %s=%s@%s", key, named, key, named, commit)
    folder = cache / "attackers" / f"{owner}--{name}" / commit
    if not folder.is_dir():
        with replacing(folder) as copy:
            for file in (path for path in snapshot.rglob("*") if path.is_file()):
                target = copy / file.relative_to(snapshot)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    return folder


def _snapshot(repository: str, revision: str | None, said: str) -> Path:
    """The folder of a repository's files in the hub's cache; missing ones are downloaded."""
    import httpx
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(_FILES)))
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"{said}: neither in the hub's cache on this machine nor to be had from the hub ({type(error).__name__}: "
            f"{reason}); on a machine without a connection, copy the repository's folder and give its path"
        ) from error
