"""Files that appear all at once or not at all: the engine's (src/onnx_io/atomic_file.hpp), for what Python writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backpass import _core


def write_file(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Writes a whole file. What had its name stays until the new one is on the disk."""
    with atomic_file(path) as file:
        file.write(content)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[_core.AtomicFile]:
    """A file to write to, which takes the place of `path` when the ``with`` ends well, and vanishes when not.

    Until then it lies beside its destination. That of a process that was killed is removed by the next one for the same
    destination. An OSError names `path`.
    """
    target = Path(path)
    with naming(target):
        _check_place(target)
        file = _core.AtomicFile(target)
        try:
            yield file
            file.publish()
        finally:
            file.close()


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the system refuses inside, such as a write to a full disk, is an error that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename == os.fspath(path):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def flush(path: Path) -> None:
    """Waits until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_place(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected the name of a file", os.fspath(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist; make it first", os.fspath(target))
