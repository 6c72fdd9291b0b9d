"""Metrics as torchmetrics: their state over batches and ranks, and what a table says of them."""

from __future__ import annotations

import json
import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed
from torchmetrics import MetricCollection

from unembed.core.errors import InputError
from unembed.metrics.base import Description, Mean
from unembed.metrics.scored import Scored
from unembed.metrics.scoring import metric_of, score, text_metrics
from unembed.reports.breakdowns import language_table
from unembed.reports.results import knowing, measure
from unembed.scoring.models import own_metrics

ROWS = [
    Scored("Ada is in Paris with Ben", "Ada is in Paris with a dog", cosine=0.9),
    Scored("the invoice is due on Monday", "the invoice came on Friday", cosine=0.1),
    Scored("call me", "purple", cosine=0.3),
    Scored("I said: wait!", "I said: wait!", cosine=1.0),
    Scored("one two three four five", "one two three four five six", cosine=0.7),
]


class Initial(Mean[Scored]):
    """A metric that is not ours: whether the first letter came back."""

    description = Description("initial", "Initial", "Share of first letters that came back.")

    def of_example(self, row: Scored) -> float:
        return 100.0 * (row.reference[:1] == row.prediction[:1])


def collection() -> MetricCollection:
    return MetricCollection({metric.description.key: metric for metric in text_metrics()}, compute_groups=False)


def test_batches_give_what_all_at_once_give() -> None:
    metrics = collection()
    for batch in (ROWS[:1], ROWS[1:4], ROWS[4:]):
        metrics.update(batch)
    expected = score(ROWS)
    for key, value in metrics.compute().items():
        wanted = math.nan if expected[key] is None else expected[key]
        assert float(value) == pytest.approx(wanted, abs=0, rel=0, nan_ok=True), key
    metrics.reset()
    metrics.update(ROWS[3:4])
    assert float(metrics["exact_match"].compute()) == 100


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    metrics = collection()
    metrics.update(ROWS[:2] if rank == 0 else ROWS[2:])
    values = {key: float(value) for key, value in metrics.compute().items()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(values), encoding="utf-8")
    torch.distributed.destroy_process_group()


def test_two_ranks_give_what_one_gives(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=120)
    assert [process.exitcode for process in ranks] == [0, 0]
    expected = score(ROWS)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        for key, value in found.items():
            wanted = math.nan if expected[key] is None else expected[key]
            assert value == pytest.approx(wanted, abs=0, rel=0, nan_ok=True), key


def test_what_a_metric_says_and_its_key() -> None:
    directions = {metric.description.key: metric.higher_is_better for metric in text_metrics()}
    assert directions["bleu"] is True
    assert directions["edit_distance_mean"] is False
    assert directions["perplexity"] is None
    assert measure("bleu") == next(m.description for m in text_metrics() if m.description.key == "bleu")
    city = metric_of("entity_recovery/city")
    assert city.description.title == "Entities: city"
    assert metric_of("queries") is None
    keys = [metric.description.key for metric in text_metrics()]
    assert len(set(keys)) == len(keys)
    assert [key for key in score(ROWS) if key != "examples"] == keys


def test_a_users_metric_is_given_of_each_language_and_of_translations() -> None:
    initial = Initial()
    initial.update(ROWS)
    assert float(initial.compute()) == 80
    assert initial.parts_so_far().tolist() == [[100, 1], [100, 1], [0, 1], [100, 1], [100, 1]]
    languages = [*zip(ROWS, ["de", "de", "en", "en", "en"], strict=True)]
    rows = [replace(row, language=language, translation="Ada") for row, language in languages]
    found = score(rows, own=[Initial()])
    assert (found["initial"], found["initial/de"], found["initial/en"]) == (80, 100, pytest.approx(200 / 3))
    assert (found["translated/initial"], found["translated/initial/en"]) == (20, 0)
    assert {key: value for key, value in found.items() if "initial" not in key} == score(rows)
    with knowing([Initial.description]):
        assert measure("translated/initial").title == "Initial, translated"
        table = language_table(found)
        assert "Initial" in table.columns
    assert measure("initial").explanation == ""


class AlsoBleu(Initial):
    description = Description("bleu", "BLEU", "")


@pytest.mark.parametrize(
    ("metric", "reason"), [(AlsoBleu(), "another metric has that key"), (3, "int is no unembed.metrics")]
)
def test_what_is_no_metric_of_its_own_is_refused(metric: object, reason: str) -> None:
    with pytest.raises(InputError, match=rf"scoring\.metrics\.mine: .*{reason}"):
        own_metrics({"mine": metric})
