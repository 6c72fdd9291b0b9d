"""The curve of correction: hand-computed metrics, what is written, logged and drawn, and which attacks are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from support import tiny_settings
from support.assembled import Texts, data_module, quiet_trainer
from support.files import load, read_lines, write_lines
from support.letters import Letters
from support.offline_wandb import recorded
from unembed import evaluate, launch, train
from unembed.attacks.base import Attack
from unembed.attacks.nearest_neighbor import NearestNeighbor
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.vec2text.search import Round
from unembed.callbacks.iterative_correction import IterativeCorrection
from unembed.callbacks.results import Predictions, build_test_callbacks
from unembed.core.atomic_files import write_json
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.metrics.text import sentence_bleu
from unembed.reports.breakdowns import correction, hypothesis_charts
from unembed.reports.results import Results
from unembed.runs import layout
from unembed.scoring.models import ScoringModels

TEXTS = ["the cat sat on the mat", "a dog ran in the park", "we sing all day long"]
# What is found for each text, a round after another; the last stays.
WAYS = [
    ["the cat sat on a hat", "the cat sat on the hat", "the cat sat on the mat"],
    ["a dog ran in a park"],
    ["<b>we</b> all day long", "we sing all day long"],
]


class Fixer(Attack):
    """Walks the ways above; two beams go two steps at a time."""

    trainable = False
    calls = 0

    def setup(self, stage: str) -> None:
        self.dimension = self.data.dimension

    def invert(self, targets: Targets, oracle: CachedEmbedder | None) -> list[Prediction]:
        oracle.embed(["an only query of its own", *TEXTS[:1]])
        return [Prediction((WAYS[index][0],)) for index in targets.index.tolist()]

    def correct(self, targets: Targets, oracle: CachedEmbedder | None, *, steps: int, beams: int) -> list[list[Round]]:
        self.calls += 1
        found = []
        for index, target in zip(targets.index.tolist(), targets.vectors, strict=True):
            rounds = []
            for step in range(steps + 1):
                text = WAYS[index][min(step * beams, len(WAYS[index]) - 1)]
                vector = oracle.embed([text])[0]
                cosine = float(torch.nn.functional.cosine_similarity(vector, target, dim=0).clamp(-1, 1))
                rounds.append(Round(text, cosine, queries=1 + step * beams, seconds=0.5 * step * beams))
            found.append(rounds)
        return found


def run(
    tmp_path: Path, attack: Attack, callback: IterativeCorrection, batch: int = 2, logger: Logger | None = None
) -> Path:
    embedder = CachedEmbedder(Letters(), tmp_path / "cache")
    data = data_module(Texts(train=[], test=TEXTS), Letters(), tmp_path, eval_batch_size=batch)
    attack.connect(tmp_path / "artifacts", embedder)
    callback.check(attack)
    trainer = quiet_trainer(
        logger=logger or CSVLogger(tmp_path, name="metrics", version=""),
        callbacks=[Predictions(tmp_path / "run", embedder, None, ScoringModels()), callback],
    )
    trainer.test(attack, data, verbose=False)
    return tmp_path / "run"


def results(directory: Path) -> Results:
    return Results(directory, {}, "", {}, None, [], [])


def test_the_table_by_hand(tmp_path: Path) -> None:
    attack = Fixer()
    found = load(run(tmp_path, attack, IterativeCorrection(steps=[0, 1, 2], beams=[1, 2])) / "corrections.json")
    assert (found["steps"], found["beams"], found["examples"]) == ([0, 1, 2], [1, 2], 3)
    assert attack.calls == 2 * 2  # two batches, two numbers of beams: the shorter searches are part of the longest
    table = {(row["beams"], row["step"]): row for row in found["table"]}
    assert list(table) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    right = {key: round(row["exact_match"] * 3 / 100, 9) for key, row in table.items()}
    assert right == {(1, 0): 0, (1, 1): 1, (1, 2): 2, (2, 0): 0, (2, 1): 2, (2, 2): 2}
    # After one step, 5 of 6 words are right in the first text and in the second, and all in the third.
    assert table[1, 1]["token_f1"] == pytest.approx((100 * 5 / 6 + 100 * 5 / 6 + 100) / 3)
    # Sets: {the, cat, sat, on, hat}, all in the text, which has mat too; {a, dog, ran, in, park} of {..., the}.
    assert table[1, 1]["token_set_f1"] == pytest.approx((100 * 2 * 4 / 10 + 100 * 2 * 5 / 11 + 100) / 3)
    # ROUGE-1 counts "the" twice, and both five of six words in order.
    assert table[1, 1]["rouge1"] == table[1, 1]["rougeL"] == pytest.approx((100 * 5 / 6 + 100 * 5 / 6 + 100) / 3)
    mean = sum(sentence_bleu(*pair) for pair in zip(TEXTS, [WAYS[0][1], WAYS[1][0], WAYS[2][1]], strict=True)) / 3
    assert table[1, 1]["bleu_sentence"] == pytest.approx(mean)
    assert table[1, 1]["tokens_prediction"] == pytest.approx((6 + 6 + 5) / 3)
    assert (table[1, 2]["queries"], table[2, 2]["queries"]) == (3, 5)
    assert (table[1, 2]["seconds"], table[2, 1]["seconds"]) == (1.0, 1.0)
    assert table[1, 0]["cosine"] < table[1, 1]["cosine"] < table[1, 2]["cosine"] <= 1
    assert table[1, 2]["bleu"] == table[2, 1]["bleu"] > table[1, 0]["bleu"]


def test_the_last_step_agrees_with_the_metrics_of_predictions(tmp_path: Path) -> None:
    """The same texts, scored in the two places."""
    directory = run(tmp_path, Fixer(), IterativeCorrection(steps=[0], beams=[1]))
    (row,) = load(directory / "corrections.json")["table"]
    metrics = load(directory / layout.METRICS)
    names = ("bleu", "bleu_sentence", "rouge1", "rougeL", "token_f1", "token_set_f1", "exact_match", "cosine")
    for name in (*names, "tokens_prediction"):
        assert row[name] == pytest.approx(metrics[name], abs=1e-5)


def test_the_queries_of_the_attack_are_those_of_its_own_setting(tmp_path: Path) -> None:
    metrics = load(run(tmp_path, Fixer(), IterativeCorrection(steps=[0, 2], beams=[1])) / layout.METRICS)
    assert (metrics["queries"], metrics["queries_per_target"]) == (2, 2 / 3)


def test_lines_hold_the_steps_asked_for_and_those_that_changed_the_text(tmp_path: Path) -> None:
    directory = run(tmp_path, Fixer(), IterativeCorrection(steps=[0, 4], beams=[1]), batch=3)
    lines = read_lines(directory / "corrections.jsonl")
    assert [(line["index"], line["beams"], line["reference"]) for line in lines] == [
        (index, 1, text) for index, text in enumerate(TEXTS)
    ]
    assert [[(one["step"], one["text"]) for one in line["rounds"]] for line in lines] == [
        [(0, WAYS[0][0]), (1, WAYS[0][1]), (2, WAYS[0][2]), (4, WAYS[0][2])],
        [(0, WAYS[1][0]), (4, WAYS[1][0])],
        [(0, WAYS[2][0]), (1, WAYS[2][1]), (4, WAYS[2][1])],
    ]


def test_the_batch_does_not_matter(tmp_path: Path) -> None:
    tables = [
        load(run(tmp_path / str(batch), Fixer(), IterativeCorrection([0, 1], [1, 2]), batch) / "corrections.json")
        for batch in (1, 3)
    ]
    assert tables[0] == tables[1]


def test_loggers_get_a_curve_for_each_number_of_beams(tmp_path: Path) -> None:
    run(tmp_path, Fixer(), IterativeCorrection(steps=[0, 1, 2], beams=[1, 2]))
    text = (tmp_path / "metrics" / "metrics.csv").read_text().splitlines()
    names = text[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in text[1:]]
    curve = {int(r["step"]): float(r["correction/beams_2/exact_match"]) for r in rows if r["correction/step"]}
    assert {step: round(value, 1) for step, value in curve.items()} == {0: 0.0, 1: 66.7, 2: 66.7}
    assert "correction/beams_1/seconds" in names


@pytest.mark.slow
def test_weights_and_biases_draws_over_the_steps_of_correction(tmp_path: Path) -> None:
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="unembed")
    run(tmp_path, Fixer(), IterativeCorrection(steps=[0, 1], beams=[2]), logger=logger)
    logger.experiment.finish()
    content = recorded(tmp_path, b"correction/step", b"correction/beams_2/bleu")
    assert b"correction/step" in content
    assert b"correction/beams_2/bleu" in content


def test_the_report_draws_curves_and_one_text(tmp_path: Path) -> None:
    directory = run(tmp_path, Fixer(), IterativeCorrection(steps=[0, 1, 2], beams=[1, 2]))
    html = correction(results(directory))
    for expected in ("BLEU by step", "Exact match by queries", "1 beam", "2 beams", "2 beams, 1 step<", "33.3"):
        assert expected in html
    # Two texts changed, one by little and one by more: the median of two is the upper one.
    lines = [line for line in read_lines(directory / "corrections.jsonl") if line["beams"] == 2]
    gains = {line["index"]: line["rounds"][-1]["cosine"] - line["rounds"][0]["cosine"] for line in lines}
    assert f"Text {max(gains, key=lambda index: gains[index])}, 2 beams" in html
    assert "<b>we" not in html  # recovered text is hostile input
    assert correction(results(tmp_path)) is None


def test_nothing_changed_is_no_story(tmp_path: Path) -> None:
    directory = run(tmp_path, Fixer(), IterativeCorrection(steps=[0], beams=[1]))
    html = correction(results(directory))
    assert "One text" not in html


def test_broken_files_are_named(tmp_path: Path) -> None:
    directory = run(tmp_path, Fixer(), IterativeCorrection(steps=[0], beams=[1]))
    (directory / "corrections.jsonl").write_text('{"index": 1}\n')
    with pytest.raises(InputError, match=r"corrections\.jsonl:1: beams"):
        correction(results(directory))
    table = load(directory / "corrections.json")
    for value in (10**400, float("nan")):
        odd = {**table, "table": [{**row, "queries": value} for row in table["table"]]}
        (directory / "corrections.json").write_text(json.dumps(odd))
        with pytest.raises(InputError, match=r"corrections\.json: (table\.0\.queries|.*not a finite number)"):
            correction(results(directory))
    (directory / "corrections.json").write_text(json.dumps(table))
    (directory / "corrections.jsonl").write_text("")
    assert "One text" not in (correction(results(directory)) or "")
    (directory / "corrections.jsonl").unlink()
    with pytest.raises(InputError, match=r"corrections\.jsonl: missing"):
        correction(results(directory))


def test_hypotheses_of_training_are_drawn(tmp_path: Path) -> None:
    assert hypothesis_charts(tmp_path) == []
    path = tmp_path / layout.ARTIFACTS / "hypotheses.json"
    edges = [-1.0, -0.5, 0.0, 0.5, 1.0]
    counts = {"exact": 0.25, "cosines": [0, 0, 1, 3], "edges": edges}
    write_json(path, {"train, sampled <1>": counts, "valid": {**counts, "cosines": [0, 0, 0, 0]}})
    ((title, chart, note),) = hypothesis_charts(tmp_path)
    assert title == "Train, sampled <1>"
    assert note == "4 hypotheses by their cosine with the target; 25.0 % right."
    assert chart.count("<rect") == 2
    assert "<1>" not in chart
    write_json(path, {"valid": {**counts, "edges": [0.5, 1.0]}})
    with pytest.raises(InputError, match="4 counts need one more edge"):
        hypothesis_charts(tmp_path)
    path.write_text("{")
    with pytest.raises(InputError, match=r"hypotheses\.json: not JSON"):
        hypothesis_charts(tmp_path)


def test_one_override_turns_it_on_for_attacks_that_correct(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"callbacks\.iterative_correction: NearestNeighbor does not .*attack=vec2text"
    ):
        IterativeCorrection([0], [1]).check(NearestNeighbor())
    config = launch.compose("train", ["callbacks=iterative_correction"])
    assert launch.check(config) == []
    kinds = [type(callback).__name__ for callback in build_test_callbacks(config)]
    assert kinds == ["AttributeAttack", "IterativeCorrection"]
    wrong = ["callbacks=iterative_correction", "callbacks.iterative_correction.beams=[0]",
             "callbacks.iterative_correction.steps=[-1]"]  # fmt: skip
    messages = launch.check(launch.compose("train", wrong))
    assert [message.split("=")[0] for message in messages] == [
        "callbacks.iterative_correction.steps", "callbacks.iterative_correction.beams"
    ]  # fmt: skip
    assert [type(c).__name__ for c in build_test_callbacks(launch.compose("train", []))] == ["AttributeAttack"]


@pytest.mark.parametrize("values", [[2, 1], [1, 1]])
def test_steps_and_beams_must_rise(values: list[int]) -> None:
    with pytest.raises(ValueError, match=r"steps=\[\d, 1\]: each must be greater"):
        IterativeCorrection(values, [1])
    with pytest.raises(ValueError, match=r"beams=\[\d, 1\]: each must be greater"):
        IterativeCorrection([0], values)


# -- the scripts ------------------------------------------------------------------------------------------------------

WHO = ["ada", "bob", "cleo", "dan", "eve", "fay"]
SHORT = [*tiny_settings.FILES, "datamodule.batch_size=6"]
INVERTER = [*tiny_settings.INVERTER, "attack.decoding.max_new_tokens=16", "trainer.max_steps=10"]
CORRECTOR = [
    *tiny_settings.CORRECTOR, "attack.max_new_tokens=16", "attack.search.steps=2",
    "attack.search.beams=2", "attack.hypotheses.later_rounds=0", "trainer.max_steps=2",
]  # fmt: skip


@pytest.mark.slow
def test_both_scripts_take_it_for_a_real_corrector_and_refuse_it_for_others(tmp_path: Path) -> None:
    texts = [f"{name} lives in {city} ." for name in WHO for city in ("paris", "rome", "oslo", "lima")]
    splits = ["test" if n % 4 == 0 else "valid" if n % 7 == 0 else "train" for n in range(len(texts))]
    rows = [{"text": text, "split": split} for text, split in zip(texts, splits, strict=True)]
    write_lines(tmp_path / "data.jsonl", rows)
    curve = ["callbacks=iterative_correction", "callbacks.iterative_correction.steps=[0,1,3]"]

    def trained(name: str, *lines: str) -> Path:
        common = [*SHORT, f"run_dir={tmp_path / name}", f"datamodule.path={tmp_path / 'data.jsonl'}",
                  f"cache_dir={tmp_path / 'cache'}"]  # fmt: skip
        config = launch.compose("train", [*lines, *common])
        assert launch.check(config) == []
        train.train(config)
        return tmp_path / name

    inverter = trained("inverter", *INVERTER)
    corrector = trained("corrector", *CORRECTOR, f"attack.inverter_run={inverter}", *curve)
    again = [f"run={corrector}", f"output_dir={tmp_path / 'again'}", "datamodule.eval_batch_size=2", "logger=csv"]
    evaluate.evaluate(*launch.on_run("evaluate", again))
    logged = (tmp_path / "again" / "metrics" / "version_0" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"correction/step", "correction/beams_4/bleu", "test/bleu", "test/queries"} <= set(logged)
    config = launch.on_run("evaluate", [f"run={corrector}"])[1]
    assert (dict(config.logger), config.choices.logger) == ({}, "none")  # the training's own would log to its run
    tables = [load(directory / "corrections.json")["table"] for directory in (corrector, tmp_path / "again")]
    assert [(row["beams"], row["step"]) for row in tables[0]] == [(w, s) for w in (1, 4) for s in (0, 1, 3)]
    for first, second in zip(*tables, strict=True):  # the batch is another
        for name in ("bleu", "token_f1", "exact_match", "queries"):
            assert first[name] == second[name]
        assert first["cosine"] == pytest.approx(second["cosine"], abs=1e-5)
    # The corrector's own setting, two steps of two beams, counts by itself.
    assert load(corrector / layout.METRICS)["queries"] == load(tmp_path / "again" / layout.METRICS)["queries"]
    assert "Step by step" in (corrector / "report.html").read_text()
    assert "Hypotheses it learned from" in (corrector / "report.html").read_text()

    with pytest.raises(InputError, match=r"callbacks\.iterative_correction: NearestNeighbor does not correct"):
        trained("neighbor", "attack=nearest_neighbor", *curve)
    lines = [f"run={inverter}", f"output_dir={tmp_path / 'out'}", *curve, f"cache_dir={tmp_path / 'other'}"]
    with pytest.raises(InputError, match=r"callbacks\.iterative_correction: GEIAEncoderDecoder does not correct"):
        evaluate.evaluate(*launch.on_run("evaluate", lines))
    assert not (tmp_path / "other").exists()  # nothing was embedded
    assert not (tmp_path / "out").exists()
