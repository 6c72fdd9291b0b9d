"""The command line flags of the scripts, and the text of ``--help``.

python train.py --help                     # keys with their defaults, groups with their options
python train.py --cfg job attack=multiset  # what Hydra composes
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from unembed.core.commands import arguments
from unembed.core.commands import command as proposed
from unembed.core.errors import printable, redacted
from unembed.launch.sources import CONFIGS, groups, parts


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the message as plain text: a shell's ``*`` may expand to arbitrary names."""
        print(printable(f"{redacted(message)}; --help lists what can be given"), file=sys.stderr)
        raise SystemExit(2)


def of_training() -> argparse.Namespace:
    """The command line of train.py, with Hydra's flags; ``of_hydra`` is set if Hydra alone handles it."""
    parser = _parser()
    parser.add_argument("--run", "-r", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--package", "-p")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--hydra-help", "--version", "--shell-completion", "-sc", dest="of_hydra", action="store_true")
    parser.add_argument("--info", "-i", dest="of_hydra", nargs="?", const="all")
    parser.add_argument("--experimental-rerun", dest="of_hydra")
    return parser.parse_intermixed_args(arguments())


def on_run(switches: Mapping[str, str]) -> argparse.Namespace:
    """The command line of a script on a finished run; each flag of ``switches`` stands for an override."""
    parser = _parser()
    for flag, override in switches.items():
        parser.add_argument(flag, dest="switched", action="append_const", const=override)
    found = parser.parse_intermixed_args(arguments())
    found.overrides += getattr(found, "switched", None) or []
    return found


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    return parser


def usage(task: Callable[..., object], config_name: str) -> str:
    """The text of ``--help``: the script's docstring, its own keys, and the groups with their options."""
    notes = _comments(CONFIGS / "train.yaml")
    about = inspect.getdoc(inspect.getmodule(task)) or ""
    lines = [re.sub(r"python (train|evaluate)\.py", lambda found: proposed(found[1]), about), "", "Keys (key=value):"]
    for name, (default, note) in _comments(CONFIGS / f"{config_name}.yaml").items():
        if not name.startswith("- "):
            lines += [f"  {name:<11} {note}", f"  {'':<14}{'must be given' if default == '???' else default}"]
    of = "" if config_name == "train" else ", which change the settings of the run"
    lines += ["", f"Groups (group=option; the first is the default){of}:"]
    for group, choices in groups().items():
        default, note = notes[f"- {group}"]
        ordered = sorted(choices, key=lambda choice: (choice != default, choice))
        lines += [f"  {group:<12}{note}", f"  {'':<14}{', '.join(ordered) or '(none)'}"]
    lines += ["", "Parts of groups (group/part=option):"]
    lines += [f"  {name:<26}{', '.join(choices)}" for name, choices in parts().items()]
    lines += ["", "A dot leads into a group: attack.decoding.beams=1"]
    if config_name == "train":
        lines += ["", "-m runs all combinations of comma-separated values; -c job shows the configuration"]
    return "\n".join(lines)


def _comments(path: Path) -> dict[str, tuple[str, str]]:
    """Value and comment of each commented line of a root configuration; groups have a leading ``- ``."""
    pattern = re.compile(r"\s*(- )?(?:optional )?(\w+): +(.+?)\s+# (.+)")
    found = (pattern.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {f"{m[1] or ''}{m[2]}": (m[3], m[4]) for m in found if m is not None}
