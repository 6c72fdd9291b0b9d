"""A resumed run keeps its settings, and a run's data files are known by their content, from any directory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from support.files import write_lines
from support.processes import ROOT, Warm, program
from unembed import launch
from unembed.core.errors import InputError
from unembed.datamodules.collections import BeirCollection, CollectionTexts
from unembed.datamodules.inversion import InversionDataModule, described
from unembed.datamodules.sources.base import Source
from unembed.datamodules.sources.files import TextFiles
from unembed.datamodules.sources.hub import HubSet, LanguageSets
from unembed.datamodules.sources.token_inputs import CutTexts
from unembed.launch.console import ending
from unembed.launch.locations import make_absolute
from unembed.reports.results import read_results
from unembed.runs import layout
from unembed.runs.config_file import read_config, write_config
from unembed.runs.files import data_of, training_of

FILES = ["datamodule=files", "datamodule.path=data.jsonl"]
MODEL = ["attack=geia", "attack.backbone.layers=2", "attack.backbone.width=64", "attack.backbone.heads=2",
         "attack.decoding.max_new_tokens=8"]  # fmt: skip
SHORT = ["datamodule.limit_train=64", "datamodule.limit_valid=8", "datamodule.limit_test=6", "trainer.accelerator=cpu",
         "trainer.precision=32-true", "trainer.max_steps=3"]  # fmt: skip
# Adds, removes, lists and parts of groups: the whole old command must be no difference.
OLD = [*FILES, *MODEL, *SHORT, "seed=7", "+callbacks.checkpoint.every_n_train_steps=5", "~callbacks.progress",
       "defense=[masking,rounding]", "defense.rounding.step=0.2", "attack/decoding=nucleus",
       "attack.decoding.p=0.8"]  # fmt: skip
# Types each command in turn, and writes what came of it.
TYPED = """
import contextlib, io, json, os, sys
from unembed import launch as configuration
found = []
for lines in json.loads(os.environ["COMMANDS"]):
    said, one = io.StringIO(), {"code": 0, "config": {}, "rank": {}}
    sys.argv = ["train.py", *lines]
    def rank(config):
        one.update(rank=configuration.plain(config))
    def task(config):
        one.update(config=configuration.plain(config))
        assert sys.argv[1:] == lines
        if config.trainer.devices > 1:  # as Lightning starts another rank: the same command, the same environment
            os.environ["LOCAL_RANK"] = "1"
            configuration.main(rank, "train")
            del os.environ["LOCAL_RANK"]
    with contextlib.redirect_stderr(said):
        try:
            configuration.main(task, "train")
        except SystemExit as ended:
            one["code"] = ended.code
    found.append({**one, "said": said.getvalue()})
open(os.environ["FOUND"], "w").write(json.dumps(found))
"""


@dataclass
class Typed:
    """What came of ``python train.py <lines>``: the configuration that is trained, or a message and code 2.

    ``rank`` is the configuration of a second rank, where there is one.
    """

    code: int
    config: dict[str, Any]
    rank: dict[str, Any]
    said: str


Type = Callable[..., list[Typed]]


def write(path: Path, words: str, count: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    known = words.split()
    rows = [{"text": f"{known[n % len(known)]} {known[n // 7 % len(known)]} {n}"} for n in range(count)]
    write_lines(path, rows)
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that commands are typed in, with a file of texts."""
    write(tmp_path / "here" / "data.jsonl", "cat dog bird fish")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "here"


@pytest.fixture
def typed(place: Path, warm: Warm) -> Type:
    def type_in(*commands: Sequence[str], cwd: Path = place) -> list[Typed]:
        found = place / "found.json"
        added = {"COMMANDS": json.dumps(commands), "FOUND": str(found), "PYTHONPATH": str(ROOT)}
        done = warm.run(["-c", TYPED], cwd=cwd, environment=os.environ | added)
        assert done.returncode == 0, done.stderr
        return [Typed(**one) for one in json.loads(found.read_text())]

    return type_in


def begun(place: Path, *lines: str) -> Path:
    """A run of that command, killed before its first checkpoint."""
    run = place.parent / "run"
    run.mkdir()
    write_config(run, launch.plain(launch.compose("train", [*lines, f"run_dir={run}"])))
    return run


def lines_of(said: str) -> list[str]:
    return [line.strip() for line in said.splitlines() if " -> " in line][1:]


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_resumed_run_keeps_its_settings(place: Path, typed: Type) -> None:
    run = begun(place, *OLD)
    before = (run / layout.CONFIG).read_bytes()
    saved = yaml.safe_load(before)
    again = [f"run_dir={run}", "ckpt_path=last"]
    bare, whole, part, budgets, shown, processes, larger = typed(
        again,
        [*OLD, *again],
        ["seed=7", "attack.backbone.layers=2", "defense=[masking,rounding]", *again],
        ["trainer.max_steps=9", "trainer.max_time=00:01:00:00", *again],
        ["logger=none", "trainer.enable_progress_bar=false", "cache_dir=elsewhere", "trust=mine", *again],
        ["trainer.strategy=ddp", "trainer.devices=2", *again],
        ["trainer.accumulate_grad_batches=2", *again],
    )  # fmt: skip
    for one in (bare, whole, part):
        assert one.code == 0, one.said
        assert one.config == {**saved, "ckpt_path": "last"}
    assert saved["datamodule"]["path"] == str(place / "data.jsonl")
    assert budgets.config["trainer"] == {**saved["trainer"], "max_steps": 9, "max_time": "00:01:00:00"}
    assert budgets.config["attack"] == saved["attack"]
    assert shown.config["callbacks"]["attributes"]["cache_dir"] == "elsewhere"
    assert shown.code == 0, shown.said
    assert (shown.config["logger"], shown.config["trainer"]["max_steps"]) == ({}, 3)
    assert (shown.config["cache_dir"], shown.config["trust"]) == ("elsewhere", "mine")
    assert (processes.config["trainer"]["devices"], processes.config["trainer"]["max_steps"]) == (2, 3)
    assert larger.config["trainer"]["accumulate_grad_batches"] == 2
    assert processes.rank == processes.config
    assert (run / layout.CONFIG).read_bytes() == before
    assert [path.name for path in run.iterdir() if path.name != "log"] == [layout.CONFIG]


@pytest.mark.slow
def test_a_step_keeps_its_batches_once_there_is_a_checkpoint(place: Path, typed: Type) -> None:
    run = begun(place, *OLD, "trainer=ddp", "trainer.devices=4")
    (run / layout.CHECKPOINT).parent.mkdir()
    (run / layout.CHECKPOINT).touch()
    again = [f"run_dir={run}", "ckpt_path=last"]
    regrouped, fewer = typed(
        ["trainer.devices=2", "trainer.num_nodes=2", *again], ["trainer.devices=2", "trainer.strategy=auto", *again]
    )
    assert (regrouped.code, regrouped.config["trainer"]["num_nodes"]) == (0, 2)
    assert (fewer.code, lines_of(fewer.said)) == (2, ["trainer.devices: 4 -> 2"])


def test_other_settings_are_refused_all_at_once(place: Path, typed: Type) -> None:
    run = begun(place, *OLD)
    write(place / "other.jsonl", "red blue green")
    before = (run / layout.CONFIG).read_bytes()
    again = [f"run_dir={run}", "ckpt_path=last"]
    others = ["attack.backbone.layers=6", "seed=1", "datamodule.batch_size=8", "embedder=mpnet",
              "datamodule.path=other.jsonl", "trainer.precision=bf16-mixed", "trainer.gradient_clip_val=2"]  # fmt: skip
    found = typed([*OLD, *others, *again], *([line, *again] for line in others))
    assert {one.code for one in found} == {2}
    expected = [
        "embedder: minilm -> mpnet", "seed: 7 -> 1", "attack.backbone.layers: 2 -> 6",
        f"datamodule.path: {place / 'data.jsonl'} -> {place / 'other.jsonl'}", "datamodule.batch_size: 64 -> 8",
        "trainer.precision: 32-true -> bf16-mixed", "trainer.gradient_clip_val: 1.0 -> 2",
    ]  # fmt: skip
    assert sorted(lines_of(found[0].said)) == sorted([*expected, "attack.decoding.seed: 7 -> 1"])  # follows the seed
    assert found[0].said.startswith(f"run_dir={run}: a resumed run keeps its settings, and these are others")
    assert sorted(line for one in found[1:] for line in lines_of(one.said)) == sorted(expected)
    assert (run / layout.CONFIG).read_bytes() == before


@pytest.mark.slow
def test_other_options_and_parts_are_refused(place: Path, typed: Type) -> None:
    run = begun(place, *OLD)
    again = [f"run_dir={run}", "ckpt_path=last"]
    commands = {
        "attack=geia_t5": "attack: geia -> geia_t5",
        "defense=[masking,noise]": "defense: masking+rounding -> masking+noise",
        "defense=none": "defense: masking+rounding -> none",
        "attack/decoding=beam": "attack.decoding._target_: ",
        "scoring/tagger=patterns": "scoring.tagger",
        "experiment=vec2text_inverter": "experiment: null -> vec2text_inverter",
        "debug=smoke": "debug: null -> smoke",
        "trainer=cpu": "trainer: default -> cpu",
        "+callbacks.stop={_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: valid/loss}": "callbacks.stop",
        "trainer.limit_test_batches=0.5": "trainer.limit_test_batches: 1.0 -> 0.5",
    }
    for (line, expected), one in zip(commands.items(), typed(*([line, *again] for line in commands)), strict=True):
        assert one.code == 2, line
        assert any(found.startswith(expected) for found in lines_of(one.said)), one.said
    (misspelt,) = typed(["attack.bakbone.layers=2", *again])
    assert misspelt.said == "attack.bakbone: unknown key, did you mean backbone?\n"


@pytest.mark.slow
def test_an_experiment_is_no_difference_to_itself(place: Path, typed: Type) -> None:
    old = ["experiment=personachat_data", "datamodule.path=data.jsonl", "trainer.precision=32-true"]
    run = begun(place, *old)
    again = [f"run_dir={run}", "ckpt_path=last"]
    same, keys, other = typed(
        [*old, *again], ["datamodule.path=data.jsonl", *again], ["experiment=personachat", *old[1:], *again]
    )
    saved = yaml.safe_load((run / layout.CONFIG).read_text())
    assert same.config == keys.config == {**saved, "ckpt_path": "last"}
    assert other.code == 2
    assert lines_of(other.said) == ["experiment: personachat_data -> personachat"]


@pytest.mark.slow
def test_a_default_of_another_version_does_not_matter(place: Path, typed: Type) -> None:
    run = begun(place, *OLD)
    saved = yaml.safe_load((run / layout.CONFIG).read_text())
    saved["attack"]["prefix"]["noise"] = 0.125
    saved["trainer"]["gradient_clip_val"] = 0.5
    write_config(run, saved)
    again = [f"run_dir={run}", "ckpt_path=last"]
    for one in typed(again, [*OLD, *again]):
        assert one.code == 0, one.said
        assert one.config == {**saved, "ckpt_path": "last"}


@pytest.mark.slow
def test_a_run_that_has_moved_writes_where_it_is_now(place: Path, typed: Type) -> None:
    run = begun(place, *OLD, "logger=csv", "callbacks.history.directory=${run_dir}")
    moved = run.rename(run.with_name("moved"))
    (found,) = typed([f"run_dir={moved}", "ckpt_path=last"], cwd=place.parent)
    assert found.config["run_dir"] == str(moved)
    assert found.config["callbacks"]["checkpoint"]["dirpath"] == str(moved / "checkpoints")
    assert found.config["callbacks"]["history"]["directory"] == found.config["logger"]["save_dir"] == str(moved)


@pytest.mark.slow
def test_jobs_of_a_multirun_are_resumed(place: Path, typed: Type) -> None:
    run = begun(place, *FILES, "trainer.precision=32-true", "seed=2")
    again = ["trainer.precision=32-true", "seed=2", f"run_dir={run}", "ckpt_path=last"]
    one, other = typed(["-m", *FILES, *again], ["-m", *FILES, *again, "attack.lr=0.5"])
    assert one.config["datamodule"]["path"] == str(place / "data.jsonl"), one.said
    assert (other.code, other.config) == (2, {})


@pytest.mark.slow
def test_a_first_start_and_its_resumption_are_one_command(place: Path, typed: Type) -> None:
    command = [*FILES, "trainer.precision=32-true", "seed=3", f"run_dir={place / 'run'}", "ckpt_path=last"]
    (first,) = typed(command)
    assert first.config["seed"] == 3
    write_config(place / "run", first.config)
    (second,) = typed(command)
    assert second.config == first.config


# -- runs of others ---------------------------------------------------------------------------------------------------


def change(run: Path, key: str, value: object) -> None:
    config = OmegaConf.load(run / layout.CONFIG)
    OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.save(config, run / layout.CONFIG)


UNTRUSTED = {
    "attack._target_=os.system": "none of the classes that configs/attack names",
    "callbacks.checkpoint.dirpath=/etc/cron.d": "would write outside",
    "callbacks.checkpoint.filename=../../../x": "would write outside",
    "logger.save_dir=/var/tmp/x": "would write outside",
    "callbacks.history.directory=evil": "would write outside",
}


def test_an_untrusted_run_builds_and_writes_nothing_of_its_own(place: Path, typed: Type) -> None:
    run = begun(place, *OLD)
    change(run, "trust", ["os"])  # its own word counts for nothing
    runs = []
    for number, setting in enumerate(UNTRUSTED):
        runs.append(place.parent / f"run{number}")
        shutil.copytree(run, runs[-1])
        change(runs[-1], *setting.split("="))
    for found, (setting, message) in zip(
        typed(*([f"run_dir={one}", "ckpt_path=last"] for one in runs)), UNTRUSTED.items(), strict=True
    ):
        assert found.code == 2
        assert setting in found.said
        assert message in found.said


@pytest.mark.parametrize("content", [[], {"files": 3}, {"files": [{"path": 1}]}, {"files": [[]]}, {"file": []}])
def test_noted_files_are_checked(tmp_path: Path, content: Any) -> None:
    assert data_of(tmp_path) is None
    (tmp_path / layout.DATA).write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"data\.json: "):
        data_of(tmp_path)


def test_the_command_to_resume_names_what_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["/x/train.py", "attack=geia", f"run_dir={tmp_path}"])
    node = {"_target_": "mine.Mine"}
    config = OmegaConf.create({"run_dir": str(tmp_path), "trust": "other", "callbacks": {"mine": node}})
    (tmp_path / layout.CONFIG).touch()
    with pytest.raises(SystemExit), ending(config, training=True):
        raise KeyboardInterrupt
    said = capsys.readouterr().err.strip()
    assert said.endswith(f"python /x/train.py 'trust=[other,mine]' run_dir={tmp_path} ckpt_path=last")


def test_a_class_of_ones_own_needs_to_be_named_or_trusted(place: Path, typed: Type) -> None:
    (place / "mine.py").write_text("from unembed.callbacks.pace import Pace\n\n\nclass Mine(Pace):\n    pass\n")
    own = "+callbacks.mine={_target_: mine.Mine}"
    run = begun(place, *OLD, own)
    again = [f"run_dir={run}", "ckpt_path=last"]
    bare, trusted, named = typed(again, ["trust=mine", *again], [*OLD, own, *again])
    assert "callbacks.mine._target_=mine.Mine: none of the classes" in bare.said
    assert "add trust=mine" in bare.said
    assert trusted.code == named.code == 0, trusted.said + named.said
    assert trusted.config["callbacks"]["mine"] == {"_target_": "mine.Mine"}


# -- paths ------------------------------------------------------------------------------------------------------------


def test_paths_are_made_absolute_where_something_lies_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    for folder in ("gpt2", "minilm", "train", "models", "runs/inverter", "mtg"):
        (place / folder).mkdir(parents=True)
    config = OmegaConf.create({
        "init_from": "runs/inverter",
        "datamodule": {"_target_": "x", "path": ["data.jsonl", "~/data.jsonl", "missing.jsonl", "/abs.jsonl"],
                       "tokenizer": "minilm", "split_values": {"train": "train"}, "text_field": "train",
                       "source": {"_target_": "y", "path": "mtg/{language}", "files": {"train": ["train"]}}},
        "embedder": {"_target_": "z", "model": "gpt2"},
        "scoring": {"_target_": "z", "translation": {"_target_": "z", "models": {"en": "models", "de": "hub/name"}}},
        "attack": {"_target_": "z", "inverter_run": "~/runs/inverter", "decoder": {"_target_": "b", "name": "a/gpt2"}},
        "logger": {"_target_": "l", "name": "gpt2"},
        "defense": {"adaptive": False, "rotation": {"_target_": "r", "key_file": "data.jsonl", "key_env": "gpt2"}},
    })  # fmt: skip
    make_absolute(config)
    data = str(place / "data.jsonl")
    assert config.init_from == config.attack.inverter_run == str(place / "runs" / "inverter")
    assert config.datamodule.path == [data, data, "missing.jsonl", "/abs.jsonl"]
    assert (config.datamodule.tokenizer, config.datamodule.split_values.train) == ("minilm", "train")
    assert config.datamodule.text_field == "train"
    assert config.datamodule.source.path == f"{place}/mtg/{{language}}"
    assert config.datamodule.source.files.train == ["train"]
    assert config.embedder.model == str(place / "gpt2")
    assert config.scoring.translation.models == {"en": str(place / "models"), "de": "hub/name"}
    assert (config.attack.decoder.name, config.logger.name) == ("a/gpt2", "gpt2")
    assert (config.defense.rotation.key_file, config.defense.rotation.key_env) == (data, "gpt2")


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        ("datamodule=synthetic", True), ("datamodule.path=a.txt", True), ("+datamodule.source.path=x", True),
        ("datamodule.path[0]=a.txt", True), ("datamodule.source.source.test=a", True),
        ("datamodule.limit_test=3", False), ("datamodule.split_values.test=a", False), ("attack.path=x", False),
    ],
)  # fmt: skip
def test_which_overrides_choose_other_data(place: Path, line: str, chosen: bool) -> None:
    from unembed.launch.locations import chooses_data

    assert chooses_data(line) is chosen


# -- content ----------------------------------------------------------------------------------------------------------


def sources(folder: Path) -> dict[str, tuple[Source, list[str]]]:
    """Each kind of source that reads files, with the names of these."""
    for name in ("corpus.jsonl", "queries.jsonl"):
        rows = [{"_id": str(n), "text": f"a text of some words {n}"} for n in range(30)]
        write_lines(folder / name, rows)
    for name in ("de.txt", "fr.txt"):
        (folder / name).write_text("".join(f"zeile {n}\n" for n in range(20)))
    write(folder / "data.jsonl", "cat dog")
    both = {"texts": ["text"], "sizes": {"valid": 2, "test": 2}, "licence": "none"}
    hub = HubSet(str(folder), {"train": ["data.jsonl"], "valid": ["corpus.jsonl"]}, **both)
    text = TextFiles(train=str(folder / "data.jsonl"), test=[str(folder / "de.txt"), str(folder / "fr.txt")])
    return {
        "files": (text, ["data.jsonl", "de.txt", "fr.txt"]),
        "hub": (hub, ["data.jsonl", "corpus.jsonl"]),
        "languages": (
            LanguageSets(str(folder), {"train": ["{language}.txt"]}, plain=True, languages=["de", "fr"], **both),
            ["de.txt", "fr.txt"],
        ),
        "collection": (CollectionTexts(str(folder)), ["corpus.jsonl"]),
        "tokens": (CutTexts(text, "minilm", max_length=2), ["data.jsonl", "de.txt", "fr.txt"]),
    }


@pytest.mark.parametrize("kind", ["files", "hub", "languages", "collection", "tokens"])
def test_every_source_of_files_is_known_by_their_content(tmp_path: Path, kind: str) -> None:
    source, names = sources(tmp_path)[kind]
    data = InversionDataModule(source)
    assert data.examples("train")
    assert [Path(file.path).name for file in data.files_read] == names
    data.expect(data.files_read, "do that")
    changed = tmp_path / names[-1]
    changed.write_bytes(changed.read_bytes().replace(b"1", b"2"))  # the size tells nothing
    with pytest.raises(InputError, match=rf"{changed}: has changed since the run was trained on it .*; do that"):
        data.expect(data.files_read, "do that")
    changed.unlink()
    if kind != "hub":  # whose files are found by a pattern
        with pytest.raises(InputError, match=rf"{names[-1].partition('.')[0]}"):
            data.expect(data.files_read, "do that")


def test_a_file_that_has_moved_is_known_by_its_content(tmp_path: Path) -> None:
    file = write(tmp_path / "data.jsonl", "cat dog")
    before = described([file])
    moved = file.rename(tmp_path / "other.jsonl")
    InversionDataModule(TextFiles(path=str(moved))).expect(before, "do that")
    with pytest.raises(InputError, match=r"data\.jsonl: .* not there any more"):
        InversionDataModule(TextFiles(path=str(file))).expect(before, "do that")
    write(moved, "red blue")
    with pytest.raises(InputError, match=r"other.jsonl: it has the content of none of the files"):
        InversionDataModule(TextFiles(path=str(moved))).expect(before, "do that")
    assert BeirCollection(str(tmp_path)).path  # reads nothing yet


# -- from a command line to a report ----------------------------------------------------------------------------------


def script(warm: Warm, cwd: Path, name: str, *lines: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = warm.run([*program(name), *lines], cwd=cwd, environment=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_run_is_resumed_and_evaluated_from_other_directories(place: Path, warm: Warm) -> None:
    run, elsewhere = place.parent / "run", place.parent / "elsewhere"
    write(elsewhere / "data.jsonl", "red blue green")  # of the same name
    assert script(warm, place, "train", *FILES, *MODEL, *SHORT, "attack.decoding.beams=1", f"run_dir={run}")[0] == 0
    before, note = (run / layout.CONFIG).read_text(), (run / layout.DATA).read_bytes()
    references = (run / layout.PREDICTIONS).read_bytes()

    code, said = script(warm, elsewhere, "train", f"run_dir={run}", "ckpt_path=last", "trainer.max_steps=5")
    assert code == 0, said
    assert "resumed with trainer.max_steps: 3 -> 5" in (run / "log").read_text()
    assert training_of(run) is not None
    assert json.loads((run / layout.RECORD).read_text())["training"]["steps"] == 5
    assert (run / layout.DATA).read_bytes() == note
    assert read_config(run).trainer.max_steps == 5  # what evaluations and the next resumption begin with
    assert {**yaml.safe_load(before), "trainer": read_config(run).trainer} == read_config(run)
    results = read_results(run)
    assert results.config["trainer"]["max_steps"] == 5
    assert "trainer.max_steps:\n      before: 3\n      now: 5" in results.config_text

    code, said = script(warm, elsewhere, "evaluate", f"run={run}", f"output_dir={run / 'evaluations' / 'a'}")
    assert code == 0, said
    assert (run / "evaluations" / "a" / layout.DATA).read_bytes() == note
    assert [json.loads(line)["reference"] for line in references.splitlines()] == [
        json.loads(line)["reference"]
        for line in (run / "evaluations" / "a" / layout.PREDICTIONS).read_bytes().splitlines()
    ]

    write(place / "data.jsonl", "cat dog bird fish", count=91)
    code, said = script(warm, place, "evaluate", f"run={run}", f"output_dir={run / 'evaluations' / 'b'}")
    assert code == 2
    assert said.startswith(f"{place / 'data.jsonl'}: has changed since the run was trained on it (")
    assert "datamodule.path=<file>" in said
    assert not (run / "evaluations" / "b").exists() or not any((run / "evaluations" / "b").glob("*.json*"))
    code, said = script(warm, place, "train", f"run_dir={run}", "ckpt_path=last")
    assert code == 2
    assert "has changed since the run was trained on it" in said
    output = f"output_dir={run / 'evaluations' / 'c'}"
    code, said = script(warm, place, "evaluate", f"run={run}", output, "datamodule.path=data.jsonl")
    assert code == 0, said  # named: the other text is wanted
    assert "the nearest-neighbour baseline and the analyses are left out" in said

    moved = write(place.parent / "archive" / "kept.jsonl", "cat dog bird fish")
    shutil.rmtree(place)
    code, said = script(warm, elsewhere, "train", f"run_dir={run}", "ckpt_path=last")
    assert code == 2
    assert said.startswith(f"{place / 'data.jsonl'}: the run was trained on this file, which is not there any more")
    code, said = script(
        warm, elsewhere, "train", f"run_dir={run}", "ckpt_path=last", f"datamodule.path={moved}", "trainer.max_steps=6"
    )
    assert code == 0, said  # the same content
    assert read_config(run).datamodule.path == str(moved)
