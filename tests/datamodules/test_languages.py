"""Languages: which texts are kept, how a limit is shared, sets in several languages, metrics of each."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from support.data_configs import declared
from support.files import read_lines, write_lines
from unembed import launch
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.inversion import InversionDataModule
from unembed.datamodules.reading import Languages, shared_out
from unembed.datamodules.sources.base import SPLITS
from unembed.datamodules.sources.files import FilesDataModule
from unembed.datamodules.sources.hub import LanguageSets
from unembed.evaluate import evaluate
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import score
from unembed.reports.breakdowns import language_table
from unembed.train import train

WORDS = {
    "en": ["a red dog runs", "two men cook", "she reads books", "the sea is cold", "he sings"],
    "de": ["ein roter Hund läuft", "zwei Männer kochen", "sie liest Bücher", "das Meer ist kalt", "er singt"],
    "fr": ["un chien rouge court", "deux hommes cuisinent", "elle lit des livres", "la mer est froide", "il chante"],
}


@pytest.fixture
def parallel(tmp_path: Path) -> Path:
    """A file of three languages, one after another: three texts of each for training, one each for the others."""
    path = tmp_path / "parallel.jsonl"
    splits = ["train", "train", "train", "valid", "test"]
    rows = [
        {"text": text, "language": language, "split": split}
        for language, texts in WORDS.items()
        for text, split in zip(texts, splits, strict=True)
    ]
    write_lines(path, rows)
    return path


def languages_of(datamodule: InversionDataModule) -> dict[str, list[str | None]]:
    splits = ("train", "valid", "test")
    return {split: [example.language for example in datamodule.examples(split)] for split in splits}


def files(path: Path, **arguments: Any) -> FilesDataModule:
    return FilesDataModule(path=str(path), split_field="split", **{"language_field": "language", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"languages": ["de", "frr"]},
            r"datamodule\.languages: no text is in 'frr'; present: de, en, fr; did you mean fr",
        ),
        ({"test_languages": ["es"]}, r"datamodule\.test_languages: no text is in 'es'; present: de, en, fr"),
        ({"languages": []}, r"datamodule\.languages=\[\] keeps no text"),
        ({"languages": ["de"], "language_field": None}, r"no text says which language .*datamodule\.language_field"),
    ],
)
def test_a_language_that_is_not_there(parallel: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        files(parallel, **arguments).examples("test")


def test_languages_are_kept_in_all_splits_or_apart(parallel: Path) -> None:
    found = {"train": [Example(0, "a", language="en")], "valid": [], "test": [Example(0, "b", language="de")]}
    kept = Languages(["en", "de"]).select(found)  # type: ignore[arg-type]
    assert {split: [example.text for example in some] for split, some in kept.items()} == {
        "train": ["a"], "valid": [], "test": ["b"],
    }  # fmt: skip
    assert languages_of(files(parallel))["train"] == ["en"] * 3 + ["de"] * 3 + ["fr"] * 3
    assert languages_of(files(parallel, languages=["de", "fr"])) == {
        "train": ["de"] * 3 + ["fr"] * 3, "valid": ["de", "fr"], "test": ["de", "fr"],
    }  # fmt: skip
    assert languages_of(files(parallel, train_languages=["de"], test_languages=["fr"])) == {
        "train": ["de"] * 3, "valid": ["de"], "test": ["fr"],
    }  # fmt: skip
    assert languages_of(files(parallel, languages=["de"], test_languages=["en", "fr"])) == {
        "train": ["de"] * 3, "valid": ["de"], "test": ["en", "fr"],
    }  # fmt: skip
    assert [example.index for example in files(parallel, languages=["fr"]).examples("train")] == [0, 1, 2]


def test_a_limit_is_shared_by_the_languages(parallel: Path) -> None:
    assert languages_of(files(parallel, limit_train=6))["train"] == ["en", "en", "de", "de", "fr", "fr"]
    examples = [Example(i, str(i), language=name) for i, name in enumerate(["en"] * 6 + ["de"] + ["fr"] * 6)]

    def counts(limit: int | None) -> list[int]:
        chosen = [example.language for example in shared_out(examples, limit)]
        return [chosen.count(name) for name in ("en", "de", "fr")]

    # by hand: German has one; English and French share the rest, the odd one goes to the last
    assert [counts(limit) for limit in (1, 2, 3, 4, 7, 8, None)] == [
        [0, 0, 1], [1, 0, 1], [1, 1, 1], [1, 1, 2], [3, 1, 3], [3, 1, 4], [6, 1, 6],
    ]  # fmt: skip
    alone = [Example(i, str(i)) for i in range(5)]
    assert [example.text for example in shared_out(alone, 3)] == ["0", "1", "2"]


def test_texts_are_cut_by_a_tokenizer_of_their_languages(tmp_path: Path) -> None:
    from unembed.attacks.parts.backbones import train_tokenizer

    long = [" ".join(f"Haus{number} schön" for number in range(start, start + 90)) for start in range(3)]
    path = tmp_path / "long.jsonl"
    rows = [{"text": text, "language": "de", "split": split} for text, split in zip(long, SPLITS, strict=True)]
    write_lines(path, rows)
    tokenizer = train_tokenizer(long, 300)
    tokenizer.save_pretrained(tmp_path / "pieces")
    for size in (32, 64, 128):
        (kept,) = files(path, max_tokens=size, tokenizer=str(tmp_path / "pieces")).examples("test")
        assert long[2].startswith(kept.text)
        assert len(tokenizer(kept.text)["input_ids"]) in (size - 1, size)  # a space at the end is not kept


def test_multi30k_has_a_file_for_each_language(tmp_path: Path) -> None:
    for language in ("en", "de", "fr"):
        for place, file in enumerate(("train", "val", "test_2016_flickr")):
            lines = WORDS[language][place : place + 2] if file == "train" else [WORDS[language][place + 2]]
            with gzip.open(tmp_path / f"{file}.{language}.gz", "wt", encoding="utf-8") as stream:
                stream.write("".join(f"{line}\n" for line in lines))
    found = declared("multi30k", source__path=str(tmp_path), languages=["fr", "en"])
    assert [(example.text, example.language) for example in found.examples("train")] == [
        *((text, "fr") for text in WORDS["fr"][:2]), *((text, "en") for text in WORDS["en"][:2]),
    ]  # fmt: skip
    assert [example.text for example in found.examples("test")] == ["il chante", "he sings"]
    (tmp_path / "train.de.gz").unlink()  # a language that is not asked for is not looked for
    declared("multi30k", source__path=str(tmp_path), languages=["fr"]).examples("train")
    with pytest.raises(InputError, match=r"train\.de\.gz"):
        declared("multi30k", source__path=str(tmp_path)).examples("train")
    with pytest.raises(InputError, match=r"'cs' is none of datamodule\.source\.languages \(en, de, fr\)"):
        LanguageSets(str(tmp_path), {}, [], {}, "", languages=["en", "de", "fr"]).only(["cs"])


def test_culturax_cuts_each_language_apart(tmp_path: Path) -> None:
    for language in ("fi", "hu"):
        (tmp_path / language).mkdir()
        rows = pyarrow.Table.from_pylist([{"text": f"{language} {number}", "url": ""} for number in range(30)])
        pyarrow.parquet.write_table(rows, tmp_path / language / f"{language}_part_00000.parquet")
    found = declared(
        "culturax", source__path=str(tmp_path), source__sizes={"train": 20, "valid": 4, "test": 3}, tokenizer="minilm",
        drop_repeated=False,
    )  # fmt: skip
    sizes = {split: [name.count(one) for one in ("fi", "hu")] for split, name in languages_of(found).items()}
    assert sizes == {"train": [20, 20], "valid": [4, 4], "test": [3, 3]}


def test_mtg_and_the_authors_own_sentences_of_it(tmp_path: Path) -> None:
    for language in ("en", "de"):
        (tmp_path / language).mkdir()
        for place, split in enumerate(("train", "valid", "test")):
            (tmp_path / language / f"{split}.txt").write_text(WORDS[language][place] + "\n", encoding="utf-8")
    found = declared(
        "mtg", source__path=str(tmp_path), tokenizer="minilm", train_languages=["de"], test_languages=["en"]
    )
    assert languages_of(found) == {"train": ["de"], "valid": ["de"], "test": ["en"]}
    for language in ("en", "de"):
        (tmp_path / f"mtg_{language}_5m").mkdir()
        for place, split in enumerate(("train", "dev", "test")):
            table = f'text\n"{WORDS[language][place]}, and more"\n'
            (tmp_path / f"mtg_{language}_5m" / f"{split}.{language}.csv").write_text(table, encoding="utf-8")
    path = f"{tmp_path}/mtg_{{language}}_5m"
    found = declared("mtg_hub", source__path=path, tokenizer="minilm", languages=["de", "en"])
    assert [example.text for example in found.examples("valid")] == [
        f"{WORDS[one][1]}, and more" for one in ("de", "en")
    ]
    assert languages_of(found) == {"train": ["de", "en"], "valid": ["de", "en"], "test": ["de", "en"]}
    assert declared("mtg_hub").source.path == "yiyic/mtg_{language}_5m"  # type: ignore[attr-defined]


def test_metrics_of_each_language_by_hand() -> None:
    rows = [
        Scored("der Hund", "der Hund", cosine=1.0, language="de"),
        Scored("ein Haus", "ein Baum", cosine=0.5, language="de"),
        Scored("a red dog runs", "a red dog runs", cosine=0.9, language="en"),
        Scored("unnamed", "nothing", cosine=0.0),
    ]
    metrics = score(rows)
    assert (metrics["exact_match/de"], metrics["exact_match/en"]) == (50.0, 100.0)
    assert (metrics["token_f1/de"], metrics["token_f1/en"]) == (75.0, 100.0)
    assert (metrics["cosine/de"], metrics["cosine/en"]) == (0.75, 0.9)
    assert (metrics["examples/de"], metrics["examples/en"], metrics["examples"]) == (2, 1, 4)
    assert metrics["bleu/en"] == pytest.approx(100.0)
    for key in ("bleu", "rougeL", "token_f1", "exact_match", "cosine"):  # each as if the language were alone
        assert metrics[f"{key}/de"] == score(rows[:2])[key]
    for language in ("de", None):
        assert not [key for key in score([Scored("der Hund", "der Hund", language=language)]) if "/" in key]


def test_the_report_has_a_line_for_each_language() -> None:
    rows = [
        Scored("der Hund", "der Hund", cosine=1.0, language="de"),
        Scored("a dog", "the cat", language="en", cosine=0.5),
    ]
    table = language_table(score(rows))
    assert table.columns[1:3] == ("Texts", "Exact match")
    assert [(line.title, [cell.text for cell in line.cells[:2]]) for line in table.lines] == [
        ("de", ["1", "100.0\u00a0%"]), ("en", ["1", "0.0\u00a0%"]),
    ]  # fmt: skip
    assert language_table({"bleu": 1.0, "entity_recovery/de": 5.0, "attribute/x/texts": 3}) is None


@pytest.mark.slow
def test_a_run_on_one_language_is_tested_on_another(parallel: Path, tmp_path: Path) -> None:
    overrides = [
        "debug=smoke", "logger=none", "datamodule=files", f"datamodule.path={parallel}", "attack=nearest_neighbor",
        "datamodule.split_field=split", "datamodule.language_field=language", f"cache_dir={tmp_path / 'cache'}",
    ]  # fmt: skip
    run = tmp_path / "run"
    train(launch.compose("train", [*overrides, f"run_dir={run}", "datamodule.train_languages=[de]"]))
    metrics = json.loads((run / "metrics.json").read_text())
    assert [metrics[f"examples/{language}"] for language in ("de", "en", "fr")] == [1, 1, 1]
    assert "Languages" in (run / "report.html").read_text(encoding="utf-8")
    output = tmp_path / "cross"
    given = [f"run={run}", f"output_dir={output}", "datamodule.test_languages=[fr]"]
    evaluate(*launch.on_run("evaluate", given))
    rows = read_lines(output / "predictions.jsonl")
    assert [row["reference"] for row in rows] == ["il chante"]
