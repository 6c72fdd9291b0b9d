"""Lexicon search with input that is wrong, empty or far too large."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unembed import launch
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.attacks.refine.lexicon.language import Language
from unembed.attacks.refine.lexicon.search import LexiconSearch
from unembed.attacks.refine.lexicon.words import known_words, read_words
from unembed.core import limits
from unembed.core.errors import InputError
from unembed.embedders.base import QueryLimitError, fingerprint_of
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.embedders.openai_api import OpenAIEmbedder
from unembed.session import Session

TEXTS = ["Ada went to Paris on Monday, and Bob stayed.", "Bob went to Rome on Friday.", "Cleo moved to Oslo."]


class Hashes:
    """Vectors that have nothing to do with words; at most ``limit`` texts."""

    max_tokens = 64

    def __init__(self, dimension: int = 16, limit: int | None = None) -> None:
        self.dimension, self.limit, self.asked = dimension, limit, 0
        self.fingerprint = fingerprint_of(kind="hashes", dimension=dimension, used="tests")

    def embed(self, texts: Sequence[str]) -> Tensor:
        room = len(texts) if self.limit is None else max(0, self.limit - self.asked)
        found = torch.empty(min(room, len(texts)), self.dimension)
        for row, text in zip(found, texts, strict=False):
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
            row[:] = torch.randn(self.dimension, generator=torch.Generator().manual_seed(seed))
        self.asked += len(found)
        if room < len(texts):
            raise QueryLimitError("the limit is reached.", list(range(room)), found)
        return found


def search(folder: Path, embedder: Hashes | MiniLM, **settings: object) -> tuple[LexiconSearch, CachedEmbedder]:
    made = LexiconSearch(**{"vocabulary": False, "numbers": 10, "max_queries": 20, **settings})  # type: ignore[arg-type]
    made.prepare(TEXTS, folder, None)
    made.load(folder, embedder.dimension)
    return made, CachedEmbedder(embedder, folder / "cache")


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "list.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no word; write one a line"),
        (b"\n \t\n\xe3\x80\x80\n", "holds no word"),
        ("Ada\nJosé\n".encode("latin-1"), "line 2 is no UTF-8; convert the file: iconv"),
        ("Ada\n".encode("utf-16"), "line 1 is no UTF-8"),
    ],
)
def test_a_list_without_words(tmp_path: Path, content: bytes, reason: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=rf"^attack\.refine\.lexicon\.path={path}: {reason}"):
        read_words(path)


def test_a_list_that_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "Ada")
    key = r"^attack\.refine\.lexicon\.path"
    with pytest.raises(InputError, match=rf"{key}={tmp_path}/lists\.txt: no such file, did you mean list\.txt\?"):
        read_words(tmp_path / "lists.txt")
    with pytest.raises(InputError, match=rf"{key}={tmp_path}/no/list\.txt: no directory .*/no$"):
        read_words(tmp_path / "no" / "list.txt")
    os.mkfifo(tmp_path / "pipe")
    for wrong, reason in ((tmp_path, "a directory"), (tmp_path / "pipe", "a pipe"), (Path("/proc/self/environ"), "")):
        with pytest.raises(InputError, match=rf"{key}: {wrong}: .*{reason}"):
            read_words(wrong)
    monkeypatch.setattr(limits, "LARGEST_LEXICON", 2)
    with pytest.raises(InputError, match=rf"{key}: .*list\.txt: 3 bytes, and at most 2 are read"):
        read_words(path)


def test_a_list_is_read_once_and_known_by_its_entries(tmp_path: Path) -> None:
    assert read_words(written(tmp_path, "\ufeffZoltan\r\nZoltan \n\n  Mary \t Ann\nZOLTAN")) == [
        "Zoltan", "Mary Ann", "ZOLTAN",
    ]  # fmt: skip
    path = written(tmp_path, "Zoltan")
    first, _ = search(tmp_path, Hashes(), path=str(path))
    same, _ = search(tmp_path, Hashes(), path=str(path))
    hashes = [made.all_weights()["entries"] for made in (first, same)]
    written(tmp_path, "Winifred")
    assert torch.equal(first.all_weights()["entries"], hashes[0])  # read once
    other, _ = search(tmp_path, Hashes(), path=str(path))
    assert torch.equal(*hashes)
    assert not torch.equal(other.all_weights()["entries"], hashes[0])
    assert LexiconSearch().all_weights() == {}


def test_entries_without_a_vector_of_their_own_are_counted_once(tmp_path: Path) -> None:
    wrong = ["😀", "😁", "ខ្មែរ", "Zol\x00tan", "\x1b[31mred", "\u202eabc", "\u200b", "word " * 300]
    path = written(tmp_path, "\n".join(["Zoltan", *wrong, "Zoltan 😀"]))
    made, oracle = search(tmp_path, MiniLM(), path=str(path))
    with pytest.warns(UserWarning, match="8 of 10 entries are left out") as met:
        lexicon = made.lexicon(oracle)
    assert len(met) == 1
    assert '"😀", "😁", "ខ្មែរ", ...' in str(met[0].message)
    assert "\x1b" not in str(met[0].message)
    assert {"Zoltan", "Zoltan 😀"} <= set(lexicon.entries)
    assert not {entry.strip() for entry in wrong} & set(lexicon.entries)
    with pytest.raises(InputError, match=r'path=list: the embedder knows no character of its entries: "😀"'):
        known_words(["😀"], Path("list"), MiniLM())
    made, oracle = search(tmp_path, MiniLM(), path=str(written(tmp_path, "José\nJose\nJOSE\nZoltan")))
    with pytest.warns(UserWarning, match=r'list\.txt: 1 of 4 entries have the vector of another one.*: "Jose"$'):
        lexicon = made.lexicon(oracle)
    assert [lexicon.has(name) for name in ("josé", "jose", "zoltan")] == [True, False, True]


def test_mistakes_are_found_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["attack=nearest_neighbor", "attack/refine=[lexicon]", f"attack.refine.lexicon.path={tmp_path}/none.txt"]
    for check in (lambda session: session.check(), lambda session: session.attack):
        with pytest.raises(InputError, match=r"^attack\.refine\.lexicon\.path=.*none\.txt: no such file"):
            check(Session(launch.compose("train", chosen), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_server_says_what_a_lexicon_costs_and_one_beyond_its_limit_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = OpenAIEmbedder(
        "none", "http://127.0.0.1:9/v1", dimensions=8, api_key_env=None, retries=0, price_per_million_tokens=2
    )
    made, _ = search(tmp_path, Hashes(8), numbers=3000)
    with caplog.at_level("INFO"), pytest.raises(InputError, match=r"127\.0\.0\.1"):  # it is asked, and is not there
        made.lexicon(CachedEmbedder(server, tmp_path / "server"))
    assert "3,016 texts to embed, about" in caplog.text
    # No request is sent: there is no server.
    server = OpenAIEmbedder("none", "http://127.0.0.1:9/v1", dimensions=8, api_key_env=None, max_queries=12)
    made, _ = search(tmp_path, Hashes(8))
    oracle = CachedEmbedder(server, tmp_path / "server")
    with pytest.raises(
        InputError, match=r"26 entries, 26 of them not yet embedded, and embedder\.max_queries leaves 12"
    ):
        made.lexicon(oracle)


def test_counts_of_a_large_training_text_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"Word{n} met Other{n % 7} in Rome." for n in range(400)]
    everything = Language.count(texts)
    everything.save(tmp_path / "all.json")
    assert Language.read(tmp_path / "all.json").pairs == everything.pairs
    monkeypatch.setattr(limits, "LARGEST_JSON", 9_000)
    everything.save(tmp_path / "some.json")
    assert 4_000 < (tmp_path / "some.json").stat().st_size <= 9_000
    some = Language.read(tmp_path / "some.json")
    assert some.pairs.items() < everything.pairs.items()
    assert some.pairs["in", "rome"] == 400
    monkeypatch.setattr("unembed.attacks.refine.lexicon.language._TEXTS", 10)
    LexiconSearch().prepare(texts, tmp_path, None)
    assert Language.read(tmp_path / "language.json").pairs["in", "rome"] == 10


@pytest.mark.parametrize(
    "content",
    [
        {"follows": {"a": {"b": 10**400}}, "forms": {}},
        {"follows": {"a": {"": 1}}, "forms": {}},
        {"follows": {"a": {"b c": 1}}, "forms": {}},
        {"follows": {"a": {}}, "forms": {}},
        {"follows": {}, "forms": {"a": ""}},
        {"follows": {}, "forms": {}, "writing": {"form a": {}}},
        {"follows": {}, "forms": {}, "writing": {"form a": {"A": -1}}},
        {"follows": [], "forms": {}},
        {},
    ],
)
def test_counts_of_an_untrusted_run(tmp_path: Path, content: dict[str, object]) -> None:
    path = tmp_path / "language.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"{path}: not the counts of a training text"):
        Language.read(path)


def test_a_limit_ends_the_search_wherever_it_is_reached(tmp_path: Path) -> None:
    guess = "Barbara went to Fooville on Monday."  # two words that are no entries, and are embedded in the search
    targets = Targets(Hashes().embed(["Zoltan went to Malta."]), torch.arange(1))
    made, oracle = search(tmp_path / "all", Hashes())
    made.refine(targets, [Prediction((guess,))], oracle)
    lexicon, attack = (oracle.queries.asked[purpose] for purpose in ("lexicon", "attack"))
    assert attack == 20
    for limit in range(lexicon - 2, lexicon + attack):
        embedder = Hashes(limit=limit)
        made, oracle = search(tmp_path / str(limit), embedder)
        (found,) = made.refine(targets, [Prediction((guess,))], oracle)
        assert found.partial
        assert embedder.asked == limit == oracle.queries.asked["lexicon"] + oracle.queries.asked["attack"]


def test_an_embedder_that_does_not_add_up_words_is_named_once(tmp_path: Path) -> None:
    embedder = Hashes(64)
    made, oracle = search(tmp_path, embedder)
    targets = Targets(embedder.embed([f"Zoltan {n}." for n in range(8)]), torch.arange(8))
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        for _ in range(2):
            made.refine(targets, [Prediction((text,)) for text in TEXTS[:2] * 4], oracle)
    assert [str(one.message)[:75] for one in met] == [
        "attack/refine=[lexicon]: this embedder does not add up its words, so the se"
    ]
    embedder = MiniLM()
    made, oracle = search(tmp_path, embedder)
    targets = Targets(embedder.embed([f"Dan went to {city} on Sunday." for city in ("Lima", "Riga")]), torch.arange(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.refine(targets, [Prediction((TEXTS[0],))] * 2, oracle)
    made, oracle = search(tmp_path, Hashes())
    assert made.refine(Targets(torch.zeros(0, 16), torch.arange(0)), [], oracle) == []


@pytest.mark.parametrize("beam", [1, 2, 40])
def test_a_search_that_runs_out_of_changes_goes_on_with_other_texts(tmp_path: Path, beam: int) -> None:
    made, oracle = search(tmp_path, Hashes(), training=False, numbers=2, beam=beam, max_queries=400)
    targets = Targets(Hashes().embed(["Zoltan went to Malta."]), torch.arange(1))
    (found,) = made.refine(targets, [Prediction(("Ada Bob",))], oracle)
    assert 20 < oracle.queries.asked["attack"] <= 400
    assert not found.partial


@pytest.mark.parametrize("dimension", [1, 2, 3, 8])
def test_few_dimensions(tmp_path: Path, dimension: int) -> None:
    embedder = Hashes(dimension)
    made, oracle = search(tmp_path, embedder)
    (found,) = made.refine(Targets(embedder.embed(["Zoltan."]), torch.arange(1)), [Prediction((TEXTS[0],))], oracle)
    assert found.candidates[0]


@pytest.mark.parametrize("guess", ["", " \n", "Ada", "...", "😀 😁", "a" * 500, "Ada\x00went"])
def test_guesses_of_any_form(tmp_path: Path, guess: str) -> None:
    embedder = MiniLM()
    made, oracle = search(tmp_path, embedder)
    targets = Targets(embedder.embed(["Zoltan went to Malta."]), torch.arange(1))
    (found,) = made.refine(targets, [Prediction((guess,))], oracle)
    assert oracle.queries.asked["attack"] == 20
    assert found.candidates[0].strip()  # an empty text is never tried: servers refuse it


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_targets_without_a_direction_keep_the_guess(tmp_path: Path, value: float) -> None:
    made, oracle = search(tmp_path, MiniLM())
    (found,) = made.refine(Targets(torch.full((1, 384), value), torch.arange(1)), [Prediction((TEXTS[0],))], oracle)
    assert found == Prediction((TEXTS[0],))


@pytest.mark.parametrize("settings", [{"beam": 50, "max_queries": 5}, {"moves": 50, "max_queries": 1}])
def test_settings_larger_than_the_queries(tmp_path: Path, settings: dict[str, int]) -> None:
    made, oracle = search(tmp_path, Hashes(), **settings)
    made.refine(Targets(Hashes().embed(["Zoltan."]), torch.arange(1)), [Prediction((TEXTS[0],))], oracle)
    assert oracle.queries.asked["attack"] == settings["max_queries"]
