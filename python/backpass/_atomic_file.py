"""A file that appears all at once or not at all: the rule of src/onnx_io/atomic_file.cpp, for what Python writes."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_counter = itertools.count()


def write_file(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Writes a whole file. What had its name stays until the new one is on the disk."""
    with atomic_file(path) as file:
        file.write(content)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the ``with`` ends well, and vanishes when not.

    Until then it lies beside its destination. That of a process that was killed is removed by the next one for the same
    destination. An OSError names `path`.
    """
    target = Path(path)
    with naming(target):
        _check_place(target)
        _remove_leftovers(target)
        file, temporary = _open_beside(target)
        try:
            with file:  # it is locked for as long as it is open
                _keep_permissions(target, file)
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, target)
            with suppress(OSError):  # a folder may be writable and not readable; the new name stands
                flush(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


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


def _open_beside(target: Path) -> tuple[BinaryIO, Path]:
    """A new file, locked, so that nobody takes it for a leftover."""
    while True:
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{next(_counter)}.tmp")
        try:
            file = open(temporary, "xb")  # noqa: SIM115  # the caller closes it
        except FileExistsError:
            continue
        if _lock(file) is not False and os.fstat(file.fileno()).st_nlink > 0:
            return file, temporary
        file.close()


def _lock(file: BinaryIO) -> bool | None:
    """False where somebody else has it, None on a file system without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_leftovers(target: Path) -> None:
    """Those whose writer was killed: nobody holds their lock any more. What cannot be opened or removed stays."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9.]+\.tmp")
    found: list[Path] = []
    with suppress(OSError):
        found = [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
    for path in found:
        with suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "wb") as file:
            if _lock(file):
                path.unlink()


def _keep_permissions(target: Path, file: BinaryIO) -> None:
    with suppress(OSError):  # most often there is none yet
        os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
