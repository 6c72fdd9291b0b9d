"""The cache: what it asks, what it keeps, and what it survives."""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.processes import ROOT, Script, Warm
from unembed.core import progress
from unembed.core.errors import InputError
from unembed.core.examples import Example
from unembed.datamodules.embedded import defended
from unembed.defenses.identity import Identity
from unembed.defenses.rounding import Rounding
from unembed.embedders.cache import cached as cache
from unembed.embedders.cache.cached import CachedEmbedder, Queries
from unembed.embedders.cache.shards import ABSENT, KeyIndex, distinct, text_keys

TEXTS = [f"text {i} " + "word " * (i * 7 % 23) for i in range(300)]


def vector_of(text: str, dimension: int = 8) -> Tensor:
    """Any text's own vector, the same in every process."""
    digest = hashlib.sha256(text.encode()).digest()
    return torch.tensor([byte / 255 for byte in digest[:dimension]])


class Counting:
    """An embedder that remembers every text it was sent, in memory and, where asked, in a file."""

    max_tokens = 16

    def __init__(self, dimension: int = 8, fingerprint: str = "f" * 64, record: Path | None = None) -> None:
        self.dimension = dimension
        self.fingerprint = fingerprint
        self.batches: list[list[str]] = []
        self.record = record

    @property
    def sent(self) -> list[str]:
        return [text for batch in self.batches for text in batch]

    def embed(self, texts: Sequence[str]) -> Tensor:
        self.batches.append(list(texts))
        if self.record is not None:
            with self.record.open("a") as file:
                file.writelines(f"{text}\n" for text in texts)
        return torch.stack([vector_of(text, self.dimension) for text in texts])


class Neighbourly(Counting):
    """As a real one, its last bits depend on the texts that share the batch."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        return super().embed(texts) + 1e-6 * len(texts) + 1e-7 * max(len(text) for text in texts)


def vectors_of(texts: Sequence[str]) -> Tensor:
    return torch.stack([vector_of(text) for text in texts])


def shards_in(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.shard"))


def test_a_text_is_sent_once_to_each_embedder(tmp_path: Path) -> None:
    embedder = Counting()
    cached = CachedEmbedder(embedder, tmp_path)
    asked = ["b", "a", "b", "", "a "]
    assert torch.equal(cached.embed(asked), vectors_of(asked))
    assert sorted(embedder.sent) == ["", "a", "a ", "b"]
    assert torch.equal(cached.embed(["a", "new", "b"]), vectors_of(["a", "new", "b"]))
    assert embedder.sent[4:] == ["new"]
    assert cached.embed([]).shape == (0, 8)
    one, other = Counting(fingerprint="a" * 64), Counting(fingerprint="b" * 64)
    CachedEmbedder(one, tmp_path).fill(["x"], "training")
    CachedEmbedder(other, tmp_path).fill(["x"], "training")
    assert one.sent == other.sent == ["x"]


def test_another_process_and_another_object_send_nothing_again(tmp_path: Path) -> None:
    first = CachedEmbedder(Counting(), tmp_path, shard_size=64)
    first.fill(TEXTS, "training")
    again = Counting()
    second = CachedEmbedder(again, tmp_path)
    second.fill([*reversed(TEXTS), TEXTS[0]], "training")
    assert torch.equal(second.embed(TEXTS[5:9]), vectors_of(TEXTS[5:9]))
    assert again.sent == []
    embedder = Counting()
    one, other = CachedEmbedder(embedder, tmp_path), CachedEmbedder(embedder, tmp_path)
    other.embed(["x"])
    one.embed(["a", "b"])
    one.flush()
    assert torch.equal(other.embed(["b", "a"]), vectors_of(["b", "a"]))
    assert Counter(embedder.sent) == {"x": 1, "a": 1, "b": 1}


def test_a_view_reads_rows_of_many_shards_in_any_order(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counting(), tmp_path, shard_size=32)
    cached.fill(TEXTS, "training")
    view = cached.view([*TEXTS, TEXTS[3]])
    expected = vectors_of([*TEXTS, TEXTS[3]])
    assert len(view) == 301
    assert torch.equal(view[:], expected)
    assert torch.equal(view[10:200:7], expected[10:200:7])
    for indices in ([5, 300, 5, 17], np.array([299, 0]), torch.tensor([4, 2, 250])):
        assert torch.equal(view[indices], expected[torch.as_tensor(indices)])
    assert view[[]].shape == (0, 8)
    with pytest.raises(ValueError, match="fill"):
        cached.view(["unknown"])
    cached = CachedEmbedder(Counting(), tmp_path / "in parts", shard_size=10, batch_size=10)
    cached.fill(TEXTS[:40], "training")
    assert torch.equal(cached.view(TEXTS[:40])[:], vectors_of(TEXTS[:40]))
    cached.fill(TEXTS, "training")
    view = cached.view(TEXTS)
    assert torch.equal(view[:], vectors_of(TEXTS))
    assert torch.equal(view[[200, 7, 200]], vectors_of([TEXTS[200], TEXTS[7], TEXTS[200]]))


def test_batches_are_sorted_by_length_and_no_larger_than_asked(tmp_path: Path) -> None:
    embedder = Counting()
    CachedEmbedder(embedder, tmp_path, batch_size=32).fill(TEXTS, "training")
    assert sorted(len(batch) for batch in embedder.batches) == [300 % 32] + [32] * 9
    ranges = sorted((min(map(len, batch)), max(map(len, batch))) for batch in embedder.batches)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


def test_small_calls_are_pooled_into_few_files(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counting(), tmp_path, shard_size=100)
    for text in TEXTS:
        cached.embed([text])
    assert len(shards_in(tmp_path)) == 3
    cached.embed(["one more"])
    assert len(shards_in(tmp_path)) == 3
    cached.flush()
    assert len(shards_in(tmp_path)) == 4


def test_what_waits_too_long_is_written_at_the_next_call(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counting(), tmp_path, shard_seconds=0.05)
    cached.embed(["a"])
    assert shards_in(tmp_path) == []
    time.sleep(0.06)
    cached.embed(["b"])
    assert len(shards_in(tmp_path)) == 1


# Before the code of another process: it sees this file's classes.
SETUP = "import sys; sys.path[:0] = ['tests', 'tests/embedders']\nfrom pathlib import Path\nfrom test_cache import *\n"


def run_script(warm: Warm, script: str, *arguments: object) -> Script:
    return warm.start(["-c", SETUP + script, *map(str, arguments)], cwd=ROOT)


@pytest.mark.slow
def test_what_waits_is_written_when_the_program_ends(tmp_path: Path, warm: Warm) -> None:
    process = run_script(warm, "CachedEmbedder(Counting(), Path(sys.argv[1])).embed(TEXTS)", tmp_path)
    assert process.wait() == 0, process.communicate()
    again = Counting()
    CachedEmbedder(again, tmp_path).embed(TEXTS)
    assert again.sent == []


@pytest.mark.slow
def test_after_kill_9_no_text_of_a_finished_shard_is_sent_again(tmp_path: Path, warm: Warm) -> None:
    record = tmp_path / "sent.txt"
    script = """
class Slow(Counting):
    def embed(self, texts):
        time.sleep(0.02)
        return super().embed(texts)
embedder = Slow(record=Path(sys.argv[2]))
CachedEmbedder(embedder, Path(sys.argv[1]), batch_size=4, shard_size=20).fill(TEXTS, "training")
"""
    run_script(warm, script, tmp_path / "cache", record).kill_when(lambda: len(shards_in(tmp_path)) >= 4)
    finished = len(shards_in(tmp_path)) * 20
    assert 80 <= finished < 300
    sent_before = record.read_text().splitlines()
    again = Counting()
    cached = CachedEmbedder(again, tmp_path / "cache", batch_size=4, shard_size=20)
    cached.fill(TEXTS, "training")
    assert len(again.sent) == 300 - finished
    assert len({*sent_before} & {*again.sent}) <= 20, "at most the shard that was being written is sent twice"
    assert torch.equal(cached.view(TEXTS)[:], vectors_of(TEXTS))


def test_a_resumed_fill_stores_the_last_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    class Dying(Neighbourly):
        def embed(self, texts: Sequence[str]) -> Tensor:
            if len(self.batches) == 7:
                raise KeyboardInterrupt
            return super().embed(texts)

    whole = CachedEmbedder(Neighbourly(), tmp_path / "whole", batch_size=16, shard_size=32)
    whole.fill(TEXTS, "training")
    dying = CachedEmbedder(Dying(), tmp_path / "parts", batch_size=16, shard_size=32)
    with pytest.raises(KeyboardInterrupt):
        dying.fill(TEXTS, "training")
    resumed = CachedEmbedder(Neighbourly(), tmp_path / "parts", batch_size=16, shard_size=32)
    resumed.fill(TEXTS, "training")
    assert torch.equal(resumed.view(TEXTS)[:], whole.view(TEXTS)[:])


def fill_on_ranks(caches: list[CachedEmbedder], texts: list[str]) -> None:
    barrier = threading.Barrier(len(caches), timeout=30)
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            caches[rank].fill(
                texts, "training", rank=rank, world_size=len(caches), barrier=lambda: (barrier.wait(), None)[1]
            )
        except BaseException as error:  # noqa: BLE001  handed to the test
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(caches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_two_ranks_store_the_same_bits_as_one_and_send_each_text_once(tmp_path: Path) -> None:
    one = CachedEmbedder(Neighbourly(), tmp_path / "one", batch_size=16, shard_size=64)
    one.embed(["waits in the memory of one rank only", TEXTS[0]])
    one.fill(TEXTS, "training")
    embedders = [Neighbourly(), Neighbourly()]
    two = [CachedEmbedder(embedder, tmp_path / "two", batch_size=16, shard_size=64) for embedder in embedders]
    two[0].embed(["waits in the memory of one rank only", TEXTS[0]])
    two[1].embed(["in the other's"])
    fill_on_ranks(two, [*TEXTS, TEXTS[1]])
    for cached in two:
        assert torch.equal(cached.view(TEXTS)[:], one.view(TEXTS)[:])
    sent = Counter(embedders[0].sent + embedders[1].sent)
    assert set(sent.values()) == {1}
    assert set(TEXTS) <= set(sent)
    assert 100 < len(embedders[0].sent) < 200, "the work is shared"


def test_ranks_without_a_common_disk_do_without_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_APPEARANCE_SECONDS", (0.01,))
    two = [CachedEmbedder(Counting(), tmp_path / name, batch_size=16) for name in ("node0", "node1")]
    fill_on_ranks(two, TEXTS)
    for cached in two:
        assert torch.equal(cached.view(TEXTS)[:], vectors_of(TEXTS))


@pytest.mark.slow
def test_processes_may_fill_one_directory_at_a_time(tmp_path: Path, warm: Warm) -> None:
    script = 'CachedEmbedder(Counting(), Path(sys.argv[1]), batch_size=4, shard_size=10).fill(TEXTS, "training")'
    processes = [run_script(warm, script, tmp_path) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0], [process.communicate() for process in processes]
    again = Counting()
    cached = CachedEmbedder(again, tmp_path)
    assert torch.equal(cached.embed(TEXTS), vectors_of(TEXTS))
    assert again.sent == []
    assert not list(tmp_path.rglob("*.tmp"))


def cut(content: bytes) -> bytes:
    return content[:-5]


def flip(position: int) -> Callable[[bytes], bytes]:
    def flipped(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[position] ^= 1
        return bytes(changed)

    return flipped


DAMAGES = {
    "truncated": cut,
    "empty": lambda content: b"",
    "longer": lambda content: content + b"x",
    "magic": flip(0),
    "header": flip(20),
    "key": flip(64 + 3),
    "vector": flip(-1),
}


@pytest.mark.parametrize("use", ["embed", "fill", "view"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_shard_is_set_aside_with_one_warning_and_embedded_again(
    tmp_path: Path, damage: Callable[[bytes], bytes], use: str, caplog: pytest.LogCaptureFixture
) -> None:
    CachedEmbedder(Counting(), tmp_path, batch_size=10, shard_size=100).fill(TEXTS, "training")
    victim = shards_in(tmp_path)[1]
    victim.write_bytes(damage(victim.read_bytes()))
    embedder = Counting()
    cached = CachedEmbedder(embedder, tmp_path)
    if use == "fill":
        cached.fill(TEXTS, "training")
    if use == "view":
        try:
            view = cached.view(TEXTS)
        except ValueError:  # the keys are gone already when the folder is opened: as if never stored
            cached.fill(TEXTS, "training")
            view = cached.view(TEXTS)
        assert torch.equal(view[:], vectors_of(TEXTS))
    assert torch.equal(cached.embed(TEXTS), vectors_of(TEXTS))
    cached.flush()
    assert len(embedder.sent) == 100
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert victim.name in caplog.text
    assert len(list(tmp_path.rglob("*.damaged"))) == 1
    assert len(shards_in(tmp_path)) == 3
    later = Counting()
    assert torch.equal(CachedEmbedder(later, tmp_path).embed(TEXTS), vectors_of(TEXTS))
    assert later.sent == []


def test_what_else_lies_in_a_shared_folder_is_no_shard(tmp_path: Path) -> None:
    """And a shard that a tool for copies has renamed is one still."""
    CachedEmbedder(Counting(), tmp_path).fill(TEXTS, "training")
    (shard,) = shards_in(tmp_path)
    shard.rename(shard.with_name("a copy (1).shard"))
    (shard.parent / "directory.shard").mkdir()
    again = Counting()
    cached = CachedEmbedder(again, tmp_path)
    cached.fill(TEXTS, "training")
    assert torch.equal(cached.embed(TEXTS), vectors_of(TEXTS))
    assert again.sent == []


def test_damage_is_found_by_one_of_the_ranks_and_mended_by_all(tmp_path: Path) -> None:
    CachedEmbedder(Counting(), tmp_path, batch_size=10, shard_size=100).fill(TEXTS, "training")
    for victim in shards_in(tmp_path):
        victim.write_bytes(flip(-1)(victim.read_bytes()))
    embedders = [Counting(), Counting()]
    caches = [CachedEmbedder(embedder, tmp_path, batch_size=10) for embedder in embedders]
    fill_on_ranks(caches, TEXTS)
    assert sorted(embedders[0].sent + embedders[1].sent) == sorted(TEXTS)
    assert all(torch.equal(cached.view(TEXTS)[:], vectors_of(TEXTS)) for cached in caches)


def test_shards_that_vanish_are_embedded_again_and_an_open_view_says_so(tmp_path: Path) -> None:
    embedder = Counting()
    CachedEmbedder(embedder, tmp_path, shard_size=100).fill(TEXTS, "training")
    cached = CachedEmbedder(embedder, tmp_path)
    cached.embed(TEXTS[:1])
    view = cached.view(TEXTS)
    for path in shards_in(tmp_path):
        path.unlink()
    with pytest.raises(InputError, match="run the command again"):
        view[:]
    assert torch.equal(cached.embed(TEXTS), vectors_of(TEXTS))
    assert len(embedder.sent) == 600


def test_temporary_files_of_killed_processes_go_after_a_while(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counting(), tmp_path)
    cached.fill(["a"], "training")
    folder = shards_in(tmp_path)[0].parent
    old, new = folder / ".a.shard.1-old.part", folder / ".a.shard.2-new.part"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    CachedEmbedder(Counting(), tmp_path).embed(["a"])
    assert (old.exists(), new.exists()) == (False, True)


def test_texts_asked_for_and_texts_sent_are_counted_by_purpose(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counting(), tmp_path)
    cached.fill(["a", "b", "a"], "training")
    cached.embed(["a", "c"])
    cached.embed(["c", "d", "c"])
    cached.embed(["d", "e"], "scoring")
    assert cached.queries.asked == {"training": 2, "attack": 3, "scoring": 2, "lexicon": 0}
    assert cached.queries.sent == {"training": 2, "attack": 2, "scoring": 1, "lexicon": 0}
    fresh = CachedEmbedder(Counting(), tmp_path)
    fresh.embed(["a", "b", "f"], "scoring")
    assert fresh.queries.asked == {"training": 0, "attack": 0, "scoring": 3, "lexicon": 0}
    assert fresh.queries.sent["scoring"] == 3 - 2


def test_only_the_owner_may_read_the_cache_and_it_holds_no_text(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        directory = tmp_path / "new" / "cache"
        CachedEmbedder(Counting(), directory).fill(["a rather secret sentence"], "training")
    finally:
        os.umask(old)
    made = [directory.parent, directory, *directory.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    files = [path for path in made if path.is_file()]
    assert len(files) == 2
    assert not any(b"secret" in path.read_bytes() for path in files)


class Wrong(Counting):
    """Gives a bad answer to the batch that holds the bad text."""

    def __init__(self, change: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.change = change

    def embed(self, texts: Sequence[str]) -> Tensor:
        vectors = super().embed(texts)
        bad = [i for i, text in enumerate(texts) if text.startswith("BAD")]
        return self.change(vectors, bad[0]) if bad else vectors


def poisoned(value: float) -> Callable[[Tensor, int], Tensor]:
    def change(vectors: Tensor, bad: int) -> Tensor:
        vectors[bad, 3] = value
        return vectors

    return change


@pytest.mark.parametrize(
    "change",
    [
        poisoned(float("nan")),
        poisoned(float("inf")),
        poisoned(3e38),
        lambda vectors, bad: vectors * (torch.arange(len(vectors)) != bad)[:, None],
        lambda vectors, bad: vectors * 1e-30 ** (torch.arange(len(vectors)) == bad)[:, None],
        lambda vectors, bad: vectors[1:],
        lambda vectors, bad: vectors[:, 1:],
    ],
    ids=["nan", "inf", "huge", "zero", "tiny", "count", "dimension"],
)
def test_a_bad_answer_is_an_error_and_only_its_batch_is_not_stored(
    tmp_path: Path, change: Callable[[Tensor, int], Tensor]
) -> None:
    secret = "BAD" + "s" * 200
    texts = [*TEXTS[:40], secret]
    cached = CachedEmbedder(Wrong(change), tmp_path, batch_size=8)
    with pytest.raises(InputError) as caught:
        cached.fill(texts, "training")
    assert re.search(r"text \d+ \(", str(caught.value))
    assert "s" * 41 not in str(caught.value)
    if "gave NaN" in str(caught.value) or "gave a vector" in str(caught.value):
        assert "text 40 (" in str(caught.value)
    cached.flush()
    sent = cached.embedder.sent  # type: ignore[attr-defined]
    again = Counting()
    CachedEmbedder(again, tmp_path, batch_size=8).fill(texts, "training")
    assert len(again.sent) == len(texts) - (len(sent) - 1), "the bad batch held one text"


def test_of_a_batch_with_a_bad_vector_the_others_are_stored(tmp_path: Path) -> None:
    cached = CachedEmbedder(Wrong(poisoned(float("nan"))), tmp_path)
    with pytest.raises(InputError, match=r"gave NaN, null or infinity for text 1 \('BAD'\): it is not"):
        cached.embed(["a", "BAD", "c"])
    again = Counting()
    CachedEmbedder(again, tmp_path).embed(["a", "BAD", "c"])
    assert again.sent == ["BAD"]


class Words(Counting):
    """Sees the text alone of a language model's output; that of an empty one is token 0."""

    observes = "words"

    def embed(self, texts: Sequence[str]) -> Tensor:
        self.batches.append(list(texts))
        return torch.tensor([[float(len(text))] for text in texts])


def test_a_row_of_zeros_is_an_output_of_a_language_model(tmp_path: Path) -> None:
    embedder = Words(dimension=1)
    CachedEmbedder(embedder, tmp_path).fill(["", "aa"], "training")
    cached = CachedEmbedder(embedder, tmp_path)
    assert cached.view(["aa", ""])[:].tolist() == [[2.0], [0.0]]
    assert len(embedder.batches) == 1
    examples = [Example(0, "aa"), Example(1, "")]
    assert defended(Identity(), cached.embed(["aa", ""]), examples, "test").tolist() == [[2.0], [0.0]]
    with pytest.raises(InputError, match="text 0, and of 1 of these 2, is all zeros"):
        defended(Rounding(step=10.0), cached.embed(["aa", ""]), examples, "test")


def test_a_full_disk_is_named_and_leaves_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = CachedEmbedder(Counting(), tmp_path, batch_size=10, shard_size=50)
    cached.fill(TEXTS[:100], "training")
    before = shards_in(tmp_path)

    def refuse(descriptor: int) -> None:  # half-way through a file, as a full disk does
        os.ftruncate(descriptor, 100)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}"):
            cached.fill(TEXTS, "training")
    assert shards_in(tmp_path) == before
    assert not list(tmp_path.rglob("*.part"))
    again = Counting()
    CachedEmbedder(again, tmp_path).fill(TEXTS[:100], "training")
    assert again.sent == []
    cached.fill(TEXTS, "training")
    assert torch.equal(cached.view(TEXTS)[:], vectors_of(TEXTS))


def test_making_one_does_nothing_and_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was asked for")

    CachedEmbedder(Untouchable(), tmp_path / "cache")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        CachedEmbedder(Counting(), tmp_path / "file" / "cache").embed(["a"])


def test_progress_speaks_of_long_work_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Progress(100) as short:
        for _ in range(10):
            now[0] += 0.2
            short.advance(10)
    assert capsys.readouterr().err == ""
    with progress.Progress(1000) as long:
        for _ in range(100):
            now[0] += 1.0
            long.advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert [part in lines[0] for part in ("40 of 1,000 texts", "4%", "10 a second", "1 min 36 s left")] == [True] * 4
    assert len(lines) == 2  # then a line a minute


def test_the_index_and_distinct_keys() -> None:
    index, plain = KeyIndex(), dict[str, int]()
    every = [f"w{number}" for number in range(3000)]
    generator = np.random.default_rng(0)
    for start in range(0, 2000, 50):
        texts = sorted({every[number] for number in generator.integers(0, 2000, 50)} - plain.keys())
        values = np.arange(start, start + len(texts))
        index.add(text_keys(texts), values)
        plain.update(zip(texts, values.tolist(), strict=True))
    assert index.find(text_keys(every)).tolist() == [plain.get(text, ABSENT) for text in every]
    assert len(index) == len(plain)
    index.drop(100, 400)
    kept = {text: value for text, value in plain.items() if not 100 <= value < 400}
    assert index.find(text_keys(every)).tolist() == [kept.get(text, ABSENT) for text in every]
    texts = [f"w{word}" for word in np.random.default_rng(1).integers(0, 500, size=2000)]
    keys, queries = text_keys(texts), Queries()
    for start in range(0, 2000, 13):
        queries.count_asked("attack", keys[start : start + 13].view("<u8")[::2])
    assert queries.asked["attack"] == len(queries.keys("attack")) == len(set(texts))
    assert distinct(keys).tolist() == [i for i, text in enumerate(texts) if text not in texts[:i]]
    close = np.array([bytes(8) + bytes([i]) * 8 for i in (3, 1, 2, 1)], "S16")  # equal in their first halves
    assert distinct(close).tolist() == [0, 1, 2]
    assert len(set(text_keys(["é", "e\u0301", "a", "a ", "A", ""]).tolist())) == 6
