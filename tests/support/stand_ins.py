"""Tiny stand-ins for what a configuration would download: models of the same kind, and files of the same layout.

put_in(config, tmp_path / "hub")      # every hub name in the configuration becomes a folder of that name
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig, OmegaConf

from support.tiny_models import pretrained_model, tiny_sentence_encoder

WHO, CITIES = ("Ada", "Bob", "Cleo", "Dan"), ("Paris", "Rome", "Oslo", "Lima", "Bonn")
SENTENCES = [f"{who} lives in {city} with {n} cats and a dog" for n in range(3) for who in WHO for city in CITIES]
SIZES = {"train": 40, "valid": 8, "test": 8}
ENCODERS = re.compile(r"bert|mpnet|e5|bge|distiluse", re.IGNORECASE)
LANGUAGE_MODELS = (  # by what stands in a hub name: the kind of tiny model
    (r"mt5", "mt5"),
    (r"lm-adapt|t5-v1_1|t5_v1_1", "t5-own-head"),
    (r"t5|opus-mt|nllb|m2m", "t5"),
    (r"/opt-", "opt"),
    (r"llama|qwen|mistral|pythia", "llama"),
    (r"gpt|tinystories", "gpt2"),
)
NAMES = re.compile(r"(^|\.)(name|model|pretrained|tokenizer)$|\.models\.\w+$")


def put_in(config: DictConfig, folder: Path) -> None:
    """Replace every model and data set of the hub in ``config`` by a folder under ``folder``."""
    OmegaConf.set_struct(config, False)
    if str(OmegaConf.select(config, "embedder._target_")).endswith("OpenAIEmbedder"):  # no server is asked
        kind = {"_target_": "unembed.embedders.transformer.TransformerEmbedder", "pooling": "mean", "normalize": True}
        config.embedder = {**kind, "model": str(model("tiny-bert", folder))}
    for key, value in list(leaves(OmegaConf.to_container(config, resolve=True), "")):
        if NAMES.search(key) and isinstance(value, str) and is_hub_name(key, value):
            OmegaConf.update(config, key, str(model(value, folder)))
    translation = OmegaConf.select(config, "scoring.translation")
    if translation is not None and isinstance(translation.models, str):  # one name for every pair of languages
        tiny = str(model(translation.models, folder))
        translation.models = {
            language: tiny for language in ("en", "fr", "de", "es") if language != translation.written
        }
    if str(OmegaConf.select(config, "scoring.tagger._target_")).endswith("StanzaTagger"):
        config.scoring.tagger = {"_target_": "unembed.scoring.recognisers.Recognisers"}
    for key in ("datamodule.source", "datamodule.source.source", "tradeoff.collection"):
        source = OmegaConf.select(config, key)
        if source is not None and re.search(r"sources\.hub\.", str(source.get("_target_"))):
            source.update(path=str(data_set(source, folder)), sizes=dict(SIZES), revision="main")


def is_hub_name(key: str, value: str) -> bool:
    """Whether a value names a model of the hub: not a folder, and not one of our own names."""
    bundled = key == "datamodule.tokenizer" and value == "minilm"
    named = re.match(r"(embedder|attack|datamodule|scoring)\.", key) is not None
    return named and not bundled and not Path(value).exists()


def leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from leaves(child, f"{key}.{name}".lstrip("."))
    else:
        yield key, value


def model(name: str, folder: Path) -> Path:
    """A model of the architecture that ``name`` stands for, built once."""
    path = folder / name
    if not path.exists():
        kind = next((kind for pattern, kind in LANGUAGE_MODELS if re.search(pattern, name, re.IGNORECASE)), None)
        if kind is None and ENCODERS.search(name):
            tiny_sentence_encoder(path)
        else:
            assert kind is not None, f"{name}: no tiny model stands in for it; add one to LANGUAGE_MODELS"
            pretrained_model(path, kind, SENTENCES)
    return path


def data_set(source: DictConfig, folder: Path) -> Path:
    """Files laid out as ``source`` declares them: names, formats, and where the texts are in a row."""
    declared = OmegaConf.to_container(source, resolve=True)
    assert isinstance(declared, dict)
    path = folder / re.sub(r"\W+", "-", str(declared["path"]))
    for language in declared.get("languages") or [""]:
        own = json.loads(json.dumps(declared).replace("{language}", language))
        for place, (split, names) in enumerate(own["files"].items()):
            sentences = SENTENCES[place * 20 :] + SENTENCES[: place * 20]
            if own.get("spans"):  # whose texts are taken whole, by their numbers of tokens
                sentences = [" ".join((sentence.split() * 3)[: 15 + n % 8]) for n, sentence in enumerate(sentences)]
            for name in names:
                _write(path / name.replace("*", "0"), own, split, sentences)
    return path


def _write(path: Path, declared: Mapping[str, Any], split: str, sentences: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    rows = [_row(declared, sentence) for sentence in sentences]
    if declared.get("plain"):
        content = "".join(f"{sentence}\n" for sentence in sentences)
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return
    elif kind in ("csv", "tsv"):
        mark = {"csv": ",", "tsv": "\t"}[kind]
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        content = "".join(mark.join(map(str, line)) + "\n" for line in lines)
    elif kind == "json" or declared.get("one_object"):
        whole: Any = rows
        for key in reversed(str(declared.get("rows", {}).get(split, "")).split(".")):
            whole = {key: whole} if key else whole
        if isinstance(whole, dict) and path.exists():  # one file for all splits
            held = path.read_bytes()
            whole = json.loads(gzip.decompress(held) if path.suffix == ".gz" else held) | whole
        content = json.dumps(whole)
    else:
        content = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())


def _row(declared: Mapping[str, Any], sentence: str) -> dict[str, Any]:
    """A row with ``sentence`` wherever a text is declared; attributes and what fills placeholders have values."""
    row: dict[str, Any] = {}
    for path in declared["texts"]:
        row = _merged(row, _at(path.split("."), sentence))
    if declared.get("spans"):
        row = _merged(row, _at(declared["spans"].split("."), [{"start": 0, "end": 3, "label": "NAME"}]))
    for path in (*declared.get("attributes", {}).values(), *declared.get("fill", {}).values()):
        row = _merged(row, _at(path.split("."), sentence.split()[0]))
    return row


def _at(path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    step, inner = path[0], _at(path[1:], value)
    if step == "*" or re.fullmatch(r"-\d+", step):
        return [inner]
    if step.isdigit():
        return [inner] * (int(step) + 1)
    if "!=" in step and isinstance(inner, list):
        return ["kept", *inner[1:]]
    if "!=" in step:
        return {step.partition("!=")[0]: "kept", **inner}
    return {step: inner}


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        both = {**second, **first}
        return {key: _merged(value, second.get(key, value)) for key, value in both.items()}
    if isinstance(first, list) and isinstance(second, list):
        return [_merged(*pair) for pair in zip(first, second, strict=True)]
    return first
