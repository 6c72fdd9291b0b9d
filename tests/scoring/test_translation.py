"""Ad hoc translation: metrics by hand, a translator built here, and both texts in predictions.jsonl."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.files import read_lines, write_lines
from support.processes import ROOT
from support.scored import HeldOut
from support.tiny_models import t5_model
from unembed import launch
from unembed.attacks.parts.backbones import train_tokenizer
from unembed.attacks.parts.predictions import Prediction
from unembed.callbacks.scoring import score_predictions
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import score
from unembed.reports.results import measure
from unembed.scoring.models import ScoringModels, scoring_models
from unembed.scoring.translation import Translator
from unembed.train import train

GERMAN = ["zwei männer kochen", "ein roter hund läuft", "sie liest bücher", "das meer ist kalt"]
ENGLISH = ["two men cook", "a red dog runs", "she reads books", "the sea is cold"]


def untrained() -> tuple[Any, Any]:
    """A T5 of random weights, and a tokenizer that writes the end token itself, as translation models' do."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = train_tokenizer([*GERMAN, *ENGLISH], 300)
    end = [("<eos>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=end)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    start = {"decoder_start_token_id": tokenizer.pad_token_id}
    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "dropout_rate": 0.0}
    return t5_model(len(tokenizer), **shape, **ids, **start), tokenizer


@pytest.fixture(scope="module")
def german_english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator that has learnt four sentences by heart."""
    folder = tmp_path_factory.mktemp("translators") / "de-en"
    model, tokenizer = untrained()
    inputs = tokenizer(GERMAN, padding=True, padding_side="right", return_tensors="pt")
    labels = tokenizer(ENGLISH, padding=True, padding_side="right", return_tensors="pt")["input_ids"]
    labels = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_it_translates_what_it_has_learnt(german_english: Path) -> None:
    translator = Translator("de", {"en": str(german_english)}, beams=2, max_new_tokens=20)
    texts = [GERMAN[2], "", GERMAN[0], GERMAN[2], "bleibt deutsch", " "]
    assert translator.translate(texts, ["en", "en", "en", "en", "de", "en"]) == [
        ENGLISH[2], "", ENGLISH[0], ENGLISH[2], "bleibt deutsch", "",
    ]  # fmt: skip
    plain = Translator("de", {"en": str(german_english)}, max_new_tokens=20)
    prefixed = Translator("de", {"en": str(german_english)}, prefixes={"en": "zwei "}, max_new_tokens=20)
    assert prefixed.translate(["männer kochen"], ["en"]) == plain.translate([GERMAN[0]], ["en"]) == [ENGLISH[0]]


def test_a_text_is_translated_once_and_alone_as_among_others(
    german_english: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator("de", {"en": str(german_english)})
    asked: list[str] = []
    original = translator._translated

    def counting(texts: Sequence[str], language: str) -> Any:
        asked.extend(texts)
        return original(texts, language)

    monkeypatch.setattr(translator, "_translated", counting)
    together = translator.translate([*GERMAN, GERMAN[0]], ["en"] * 5)
    assert translator.translate(GERMAN[:2], ["en", "en"]) == together[:2]
    assert asked == GERMAN
    monkeypatch.setattr("unembed.scoring.translation._TOKENS_AT_ONCE", {"cpu": 1})  # one text at a time
    assert Translator("de", {"en": str(german_english)}).translate(GERMAN, ["en"] * 4) == together[:4] == ENGLISH


def test_one_name_for_all_languages(german_english: Path) -> None:
    folder = german_english.parent
    translator = Translator("de", f"{folder}/{{written}}-{{language}}", max_new_tokens=20)
    assert translator.translate(GERMAN[:2], ["en", "de"]) == [ENGLISH[0], GERMAN[1]]
    with pytest.raises(InputError, match=r"scoring\.translation\.models\.fr=.*de-fr: no encoder-decoder model"):
        ScoringModels(translation=translator).check(["de", "en", "fr"])
    ScoringModels(translation=translator).check(["de", "en"])
    with pytest.raises(ValueError, match=r"one name for all languages needs \{language\}"):
        Translator("de", str(german_english))


def test_lower_cased_translations_are_compared_with_lower_cased_references(monkeypatch: pytest.MonkeyPatch) -> None:
    def shouted(self: Translator, texts: Sequence[str], language: str) -> list[tuple[str, str]]:
        return [(text, ENGLISH[GERMAN.index(text)].upper()) for text in texts]

    monkeypatch.setattr(Translator, "_translated", shouted)
    held: Any = HeldOut(*(Example(0, text.title(), language="en") for text in ENGLISH[:2]))
    texts = {0: Prediction((GERMAN[0],)), 1: Prediction((GERMAN[1],))}
    found = {}
    for lowercase in (False, True):
        translator = Translator("de", {"en": "any"}, lowercase=lowercase)
        rows, metrics = score_predictions(texts, held, held, None, held, ScoringModels(translation=translator))
        found[lowercase] = (rows[0]["reference"], rows[0]["translation"], metrics["translated/exact_match"])
    assert found == {False: ("Two Men Cook", "TWO MEN COOK", 0.0), True: ("Two Men Cook", "two men cook", 100.0)}


def test_a_language_without_a_model_is_said_and_left_out(german_english: Path) -> None:
    translator = Translator("de", {"en": str(german_english)})
    with pytest.warns(UserWarning, match=r"in 'fr' are not translated: scoring\.translation\.models has en"):
        assert translator.translate([GERMAN[0], GERMAN[1]], ["fr", "en"]) == [None, ENGLISH[1]]
    with pytest.warns(UserWarning, match="of unknown language are not translated"):
        assert translator.translate([GERMAN[0]], [None]) == [None]


def test_bad_choices_are_found_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"models\.de: predictions are in 'de'"):
        Translator("de", {"de": "x"})
    with pytest.raises(ValueError, match=r"prefixes\.fr: there is no such model"):
        Translator("de", {"en": "x"}, prefixes={"fr": ">>fra<< "})
    missing = Translator("de", {"en": str(tmp_path / "nothing")})
    with pytest.raises(InputError, match=r"scoring\.translation\.models\.en=.*nothing: no encoder-decoder model"):
        ScoringModels(translation=missing).check()
    config = launch.compose(
        "train", [
            "scoring/translation=encoder_decoder", "scoring.translation.written=de",
            f"scoring.translation.models={{en: {tmp_path / 'nothing'}}}",
        ],
    )  # fmt: skip
    with pytest.raises(InputError, match=r"scoring\.translation\.models\.en"):
        scoring_models(config)


ROWS = [
    Scored("two men cook", "zwei männer kochen", language="en", translation="two men cook"),
    Scored("a red dog runs", "ein hund", language="en", translation="a dog"),
    Scored("deux hommes", "zwei männer", language="fr"),
]


def test_translated_metrics_by_hand() -> None:
    metrics = score(ROWS)
    assert metrics["exact_match"] == 0.0
    assert metrics["translated/exact_match"] == 50.0
    # "a dog" has two of the four words and none that is wrong: precision 1, recall 1/2
    assert metrics["translated/token_f1"] == pytest.approx((100 + 200 / 3) / 2)
    assert metrics["translated/examples"] == 2
    alone = score([replace(row, prediction=row.translation or "", translation=None) for row in ROWS[:2]])
    assert metrics["translated/bleu"] == alone["bleu"]
    assert metrics["translated/rougeL"] == alone["rougeL"]
    assert not [key for key in metrics if key.startswith("translated/") and key.endswith(("/en", "cosine"))]
    metrics = score([*ROWS[:2], replace(ROWS[2], translation="deux hommes")])
    assert (metrics["translated/exact_match/en"], metrics["translated/exact_match/fr"]) == (50.0, 100.0)
    assert (metrics["exact_match/en"], metrics["exact_match/fr"]) == (0.0, 0.0)
    assert metrics["translated/examples/fr"] == 1


def test_without_translations_there_are_no_such_metrics(german_english: Path) -> None:
    assert not [key for key in score([ROWS[2]]) if key.startswith("translated/")]
    assert measure("translated/token_f1").title == "Word F1, translated"
    assert (measure("translated/bleu").kind, measure("translated/bleu").more) == ("score", "higher")
    held: Any = HeldOut(*(Example(0, text, language="en") for text in ENGLISH[:2]))
    models = ScoringModels(translation=Translator("de", {"en": str(german_english)}))
    texts = {0: Prediction((GERMAN[0],)), 1: Prediction((GERMAN[1],))}
    rows, metrics = score_predictions(texts, held, held, None, held, models)
    assert [row["translation"] for row in rows] == ENGLISH[:2]
    assert [row["language"] for row in rows] == ["en", "en"]
    assert (metrics["exact_match"], metrics["translated/exact_match"]) == (0.0, 100.0)
    bags = {index: replace(prediction, kind="set") for index, prediction in texts.items()}
    rows, metrics = score_predictions(bags, held, held, None, held, models)
    assert not [row for row in rows if "translation" in row]
    assert not [key for key in metrics if key.startswith("translated/")]


@pytest.mark.slow
def test_predictions_keep_both_texts(german_english: Path, tmp_path: Path) -> None:
    rows = [{"text": text, "language": "de", "split": "train"} for text in GERMAN]
    rows += [{"text": text, "language": "en", "split": "test"} for text in ENGLISH]
    path = tmp_path / "texts.jsonl"
    write_lines(path, rows)
    train(launch.compose("train", [
        "attack=nearest_neighbor", "debug=smoke", "logger=none", "datamodule=files", f"datamodule.path={path}",
        "datamodule.split_field=split", "datamodule.language_field=language", f"run_dir={tmp_path / 'run'}",
        f"cache_dir={tmp_path / 'cache'}", "scoring/translation=encoder_decoder", "scoring.translation.written=de",
        f"scoring.translation.models={{en: {german_english}}}", "scoring.translation.max_new_tokens=20",
    ]))  # fmt: skip
    found = read_lines(tmp_path / "run" / "predictions.jsonl")
    by_german = dict(zip(GERMAN, ENGLISH, strict=True))
    assert [row["translation"] for row in found] == [by_german[row["prediction"]] for row in found]
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    right = sum(row["translation"] == row["reference"] for row in found)
    assert right
    assert metrics["exact_match"] == 0.0
    assert metrics["translated/exact_match"] == 25 * right
    assert json.loads((tmp_path / "run" / "baseline.json").read_text())["translated/exact_match"] == 25 * right
    assert "BLEU, translated" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def round_trip(*arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        importlib.import_module("round_trip").main(arguments)


def test_texts_translated_there_and_back(german_english: Path, tmp_path: Path) -> None:
    """The two translations, one after the other; what an earlier session has done is taken over, half a line is not."""
    rows = [{"reference": text, "split": "test"} for text in [*GERMAN, " "]] + [{"reference": "x", "split": "train"}]
    write_lines(tmp_path / "texts.jsonl", rows)
    command = [
        str(tmp_path / "texts.jsonl"), "--field", "reference", "--split", "test", "--there", str(german_english),
        "--back", str(german_english), "--beams", "1", "--max-new-tokens", "20", "--output",
        str(tmp_path / "out.jsonl"),
    ]  # fmt: skip
    done = {"text": "of an earlier session", "original": GERMAN[0], "pivot": ENGLISH[0]}
    (tmp_path / "out.jsonl.part").write_text(json.dumps(done) + '\n{"text": "cut o')
    round_trip(*command)
    found = read_lines(tmp_path / "out.jsonl")
    assert found[0] == done
    assert [(row["original"], row["pivot"]) for row in found] == list(zip(GERMAN, ENGLISH, strict=True))
    back = Translator("there", {"back": str(german_english)}, beams=1, max_new_tokens=20)
    assert [row["text"] for row in found[1:]] == back.translate(ENGLISH[1:], ["back"] * 3)
    assert not (tmp_path / "out.jsonl.part").exists()
    (tmp_path / "out.jsonl.part").write_text(json.dumps({**done, "original": "another text"}) + "\n")
    with pytest.raises(SystemExit, match=r"out\.jsonl\.part: is of other texts"):
        round_trip(*command)
    with pytest.raises(SystemExit, match="no field 'text' \\(--field\\), only reference, split"):
        round_trip(command[0], *command[3:])
    with pytest.raises(SystemExit, match="--there=nowhere: no encoder-decoder model"):
        round_trip(*command[:6], "nowhere", *command[7:-1], str(tmp_path / "other.jsonl"))
