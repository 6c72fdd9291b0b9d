"""What a pipeline reads of an audit: exit code, thresholds, schema of audit.json, SARIF, JUnit, Markdown, baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest

import unembed
from support import tiny_settings
from support.files import load, write_lines
from support.places import Place
from support.processes import ROOT
from unembed import launch
from unembed.audit.report import JUNIT, PAGE, SARIF, SUMMARY, write_audit
from unembed.audit.results import AttackerResult, Audit, DataClass, Kind, Row, Share, read_audit, schema
from unembed.audit.thresholds import changes, check_kinds, incomparable, judge, parse
from unembed.commands import audit as script
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.launch.overrides import as_text

SCHEMA = ROOT / "docs" / "audit-1.schema.json"


def estimate(value: float, low: float, high: float, rows: int = 9) -> Share:
    return Share(value=value, low=low, high=high, rows=rows, measured=False)


def audit_of(fraction: float = 0.04, **values: Any) -> Audit:
    """An audit of 200 rows, of which a share is readable; half of 10 e-mail addresses leak, and no card."""
    kinds = {"EMAIL": (10, Share.counted(5, 10)), "CARD": (5, Share.counted(0, 5)), "NAME": (3, None)}
    classes = {"names": (9, estimate(0.03, 0.01, 0.07)), "dates": (0, None), "free text": (90, estimate(0.3, 0.2, 0.4))}
    audit = Audit(
        store="db/mine.npy", named=("vectors=db/mine.npy",),
        size=1000, sampled=200, width=384, run={"directory": "runs/a"}, threshold=80.0,
        masked=True, tagged="their form", readable=Share.counted(round(fraction * 200), 200),
        exact=Share.counted(1, 200), entities=Share.counted(5, 15), cosines=[0.5, 0.9],
        kinds=[Kind(label=name, total=total, share=share) for name, (total, share) in kinds.items()],
        classes=[DataClass(name=name, total=n, share=share, found="form") for name, (n, share) in classes.items()],
        rows=[Row(id="row 7", position=7, cosine=0.99, f1=100.0, exact=True, probability=0.97, kinds=("EMAIL",),
                  text="[NAME] of Xxxxx"),
              Row(id="row 8", position=8, cosine=0.2, probability=0.1, kinds=(), text="xxx")],
    )  # fmt: skip
    return audit.model_copy(update=values)


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        # 8 of 200: Wilson's interval ends at 7.7 %.
        ("readable>7.6", [False]),
        ("readable>7.8", [True]),
        ("readable>4", [False]),  # the share itself holds, its interval does not
        (" readable > 10 % , exact>2.7 ", [True, False]),  # 1 of 200: 2.8 %
        ("entities.EMAIL>76,entities.EMAIL>77", [False, True]),  # 5 of 10: 76.3 %
        ("entities.CARD>50", [True]),
        ("entities>60", [True]),  # 5 of 15: 58.3 %
        ("classes.names>7,classes.names>6.99", [True, False]),  # ends at 7 %, of which 100 times .07 is a bit more
        ("classes.free text>30,classes.dates>0", [False, True]),  # there is no date
        ("", []),
    ],
)
def test_the_upper_end_of_the_interval_is_compared(line: str, passed: list[bool]) -> None:
    assert [one.passed for one in judge(parse(line), audit_of())] == passed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("readable", "fail_on=readable: write name>percent"),
        ("readable<5", "write name>percent"),
        ("redable>5", "'redable' is no share, did you mean readable?"),
        ("readable>101", "101 percent is more than all"),
        ("classes.name>5", "'classes.name' is no share, did you mean classes.names?"),
    ],
)
def test_a_mistake_in_a_threshold_is_named(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(line)


def test_a_kind_that_is_not_counted_does_not_pass() -> None:
    """Names have no form: without a tagger and without labels nothing of the kind is ever found."""
    conditions = parse("entities.EMAIL>1,entities.first_name>1")
    with pytest.raises(InputError, match="kind 'first_name' are not counted here"):
        check_kinds(conditions, ["EMAIL", "CARD"], any_kind=False)
    check_kinds(conditions, ["EMAIL", "first_name"], any_kind=False)
    check_kinds(conditions, [], any_kind=True)
    (unknown,) = judge(parse("entities.NAME>1"), audit_of())  # found in the store, never in a test text
    assert (unknown.passed, unknown.share) == (False, None)
    assert "cannot be judged" in unknown.said


def test_entities_are_judged_by_the_estimate_where_no_truth_is_known() -> None:
    estimated = audit_of(entities=estimate(0.01, 0.0, 0.04))
    assert [one.passed for one in judge(parse("entities>3.9,entities>4"), estimated)] == [False, True]
    (nothing,) = judge(parse("entities>0"), audit_of(entities=None, kinds=[]))
    assert (nothing.passed, nothing.said) == (True, "entities>0: none was found in the true texts")
    (failed,) = judge(parse("entities>3.9"), estimated)
    assert failed.said.endswith("its upper end, 4 %, is above 3.9 %")


def test_nothing_passes_an_audit_that_judges_nothing() -> None:
    unjudged = audit_of(unjudged="5 vectors are too few.")
    outcomes = judge(parse("readable>10,readable>4,classes.dates>0"), unjudged)
    assert [(one.passed, one.share is None) for one in outcomes] == [(False, True), (False, False), (False, True)]
    assert outcomes[0].said == "fail_on=readable>10: cannot be judged. 5 vectors are too few"


def test_the_attacker_whose_interval_reaches_highest_counts() -> None:
    other = AttackerResult(name="lookup", readable=estimate(0.03, 0.0, 0.2), exact=None, cosine=0.5)
    (outcome,) = judge(parse("readable>10"), audit_of(attackers=[other]))
    assert not outcome.passed


def test_the_files_for_pipelines(tmp_path: Path) -> None:
    audit = audit_of()
    audit.thresholds, audit.changes = judge(parse("readable>5,exact>50"), audit), changes(audit, audit_of(0.5))
    write_audit(tmp_path, audit)
    log = load(tmp_path / SARIF)
    results = log["runs"][0]["results"]
    rules = [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]]
    assert (log["version"], log["runs"][0]["tool"]["driver"]["version"]) == ("2.1.0", unembed.__version__)
    assert f"Made by unembed {unembed.__version__} with" in (tmp_path / PAGE).read_text(encoding="utf-8")
    assert [(one["ruleId"], one["level"]) for one in results] == [
        ("UNEMBED004", "error"), ("UNEMBED001", "warning"), ("UNEMBED002", "warning"), ("UNEMBED003", "note"),
    ]  # fmt: skip
    assert all(rules[one["ruleIndex"]] == one["ruleId"] for one in results)
    places = [one["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for one in results]
    files = {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in results}
    assert files == {"mine.npy"}
    assert places == ["mine.npy", "mine.npy", "mine.npy", "mine.npy/row 7"]
    suite = ElementTree.parse(tmp_path / JUNIT).getroot()
    assert (suite.tag, suite.get("tests"), suite.get("failures")) == ("testsuite", "2", "1")
    assert [(case.get("name"), case.find("failure") is not None) for case in suite] == [
        ("readable>5", True), ("exact>50", False),
    ]  # fmt: skip
    said = (tmp_path / SUMMARY).read_text(encoding="utf-8")
    first, verdict, *_ = said.split("\n\n")
    assert first.startswith("**The attacker reads 4.0")
    assert verdict.startswith("FAILED: readable>5, since the interval reaches 7.7")
    assert "Since the baseline: readable changed: 4.0" in said
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "EXCEEDED" in page
    assert "Since the baseline" in page


def test_a_finding_keeps_its_fingerprint(tmp_path: Path) -> None:
    prints = []
    for number, share in enumerate((0.04, 0.3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_audit(folder, audit_of(share))
        prints.append([one["partialFingerprints"] for one in load(folder / SARIF)["runs"][0]["results"]])
    assert prints[0] == prints[1]
    assert len({json.dumps(one) for one in prints[0]}) == len(prints[0])
    suite = ElementTree.parse(tmp_path / "0" / JUNIT).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")


def test_audit_json_fits_its_published_schema_and_a_baseline_is_read(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert schema == published(), "docs/audit-1.schema.json is not what unembed/audit/results.py gives"
    content = audit_of().model_dump(mode="json")
    jsonschema.validate(content, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content | {"readable": {"value": 2}}, schema)
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(content))
    (first, *_) = changes(audit_of(0.5), read_audit(path))
    assert (first.name, first.before.value, first.after.value, first.apart) == ("readable", 0.04, 0.5, True)
    assert not changes(audit_of(0.05), read_audit(path))[0].apart
    other = audit_of(run={"directory": "runs/b"}, readable=estimate(0.1, 0.0, 0.2))
    assert len(incomparable(other, read_audit(path))) == 2
    assert len(incomparable(audit_of(threshold=60.0, attackers=[]), read_audit(path))) == 1
    for wrong, message in (
        ({"version": 7}, "its version is 7"),
        ({"size": "x"}, "size: "),
        ({"version": None}, "no version"),
    ):
        path.write_text(json.dumps(content | wrong))
        with pytest.raises(InputError, match=message):
            read_audit(path)
    with pytest.raises(InputError, match=r"baseline=.*absent\.json: no such file"):
        read_audit(tmp_path / "absent.json")


def published() -> dict[str, Any]:
    """The schema as it is published: python -c "from unembed.audit.results import schema; print(schema())"."""
    content: dict[str, Any] = json.loads(schema())
    return content


@pytest.mark.slow
def test_an_exceeded_threshold_ends_an_audit_with_code_3_and_its_files(tmp_path: Path) -> None:
    texts = [
        f"{who} lives in {city}" for who in ("Ada", "Bob", "Cleo", "Dan", "Eve") for city in ("Rome", "Oslo", "Bonn")
    ]
    rows = [{"text": text, "split": "train"} for text in texts] + [{"text": text, "split": "test"} for text in texts]
    data = write_lines(tmp_path / "data.jsonl", rows)
    common = [*tiny_settings.NEIGHBOR, "datamodule.valid_fraction=0", "datamodule.drop_repeated=false"]
    place = Place(tmp_path, data, common)
    run = place.train("run")
    stored = texts * 4  # fewer than 50 are not judged
    np.save(tmp_path / "store.npy", CachedEmbedder(MiniLM(), place.cache).embed(stored, "scoring").numpy())
    truth = write_lines(tmp_path / "truth.jsonl", [{"text": text} for text in stored])
    given = [f"run={run}", f"vectors={tmp_path / 'store.npy'}", f"texts={truth}", "defenses=[]"]

    def audited(name: str, *lines: str) -> int:
        try:
            script.audit(*launch.on_run("audit", [*given, f"output_dir={tmp_path / name}", *lines]))
        except SystemExit as ended:
            return int(str(ended.code))
        return 0

    assert audited("first", "fail_on=readable>5,exact>100") == 3
    assert {path.name for path in (tmp_path / "first").iterdir()} == {
        "audit.json", "audit.html", "audit.sarif", "audit.junit.xml", "audit.md", "exposed.csv",
    }  # fmt: skip
    content = load(tmp_path / "first" / "audit.json")
    jsonschema.validate(content, published())
    assert [one["passed"] for one in content["thresholds"]] == [False, True]
    assert audited("second", "fail_on=readable>100", f"baseline={tmp_path / 'first' / 'audit.json'}") == 0
    assert load(tmp_path / "second" / "audit.json")["changes"][0]["name"] == "readable"
    with pytest.raises(InputError, match="fail_on=readable>=5: write name>percent"):
        audited("third", "fail_on=readable>=5")
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("fail_on=readable>5,exact>1", 'fail_on="readable>5,exact>1"'),
        ("fail_on='readable>5'", "fail_on='readable>5'"),
        ("fail_on=null", "fail_on=null"),
        ("++fail_on=exact>1", '++fail_on="exact>1"'),
        ("limit=5", "limit=5"),
    ],
)
def test_thresholds_need_no_second_quotes(word: str, text: str) -> None:
    assert as_text(word) == text
