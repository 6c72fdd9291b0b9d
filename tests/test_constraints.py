"""constraints.txt pins all that pyproject.toml leads to, and benchmarks/pip_audit.sh looks all of it up."""

from __future__ import annotations

import os
import subprocess
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.processes import ROOT


def pins() -> dict[str, str]:
    """Version by package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def asked() -> list[Requirement]:
    """What pyproject.toml asks for, with all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    return [Requirement(line) for line in (*project["dependencies"], *extras)]


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    pinned, wanted = pins(), asked()
    assert len(pinned) > len(wanted) > 30
    for requirement in wanted:
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_every_package_that_the_installation_leads_to_is_pinned() -> None:
    """The environment of this test is an installation: what pip resolved is what its packages require in turn."""
    versions = pins()
    open_, seen, found = asked(), set[tuple[str, frozenset[str]]](), set[str]()
    while open_:
        requirement = open_.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        found.add(name)
        if name in versions:
            assert requirement.specifier.contains(versions[name]), f"{requirement}, but pinned is {versions[name]}"
        try:
            behind = metadata.requires(requirement.name) or []
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed here
        if metadata.version(requirement.name).partition("+")[0] != versions.get(name):
            continue  # another release than the pinned one may require others
        extras = {"", *requirement.extras}
        inner = [Requirement(line) for line in behind]
        open_ += [one for one in inner if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras)]
    # Wheels of torch for NVIDIA's GPUs bring their libraries, other wheels of the same version do not.
    missing = {name for name in found - versions.keys() if not name.startswith(("nvidia-", "cuda-", "triton"))}
    assert len(found) > 100
    assert missing == set()


def test_an_audit_that_could_not_look_up_a_package_fails(tmp_path: Path) -> None:
    """With a python3 whose environments hold a pip-audit that behaves as the real one: --strict decides."""
    stub = tmp_path / "python3"
    audit = """#!/bin/sh
case " $* " in *" --strict "*) echo "ERROR: torch: Dependency not found on PyPI" >&2; exit 1;; *) exit 0;; esac
"""
    stub.write_text(
        f"""#!/bin/sh
mkdir -p "$3/bin"
printf '#!/bin/sh\\n' > "$3/bin/pip"
cat > "$3/bin/pip-audit" <<'END'
{audit}END
chmod +x "$3/bin/pip" "$3/bin/pip-audit"
"""
    )
    stub.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = ["bash", str(ROOT / "benchmarks" / "pip_audit.sh")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "not found on PyPI" in done.stderr
