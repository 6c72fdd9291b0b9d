"""The folders beside unembed/ are parts of it: attacks/ is imported as unembed.attacks. pyproject.toml has the rest."""

from setuptools import find_packages, setup

beside = find_packages(exclude=["unembed", "unembed.*", "build", "build.*"])
setup(
    packages=[*find_packages(include=["unembed", "unembed.*"]), *(f"unembed.{name}" for name in beside)],
    package_dir={f"unembed.{name}": name for name in beside if "." not in name},
)
