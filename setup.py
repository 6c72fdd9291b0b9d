"""The folders beside unembed/ are parts of it: attacks/ is imported as unembed.attacks. pyproject.toml has the rest."""

import sys
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup
from setuptools.command.build_py import build_py


class WithScripts(build_py):
    """train.py and evaluate.py are imported as unembed.train and unembed.evaluate."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a clone finds them beside this file
            for script in ("train.py", "evaluate.py"):
                self.copy_file(script, str(Path(self.build_lib) / "unembed" / script))


# Folders of data are packages to a build, which warns of each that is missing. Editable installations find them anyway.
data = find_namespace_packages(include=["configs.*", "unembed.attackers.*"], exclude=["*__pycache__*"])
found = find_packages() + ([] if "editable_wheel" in sys.argv else data)
beside = [name for name in found if not f"{name}.".startswith("unembed.")]
setup(
    packages=[f"unembed.{name}" if name in beside else name for name in found],
    package_dir={f"unembed.{name}": name for name in beside if "." not in name},
    cmdclass={"build_py": WithScripts},
)
