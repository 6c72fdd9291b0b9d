"""Values that were changed when a run was resumed, recorded in ``resumed.json``.

{"sessions": [{"time": "2026-11-22T05:54:45+00:00", "changed": {"trainer.max_steps": {"before": 300, "now": 600}}}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unembed.core.atomic_files import read_json, write_json
from unembed.core.errors import InputError
from unembed.runs.layout import CONFIG, RESUMED


def note_resumption(directory: Path, changed: Mapping[str, tuple[Any, Any]]) -> None:
    """Record that training resumes with changed values: for each key, the old and the new value."""
    values = {key: {"before": before, "now": now} for key, (before, now) in changed.items()}
    session = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "changed": values}
    write_json(directory / RESUMED, {"sessions": [*_sessions(directory), session]})


def changed_values(directory: Path) -> dict[str, Any]:
    """The values of the last resumption by key; empty if the run was never resumed with changes.

    Raises:
        InputError: ``resumed.json`` has another form.
    """
    values: dict[str, Any] = {}
    for session in _sessions(directory):
        changed = session.get("changed") if isinstance(session, dict) else None
        for key, value in changed.items() if isinstance(changed, dict) else [("", None)]:
            if not isinstance(value, dict) or "now" not in value or not all(key.split(".")):
                raise InputError(f"{directory / RESUMED}: not the changes of a resumed run")
            values[key] = value["now"]
    return values


def with_changes(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The configuration of config.yaml with the values of the last resumption."""
    for key, value in changed_values(directory).items():
        *parents, name = key.split(".")
        node: Any = config
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise InputError(f"{directory / RESUMED}: {key} is not a key of the run's {CONFIG}")
        node[name] = value
    return config


def _sessions(directory: Path) -> list[Any]:
    path = directory / RESUMED
    if not path.is_file():
        return []
    sessions = read_json(path).get("sessions")
    if not isinstance(sessions, list):
        raise InputError(f"{path}: not the changes of a resumed run")
    return sessions
