"""Run directories: when one may be started or resumed, and files that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import resource
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from unembed.core.atomic_files import remove_temporary, replacing, write_file, write_json, write_json_lines
from unembed.core.errors import InputError
from unembed.launch.console import ending
from unembed.reports.results import read_results
from unembed.runs import layout
from unembed.runs.checkpoints import WholeCheckpoints, finished_checkpoint, load_checkpoint, resume_from
from unembed.runs.config_file import read_config, write_config
from unembed.runs.files import read_rows


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def checkpoint(directory: Path) -> Path:
    path = directory / layout.CHECKPOINT
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": {}}, path)
    return path


def test_start_makes_the_directory_with_its_parents(tmp_path: Path) -> None:
    layout.start(tmp_path / "a" / "b", resuming=False)
    assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, {"seed": 1})
    with pytest.raises(InputError, match="already holds a run; add ckpt_path=last"):
        layout.start(tmp_path, resuming=False)
    with pytest.raises(InputError, match=r"^output_dir=.*: already holds .*choose another"):
        layout.start(tmp_path, resuming=False, key="output_dir")
    layout.start(tmp_path, resuming=True)
    assert files(tmp_path) == {"config.yaml": b"seed: 1\n"}


def test_resuming_removes_what_a_killed_session_had_begun_to_write(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path)
    (tmp_path / "checkpoints" / ".last.ckpt.123.part").write_bytes(b"half")
    (tmp_path / ".metrics.json.123.part").write_bytes(b"half")
    layout.start(tmp_path, resuming=True)
    assert list(files(tmp_path)) == [str(kept.relative_to(tmp_path))]


def test_where_training_resumes_from(tmp_path: Path) -> None:
    assert resume_from(tmp_path, None) is None
    assert resume_from(tmp_path, "last") is None  # killed before its first checkpoint
    last = checkpoint(tmp_path)
    assert resume_from(tmp_path, None) is None
    assert resume_from(tmp_path, "last") == last
    assert resume_from(tmp_path / "other", str(last)) == last
    with pytest.raises(InputError, match=r"ckpt_path=.*nosuch.ckpt: no such file"):
        resume_from(tmp_path, str(tmp_path / "nosuch.ckpt"))


def test_finished_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished checkpoint"):
        finished_checkpoint(tmp_path)
    last = checkpoint(tmp_path)
    assert finished_checkpoint(tmp_path) == finished_checkpoint(tmp_path, "last") == last
    other = checkpoint(tmp_path / "other")
    assert finished_checkpoint(tmp_path, str(other)) == other


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    last, writer = tmp_path / layout.CHECKPOINT, WholeCheckpoints()
    for step in range(3):
        writer.save_checkpoint({"state_dict": {"a": torch.full((999,), float(step))}, "global_step": step}, last)
    assert [load_checkpoint(tmp_path / name)["global_step"] for name in (layout.CHECKPOINT, layout.PREVIOUS)] == [2, 1]
    assert resume_from(tmp_path, "last") == last
    assert caplog.messages == []
    whole = last.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (
        whole[:-40],
        whole[: len(whole) // 2],
        b"",
        bytes(flipped),
        whole.replace(b"archive/", b"\xe9rchive/"),
    ):
        last.write_bytes(damaged)
        assert resume_from(tmp_path, "last") == tmp_path / layout.PREVIOUS
        assert caplog.messages.pop() == f"{last} is damaged: training resumes from {tmp_path / layout.PREVIOUS}"
        caplog.clear()
        assert not last.exists()  # set aside, so that the next one does not push it over the good one
        assert resume_from(tmp_path, "last") == tmp_path / layout.PREVIOUS
        caplog.clear()
    last.write_bytes(whole[:-40])
    with pytest.raises(InputError, match=r"last\.ckpt: not a checkpoint.* the one before it.* ckpt_path=last"):
        finished_checkpoint(tmp_path)  # its weights are not the finished ones
    last.unlink()  # as after a kill between two renames
    assert resume_from(tmp_path, "last") == tmp_path / layout.PREVIOUS
    (tmp_path / layout.PREVIOUS).write_bytes(whole[:100])
    with pytest.raises(InputError, match=r"previous\.ckpt: not a checkpoint.*; delete it to train again"):
        resume_from(tmp_path, "last")


def test_a_limit_on_the_size_of_files_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(tmp_path / "a", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(SystemExit) as ended, ending():
            write_file(tmp_path / "a", "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{tmp_path / 'a'}: File too large\n"
    assert files(tmp_path) == {"a": b"old"}


def test_a_truncated_checkpoint_is_named(tmp_path: Path) -> None:
    last = checkpoint(tmp_path)
    last.write_bytes(last.read_bytes()[:-40])
    for call in (resume_from, finished_checkpoint):
        with pytest.raises(InputError, match=r"last\.ckpt: not a checkpoint, or a damaged one"):
            call(tmp_path, "last")


def test_config_comes_back(tmp_path: Path) -> None:
    config = {"seed": 3, "attack": {"name": "größe", "list": [1, None, 2.5]}}
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config.yaml: missing"),
        (b"a: [1", "cannot be read"),
        (b"- 1\n- 2\n", "expected keys and values"),
        (b"\xff", "read"),
    ],
)
def test_a_broken_config_is_one_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / layout.CONFIG).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_config(tmp_path)


def test_a_failing_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_file(tmp_path / "a", "old")

    def fails(file: BinaryIO) -> None:
        file.write(b"new, but half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_file(tmp_path / "a", fails)
    assert files(tmp_path) == {"a": b"old"}
    with pytest.raises(OSError, match="the disk is full"):
        write_file(tmp_path / "b", fails)
    assert files(tmp_path) == {"a": b"old"}


def test_rows_that_are_no_json_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_json_lines(path, [{"text": "é\u2028\n"}, {"n": 1}])
    assert [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] == [{"text": "é\u2028\n"}, {"n": 1}]
    before = path.read_bytes()
    for bad in (float("nan"), object()):
        with pytest.raises((ValueError, TypeError)):
            write_json_lines(path, [{"n": 1}, {"n": bad}])
    with pytest.raises(ValueError):
        write_json(path, {"cosine": float("nan")})
    assert files(tmp_path) == {"rows.jsonl": before}


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    writer = WholeCheckpoints()
    writer.save_checkpoint({"state_dict": {"a": torch.ones(3)}}, path)
    assert torch.load(path, weights_only=True)["state_dict"]["a"].tolist() == [1, 1, 1]
    before = files(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        writer.save_checkpoint({"state_dict": {"a": torch.zeros(3)}}, path)
    assert files(tmp_path) == before


def test_a_full_disk_names_the_file_that_was_written(tmp_path: Path) -> None:
    def full(file: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as raised:
        write_file(tmp_path / "predictions.jsonl", full)
    assert raised.value.filename == str(tmp_path / "predictions.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [layout.CONFIG, layout.METRICS, layout.PREDICTIONS, layout.HISTORY, layout.ANALYSES])
def test_a_file_of_a_run_that_is_too_large_is_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / layout.CONFIG).write_text("a: 1\n")
    (tmp_path / layout.METRICS).write_text("{}\n")
    row = {"index": 0, "reference": "a", "prediction": "b", "kind": "sequence"}
    write_json_lines(tmp_path / layout.PREDICTIONS, [row])
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 9_000_000_000)  # of which nothing is stored
    with pytest.raises(InputError, match=f"{name}: 9,000,000,000 bytes, and at most [0-9,]+ are read"):
        read_results(tmp_path)
    if name == layout.CONFIG:
        with pytest.raises(InputError, match=r"config.yaml: 9,000,000,000 bytes"):
            read_config(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)  # which would be waited for without end
    with pytest.raises(InputError, match=f"{name}: a pipe or a device, not a file"):
        read_results(tmp_path)


def test_a_line_of_a_run_has_a_longest_length(tmp_path: Path) -> None:
    path = tmp_path / layout.PREDICTIONS
    row = {"index": 0, "reference": "a", "prediction": "b", "kind": "sequence"}
    write_json_lines(path, [row, {**row, "prediction": "b" * 10_000_000}])
    with pytest.raises(InputError, match=r"predictions.jsonl:2: longer than 10,000,000 bytes"):
        read_rows(path)


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    for content in ("old", "new"):
        with replacing(folder) as made:
            (made / "file").write_text(content)
    assert files(tmp_path) == {"artifacts/file": b"new"}
    with pytest.raises(KeyError), replacing(folder) as made:
        raise KeyError((made / "file").write_text("half"))
    assert files(tmp_path) == {"artifacts/file": b"new"}
    (tmp_path / ".artifacts.123.part").mkdir()  # of a process that was killed
    remove_temporary(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["artifacts"]
