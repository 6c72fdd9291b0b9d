"""The trade-off of defenses: points, metrics with intervals, the sentence, the files; on a tiny collection."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.errors import InstantiationException
from torch import Tensor

from support.files import write_lines
from unembed import launch
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.collections import BeirCollection, CollectionTexts, HeldOut
from unembed.datamodules.embedded import DefendedEmbedder
from unembed.defenses.base import Role
from unembed.evaluate import evaluate
from unembed.reports.reading import Seen
from unembed.reports.tradeoff import Bench, Point
from unembed.reports.tradeoff_page import MeasuredPoint, chief, sentence, tradeoff_chart, with_intervals
from unembed.train import train

SEARCH = "32 tokens, both defended"
THINGS = ("cat", "dog", "fish", "bird", "snake", "horse", "goat", "duck", "whale", "moth")
PLACES = ("on the mat", "in the river", "behind the old house", "over the city")


def collection(folder: Path) -> Path:
    """40 documents of ten things in four places; a query a thing, whose four documents are relevant."""
    folder.mkdir(parents=True, exist_ok=True)
    named = [(f"{thing}{n}", thing, place) for thing in THINGS for n, place in enumerate(PLACES)]
    rows = [{"_id": name, "text": f"a {thing} was seen {place} . it was a {thing} ."} for name, thing, place in named]
    queries = [{"_id": thing, "text": f"where was the {thing}"} for thing in THINGS]
    qrels = ["query-id\tcorpus-id\tscore", *(f"{thing}\t{name}\t1" for name, thing, _ in named)]
    for name, content in (("corpus", rows), ("queries", queries)):
        write_lines(folder / f"{name}.jsonl", content)
    (folder / "qrels.tsv").write_text("\n".join(qrels), encoding="utf-8")
    return folder


class Halved:
    """The first half of the dimensions; or ``wider``, with as many zeros as there are dimensions."""

    def __init__(self, wider: bool = False) -> None:
        self.wider = wider

    def output_dimension(self, dimension: int) -> int:
        return 2 * dimension if self.wider else dimension // 2

    def fit(self, embeddings: Tensor, examples: Sequence[Example]) -> None:
        """Nothing to estimate."""

    def __call__(self, embeddings: Tensor, examples: Sequence[Example], role: Role, epoch: int | None = None) -> Tensor:
        dimension = embeddings.shape[1]
        return torch.nn.functional.pad(embeddings, (0, dimension)) if self.wider else embeddings[:, : dimension // 2]


# --------------------------------------------------------------------------------------------- metrics, sentence, chart


def point(
    name: str, pairs: Sequence[tuple[str, str]], ndcg: Sequence[float] | None
) -> tuple[Point, list[dict[str, Any]]]:
    """A point of which (text, what was read) and NDCG@10 of each query are given."""
    rows = [{"reference": text, "prediction": read, "kind": "sequence", "cosine": 0.5} for text, read in pairs]
    retrieval = {SEARCH: None if ndcg is None else {"ndcg_at_10": list(ndcg)}}
    reconstruction: dict[str, Any] = {"bleu": 1.0} if rows else {}
    return Point(name=name, overrides=[name], width=4, reconstruction=reconstruction, retrieval=retrieval), rows


TEXTS = [f"the {thing} was seen {place} today" for thing in THINGS for place in PLACES]
READ = [(text, text) for text in TEXTS]
UNREAD = [(text, "nothing of it at all") for text in TEXTS]
GOOD = [0.8 + 0.002 * n for n in range(50)]
BAD = [value - 0.5 for value in GOOD]


def measured(*points: tuple[Point, list[dict[str, Any]]]) -> list[MeasuredPoint]:
    return with_intervals(points, resamples=1000)


def test_metrics_and_their_changes() -> None:
    base, same, worse = measured(
        point("none", READ, GOOD), point("same", READ, GOOD), point("worse", [*READ[:20], *UNREAD[20:]], BAD)
    )
    assert base.read["exact_match"].value == 100
    low, high = base.read["exact_match"].interval or (0, 0)
    assert (round(low, 1), high) == (91.2, 100.0)  # Wilson's for 40 of 40: 1 / (1 + 1.96^2 / 40)
    assert base.read["bleu"].change is None
    assert {base.read[key].value for key in ("bleu_sentence", "rouge1", "rougeL", "token_set_f1")} == {100}
    # {the, cat, was, ...} and {nothing, of, it, at, all} share nothing; half of the texts is read in full.
    assert worse.read["token_set_f1"].value == worse.read["rouge1"].value == worse.read["bleu_sentence"].value == 50
    assert (worse.read["bleu"].value or 0) != 50  # of the corpus
    assert same.read["bleu"].change == 0
    assert same.read["bleu"].change_interval == (0, 0)
    assert not same.read["bleu"].lower
    assert worse.read["exact_match"].change == -50
    assert worse.read["exact_match"].lower
    # Every query loses the same, so the change has no width although the metrics have.
    assert worse.searched[SEARCH].value == pytest.approx(sum(BAD) / 50)
    assert worse.searched[SEARCH].change == pytest.approx(-0.5)
    assert worse.searched[SEARCH].change_interval == pytest.approx((-0.5, -0.5))
    interval = worse.searched[SEARCH].interval
    assert interval is not None
    assert interval.high - interval.low > 0.005
    assert worse.searched[SEARCH].plain()["change_low"] == pytest.approx(-0.5)


def test_a_figure_that_is_not_there_stays_undefined() -> None:
    found = measured(point("none", READ, GOOD), point("wide", [], None))
    assert found[1].read["bleu"].value is None
    assert found[1].searched[SEARCH].value is None
    assert "no other point has both metrics" in sentence(found, SEARCH)


def test_the_sentence_says_what_was_measured() -> None:
    found = measured(
        point("none", READ, GOOD),
        point("shield", UNREAD, GOOD),
        point("wall", UNREAD, BAD),
        point("rust", READ, BAD),
        point("air", READ, GOOD),
    )
    said = sentence(found, SEARCH)
    assert said.startswith("Undefended, the attack reads texts at BLEU 100.0 (100.0 to 100.0) and the search reaches ")
    assert "of 4 defenses, 1 lowers BLEU at no loss of NDCG@10 that these queries show, most of all shield" in said
    assert "1 lowers both, wall costing the search least" in said
    assert "1 lowers NDCG@10 alone (rust), 1 lowers neither (air)" in said
    assert "NDCG@10 -0.500, -0.500 to -0.500" in said
    assert "none lowers" not in said
    said = sentence(measured(point("none", READ, GOOD), point("wall", UNREAD, BAD)), SEARCH)
    assert "none lowers BLEU without lowering NDCG@10" in said


def test_an_attack_that_reads_words_in_no_order_is_drawn_by_its_word_f1() -> None:
    found = measured(point("none", READ, GOOD))
    assert chief(found) == "bleu"
    words = found[0].point.model_copy(update={"reconstruction": {"bleu": None, "token_f1": 40.0}})
    assert chief([MeasuredPoint(words, found[0].read, found[0].searched)]) == "token_f1"


def test_the_chart_has_a_dot_a_point_and_escapes_names() -> None:
    found = measured(
        point("none", READ, GOOD),
        point("<b>shield</b>", UNREAD, GOOD),
        point("wall", UNREAD, BAD),
        point("twin", UNREAD, BAD),
        point("wide", [], GOOD),
    )
    drawn = str(tradeoff_chart(found, SEARCH, "BLEU"))
    assert len(re.findall("<circle", drawn)) == 4  # one cannot be placed
    assert len(re.findall('circle class="fill series1"', drawn)) == 1
    assert "<b>" not in drawn
    assert ">2, 3</text>" in drawn  # dots on one another share a label


def test_missing_dimensions_are_filled_with_zeros() -> None:
    vectors = torch.arange(8.0).view(2, 4)
    filled = Seen(Halved(), 4)
    assert filled.fits(4)
    assert filled(vectors, [], "test").tolist() == [[0, 1, 0, 0], [4, 5, 0, 0]]
    assert filled.output_dimension(4) == 4
    assert not Seen(Halved(wider=True), 4).fits(4)


def test_held_out_documents_are_those_that_training_holds_out(tmp_path: Path) -> None:
    folder = str(collection(tmp_path))
    source = CollectionTexts(folder, test_fraction=0.3, split_seed=4)
    held_out = HeldOut(BeirCollection(folder).read(), test_fraction=0.3, split_seed=4)
    found = held_out.load()
    assert set(found) == {"test"}
    assert found["test"] == source.load()["test"]
    names = [example.group for example in found["test"]][:3]
    assert [example.group for example in held_out.only(set(names)).load()["test"]] == names


# ------------------------------------------------------------------------------------------------------ from end to end


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The nearest neighbour over the documents of a collection: it needs no training."""
    base = tmp_path_factory.mktemp("tradeoff")
    folder = collection(base / "things")
    config = launch.compose(
        "train",
        [
            *("attack=nearest_neighbor", "datamodule=collection", f"datamodule.source.path={folder}", "trainer=cpu"),
            *(f"run_dir={base / 'run'}", f"cache_dir={base / 'cache'}", "logger=none", "~callbacks.progress"),
        ],
    )
    train(config)
    return base / "run"


POINTS = ["defense=noise defense.level=0.3", "defense=truncation defense.dimensions=100"]


def sweep(
    run: Path, output: Path, *overrides: str, points: Sequence[str] = POINTS, adaptive: bool = False
) -> dict[str, Any]:
    listed = ",".join(f"'{point}'" for point in points)
    given = [
        *(f"run={run}", "experiment=tradeoff", f"collection={run.parent / 'things'}", f"output_dir={output}"),
        f"tradeoff.adaptive={adaptive}",
        *("tradeoff.cuts=[32]", f"tradeoff.points=[{listed}]", "tradeoff.resamples=1000"),
    ]
    evaluate(*launch.on_run("evaluate", [*given, *overrides]))
    content: dict[str, Any] = json.loads((output / "tradeoff.json").read_text(encoding="utf-8"))
    return content


def kept(output: Path) -> Mapping[str, float]:
    return {path.name: path.stat().st_mtime_ns for path in sorted((output / "points").iterdir())}


@pytest.mark.slow
def test_a_point_is_as_strong_as_its_recall_allows(run: Path, tmp_path: Path) -> None:
    points = sweep(run, tmp_path / "recall", points=["defense=noise defense.recall=0.8"])["points"]
    assert re.fullmatch(r"noise recall=0\.8: level=0\.\d+", points[1]["name"])


def test_a_sweep_from_end_to_end_and_again_after_a_kill(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure, done = Bench.measure, []

    def killed(self: Bench, name: str, *rest: Any) -> Any:
        done.append(name)
        if name.startswith("truncation"):
            raise KeyboardInterrupt
        return measure(self, name, *rest)

    monkeypatch.setattr(Bench, "measure", killed)
    with pytest.raises(KeyboardInterrupt):
        sweep(run, tmp_path / "out")
    assert done == ["none", "noise level=0.3", "truncation dimensions=100"]
    assert not (tmp_path / "out" / "tradeoff.json").exists()
    before = kept(tmp_path / "out")
    assert len(before) == 4  # metrics and texts of two points
    done.clear()
    monkeypatch.setattr(Bench, "measure", lambda self, name, *rest: (done.append(name), measure(self, name, *rest))[1])
    found = sweep(run, tmp_path / "out")
    assert done == ["truncation dimensions=100"]
    assert {name: time for name, time in kept(tmp_path / "out").items() if name in before} == before

    none, noise, truncated = found["points"]
    assert (found["documents"], found["queries"], found["texts attacked"]) == (40, 10, 8)
    assert found["searches"] == [SEARCH, "32 tokens, documents defended"]
    assert none["overrides"] == ["defense=none"]
    # The store is easy to search, and half as many dimensions of noise are not.
    assert none["retrieval"][SEARCH]["ndcg_at_10"] > 0.9
    assert noise["retrieval"][SEARCH]["ndcg_at_10"] < none["retrieval"][SEARCH]["ndcg_at_10"]
    assert noise["reconstruction"]["cosine"] < none["reconstruction"]["cosine"]
    assert none["retrieval"]["32 tokens, documents defended"] == none["retrieval"][SEARCH]
    assert (truncated["width"], none["width"]) == (100, 384)
    assert truncated["retrieval"]["32 tokens, documents defended"] is None
    assert truncated["reconstruction"]["examples"] == 8
    assert noise["intervals"]["bleu"]["change"] == pytest.approx(
        noise["reconstruction"]["bleu"] - none["reconstruction"]["bleu"]
    )
    assert found["sentence"] in capsys.readouterr().out.replace("\n", " ")
    table = (tmp_path / "out" / "tradeoff.md").read_text(encoding="utf-8")
    assert found["sentence"] in table
    assert table.count("\n| ") == 5  # a head and its rule, three points
    page = (tmp_path / "out" / "tradeoff.html").read_text(encoding="utf-8")
    assert page.count("<circle") == 3
    assert "<script" not in page


def test_metrics_of_the_undefended_point_are_those_of_an_evaluation(run: Path, tmp_path: Path) -> None:
    found = sweep(run, tmp_path / "out", points=["defense=noise defense.level=0"])
    wanted = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    for name in ("bleu", "token_f1", "exact_match", "cosine", "edit_distance_mean"):
        assert found["points"][0]["reconstruction"][name] == pytest.approx(wanted[name])
    assert found["points"][1]["retrieval"] == found["points"][0]["retrieval"]


def test_an_adaptive_attacker_maps_defended_vectors_back(run: Path, tmp_path: Path) -> None:
    points = ["defense=masking defense.scale=50", "defense=truncation defense.dimensions=100"]
    naive, adaptive = (sweep(run, tmp_path / f"{know}", points=points, adaptive=know) for know in (False, True))
    assert adaptive["points"][0] == naive["points"][0]
    read = [[point["reconstruction"]["token_f1"] for point in found["points"]] for found in (naive, adaptive)]
    assert read[1][1] == read[1][0] > read[0][1] + 5  # only the first dimension is lost
    assert read[1][2] > 0.9 * read[1][0]
    pages = [(tmp_path / f"{know}" / "tradeoff.md").read_text(encoding="utf-8") for know in (False, True)]
    assert "may read more" in pages[0]
    assert "knows up to 5,000 other documents with their defended vectors" in pages[1].replace("\n", " ")


@pytest.mark.parametrize("of_the_point", [True, False])
def test_texts_that_the_attack_embeds_are_defended_where_the_point_or_the_command_says_so(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_the_point: bool
) -> None:
    """Morris et al. 2023, section 6: the noisy embedder answers the attacker, too."""
    asked: list[str] = []
    embed = DefendedEmbedder.embed

    def seen(self: DefendedEmbedder, texts: Sequence[str], purpose: Any = "attack") -> Tensor:
        asked.append(purpose)
        return embed(self, texts, purpose)

    monkeypatch.setattr(DefendedEmbedder, "embed", seen)
    reranked, masked = "attack/refine=[rerank]", "defense=masking defense.scale=50"
    clean = sweep(run, tmp_path / "clean", reranked, points=[masked])
    assert not asked
    assert clean["points"][1]["reconstruction"]["cosine"] < 0.2
    defended = "defense.hypotheses=defended"
    given = ([reranked], f"{masked} {defended}") if of_the_point else ([reranked, defended], masked)
    found = sweep(run, tmp_path / "clean", *given[0], points=[given[1]])
    assert {"attack", "scoring"} == set(asked)
    assert found["points"][1]["reconstruction"]["cosine"] > 0.99
    assert defended in found["points"][1]["overrides"]
    assert found["points"][0] == clean["points"][0]


def test_the_attackers_texts_are_in_the_language_of_the_documents(run: Path, tmp_path: Path) -> None:
    by_language = "defense=masking defense.languages={en:50,de:2} defense.hypotheses=defended"
    mean = "defense=language_agnostic defense.hypotheses=defended"
    found = sweep(run, tmp_path / "out", "attack/refine=[rerank]", points=[by_language, mean])["points"]
    assert found[1]["reconstruction"]["cosine"] > 0.99
    assert found[2]["reconstruction"]["cosine"] is not None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["experiment=tradeof"], "experiment=tradeof: did you mean tradeoff?"),
        (
            ["experiment=tradeoff", "collection=x", "tradeoff.text=5"],
            r"tradeoff.text: unknown key, did you mean texts\?",
        ),
        (["experiment=tradeoff", "collection=x", "tradeoff.cuts=[]"], "tradeoff.cuts"),
        (["experiment=tradeoff", "tradeoff/collection=clirmatrix"], "tradeoff.collection.documents: missing"),
    ],
)
def test_bad_settings_are_reported_before_anything_is_read(run: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        launch.on_run("evaluate", [f"run={run}", *overrides])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["experiment=tradeoff"], "collection: missing, give it as collection=<a directory"),
        (["collection=x"], "collection=x: it is searched by experiment=tradeoff"),
        (["experiment=tradeoff", "collection=gone"], "collection gone: no owner/name of the hub, and no directory"),
        (
            ["experiment=tradeoff", "collection=x", "tradeoff.points=['defense=nois']"],
            "defense=nois: did you mean noise",
        ),
    ],
)
def test_bad_input_is_told_before_anything_is_embedded(run: Path, overrides: list[str], message: str) -> None:
    with pytest.raises((InputError, InstantiationException), match=message):
        evaluate(*launch.on_run("evaluate", [f"run={run}", f"output_dir={run.parent / 'none'}", *overrides]))
    assert not (run.parent / "none").exists()


def test_points_are_written_as_for_evaluate(run: Path) -> None:
    _, config = launch.on_run("evaluate", [f"run={run}"])
    points = launch.defense_points(config, ["defense=noise defense.level=0.5", "defense=none"], "points")
    assert [point.name for point in points] == ["noise level=0.5", "none"]
    assert points[0].config.defense.level == 0.5
    wrong = [
        "defense=noise defense.levle=1",
        "defense=none",
        "defense=none",
        "noise",
        "defense=none seed=2",
        "defense='x",
    ]
    with pytest.raises(InputError) as caught:
        launch.defense_points(config, wrong, "points")
    lines = str(caught.value).splitlines()
    assert lines[0] == f"points[0]={wrong[0]}: defense.levle: unknown key, did you mean level?"
    assert lines[1] == "points[3]=noise: write it as for evaluate.py, such as 'defense=noise defense.level=0.01'"
    assert lines[2].startswith("points[4]=defense=none seed=2: write it as for evaluate.py")
    assert lines[3].startswith("points[5]=defense='x: No closing quotation")
    assert lines[4] == "points: none is listed twice"


def test_an_attack_that_knows_all_documents_has_none_to_read(run: Path, tmp_path: Path) -> None:
    """A collection of training documents alone."""
    source = CollectionTexts(str(run.parent / "things"))
    trained = {example.group for example in source.load()["train"]}
    folder = collection(tmp_path / "known")
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(line for line in lines if json.loads(line)["_id"] in trained))
    with (
        pytest.raises(InputError, match="held-out documents stand in the attack's training text"),
        pytest.warns(UserWarning, match="relevance labels of unknown documents"),
    ):
        sweep(run, tmp_path / "out", f"collection={folder}")
