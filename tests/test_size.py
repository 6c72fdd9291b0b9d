"""How large the project is: ``python tests/test_size.py`` prints the table, the test holds the ceilings.

Files are those that git knows. Code tokens leave out comments, docstrings, line ends and indentation.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SLACK = 1.02
CEILINGS = {
    "lines of source": 42_960,
    "code tokens of source": 308_300,
    "files of source": 253,
    "lines of the longest file": 440,
    "lines of command line, checks and run directory": 5_410,
    "configurations": 281,
    "pages": 29,
    "words of the pages": 47_170,
    "lines of tests": 32_530,
    "lines of benchmarks": 8_320,
}
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
           tokenize.ENDMARKER)  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def files(pattern: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.splitlines() if (path := ROOT / name).is_file()]


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def code_tokens(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    docstrings = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    every = tokenize.generate_tokens(io.StringIO(text).readline)
    kept = (one for one in every if one.type not in _LAYOUT)
    return sum(1 for one in kept if not (one.type == tokenize.STRING and one.start[0] in docstrings))


def table() -> dict[str, int]:
    python = files("*.py")
    tests, benchmarks = (
        [path for path in python if path.is_relative_to(ROOT / name)] for name in ("tests", "benchmarks")
    )
    source = [path for path in python if path not in tests and path not in benchmarks]
    shell = [ROOT / "unembed" / name for name in ("launch", "runs", "commands", "core")]
    pages = [*files("docs/*.md"), ROOT / "README.md"]
    return {
        "lines of source": lines(source),
        "code tokens of source": sum(map(code_tokens, source)),
        "files of source": len(source),
        "lines of the longest file": max(lines([path]) for path in source),
        "lines of command line, checks and run directory": lines(
            [path for path in source if path.parent in shell or path.parent == ROOT]
        ),
        "configurations": len(files("configs/*.yaml")),
        "pages": len(pages),
        "words of the pages": sum(len(re.findall(r"\S+", path.read_text(encoding="utf-8"))) for path in pages),
        "lines of tests": lines(tests),
        "lines of benchmarks": lines(benchmarks),
    }


def test_nothing_grows_beyond_its_ceiling() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("git says which files are the project's")
    measured = table()
    assert {name: value for name, value in measured.items() if value > SLACK * CEILINGS[name]} == {}


if __name__ == "__main__":
    for name, value in table().items():
        print(f"{name:<50}{value:>9,}  (ceiling {CEILINGS[name]:,})")
