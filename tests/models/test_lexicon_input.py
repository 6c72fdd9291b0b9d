"""Lexicon search with input that is wrong, empty or far too large."""

from __future__ import annotations

import hashlib
import os
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


def test_of_entries_with_one_vector_the_first_stands(tmp_path: Path) -> None:
    made, oracle = search(tmp_path, MiniLM(), path=str(written(tmp_path, "José\nJose\nJOSE\nZoltan")))
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
    with pytest.raises(InputError, match=r"26 texts, 26 of them not yet embedded, and embedder\.max_queries leaves 12"):
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
