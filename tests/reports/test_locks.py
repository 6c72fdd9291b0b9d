"""unembed compare columns=locks: leaks between floor and ceiling; and somebody else's lock, from a run to its row."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.files import load, write_lines
from support.runs import PAIRS, write_run
from unembed import launch
from unembed.commands.compare import compare, read_settings
from unembed.core.errors import InputError
from unembed.metrics.tokens import words
from unembed.runs.trust import trusting
from unembed.train import train

PERFECT = [(one, one) for one, _ in PAIRS]
LOST = [(one, "nothing of it") for one, _ in PAIRS]


def cell(
    folder: Path, has: str, defense: str, recall: float | None, pairs: list[tuple[str, str]], attack: str = "ALGEN"
) -> Path:
    declared = json.dumps({"attack": attack, "has": has, "presumes": "what it has."})
    node = json.dumps({"recall": recall, "level": 0.012344, "adaptive": True, "_target_": "x", "seed": 3})
    config = f"access: {declared}\ndefense: {node}\n"
    run = write_run(folder / f"{attack}-{has}-{defense}-{recall}", pairs, config=config)
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("defense: none", f"defense: {defense}"))
    return run


def table(folder: Path, *words: object) -> dict[str, Any]:
    compare(read_settings(["columns=locks", f"output={folder / 'locks'}", "resamples=1000", *map(str, words)]))
    return load(folder / "locks.json")


def test_a_leak_lies_between_another_text_and_the_unlocked_store(tmp_path: Path) -> None:
    runs = [
        cell(tmp_path, "vectors", "none", 1.0, PAIRS),
        cell(tmp_path, "queries_0", "none", 1.0, PERFECT),
        cell(tmp_path, "vectors", "noise", 0.9, PAIRS),
        cell(tmp_path, "queries_0", "noise", 0.9, PAIRS),
        cell(tmp_path, "queries_0", "sap", 0.901, LOST),
        cell(tmp_path, "queries_0", "sap", 0.5, LOST),
    ]
    found = table(tmp_path, *runs)
    references = [one for one, _ in PAIRS]
    others = [(one, references[(n + step) % len(PAIRS)]) for step in range(1, 6) for n, one in enumerate(references)]
    floor = statistics.fmean(_f1(one, other) for one, other in others)
    assert found["floor"] == pytest.approx(floor)
    ceilings = {"vectors": load(runs[0] / "metrics.json")["token_f1"], "queries_0": 100.0}
    for one in found["cells"]:
        leak = 100 * (one["token_f1"]["value"] - floor) / (ceilings[one["has"]] - floor)
        assert one["leak"]["value"] == pytest.approx(leak)
        assert one["leak"]["low"] - 1e-6 <= leak <= one["leak"]["high"] + 1e-6
    page, text = ((tmp_path / f"locks.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    rows = [line.strip("| ").split(" | ")[0].partition(" (")[0] for line in text.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row in ("no lock", "noise", "sap")] == ["no lock", "noise", "sap", "sap"]
    assert "recall 0.90; level 0.01234" in page
    assert "At a recall of .90 or more, sap at level 0.01234 leaves at most 20 % of the leak" in page
    assert not re.search(r"<script|https?://|url\(", page)
    assert PAIRS[0][0] not in page


def _f1(reference: str, prediction: str) -> float:
    wanted, offered = Counter(words(reference)), Counter(words(prediction))
    return 200 * (wanted & offered).total() / (wanted.total() + offered.total())


def test_runs_that_make_no_table(tmp_path: Path) -> None:
    one = cell(tmp_path, "vectors", "noise", 0.9, PAIRS)
    with pytest.raises(InputError, match=r"has no defense\.recall; a cell of this table needs one"):
        table(tmp_path, one, cell(tmp_path, "vectors", "none", None, PAIRS))
    with pytest.raises(InputError, match=r"both of attack 'ALGEN', vectors, defense noise at recall 0\.900"):
        table(tmp_path, one, cell(tmp_path / "again", "vectors", "noise", 0.9, PAIRS))
    with pytest.raises(InputError, match="no directory is a finished cell of experiment=locks"):
        table(tmp_path, write_run(tmp_path / "own"))


LOCK = """
from unembed.defenses.base import BaseDefense, Strength


class Clipping(BaseDefense):
    strength = Strength("limit", 1.0, 0.001)

    def __init__(self, limit: float = 0.1) -> None:
        self.limit = limit

    def __call__(self, embeddings, examples, role, epoch=None):
        return embeddings.clamp(-self.limit, self.limit)
"""


def test_somebody_elses_lock_takes_one_file_and_one_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    things, places = ("cat", "dog", "fish", "bird", "snake", "horse"), ("on the mat", "in the river", "over the city")
    documents = [f"a {thing} was seen {place} today ." for thing in things for place in places]
    folder = tmp_path / "things"
    folder.mkdir()
    write_lines(folder / "corpus.jsonl", [{"_id": f"d{n}", "text": text} for n, text in enumerate(documents)])
    write_lines(folder / "queries.jsonl", [{"_id": thing, "text": f"where is the {thing}"} for thing in things])
    labels = [f"{thing}\td{n * len(places)}\t1" for n, thing in enumerate(things)]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *labels]), encoding="utf-8")
    (tmp_path / "configs" / "defense").mkdir(parents=True)
    (tmp_path / "theirs.py").write_text(LOCK, encoding="utf-8")
    (tmp_path / "configs" / "defense" / "clipping.yaml").write_text("_target_: theirs.Clipping\nlimit: 0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    runs = []
    for defense in ("none", "clipping"):
        runs.append(tmp_path / defense)
        given = [
            *("experiment=locks/vectors", "attack=nearest_neighbor", "~attack.source_run", "trainer=cpu"),
            *(f"defense={defense}", "defense.recall=0.8", f"datamodule.source.path={folder}"),
            *(f"run_dir={runs[-1]}", f"cache_dir={tmp_path / 'cache'}", f"hydra.searchpath=[{tmp_path / 'configs'}]"),
        ]
        with trusting(["theirs"]):
            train(launch.compose("train", given))
    found = {one["defense"]: one for one in table(tmp_path, *runs)["cells"]}
    assert 0.8 <= found["clipping"]["recall"] < 1
    limit = float(found["clipping"]["settings"].removeprefix("limit "))
    assert 0.001 < limit < 0.2  # the coordinates of a vector of length 1 are about .05
    assert found["none"]["recall"] == 1
