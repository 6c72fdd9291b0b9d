"""constraints.txt pins what pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["dev"])]
    assert len(pinned) > len(wanted) > 30
    for requirement in wanted:
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement
