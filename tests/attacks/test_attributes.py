"""The attribute attack: accuracies by hand, splits by subject, and runs that write the metrics."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.assembled import quiet_trainer
from support.files import load, read_lines, write_lines
from support.letters import Letters
from unembed.attacks.nearest_neighbor import NearestNeighbor
from unembed.callbacks.attributes import AttributeAttack
from unembed.callbacks.results import Predictions
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.sources.files import VALUES, FilesDataModule, TextFiles, cut_by_group
from unembed.defenses.identity import Identity
from unembed.embedders.base import fingerprint_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.attributes import Guessed, MacroAccuracy, Majority, StandardError, TopK, ranks, similarities
from unembed.reports.breakdowns import attribute_table
from unembed.reports.page import SECTIONS
from unembed.scoring.models import ScoringModels

CITIES = ["Oslo", "Lima", "Accra", "Quito"]


def test_accuracies_by_hand() -> None:
    # five texts over three values; the true one is nearest, nearest, second, third, and tied with another
    cosines = torch.tensor([[.9, .1, .2], [.8, .7, .1], [.6, .5, .4], [.3, .2, .1], [.1, .5, .5]])  # fmt: skip
    truth = [0, 0, 1, 2, 2]
    places = ranks(truth, cosines)
    assert places == [0, 0, 1, 2, 1]  # a tie counts against the attacker
    rows = [Guessed(*row, candidates=3) for row in zip(truth, places, strict=True)]
    assert TopK(1).of(rows) == pytest.approx(40)
    assert TopK(2).of(rows) == pytest.approx(80)
    assert MacroAccuracy().of(rows) == pytest.approx(100 * (1 + 0 + 0) / 3)
    assert StandardError().of(rows) == pytest.approx(100 * math.sqrt(0.4 * 0.6 / 5))
    assert Majority().of(rows) == pytest.approx(40)
    assert TopK(3).of(rows) is None  # all three may be named: undefined


def test_ranks_agree_with_sorting_and_similarities_are_cosines() -> None:
    cosines = torch.rand(50, 7, generator=torch.Generator().manual_seed(0))
    truth = [row % 7 for row in range(50)]
    by_sorting = [
        sorted(range(7), key=lambda c: -row[c]).index(t) for row, t in zip(cosines.tolist(), truth, strict=True)
    ]
    assert ranks(truth, cosines) == by_sorting
    texts, values = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, -4.0]])
    expected = torch.tensor([[0.6, 0.8, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(similarities(texts, values), expected)


def people(number: int, texts: int = 3) -> list[dict[str, Any]]:
    """Rows about so many people, each with a city and a number of their own."""
    return [
        {"text": f"person {p} text {t} lives in {CITIES[p % 4]}", "subject": f"person {p}",
         "attributes": {"city": CITIES[p % 4], "code": f"c{p % 25}"}}
        for p in range(number) for t in range(texts)
    ]  # fmt: skip


def written(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    return str(write_lines(path, rows))


def subjects(examples: Sequence[Example]) -> set[str | None]:
    return {example.group for example in examples}


@pytest.mark.parametrize("seed", range(3))
def test_no_subject_stands_in_two_splits_and_the_test_keeps_ten_values(tmp_path: Path, seed: int) -> None:
    path = written(tmp_path / "bios.jsonl", people(60))
    source = TextFiles(
        path, attributes=["city", "code"], group_field="subject", valid_fraction=0.1, test_fraction=0.2, split_seed=seed
    )
    found = source.load()
    train, valid, test = (found[split] for split in ("train", "valid", "test"))
    assert not subjects(train) & subjects(test)
    assert not subjects(train) & subjects(valid)
    assert not subjects(valid) & subjects(test)
    assert len(train) + len(valid) + len(test) == 180
    assert (len(valid), len(test)) == (18, 36)
    assert len({example.attributes["code"] for example in test}) >= VALUES
    assert len({example.attributes["city"] for example in test}) == 4
    again = {split: [e.text for e in examples] for split, examples in source.load().items()}
    assert again == {split: [e.text for e in examples] for split, examples in found.items()}


def test_the_seed_chooses_and_the_test_grows_where_its_share_has_too_few_values(tmp_path: Path) -> None:
    def test_subjects(rows: list[dict[str, Any]], seed: int) -> set[str | None]:
        path = written(tmp_path / "bios.jsonl", rows)
        return subjects(TextFiles(path, group_field="subject", test_fraction=0.2, split_seed=seed).load()["test"])

    rows = people(40)
    assert test_subjects(rows, 0) == test_subjects(rows[::-1], 0)
    assert test_subjects(rows, 0) != test_subjects(rows, 1)
    examples = [Example(0, f"{p}", attributes={"code": f"c{p}"}, group=f"{p}") for p in range(30)]
    rest, valid, test = cut_by_group(examples, [2, 3], seed=0)
    assert (len(rest), len(valid), len(test)) == (18, 2, VALUES)
    rest, test = cut_by_group(examples[:5], [2], seed=0)  # five values in all: one person is left to learn from
    assert (len(rest), len(test)) == (1, 4)
    rest, none = cut_by_group(examples, [0], seed=0)
    assert (len(rest), len(none)) == (30, 0)


def test_texts_without_a_subject_are_for_training_and_shared_subjects_are_refused(tmp_path: Path) -> None:
    bios = written(tmp_path / "bios.jsonl", people(40))
    more = written(tmp_path / "more.jsonl", [{"text": f"some other sentence {n}"} for n in range(200)])
    found = TextFiles([bios, more], group_field="subject", attributes=["city"], test_fraction=0.1).load()
    assert Counter(e.group is None for e in found["train"])[True] == 200
    assert None not in subjects(found["test"])
    assert len(found["test"]) == 12  # a tenth of the texts with a subject
    rows = [row | {"split": "test" if n % 2 else "train"} for n, row in enumerate(people(4))]
    path = written(tmp_path / "bios.jsonl", rows)
    with pytest.raises(InputError, match=r"group_field=subject: 'person 0' stands in train and in test"):
        TextFiles(path, split_field="split", group_field="subject").load()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            {"group_field": "subjekt"},
            r"datamodule\.group_field: no row of .*bios\.jsonl has 'subjekt'; did you mean sub",
        ),
        ({"attributes": ["ctiy"]}, r"datamodule\.attributes: no row of .* has 'ctiy'; did you mean city\?"),
        ({"attributes": ["zzz"]}, r"has 'zzz'; valid: attributes, city, code, subject, text"),
        ({"context_field": "txet"}, r"datamodule\.context_field: no row of .* has 'txet'"),
    ],
)
def test_a_field_that_is_not_there(tmp_path: Path, key: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextFiles(written(tmp_path / "bios.jsonl", people(4)), **key).load()


class Reversed(Letters):
    """The same counts in another order: another space."""

    fingerprint = fingerprint_of(kind="reversed")

    def embed(self, texts: Sequence[str]) -> Tensor:
        return super().embed(texts).flip(1)


def run(
    tmp_path: Path, attack: AttributeAttack, models: ScoringModels | None = None, **data: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], CachedEmbedder]:
    """Test the nearest neighbour on texts of one word, the city itself; the last two have no city."""
    train = [{"text": city * 3, "city": city} for city in [*CITIES[:2], "Bergen"]]
    test = [{"text": city * times, "city": city} for city in CITIES for times in (1, 2)]
    test += [{"text": "nowhere at all"}, {"text": "elsewhere", "city": ""}]
    embedder = CachedEmbedder(Letters(), tmp_path / "cache")
    module = FilesDataModule(
        train=written(tmp_path / "train.jsonl", train), test=written(tmp_path / "test.jsonl", test),
        valid_fraction=0, **({"attributes": ["city"]} | data),
    )  # fmt: skip
    module.connect(embedder, Identity())
    neighbor = NearestNeighbor()
    neighbor.connect(tmp_path / "artifacts", embedder)
    predictions = Predictions(tmp_path / "run", embedder, module, models or ScoringModels())
    quiet_trainer(callbacks=[predictions, attack]).test(neighbor, module, verbose=False)
    return load(tmp_path / "run" / "metrics.json"), read_lines(tmp_path / "run" / "attributes.jsonl"), embedder


def test_metrics_of_a_run(tmp_path: Path) -> None:
    metrics, guesses, embedder = run(tmp_path, AttributeAttack())
    own = {key.removeprefix("attribute/city/"): value for key, value in metrics.items() if key.startswith("attribute/")}
    # The original texts are the cities; the neighbour knows two of the four, and each is tested twice.
    assert own | {"reconstructed_top3": None} == {
        "texts": 8, "skipped": 2, "values": 4, "candidates": 5, "majority": 25.0,
        "reconstructed_top1": 50.0, "reconstructed_top3": None, "reconstructed_macro": 50.0,
        "reconstructed_standard_error": pytest.approx(100 * math.sqrt(0.25 / 8)),
        "target_top1": 100.0, "target_top3": 100.0, "target_macro": 100.0, "target_standard_error": 0.0,
        "original_top1": 100.0, "original_top3": 100.0, "original_macro": 100.0, "original_standard_error": 0.0,
    }  # fmt: skip
    assert guesses[0] == {
        "index": 0, "attribute": "city", "value": "Oslo", "reconstructed": "Oslo", "target": "Oslo", "original": "Oslo"
    }  # fmt: skip
    assert len(guesses) == 8
    assert embedder.queries.asked["attack"] == 0
    assert metrics["queries"] == 0  # the values were asked for by scoring
    assert embedder.queries.asked["scoring"] >= 5
    assert metrics["exact_match"] == 0  # what was there before stays


def test_candidates_test_callbacks_texts_alone_and_templates(tmp_path: Path) -> None:
    metrics, _, embedder = run(tmp_path, AttributeAttack({"city": "lives in {value}"}, candidates="test"))
    assert metrics["attribute/city/candidates"] == 4
    asked = embedder.embedder.asked  # type: ignore[attr-defined]
    assert {f"lives in {city}" for city in CITIES} <= set(asked)
    assert "Accra" in asked  # as a test text
    assert "lives in Bergen" not in asked


def test_a_second_embedder_and_settings_that_do_not_fit(tmp_path: Path) -> None:
    second = Reversed()
    models = ScoringModels(second_embedder=second)
    models.connect(tmp_path / "cache")
    metrics, _, _ = run(tmp_path, AttributeAttack(embedder="second", cache_dir=str(tmp_path / "cache")), models)
    assert metrics["attribute/city/original_top1"] == metrics["attribute/city/target_top1"] == 100
    assert set(CITIES) | {"Bergen"} <= set(second.asked)
    with pytest.raises(InputError, match=r"template=born: should hold \{value\}"):
        AttributeAttack("born")
    with pytest.raises(InputError, match=r"template\.ctiy: .*did you mean city\?"):
        run(tmp_path, AttributeAttack({"ctiy": "in {value}"}))
    with pytest.raises(InputError, match="embedder=second: add one"):
        run(tmp_path, AttributeAttack(embedder="second"))


def test_one_value_is_refused_before_anything_is_embedded(tmp_path: Path) -> None:
    embedder = Letters()
    path = written(tmp_path / "one.jsonl", [{"text": f"text {n}", "city": "Oslo", "n": n} for n in range(40)])
    module = FilesDataModule(path, attributes=["city"], test_fraction=0.2)
    module.connect(CachedEmbedder(embedder, tmp_path / "cache"), Identity())
    with pytest.raises(InputError, match=r"'city' has one value, 'Oslo', in the 8 test texts"):
        module.setup("fit")
    rare = [{"text": f"text {n}", **({"city": f"c{n}"} if n < 2 else {})} for n in range(40)]
    module = FilesDataModule(
        train=written(tmp_path / "a.jsonl", rare), test=written(tmp_path / "b.jsonl", rare[5:]), attributes=["city"],
        drop_repeated=False,
    )  # fmt: skip
    module.connect(CachedEmbedder(embedder, tmp_path / "cache"), Identity())
    with pytest.raises(InputError, match="'city' has no value in the 35 test texts"):
        module.setup("fit")
    assert embedder.asked == []


def test_the_report_shows_them() -> None:
    metrics: dict[str, Any] = {"bleu": 1.0}
    for name in ("born/in", "city"):
        metrics |= {f"attribute/{name}/texts": 80, f"attribute/{name}/skipped": 3, f"attribute/{name}/values": 14,
                    f"attribute/{name}/candidates": 20, f"attribute/{name}/majority": 31.25}  # fmt: skip
        for source in ("reconstructed", "target", "original"):
            metrics |= {f"attribute/{name}/{source}_top1": 50.0, f"attribute/{name}/{source}_top5": 75.0,
                        f"attribute/{name}/{source}_macro": None if source == "target" else 42.0,
                        f"attribute/{name}/{source}_standard_error": 5.6}  # fmt: skip
    table = attribute_table(metrics)
    assert [line.title for line in table.lines if not line.cells] == ["born/in", "city"]
    assert table.columns[-1] == "Among the nearest 5"
    assert table.lines[0].below == "80 texts (3 without it), 14 values of 20, the commonest 31.2\u00a0%"
    assert [line.cells[0].text for line in table.lines[5:]] == ["42.0\u00a0%", "–", "42.0\u00a0%"]  # noqa: RUF001
    assert table.lines[5].cells[1].text == "50.0\u00a0% ± 5.6"
    assert attribute_table({"bleu": 1.0}) is None
    assert any(section.title == "What it discloses" for section in SECTIONS)


@pytest.mark.slow
def test_train_and_evaluate_write_the_same_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unembed import launch
    from unembed.evaluate import evaluate
    from unembed.train import train

    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    path = written(tmp_path / "bios.jsonl", people(30))
    overrides = [
        "experiment=attributes", "attack=nearest_neighbor", f"datamodule.path={path}",
        "datamodule.attributes=[city,code]", f"run_dir={tmp_path / 'run'}", "trainer=cpu", "~callbacks.progress",
    ]  # fmt: skip
    config = launch.compose("train", overrides)
    assert launch.check(config) == []
    train(config)
    evaluate(*launch.on_run("evaluate", [f"run={tmp_path / 'run'}", f"output_dir={tmp_path / 'again'}"]))
    first, second = (load(tmp_path / name / "metrics.json") for name in ("run", "again"))
    keys = [key for key in first if key.startswith("attribute/")]
    assert len(keys) == 2 * (5 + 3 * 4)
    assert [first[key] for key in keys] == [second[key] for key in keys]
    assert first["attribute/city/original_macro"] == 100
    report = (tmp_path / "run" / "report.html").read_text()
    assert re.search(r"What it discloses.*city.*the recovered text", report, flags=re.DOTALL)
