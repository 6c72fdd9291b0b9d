"""The command ``unembed <command> <arguments>``, also ``python -m unembed <command> <arguments>``."""

import importlib
import sys

from unembed import __version__
from unembed.core import stopping
from unembed.core.errors import did_you_mean, printable

COMMANDS = {
    "train": ("unembed.train", "train an attack on embeddings, test it, and write a report"),
    "evaluate": (
        "unembed.evaluate",
        "test a finished run again: other text, another decoding, a defense",
    ),
    "identify": ("unembed.commands.identify", "say which embedder made vectors"),
    "invert": ("unembed.commands.invert", "read the texts of a file of vectors"),
    "audit": ("unembed.commands.audit", "say how much of a vector store can be read, as a page for its owner"),
    "compare": ("unembed.commands.compare", "put runs and evaluations into one table"),
    "membership": ("unembed.commands.membership", "find which of your texts are in a vector store"),
    "demo": ("unembed.demo", "a page on this machine: a sentence is embedded and read back, step by step"),
    "export": ("unembed.commands.export", "make a finished run an attacker that others open by its name"),
}
USAGE = """Train, evaluate and defend against text inversion attacks.

    unembed <command> <key>=<value> ...

{listing}

unembed <command> --help lists the keys of a command.
"""


def main() -> None:
    """Run the command that the first argument names."""
    stopping.begin()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h"):
        listing = "\n".join(f"    {command:<12}{what}" for command, (_, what) in COMMANDS.items())
        print(USAGE.format(listing=listing), end="")
    elif name == "--version":
        print(f"unembed {__version__}")
    elif name not in COMMANDS:
        print(printable(f"unembed {name}: no such command, {did_you_mean(name, COMMANDS)}"), file=sys.stderr)
        raise SystemExit(2)
    else:
        importlib.import_module(COMMANDS[name][0]).main()


if __name__ == "__main__":
    main()
