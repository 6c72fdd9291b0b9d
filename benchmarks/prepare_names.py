"""Test texts whose first names nothing knows: neither the training text, nor the embedder's vocabulary, nor a list.

    python benchmarks/prepare_names.py --run runs/geia --output names.jsonl
    python evaluate.py run=runs/geia datamodule=files datamodule.test=names.jsonl datamodule.spans_field=spans

In the test texts of a finished run on the built-in corpus, the first first name of each is replaced by one of 200 that
people bear in some thirty countries (package faker). A line of JSON each: text, and the name's span.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from measuring import command_line, read_rows

from unembed.attacks.refine.lexicon.language import Language
from unembed.core.atomic_files import write_json_lines
from unembed.embedders.minilm import MiniLM
from unembed.runs import layout

LOCALES = ("az_AZ", "cs_CZ", "da_DK", "de_DE", "en_IN", "en_NG", "es_ES", "et_EE", "fi_FI", "fr_FR", "ga_IE", "hr_HR",
           "hu_HU", "id_ID", "it_IT", "lt_LT", "lv_LV", "nl_NL", "no_NO", "pl_PL", "pt_PT", "ro_RO", "sl_SI", "sv_SE",
           "tr_TR", "tw_GH", "yo_NG", "zu_ZA")  # fmt: skip
NAMES, KIND = 200, "first_name"


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="a finished run with lexicon search")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args(argv)

    language = Language.read(next((options.run / layout.ARTIFACTS).rglob("language.json")))
    known = {*language.words, *language.beginnings, *MiniLM().tokenizer.get_vocab()}
    names = unknown_names(known)
    chosen = random.Random(options.seed).sample(names, NAMES)
    found = []
    for row in read_rows(options.run / layout.PREDICTIONS):
        span = next((one for one in row["spans"] if one[2] == KIND), None)
        if span is not None and len(found) < options.texts:
            begin, end, _ = span
            name, text = chosen[len(found) % NAMES], row["reference"]
            found.append({
                "text": text[:begin] + name + text[end:], "spans": [[begin, begin + len(name), KIND]],
            })  # fmt: skip
    write_json_lines(options.output, found)
    print(f"{len(found)} texts with {len({one['text'][slice(*one['spans'][0][:2])] for one in found})} names "
          f"of {len(names):,} that are unknown, in {options.output}")  # fmt: skip


def unknown_names(known: set[str]) -> list[str]:
    """First names of the locales in plain letters that are not in ``known``."""
    found: set[str] = set()
    for locale in LOCALES:
        provider = import_module(f"faker.providers.person.{locale}").Provider
        for kind in vars(provider):
            if kind.startswith("first_names"):
                found |= {name for name in getattr(provider, kind) if re.fullmatch(r"[A-Z][a-z]{2,11}", name)}
    return sorted(name for name in found if name.lower() not in known)


if __name__ == "__main__":
    main()
