"""The commands and files that the README and the pages under docs/ print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fenced() -> dict[str, str]:
    """The lines of all fenced blocks that run one of our scripts, and the page of each.

    A loop is taken once, with its first value, and shell variables that a block sets are put in.
    """
    found: dict[str, str] = {}
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", read(page), flags=re.MULTILINE | re.DOTALL):
            variables: dict[str, str] = {}
            for line in block.replace("\\\n", " ").splitlines():
                if given := re.match(r'(?:export )?(\w+)="([^"]*)"$|for (\w+) in (\w+).*; do$', line.strip()):
                    variables[given[1] or given[3]] = given[2] or given[4]
                elif re.match(r" *(\w+=\w+ )*(python|torchrun|srun) .*?(benchmarks/)?\w+\.py( |$)", line):
                    found.setdefault(Template(line.strip()).safe_substitute(variables), page.name)
    return found


def words(line: str) -> tuple[str, list[str]]:
    """The script of a command and its arguments; a placeholder stands for what the reader has to put in."""
    line = re.sub(r"<[^<>]+>", "placeholder", line.replace("<the overrides of that run>", ""))
    line = line.rstrip("&").replace("...", "")
    parts = shlex.split(line, comments=True)
    script = next(i for i, word in enumerate(parts) if word.endswith(".py"))
    return parts[script].removesuffix(".py"), parts[script + 1 :]


def blocks() -> dict[str, str]:
    """The files that the pages on extending print, by name."""
    pages = "\n".join(map(read, sorted((ROOT / "docs").glob("extending*.md"))))
    return dict(re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```", pages, re.M | re.S))


def commands(*scripts: str) -> list[str]:
    """The documented commands of some scripts; those with the classes that a page writes left out."""
    written = {Path(name).stem for name in blocks()}
    lines = [line for line in fenced() if not written.intersection(re.findall(r"\w+", line))]
    return sorted(line for line in lines if words(line)[0] in scripts)
