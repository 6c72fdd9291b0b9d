"""Texts that were lengthened before they were embedded: metrics compare with the originals, at the same places."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from support.files import write_lines
from unembed.attacks.base import Attack
from unembed.attacks.parts.predictions import Prediction
from unembed.callbacks.results import embedded_words
from unembed.callbacks.scoring import score_predictions
from unembed.core.errors import InputError
from unembed.core.examples import Example, Span
from unembed.datamodules.sources.files import FilesDataModule, TextFiles
from unembed.datamodules.truncation import Truncation
from unembed.defenses.identity import Identity
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.scoring.models import ScoringModels

ROWS: list[dict[str, Any]] = [
    {"text": "Ada lives in Paris", "longer": "As all know, Ada lives in Paris now", "spans": [[0, 3, "name"]]},
    {"text": "Bob is ill", "longer": "It has been said that Bob is ill", "spans": [[0, 3, "name"]]},
    {"text": "Ada lives in Paris", "longer": "Ada, they say, lives in Paris", "spans": []},  # a second version
    {"text": " ", "longer": "nothing was lengthened", "spans": []},
    {"text": "Eve left", "longer": "It is certain that Eve left", "spans": [[0, 3, "name"]]},
]


class Lengths:
    """Vectors of the lengths of a text's words; the embedder and nothing else sees the lengthened text."""

    dimension, max_tokens, fingerprint = 8, 512, "0123456789abcdef" * 4

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        return (
            torch.stack([torch.bincount(torch.tensor([*map(len, text.split())]), minlength=8) for text in texts]) + 0.0
        )


class Silent(Attack):
    """An attack without tokens."""

    def invert(self, targets: Any, oracle: Any) -> list[Prediction]:
        raise NotImplementedError


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    write_lines(path, ROWS)
    return path


def opened(tmp_path: Path, **options: Any) -> FilesDataModule:
    data = FilesDataModule(spans_field="spans", **options)
    data.connect(CachedEmbedder(Lengths(), tmp_path / "cache"), Identity())
    return data


@pytest.mark.filterwarnings("ignore:.*blank")
def test_both_readings_have_the_same_references_at_the_same_places(tmp_path: Path, pairs: Path) -> None:
    short = opened(tmp_path, test=str(pairs))
    long = opened(tmp_path, test=str(pairs), text_field="longer", original_field="text")
    long.setup("test")
    read = [data.examples("test") for data in (short, long)]
    kept = ["Ada lives in Paris", "Bob is ill", "Eve left"]
    assert [[example.reference for example in examples] for examples in read] == [kept, kept]
    assert [example.text for example in read[1]] == [ROWS[place]["longer"] for place in (0, 1, 4)]
    assert [example.spans for example in read[1]] == [(Span(0, 3, "name"),)] * 3
    assert torch.equal(long.vectors("test", [1]), Lengths().embed([ROWS[1]["longer"]]))


def test_what_is_cut_off_for_testing_does_not_depend_on_the_lengthening(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    rows = [{"text": f"text {number}", "longer": f"{number * number} or so"} for number in range(50)]
    write_lines(path, rows)
    one = TextFiles(str(path), test_fraction=0.2).load()
    other = TextFiles(str(path), text_field="longer", original_field="text", test_fraction=0.2).load()
    assert [e.text for e in one["test"]] == [e.reference for e in other["test"]]
    assert len(one["test"]) == 10


def test_training_texts_that_repeat_either_version_are_dropped_and_cut_originals_warned_of(
    tmp_path: Path, pairs: Path
) -> None:
    train = tmp_path / "train.jsonl"
    texts = ["bob is ill !", "It is certain that Eve left", "Ada lives in Rome", "Bob is well"]
    train.write_text("".join(json.dumps({"longer": text, "text": text, "spans": []}) + "\n" for text in texts))
    data = opened(tmp_path, train=str(train), test=str(pairs), text_field="longer", original_field="text")
    with pytest.warns(UserWarning, match="blank"):
        assert [example.text for example in data.examples("train")] == ["Ada lives in Rome", "Bob is well"]
    data = opened(tmp_path, test=str(pairs), text_field="longer", original_field="text", max_tokens=4)
    with pytest.warns(UserWarning, match=r"datamodule\.max_tokens=4: [34] texts were cut"):
        data.examples("test")


def test_text_and_original_are_cut_alike_and_embedded_words_are_counted() -> None:
    spans = (Span(0, 3, "name"), Span(13, 18, "city"))
    example = Example(0, "They say that Ada lives in Paris", spans, original="Ada lives in Paris")
    truncation = Truncation(3)
    (cut,) = truncation.cut([example])
    assert (cut.text, cut.original, cut.spans) == ("They say that", "Ada lives in", spans[:1])
    assert truncation.cut_texts == 1
    assert list(Truncation(9).cut([example])) == [example]
    assert embedded_words(["a dog barks .", "yes"]) == 2


@pytest.mark.filterwarnings("ignore:.*blank")
def test_metrics_compare_with_the_original_and_cosines_with_what_was_embedded(tmp_path: Path, pairs: Path) -> None:
    data = opened(tmp_path, test=str(pairs), text_field="longer", original_field="text")
    data.setup("test")
    predictions = {0: Prediction((ROWS[0]["text"],)), 1: Prediction((ROWS[1]["longer"],)), 2: Prediction(("Eve",))}
    rows, metrics = score_predictions(predictions, data, data.embedder, None, Silent(), ScoringModels())
    assert [row["reference"] for row in rows] == ["Ada lives in Paris", "Bob is ill", "Eve left"]
    assert metrics["exact_match"] == pytest.approx(100 / 3)
    assert metrics["entity_recovery"] == 100
    assert metrics["token_recall"] == pytest.approx((100 + 100 + 50) / 3)
    assert rows[1]["cosine"] == pytest.approx(1)  # the lengthened text is what was attacked
    assert rows[0]["cosine"] < 0.99


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "longer": "a b"}, r"a\.jsonl:1: no field 'orig' \(datamodule\.original_field=orig\); valid: "),
        ({"orig": 5, "longer": "a b"}, r"a\.jsonl:1: field 'orig' holds int 5, not a text"),
    ],
)
def test_a_row_without_its_original(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=message):
        TextFiles(test=str(tmp_path / "a.jsonl"), text_field="longer", original_field="orig").load()
