"""Composing, checking and amending configurations, and how a script ends."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import hydra
import lightning
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from pydantic import Field, NonNegativeFloat, PositiveInt

from support.processes import ROOT, Warm, program
from unembed import launch
from unembed.callbacks.results import build_test_callbacks
from unembed.core.commands import command
from unembed.core.errors import InputError
from unembed.datamodules.batching import LengthBucketBatchSampler
from unembed.launch import overrides
from unembed.launch.composing import plain, survey
from unembed.launch.console import ending
from unembed.launch.overrides import default_groups
from unembed.runs.config_file import write_config

GROUPS = [group for group in default_groups("train") if group != "paths"]
CHOICES = [(group, option) for group in GROUPS for option in overrides.options(group)]


class Engine:
    """A constructor with every kind of hint."""

    def __init__(
        self,
        beams: PositiveInt = 5,
        rate: NonNegativeFloat = 0.1,
        share: Annotated[float, Field(gt=0, lt=1)] = 0.5,
        kind: Literal["linear", "mlp"] = "linear",
        betas: tuple[float, float] = (0.9, 0.99),
        limit: int | None = None,
        names: Sequence[str] = (),
        amount: PositiveInt | Literal["all"] = "all",
        shuffle: bool = False,
        unresolvable: NoSuchName = None,  # type: ignore[name-defined]  # noqa: F821
    ) -> None:
        if limit is not None and limit > beams:
            raise ValueError(f"limit={limit}: at most beams={beams}")


class Car:
    def __init__(self, engine: Engine, wheels: PositiveInt, colour: str = "red") -> None:
        self.engine = engine

    @classmethod
    def old(cls, year: PositiveInt) -> Car:
        return cls(Engine(), 4)


def many(first: int, **others: Any) -> None: ...


def node(name: str, **values: Any) -> Any:
    return OmegaConf.create({"car": {"_target_": f"{__name__}.{name}", **values}})


# These name the model's tokenizer, so they are composed with one.
OF_A_LANGUAGE_MODEL = {
    "random_tokens", "cut_texts", "cut_texts_synthetic", "cut_texts_tinystories", "cut_texts_reddit", "cut_texts_pii",
    "logits_inverter",
}  # fmt: skip


STAGED = {  # experiments that are composed with each of their stages
    ("experiment", f"{paper}/{table}"): [f"{paper}/{stage}" for stage in ("inverter", "corrector", "test")]
    for paper, table in (("vec2text", "table1"), ("vec2text", "table1_ada"), ("multilingual", "table4"))
} | {("experiment", f"multilingual/table{n}"): ["multilingual/test"] for n in (1, 6)}


def of_an_evaluation(choice: tuple[str, str]) -> bool:
    """Whether it is an experiment of evaluate.py; other tests run them."""
    group, option = choice
    text = (ROOT / "configs" / group / f"{option}.yaml").read_text(encoding="utf-8") if group == "experiment" else ""
    return re.search(r"^(tradeoff|max_queries):", text, flags=re.MULTILINE) is not None


def combined(choices: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Every option at least once: those of an attack alone, those of groups that do not depend on others together."""
    of_group = {group: [choice for choice in choices if choice[0] == group] for group, _ in choices}
    alone, free = [], []
    for group, options in of_group.items():
        if group.partition("/")[0] in ("attack", "experiment", "debug"):
            alone += [choice for choice in options if choice not in STAGED]
        elif group == "stage":
            continue
        else:
            alone += [choice for choice in options if choice[1] in OF_A_LANGUAGE_MODEL]
            free.append([choice for choice in options if choice[1] not in OF_A_LANGUAGE_MODEL])
    rounds = range(max(map(len, free)))
    staged = [[choice, ("stage", stage)] for choice, stages in STAGED.items() for stage in stages]
    return staged + [[choice] for choice in alone] + [[options[n % len(options)] for options in free] for n in rounds]


@pytest.mark.parametrize("chosen", combined([choice for choice in CHOICES if not of_an_evaluation(choice)]), ids=str)
def test_every_option_composes_and_fits_its_constructor(chosen: list[tuple[str, str]]) -> None:
    besides = ["embedder=language_model", "embedder.model=gpt2"] if chosen[0][1] in OF_A_LANGUAGE_MODEL else []
    config = launch.compose("train", [*(f"{group}={option}" for group, option in chosen), *besides])
    assert all(config.get("choices").get(group, option) == option for group, option in chosen)
    needed = OmegaConf.missing_keys(config)  # such as the name of a model: the user has to give it
    expected = [f"{key}: missing, give it as {key}=<value>" for key in sorted(needed)]
    assert sorted(launch.check(config)) == expected


def test_overfitting_is_on_one_batch() -> None:
    data = launch.compose("train", ["debug=overfit"]).datamodule
    sampler = LengthBucketBatchSampler(np.arange(data.limit_train), data.batch_size)
    seen = set()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        seen.add(frozenset(next(iter(sampler)).tolist()))
    assert [len(batch) for batch in seen] == [data.batch_size]


def test_the_run_directory_is_named_after_the_choices_and_run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_ID", "seven")
    monkeypatch.setenv("UNEMBED_CACHE", "/tmp/vectors")
    config = launch.compose("train", ["attack=nearest_neighbor", "datamodule=files"])
    assert config.run_dir == "runs/nearest_neighbor-minilm-files/seven"
    assert config.callbacks.checkpoint.dirpath == f"{config.run_dir}/checkpoints"
    assert config.cache_dir == "/tmp/vectors"
    assert "hydra" not in config
    assert launch.plain(config)["choices"]["datamodule"] == "files"


def test_a_stage_has_to_be_chosen_where_an_experiment_has_several() -> None:
    stages = "stage=multilingual/corrector, stage=multilingual/inverter, stage=multilingual/test"
    message = f"experiment=multilingual/table1: has several stages, add one of {stages}"
    assert survey("train", ["experiment=multilingual/table1"])[1] == [message]
    corrector = survey("train", ["experiment=multilingual/table1", "stage=multilingual/corrector"])[0][0]
    assert corrector.attack.inverter_run == "runs/multilingual_table1/inverter-en"


@pytest.mark.parametrize("multirun", [False, True])
def test_a_misspelt_option_of_any_group_is_an_error(multirun: bool) -> None:
    """Also of those that may be left out, experiment and debug: Hydra itself would go on without a word."""
    meant = {
        "experiment=persnachat": "personachat", "debug=smok": "smoke", "trainer=dpp": "ddp", "logger=wandd": "wandb",
        "callbacks=iterative_corection": "iterative_correction", "attack/decoding=beem": "beam",
        "scoring/tagger=spacey": "spacy",
    }  # fmt: skip
    assert survey("train", ["debug=smok"], multirun=multirun)[1] == ["debug=smok: did you mean smoke?"]
    errors = survey("train", list(meant), multirun=multirun)[1]
    assert set(errors) == {f"{line}: did you mean {option}?" for line, option in meant.items()}


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("logger=wandb", "+logger.api_key=Given"),
        ("logger=wandb", "+logger.settings={api_key: Given}"),
        ("logger=wandb", "+logger.settings={x-api-key: Given}"),
        ("logger=wandb", "+logger.settings={Authorization: Bearer Given}"),
        ("logger=wandb", "+logger.secretAccessKey=Given"),
        ("logger=wandb", "+logger.PGPASSWORD=Given"),
        ("logger=wandb", "+logger.password=123456"),
        ("embedder=openai", "+embedder.api_key=Given"),
        ("embedder=openai", "embedder.api_key_env=Given"),
        ("defense=rotation", "defense.key_env=Given"),
    ],
)
def test_a_key_on_the_command_line_is_refused_and_not_repeated(option: str, line: str) -> None:
    configs, errors = survey("train", [option, line])
    errors += [message for config in configs for message in launch.check(config)]
    assert errors
    assert all(error.startswith(line.lstrip("+").partition("=")[0]) and "Given" not in error for error in errors)


def test_a_token_of_a_text_is_no_secret() -> None:
    (config,), errors = survey("train", ["+embedder.mask_token=Given", "+embedder.sort_key=Given"])
    errors += launch.check(config)
    assert errors
    assert not any("secret" in error for error in errors)


@pytest.mark.parametrize(
    "line",
    [
        "datamodule.path=//nas/home:ada@lab/run",
        "callbacks.attributes.template='password = '",
        "callbacks.attributes.template='password = {value}'",
    ],
)
def test_a_path_or_prompt_is_no_secret(line: str) -> None:
    from unembed.launch.overrides import refuse_secrets

    refuse_secrets([line])
    with pytest.raises(InputError, match="a password or key has no place"):
        refuse_secrets([line.replace("home:", "home://u:").replace("= ", "= secret")])


def test_a_limit_below_none_is_refused() -> None:
    (config,), errors = survey("train", ["trainer.max_steps=-4", "trainer.max_epochs=-2"])
    assert not errors
    assert launch.check(config) == [
        "trainer.max_steps=-4: must be at least -1",
        "trainer.max_epochs=-2: must be at least -1",
    ]


def test_all_that_is_misspelt_is_reported_at_once() -> None:
    misspelt = [
        "embedder=minlim",
        "atack=geia",
        "attack.decodng.beams=3",
        "beams=4",
        "trainer.max_stps=4",
        "defense=product_quantization",
        "defense.pieces=8",
        "trainer.val_check_interval=7",
        "+seed=3",
        "+colour=red",
        "~callbacks.progres",
        "datamodule=synthetic,files",
        "attack",
        "hydra.job.chdr=true",
        "seed.x=1",
    ]
    with pytest.raises(InputError) as raised:
        launch.compose("train", misspelt)
    lines = set(str(raised.value).splitlines())
    (added,) = [line for line in lines if line.startswith("trainer.val_check_interval: unknown key, valid: ")]
    assert added.endswith("; an argument that no option sets is added by +trainer.val_check_interval=7")
    assert lines - {added} == {
        "attack: write key=value or group=option, without spaces around =",
        "datamodule=synthetic,files: several values need --multirun (-m)",
        "embedder=minlim: did you mean minilm?",
        "atack: unknown key, did you mean attack?",
        "attack.decodng: unknown key, did you mean decoding?",
        "beams: unknown key, did you mean attack.decoding.beams?",
        "trainer.max_stps: unknown key, did you mean max_steps?",
        "defense.pieces: unknown key, valid: adaptive, centroids, hypotheses, iterations, recall, seed, subvectors; an "
        "argument that no option sets is added by +defense.pieces=8",
        "+seed=3: already exists, leave out the +",
        "colour: unknown key, valid: access, attack, cache_dir, callbacks, choices, ckpt_path, datamodule, defense, "
        "denoiser, embedder, export, init_from, logger, objective, run_dir, scoring, seed, trainer, trust",
        "callbacks.progres: unknown key, did you mean progress?",
        "hydra.job.chdr: unknown key, did you mean chdir?",
        "seed.x: unknown key, seed has no keys",
    }


def test_a_wrong_option_hides_no_other_mistake_and_causes_none() -> None:
    configs, errors = survey("train", ["attack=gea", "attack.nothing=1", "seed=-1", "attack.decoding.beams=0"])
    assert len(errors) == 1
    assert errors[0].startswith("attack=gea: did you mean geia")
    assert launch.check(configs[0])[0] == "seed=-1: must be at least 0"
    assert not any("attack" in message for message in launch.check(configs[0]))


def test_a_group_cannot_be_left_out() -> None:
    with pytest.raises(InputError, match="attack: missing, it cannot be left out"):
        launch.compose("train", ["~attack"])


@pytest.mark.slow
def test_a_multirun_is_checked_in_every_element() -> None:
    configs, errors = survey(
        "train", ["attack=geia,nearest_neighbor", "seed=1,-1,2", "trainer.max_steps=range(1,3)"], multirun=True
    )
    assert errors == []
    assert len({config.run_dir for config in configs}) == len(configs) == 5  # 1, and 1 attack, 2 seeds and 1 step more
    assert {m for c in configs for m in launch.check(c)} >= {"seed=-1: must be at least 0"}
    assert survey("train", ["attack=geia,gei"], multirun=True)[1][0].startswith("attack=gei: did you mean geia")
    assert "would share it" in survey("train", ["seed=1,2", "run_dir=x"], multirun=True)[1][0]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("beams", 0, "must be at least 1"),
        ("beams", "5", "must be an integer"),
        ("beams", 2.0, "must be an integer"),
        ("beams", True, "must be an integer"),
        ("beams", None, "must be an integer"),
        ("rate", -1, "must be at least 0.0"),
        ("rate", "much", "must be a number"),
        ("share", 0, "must be greater than 0.0"),
        ("share", 1, "must be less than 1.0"),
        ("kind", "liner", "did you mean linear?"),
        ("kind", 3, "must be one of linear, mlp"),
        ("betas", [0.9, "x"], "must be [1] a number"),
        ("limit", "many", "must be an integer"),
        ("names", "ada", "must be a list"),
        ("amount", 0, "must be at least 1 or one of all"),
        ("amount", "al", "must be an integer or one of all"),
        ("shuffle", "yes", "must be true or false"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(key: str, value: Any, reason: str) -> None:
    (message,) = launch.check(node("Engine", **{key: value}))
    written = value if isinstance(value, str) else json.dumps(value)
    assert message == f"car.{key}={written}: {reason}"


@pytest.mark.parametrize(
    "values",
    [
        {"rate": 3, "share": 0.5, "betas": [0, 1], "limit": None, "names": ["a"], "amount": "all"},
        {"unresolvable": "anything", "rate": float("inf")},
        {"beams": "${three}"},
    ],
)
def test_right_values_pass(values: dict[str, Any]) -> None:
    assert launch.check(OmegaConf.merge({"three": 3}, node("Engine", **values))) == []


def test_interpolations_are_checked_for_what_they_give() -> None:
    config = OmegaConf.create({"words": "many", "gap": "???", **node("Engine", beams="${words}", rate="${gap}")})
    config.car.share = "${no.such}"
    assert launch.check(config) == [
        "car.share: it is ${no.such}, which does not exist; choose an option that has it, or give car.share=<value>",
        "gap: missing, give it as gap=<value>",
        "car.beams=many: must be an integer",
    ]


def test_nested_nodes_missing_and_unknown_arguments() -> None:
    engine = {"_target_": f"{__name__}.Engine", "beems": 3, "beams": 0}
    assert launch.check(node("Car", engine=engine, color="red")) == [
        "car.color: unknown key, did you mean colour?",
        f"car.wheels: missing, {__name__}.Car needs it",
        "car.engine.beems: unknown key, did you mean beams?",
        "car.engine.beams=0: must be at least 1",
    ]
    assert launch.check(node("Car", engine=engine | {"beems": "???"}, wheels="???"))[:2] == [
        "car.engine.beems: missing, give it as car.engine.beems=<value>",
        "car.wheels: missing, give it as car.wheels=<value>",
    ]
    assert launch.check(node("Car", _partial_=True, colour="blue")) == []
    assert launch.check(node("Car.old", year=0)) == ["car.year=0: must be at least 1"]
    assert launch.check(node("many", first=1, second="x")) == []
    wrong = node("Car", engine={"_target_": f"{__name__}.Car.old", "year": 3}, wheels=4)
    assert launch.check(wrong) == []
    wrong.car.engine = 3
    assert launch.check(wrong) == ["car.engine=3: must be a node with _target_"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (f"{__name__}.Engin", f"no Engin in {__name__}, did you mean Engine?"),
        (f"{__name__}.Car.olld", f"no olld in {__name__}.Car, did you mean old?"),
        ("attacks.gia.GEIA", "no gia in attacks, did you mean geia?"),
        ("no_such_module.Thing", "no module no_such_module"),
        ("lightning.pytorch.callbacks.Timr", "no Timr in lightning.pytorch.callbacks, did you mean Timer?"),
        (f"{__name__}.ROOT", "cannot be called"),
    ],
)
def test_a_target_that_does_not_exist(target: str, reason: str) -> None:
    config = OmegaConf.create({"car": {"_target_": target}})
    assert launch.check(config) == [f"car._target_={target}: {reason}"]


def test_null_leaves_a_callback_out_and_is_no_option() -> None:
    config = launch.compose("train", ["callbacks.attributes=null", "callbacks.progress=null"])
    assert launch.check(config) == []
    assert build_test_callbacks(config) == []  # and train.py skips it: support/small_scripts.py
    wrong = launch.check(launch.compose("train", ["callbacks.pace=5", "+callbacks.mine.every=3"]))
    needed = "must be a node with _target_, or null to leave it out"
    assert wrong == [f"callbacks.pace=5: {needed}", f'callbacks.mine={{"every": 3}}: {needed}']
    for group in ("logger", "callbacks", "attack", "scoring/tagger", "attack/refine", "debug"):
        with pytest.raises(InputError, match=f"{group}=null: null is no option, .*; or leave this out"):
            launch.compose("train", [f"{group}=null"])
    null = launch.compose("train", ["attack/refine=[rerank,lexicon]", "attack.refine.lexicon=null"])
    assert launch.check(null) == ["attack.refine.lexicon=null: to leave it out, write ~attack.refine.lexicon"]
    plain = launch.compose("train", ["attack.decoding=null"])
    assert launch.check(plain) == ["attack.decoding=null: must be a node with _target_"]
    left = launch.compose("train", ["attack/refine=[rerank,lexicon]", "~attack.refine.lexicon"])
    assert list(left.attack.refine) == ["rerank"]
    assert launch.check(left) == []
    with pytest.raises(InputError, match="logger=null: null is no option"):
        launch.amend(config, ["logger=null"])


def test_amending_changes_values_and_whole_groups() -> None:
    run = OmegaConf.create(launch.plain(launch.compose("train", ["seed=4", "attack.decoding.beams=7"])))
    overrides = ["datamodule.path=x.jsonl", "datamodule=files", "attack.decoding.beams=1", "logger=wandb"]
    config = launch.amend(run, [*overrides, "+trainer.val_check_interval=5", "~callbacks.progress"])
    assert config.datamodule.path == "x.jsonl"
    assert "source" not in config.datamodule
    assert config.datamodule.seed == 4
    assert config.attack.decoding.beams == 1
    assert config.logger.name == "geia_lexicon-minilm-files"
    assert config.logger.save_dir == run.run_dir
    assert config.trainer.val_check_interval == 5
    assert list(config.callbacks) == [name for name in run.callbacks if name != "progress"]
    assert launch.check(config) == []
    assert run.attack.decoding.beams == 7
    assert run.choices.datamodule == "synthetic"


def test_amending_chooses_a_part_of_the_attack_anew() -> None:
    run = OmegaConf.create(launch.plain(launch.compose("train", ["seed=4", "attack.backbone.layers=7"])))
    config = launch.amend(run, ["attack/decoding=nucleus", "attack.decoding.p=0.5"])
    assert config.attack.decoding == {
        "_target_": "unembed.attacks.parts.decoding.NucleusSampling",
        "p": 0.5,
        "temperature": 0.9,
        "max_new_tokens": 64,
        "candidates": 1,
        "seed": 4,
        "rerank": 0,
    }
    assert config.attack.backbone.layers == 7
    assert launch.check(config) == []


UNDEFENDED = OmegaConf.create({"choices": {"defense": "none"}, "seed": 0})


def test_a_denoiser_is_added_and_left_out_again() -> None:
    chosen = launch.amend(UNDEFENDED, ["denoiser=gaussian", "denoiser.level=0.1"])
    assert (chosen.choices.denoiser, chosen.denoiser.level) == ("gaussian", 0.1)
    without = launch.amend(chosen, ["denoiser=null"])
    assert (without.denoiser, without.choices.denoiser) == (None, None)


@pytest.mark.parametrize("run", [UNDEFENDED, OmegaConf.merge(UNDEFENDED, {"denoiser": None})])
def test_a_key_of_a_denoiser_that_is_not_chosen_names_the_group(run: object) -> None:
    with pytest.raises(InputError, match="denoiser is not chosen, add denoiser=<option>; valid: gaussian"):
        launch.amend(run, ["denoiser.level=0.1"])  # type: ignore[arg-type]


def test_a_key_of_a_refiner_that_is_not_chosen_names_the_refiner() -> None:
    with pytest.raises(InputError, match=r"refine is not chosen, add attack/refine=\[sentences\]; valid: correction"):
        launch.amend(launch.compose("train", ["attack=geia"]), ["attack.refine.sentences.each=7"])


def test_amending_reports_all_that_is_misspelt() -> None:
    run = OmegaConf.create(launch.plain(launch.compose("train", [])))
    overrides = ["attack.decodng.beams=3", "loger=x", "datamodule=fils", "datamodule.path=x", "debug=smoke", "seed=1,2"]
    with pytest.raises(InputError) as raised:
        launch.amend(run, overrides)
    assert set(str(raised.value).splitlines()) == {
        "attack.decodng: unknown key, did you mean decoding?",
        "loger: unknown key, did you mean logger?",
        "datamodule=fils: did you mean files?",
        "debug=smoke: a run is amended in attack, embedder, defense, datamodule, scoring, callbacks, logger, trainer, "
        "denoiser",
        "seed=1,2: a run is amended with one value",
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "first"
    path.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(launch.plain(launch.compose("train", []))), path / "config.yaml")
    return path


def test_settings_and_amendments_are_distinguished(run: Path) -> None:
    settings, config = launch.on_run("invert", [f"run={run}", "vectors=v.npy", "attack.decoding.beams=2"])
    assert (settings.output, settings.limit) == ("v.npy.texts.jsonl", None)
    assert (config.run_dir, config.attack.decoding.beams) == (str(run), 2)
    settings, _ = launch.on_run("evaluate", [f"run={run}"])
    assert Path(settings.output_dir).parent == run / "evaluations"
    with pytest.raises(InputError) as raised:
        launch.on_run("invert", [f"run={run}", "limit=0"])
    missing = "vectors: missing, give it as vectors=<value>"
    assert str(raised.value).splitlines() == [missing, "limit=0: must be at least 1"]
    with pytest.raises(InputError) as raised:
        launch.on_run("invert", [f"run={run}", "vectors=v.npy", "ouput=x", "attack.decoding.bems=0"])
    wrong = ["ouput: unknown key, did you mean output?", "attack.decoding.bems: unknown key, did you mean beams?"]
    assert str(raised.value).splitlines() == wrong


def test_a_run_that_is_not_there(run: Path) -> None:
    for given, message in {
        run.parent / "frist": f"run={run.parent / 'frist'}: no directory {run.parent / 'frist'}, did you mean first?",
        run.parent.parent / "run" / "first": f"no directory {run.parent.parent / 'run'}, did you mean runs?",
        run.parent: f"holds no config.yaml, did you mean {run}?",
    }.items():
        with pytest.raises(InputError) as raised:
            launch.on_run("evaluate", [f"run={given}"])
        assert message in str(raised.value)


def _end(error: BaseException, config: Any = None, *, training: bool = False) -> int:
    with pytest.raises(SystemExit) as raised, ending(config, training=training):
        raise error
    assert isinstance(raised.value.code, int)
    return raised.value.code


def test_what_the_user_can_mend_ends_with_its_message_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert _end(InputError("data.txt:3: not UTF-8")) == 2
    assert capsys.readouterr().err == "data.txt:3: not UTF-8\n"
    with pytest.raises(SystemExit, match="2"), ending():
        hydra.utils.instantiate(node("Car", wheels=4, engine={"_target_": f"{__name__}.Engine", "limit": 9}).car)
    assert capsys.readouterr().err == "car.engine: limit=9: at most beams=5\n"
    with pytest.raises(KeyError), ending():
        raise KeyError("ours")


def test_an_error_of_a_path_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _end(OSError(errno.EROFS, os.strerror(errno.EROFS), "/runs/\x1b[2J/log")) == 2
    assert capsys.readouterr().err == "/runs/\ufffd[2J/log: Read-only file system\n"
    config = OmegaConf.create({"run_dir": str(tmp_path)})
    with pytest.raises(SystemExit, match="2"), ending(config, command=["seed=1"]), open("/dev/full", "w") as file:  # noqa: PTH123
        file.write("x")
    said = capsys.readouterr().err
    assert said.startswith(f"{tmp_path}: No space left on device; resume with: ")
    assert said.endswith(" seed=1\n")
    with pytest.raises(FileNotFoundError), ending(config):
        (tmp_path / "absent").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file/run", "circle/run", f"{'x' * 300}/run", "/proc/nothing"])
def test_a_run_directory_that_cannot_be_made_is_one_message(warm: Warm, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    done = warm.run([str(ROOT / "train.py"), f"run_dir={place}"], cwd=tmp_path)
    assert done.returncode == 2
    reasons = "Not a directory|Too many levels of symbolic links|File name too long|Permission denied"
    assert re.fullmatch(rf".*: ({reasons}).*\n", done.stderr)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "circle"}


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("evaluate", ["run=run", "output_dir=file/out"], "file/out: Not a directory"),
        ("invert", ["run=run", "vectors=mine.npy", "output=run"], "run: Is a directory"),
        ("compare", ["run", "output=file/comparison"], "file/comparison: Not a directory"),
    ],
)
def test_an_output_that_cannot_be_written_is_one_message_before_the_work(
    warm: Warm, tmp_path: Path, name: str, words: list[str], said: str
) -> None:
    (tmp_path / "file").touch()
    np.save(tmp_path / "mine.npy", np.ones((2, 384), np.float32))
    write_config(tmp_path / "run", plain(launch.compose("train", ["trainer=cpu", f"run_dir={tmp_path}/run"])))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = warm.run([*program(name), *words], cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


class _Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters())


@pytest.fixture
def interruptible() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)  # Lightning leaves it ignored


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_tells_what_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/train.py", "attack=geia", f"run_dir={tmp_path}"])
    config = OmegaConf.create({"run_dir": str(tmp_path)})
    assert _end(KeyboardInterrupt(), config, training=True) == 130
    assert "start again with: python /x/train.py attack=geia" in capsys.readouterr().err
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_steps=1
    )
    with pytest.raises(SystemExit) as raised, ending(config, training=True):
        trainer.fit(_Model(), torch.utils.data.DataLoader(torch.zeros(2, 1)))
    assert raised.value.code == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"resume with: python /x/train.py attack=geia run_dir={tmp_path} ckpt_path=last")


SCRIPT = '''"""Trains nothing.

    python {name}.py attack=geia
"""
import logging, os, signal, sys
from unembed import launch as configuration
from unembed.runs.config_file import write_config
from unembed.core.errors import InputError

def task(*configs):
    print("run", configs[-1].run_dir, flush=True)
    logging.getLogger("mine").info("the run %s", configs[-1].run_dir)
    if os.environ.get("TASK") == "complain":
        raise InputError("data.txt: empty")
    if os.environ.get("TASK") == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)

if __name__ == "__main__":
    configuration.main(task, "{name}")
    print("torch" in sys.modules)
'''


def _run(
    folder: Path, name: str, *arguments: str, task: str = "", warm: Warm | None = None
) -> subprocess.CompletedProcess[str]:
    script = folder / f"{name}.py"
    script.write_text(SCRIPT.format(name=name))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TASK": task}
    command = [str(script), *arguments]
    if warm is not None:
        return warm.run(command, cwd=folder, environment=environment)
    started = [sys.executable, *command]
    return subprocess.run(started, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", ["train", "evaluate", "invert", "audit"])
def test_help_lists_groups_and_keys_without_torch(tmp_path: Path, name: str) -> None:
    done = _run(tmp_path, name, "--help")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"python {name}.py attack=geia" in done.stdout
    headings = ["Keys (key=value):", "Groups (group=option; ", "Parts of groups (group/part=option):"]
    places = [next(place for place, line in enumerate(lines) if line.startswith(one)) for one in headings]
    assert places == sorted(places)
    assert "  attack      how texts are read back from vectors" in lines
    assert any(line.strip().startswith("geia_lexicon, ") and "nearest_neighbor" in line for line in lines)
    assert "  attack/adapter            lora, none, qlora" in lines
    assert lines[-1] == "False"  # torch was not imported
    assert list(tmp_path.iterdir()) == [tmp_path / f"{name}.py"]


@pytest.mark.slow
def test_mistakes_on_the_command_line_end_with_code_2_and_no_directory(tmp_path: Path, warm: Warm) -> None:
    done = _run(tmp_path, "train", "embedder=minlim", "attack.decodng=1", warm=warm)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "embedder=minlim: did you mean minilm?",
        "attack.decodng: unknown key, did you mean decoding?",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


@pytest.mark.slow
def test_a_job_that_complains_and_one_that_is_interrupted(tmp_path: Path, warm: Warm) -> None:
    complained = _run(tmp_path, "train", "run_dir=here", task="complain", warm=warm)
    assert (complained.returncode, complained.stderr.splitlines()[-1]) == (2, "data.txt: empty")
    interrupted = _run(tmp_path, "train", "run_dir=there", "seed=3", task="interrupt", warm=warm)
    assert interrupted.returncode == 130
    assert interrupted.stderr.splitlines()[-1].endswith("train.py seed=3 run_dir=there ckpt_path=last")
    assert "Traceback" not in interrupted.stderr


@pytest.mark.slow
def test_a_multirun_gives_each_job_its_directory(tmp_path: Path, warm: Warm) -> None:
    done = _run(tmp_path, "train", "-m", "attack=geia,nearest_neighbor", "seed=1,2", warm=warm)
    assert done.returncode == 0, done.stderr
    directories = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("run ")]
    assert len(set(directories)) == 4
    for directory in directories:
        assert (tmp_path / directory / "log").read_text(encoding="utf-8").count(f"the run {directory}") == 1
    shown = _run(tmp_path, "train", "-c", "job", "seed=5", warm=warm)
    assert (shown.returncode, "seed: 5" in shown.stdout) == (0, True)


def test_a_configuration_is_shown_without_secrets(tmp_path: Path, warm: Warm) -> None:
    """Its values may be wrong, and a list of defenses is what a run would have."""
    lines = ["-c", "job", "-p", "defense", "defense=[masking,noise]", "defense.noise.level=-1"]
    shown = _run(tmp_path, "train", *lines, warm=warm)
    assert shown.returncode == 0, shown.stderr
    defense = OmegaConf.create(shown.stdout.rpartition("\n")[0].removesuffix("True"))
    assert list(defense)[-2:] == ["masking", "noise"]
    assert defense.noise.level == -1
    for line in ("+logger.api_key=Given", "defense.key_env=Given"):
        refused = _run(tmp_path, "train", "-c", "job", "defense=rotation", line, warm=warm)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(line.lstrip("+").partition("=")[0])
        assert "Given" not in refused.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


@pytest.mark.parametrize(
    ("running", "script", "said"),
    [
        ("train.py", "train", "python train.py 'run_dir=a b'"),
        ("/x/evaluate.py", "train", "python /x/train.py 'run_dir=a b'"),
        ("../evaluate.py", None, "python ../evaluate.py 'run_dir=a b'"),
        ("train.py", "audit", "unembed audit 'run_dir=a b'"),
        ("/bin/unembed", None, "unembed export 'run_dir=a b'"),
        ("/x/unembed/__main__.py", "train", "python -m unembed train 'run_dir=a b'"),
        ("/bin/pytest", "train", "unembed train 'run_dir=a b'"),
    ],
)
def test_a_proposed_command_names_the_script_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, running: str, script: str | None, said: str
) -> None:
    monkeypatch.setattr(sys, "argv", [running, "export"])
    assert command(script, "run_dir=a b") == said


def test_correctors_of_models_from_random_weights_and_of_pretrained_ones() -> None:
    """The first was measured with these values (docs/vec2text.md); the others are the papers'."""

    def settings(attack: str) -> dict[str, Any]:
        found: dict[str, Any] = plain(launch.compose("train", [f"attack={attack}", "attack.inverter_run=r"]))
        return found["attack"]  # type: ignore[no-any-return]

    own = settings("vec2text_corrector")
    learning = {"muon_lr": 0.006, "adamw_lr": 0.002, "weight_decay": 0.3, "warmup_steps": 100, "decay": "linear"}
    assert own["optimizer"] == {"_target_": "unembed.attacks.parts.optimizers.MuonAdamW", **learning}
    assert own["layout"].pop("normalize") is own["start_from_inverter"] is True
    assert (own["hypotheses"]["noise"], own["label_smoothing"]) == (["matched"], 0.1)
    published = settings("vec2text_corrector_t5_base")
    assert published["layout"].pop("normalize") is published["start_from_inverter"] is False
    assert published["layout"] == own["layout"]
    assert (published["hypotheses"]["noise"], published["label_smoothing"]) == ([0.0], 0.0)
    learning = {"lr": 2e-4, "eps": 1e-6, "weight_decay": 0.0, "warmup_steps": 1000, "decay": "linear"}
    assert published["optimizer"] == {"_target_": "unembed.attacks.parts.optimizers.AdamW", **learning}
