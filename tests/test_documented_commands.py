"""Every documented command that needs no hub, no server and no GPU runs, on small settings.

Commands are taken from the pages and run page by page in one folder, so that what one writes is there for the next.
What does not run is skipped for a reason that the command itself gives; tests/test_docs.py composes those.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from support.pages import commands, fenced, words
from support.stand_ins import leaves
from unembed import launch
from unembed.attacks.lm_inversion.edits import Encoder
from unembed.commands.audit import audit
from unembed.commands.compare import compare, read_settings
from unembed.commands.invert import invert
from unembed.embedders.minilm import MiniLM
from unembed.evaluate import evaluate
from unembed.launch.composing import expand_grid, survey
from unembed.train import train

pytestmark = pytest.mark.slow

ELSEWHERE = {  # by what stands in a command: why it is not run
    r"torchrun|srun|trainer=(gpu|fsdp|ddp)|qlora": "needs GPUs or several machines",
    r"embedder=openai|base_url|max_queries": "needs a server",
    r"logger=wandb": "needs an account",
    r"(chroma|qdrant|postgresql|milvus|lancedb|weaviate|opensearch|elasticsearch|pinecone):": "needs a store",
    r"(run|also|init_from)=\[?(minilm|hub:)": "tests/scripts/test_attackers.py does it",
    r"scoring/tagger=spacy": "needs a model of spaCy",
    r"defense=none,noise": "needs the key of a rotation",
    r"(experiment|columns)=access": "tests/attacks/test_finished.py and tests/reports/test_access.py do it",
    r"(experiment|columns)=locks": "tests/reports/test_locks.py does it",
    r"experiment=leakage": "tests/benchmarks/test_leakage.py does what follows it",
    r"fail_on=|baseline=": "needs more test texts; tests/reports/test_audit_pipeline.py does it",
    r"<a copy of the cache|<dir of the killed|<that run>": "resumes a state that the page describes",
    r"translation|multi30k|round_trip|test_languages|zero_shot": "needs files that the page tells how to make",
    r"experiment=inside": "tests/lm_inversion/test_sipit.py does it",
    r"hydra/sweeper=": "needs a plugin; tests/test_python.py has one of its own",
    r"trained_on_": "needs runs on data sets of the hub",
}
# Applied where a configuration has the key: seconds instead of minutes.
SMALL: dict[str, Any] = {
    "trainer.accelerator": "cpu", "trainer.devices": 1, "trainer.precision": "32-true", "trainer.max_steps": 2,
    "callbacks.iterative_correction.steps": [0, 1], "callbacks.iterative_correction.beams": [1, 2],
    "attack.backbone.layers": 1, "attack.backbone.encoder_layers": 1, "attack.backbone.decoder_layers": 1,
    "attack.backbone.width": 16, "attack.backbone.heads": 2, "attack.backbone.vocabulary": 300,
    "attack.decoding.max_new_tokens": 4, "attack.refine.lexicon.vocabulary": False,
    "attack.refine.lexicon.max_queries": 4, "attack.refine.lexicon.numbers": 5, "attack.search.steps": 1,
    "attack.refine.sentences.vocabulary": False, "attack.refine.sentences.numbers": 5,
    "attack.refine.sentences.surrogate_steps": 2, "attack.refine.sentences.max_queries": 8,
    "attack.refine.sentences.samples": 4,
    "attack.refine.discrete_steps.steps": 2, "attack.refine.discrete_steps.candidates": 4, "attack.words.names": False,
    "attack.words.cities": False, "attack.words.vocabulary": False, "attack.search.beams": 2,
    "attack.iterations": 2, "attack.exact_steps": 1, "attack.candidates": 2,
    "datamodule.limit_train": 48, "datamodule.limit_valid": 6, "datamodule.limit_test": 6, "datamodule.batch_size": 16,
    "tradeoff.texts": 5, "tradeoff.resamples": 1000, "tradeoff.points": ["defense=noise"], "limit": 5,
}  # fmt: skip
SECOND_JOB = {"datamodule.limit_train": 32, "attack.backbone.width": 24}  # of a sweep
INVERTER = "python train.py attack=vec2text_inverter run_dir=runs/inverter"
MADE = {  # runs that commands name without making them, by the command that makes one of this kind
    "default": "python train.py run_dir=runs/default",
    "wider": "python train.py -m attack.backbone.width=16,24 'run_dir=runs/wide_${attack.backbone.width}'",
    "copy": "python train.py attack=geia_copy run_dir=runs/copy",
    "corrector": "python train.py attack=vec2text_corrector attack.inverter_run=runs/inverter run_dir=runs/corrector",
}
WHO, CITIES = ["Ada", "Bob", "Cleo", "Dan", "Eve", "Fay"], ["Paris", "Rome", "Oslo", "Lima", "Bonn"]
FILES = (
    "chat", "mine", "mails", "notes", "pairs", "bios", "wikipedia", "personachat", "personachat_more", "other", "short",
    "disclosed", "mimic", "presidio", "general",
)  # fmt: skip


def from_the_hub(config: DictConfig) -> str | None:
    """The key of a model or a data set that would have to be downloaded."""
    for key, value in leaves(OmegaConf.to_container(config, resolve=True), ""):
        if re.search(r"\.source\._target_$", key) and re.search(r"sources\.hub", value):
            return f"{key}={value}"
        named = re.match(r"(embedder|attack|datamodule|scoring)\..*\b(model|name|pretrained)$", key)
        if named and isinstance(value, str) and (value == "placeholder" or not Path(value).exists()):
            return f"{key}={value}"
    return None


def shrink(config: DictConfig, small: Mapping[str, Any] = SMALL) -> None:
    OmegaConf.set_struct(config, False)
    for key, value in small.items():
        if OmegaConf.select(config, key, default="absent") != "absent":
            OmegaConf.update(config, key, value)
    for key in ("train_per_length", "valid_per_length", "test_per_length"):
        if OmegaConf.select(config, f"datamodule.source.{key}"):
            config.datamodule.source[key] = 8
    if "synthetic" in str(OmegaConf.select(config, "datamodule.source._target_")):
        config.datamodule.source.update(sentences=200, valid=20, test=40)
    config.get("callbacks", {}).pop("progress", None)


def _ends(every: list[Any]) -> list[Any]:
    """The first and the last."""
    return [every[0], *every[1:][-1:]]


class Desk:
    """A folder with the files that the pages speak of, in which their commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        texts = [f"{who} lives in {city} with {n} cats" for n in range(4) for who in WHO for city in CITIES]
        rows = [
            {
                "text": text, "utterance": text, "longer": f"{text} , a dog and many birds", "context": ["who is it ?"],
                "split": "valid" if n < 8 else "test" if n < 24 else "train", "subject": text.split()[0],
                "attributes": {"birthPlace": text.split()[3], "birthDate": text.split()[5]}, "spans": [[0, 3, "name"]],
            }
            for n, text in enumerate(texts)
        ]  # fmt: skip
        for name in FILES:
            self.write(f"{name}.jsonl", rows)
        for split, part in (("train", rows[24:]), ("valid", rows[:8]), ("test", rows[8:24])):
            self.write(f"audit_data/{split}.jsonl", part)
        self.write("mails.jsonl", [row | {"text": row["longer"]} for row in rows])
        self.write("staff.txt", "Zoltan\nMary Ann\n")
        self.write("notes.jsonl", [{"text": f"note {n}: the invoice of {n} euros is due"} for n in range(30)])
        self.write("chat.csv", "text,part\n" + "".join(f"{row['text']},{row['split']}\n" for row in rows))
        for name, part in (("a", texts[24:]), ("b", texts[:8])):
            self.write(f"{name}.txt", "\n".join(part))
        (folder / "c.txt.gz").write_bytes(gzip.compress("\n".join(texts[8:24]).encode()))
        for name in ("january", "february"):
            pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / f"{name}.parquet")
        for name in ("mine.npy", "store.npy", "audit_data/store.npy"):
            np.save(folder / name, MiniLM().embed(texts[24:32]).numpy())
        self.write("truth.jsonl", [{"text": text} for text in texts[24:32]])
        self.write("audit_data/store.jsonl", [{"row": n, "text": text} for n, text in enumerate(texts[24:32])])
        self.write("collection/corpus.jsonl", [{"_id": f"d{n}", "text": text} for n, text in enumerate(texts)])
        self.write("collection/queries.jsonl", [{"_id": f"q{n}", "text": texts[n]} for n in range(6)])
        judged = "".join(f"q{n}\td{n}\t1\n" for n in range(6))
        self.write("collection/qrels/test.tsv", f"query-id\tcorpus-id\tscore\n{judged}")

    def download(self, config: DictConfig) -> str | None:
        """The key of what would have to be downloaded."""
        return from_the_hub(config)

    def compose(self, lines: list[str], several: bool) -> list[DictConfig]:
        """What is run: of a multirun the first and the last job; all are checked."""
        configs, errors = survey("train", lines, multirun=several)
        assert errors == []
        assert [message for config in configs for message in launch.check(config)] == []
        return _ends(configs)

    def write(self, name: str, content: str | list[dict[str, Any]]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
        path.write_text(lines, encoding="utf-8")

    def run(self, path: str, kind: str = "default") -> str:
        """The directory of a run: what a command before has made there, or a copy of one of this kind."""
        named = "/" in path and "<" not in path
        if named and Path(path, "metrics.json").exists():
            return path
        if path == "runs/inverter":
            self.do(INVERTER)
            return path
        if kind == "corrector":
            self.run("runs/inverter")
        made = f"runs/{kind}"
        if not Path(made, "metrics.json").exists():
            self.do(MADE[kind])
        if named and path != made:
            shutil.copytree(made, path, dirs_exist_ok=True)
        return path if named else made

    def do(self, line: str) -> None:
        line = re.sub(r"(collection|source\.path)=<dir>", r"\1=collection", line)
        script, given = words(line)
        if script == "compare":
            self.compare(given)
        elif script == "train":
            self.train(given, f"runs/made_{abs(hash(line))}${{job_suffix:}}")
        else:
            kinds = {"corrector": r"attack\.search|iterative_correc", "copy": r"attack\.words"}
            self.on_run(script, given, next((kind for kind, of in kinds.items() if re.search(of, line)), "default"))

    def train(self, given: list[str], run_dir: str) -> None:
        pairs = [word.partition("=") for word in given if word != "-m"]
        last = "ckpt_path=last" in given
        lines = [f"cache_dir={self.folder / 'cache'}"]
        if run_dir and not any(key == "run_dir" for key, _, _ in pairs):
            lines.append(f"run_dir={run_dir}")
        for key, equals, value in pairs:
            if re.fullmatch(r"attack\.\w+_run|init_from", key) or (key == "run_dir" and last):
                value = self.run("runs/resumed" if last else value, "corrector" if "corrector" in key else "default")
            lines.append(f"{key}{equals}{value}")
        several = "-m" in given
        for job, config in enumerate(self.compose(expand_grid("train", lines) if several else lines, several)):
            if download := self.download(config):
                pytest.skip(f"needs a download: {download}")
            shrink(config)
            shrink(config, SECOND_JOB if job else {})
            assert launch.check(config) == []
            if not last:
                shutil.rmtree(config.run_dir, ignore_errors=True)
            train(config)

    def on_run(self, script: str, given: list[str], kind: str) -> None:
        lines = [f"cache_dir={self.folder / 'cache'}"]
        for word in given:
            key, _, value = word.partition("=")
            if key in ("run", "compare"):
                lines.append(f"{key}={self.run(value, kind)}")
            elif key == "output_dir" and "/" in value:
                shutil.rmtree(value, ignore_errors=True)
                lines.append(word)
            elif key != "output_dir":
                lines.append({"--show-text": "show_text=true", "--json": "json=true"}.get(key, word))
        if not any(line.startswith("run=") for line in lines):
            lines.append(f"run={self.run('<dir>', kind)}")  # a small one instead of the shipped attacker
        if not any(line.startswith("output_dir") for line in lines) and script != "invert":
            run = next(line for line in lines if line.startswith("run=")).partition("=")[2]
            count = len([*Path(run).glob("evaluations/*")])
            lines.append(f"output_dir={run}/evaluations/{script}_{count}")
        settings, config = launch.on_run(script, lines)
        if download := self.download(config):
            pytest.skip(f"needs a download: {download}")
        shrink(settings)
        shrink(config)
        if settings.get("trials", 1) > 1:
            settings.trials = 2
        {"evaluate": evaluate, "invert": invert, "audit": audit}[script](settings, config)

    def compare(self, given: list[str]) -> None:
        """Where runs shall differ in something, two that do."""
        paths = [word for word in given if "=" not in word]
        named = [word for word in given if "=" in word]
        if any("*" in path for path in paths):
            made = sorted(str(path) for pattern in paths for path in Path().glob(pattern) if "texts_" in pattern)
            self.do(MADE["wider"])
            paths = made or ["runs/wide_16", "runs/wide_24"]
        Path("tables").mkdir(exist_ok=True)
        compare(read_settings([*map(self.run, paths), *named, "resamples=1000"]))


@pytest.fixture(autouse=True, scope="module")
def _a_small_vocabulary() -> Iterator[None]:
    """Each search runs all 30,000 tokens of the embedder, which takes half a minute: here only the commonest."""
    with pytest.MonkeyPatch.context() as patch:
        control = Encoder.control.func
        patch.setattr(
            Encoder, "control", property(lambda self: control(self) | (torch.arange(self.model.inputs) > 2500))
        )
        yield


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


RUN = set(commands("train", "evaluate", "invert", "audit", "compare"))
PLACES = {
    line: f"{page}: {line[:80]}"
    for line, page in fenced().items()
    if line in RUN and page != "reproducing.md"  # test_reproducing.py
}


def reason_to_skip(line: str) -> str | None:
    """Why a command is not run here."""
    return next((reason for pattern, reason in ELSEWHERE.items() if re.search(pattern, line)), None)


@pytest.mark.parametrize("line", PLACES, ids=PLACES.values())
def test_a_documented_command_runs(line: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := reason_to_skip(line):
        pytest.skip(reason)
    monkeypatch.chdir(desk.folder)
    desk.do(line)
