"""The commands and files that the README, the pages under docs/, ``--help`` and messages print."""

from __future__ import annotations

import ast
import csv
import functools
import re
import shlex
from pathlib import Path
from string import Template

from unembed.core.commands import command

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "results" / "README.md", *(ROOT / "docs").glob("*.md")]
)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@functools.cache
def fenced() -> dict[str, str]:
    """The lines of all fenced blocks that run one of our scripts, and the page of each.

    A loop is taken once, with its first value, and shell variables that a block sets are put in.
    """
    found: dict[str, str] = {}
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", read(page), flags=re.MULTILINE | re.DOTALL):
            variables: dict[str, str] = {}
            for line in unfolded(block).splitlines():
                if given := re.match(r'(?:export )?(\w+)="([^"]*)"$|for (\w+) in (\w+).*; do$', line.strip()):
                    variables[given[1] or given[3]] = given[2] or given[4]
                elif re.match(r" *(\w+=\w+ )*((python|torchrun|srun) .*?(benchmarks/)?\w+\.py|unembed \w+)( |$)", line):
                    found.setdefault(Template(line.strip()).safe_substitute(variables), page.name)
    return found


def unfolded(text: str) -> str:
    """The text with commands that go on after a backslash on one line."""
    return text.replace("\\\n", " ")


@functools.cache
def printed() -> dict[str, str]:
    """The commands that are printed elsewhere: in running text, results, by ``--help``, and in messages.

    Returns:
        Their lines with where each is from.
    """
    found: dict[str, str] = {}
    for page in [*PAGES, *sorted((ROOT / "unembed" / "attackers").rglob("*.md"))]:
        for line in re.findall(r"`((?:python \w+\.py|unembed \w+) [^`]+)`", read(page)):
            found.setdefault(" ".join(line.split()), page.name)
    for page in [
        *ROOT.glob("*.py"),
        *sorted((ROOT / "unembed" / "commands").glob("*.py")),
        *sorted((ROOT / "unembed" / "attackers").rglob("*.md")),
    ]:
        lines = unfolded(read(page))
        for line in re.findall(r"^ *((?:python \w+\.py|unembed \w+)(?: .*)?)$", lines, flags=re.MULTILINE):
            found.setdefault(line, page.name)
    for path in sorted((ROOT / "results").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found |= dict.fromkeys(filter(None, row["command"].split(" && ")), f"results/{path.name}")
    for path in sources():
        for call in ast.walk(ast.parse(read(path))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "command":
                found.setdefault(_said(call), path.relative_to(ROOT).as_posix())
    return {line: place for line, place in found.items() if line and not re.search("--(help|config-dir)", line)}


def sources() -> list[Path]:
    """The modules of the project."""
    folders = (path.parent for path in ROOT.glob("*/__init__.py"))
    return sorted([*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))])


def _said(call: ast.Call) -> str:
    """What ``command(...)`` says, with placeholders for what only the running program knows; empty if that is most."""
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return ""
    script, *given = map(_text, call.args)
    return command(script, *given, **{str(one.arg): _text(one.value) for one in call.keywords})


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "placeholder"


def words(line: str) -> tuple[str, list[str]]:
    """The script of a command and its arguments; a placeholder stands for what the reader has to put in."""
    line = re.sub(r"<[^<>]+>", "placeholder", line.replace("<the overrides of that run>", ""))
    line = line.rstrip("&").replace("...", "")
    parts = shlex.split(line, comments=True)
    script = next(i for i, word in enumerate(parts) if word.endswith(".py") or parts[i - 1 : i] == ["unembed"])
    return parts[script].removesuffix(".py"), parts[script + 1 :]


def blocks() -> dict[str, str]:
    """The files that the README and the page on extending print, by name."""
    pages = "\n".join(map(read, (ROOT / "README.md", ROOT / "docs" / "extending.md")))
    return dict(re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```", pages, re.M | re.S))


def commands(*scripts: str, everywhere: bool = False) -> list[str]:
    """The documented commands of some scripts; those with the classes that a page writes left out."""
    written = {Path(name).stem for name in blocks()}
    lines = [
        line
        for line in (fenced() | printed() if everywhere else fenced())
        if not written.intersection(re.findall(r"\w+", line))
    ]
    return sorted(line for line in lines if words(line)[0] in scripts)
