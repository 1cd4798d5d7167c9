"""Files that Python writes: all at once or not at all, with errors that name them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from backpass._atomic_file import atomic_file, write_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_new_file_takes_the_place_and_the_permissions_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with atomic_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["model.onnx"]


def test_a_failed_write_leaves_the_old_file_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match=r"No space left on device: '.*/model\.onnx'") as full, atomic_file(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.errno == errno.ENOSPC
    with pytest.raises(KeyboardInterrupt), atomic_file(path):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["model.onnx"]


def test_places_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"its folder does not exist; make it first: '.*/none/a'"):
        write_file(tmp_path / "none" / "a", b"")
    with pytest.raises(IsADirectoryError, match="is a folder, expected the name of a file"):
        write_file(tmp_path, b"")
    assert not names(tmp_path)


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    killed, other = tmp_path / ".a.4194304.0.tmp", tmp_path / ".b.4194304.0.tmp"
    killed.write_bytes(b"half")
    other.write_bytes(b"half of another file")
    being_written = tmp_path / ".a.4194304.1.tmp"
    with open(being_written, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_file(tmp_path / "a", b"whole")
        assert names(tmp_path) == [being_written.name, other.name, "a"]
    write_file(tmp_path / "a", b"whole")
    assert names(tmp_path) == [other.name, "a"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with atomic_file("a") as one, atomic_file("a") as other:
        one.write(b"one")
        other.write(b"other")
    assert Path("a").read_bytes() == b"one", "the last one to finish"
    assert os.listdir() == ["a"]


def test_a_file_is_written_to_while_it_is_open(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as file:
        file.write(memoryview(b"whole"))
        with pytest.raises((TypeError, BufferError)):
            file.write("text")
    for late in (lambda: file.write(b"more"), file.publish):
        with pytest.raises(ValueError, match="the file is closed"):
            late()
    assert (tmp_path / "a").read_bytes() == b"whole"
