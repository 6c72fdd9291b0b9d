"""import-linter holds the packages to their order; what it and ruff cannot see is checked here."""

from __future__ import annotations

import re
import tomllib

from support.processes import ROOT


def test_nothing_of_ours_is_imported_by_a_second_name() -> None:
    """ruff checks import statements for these names; configurations name classes as text."""
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"unembed"}
    scripts = {path.stem for path in ROOT.glob("*.py")} - {"setup"}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == folders | scripts
    files = sorted((ROOT / "configs").rglob("*.yaml"))
    targets = {one for path in files for one in re.findall(r"_target_: (\w+)", path.read_text(encoding="utf-8"))}
    assert "unembed" in targets
    assert targets & (folders | scripts) == set()
