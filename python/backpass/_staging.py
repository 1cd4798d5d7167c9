"""Several files that appear together: written elsewhere first, then moved into place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from backpass._atomic_file import flush, naming


class Staging:
    """Files written inside the ``with`` replace those of the same names when it ends well, and vanish when not.

    They lie in a folder beside their destination, so that moving them is a rename. All are on the disk before the first
    one is moved; should a move fail, those that were moved already are taken back. An OSError names the destination.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Staging:
        self._place = Path(tempfile.mkdtemp(prefix=".backpass-", dir=self._folder))
        return self

    def write(self, name: str, content: bytes) -> None:
        self.make(name, lambda path: path.write_bytes(content))

    def make(self, name: str, writer: Callable[[Path], object]) -> None:
        """Lets ``writer`` write the file, or the file and others whose names begin with its."""
        with naming(self._folder / name):
            writer(self._place / name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            shutil.rmtree(self._place, ignore_errors=True)

    def _commit(self) -> None:
        new = sorted(p for p in self._place.iterdir())
        for path in new:
            with naming(self._folder / path.name):
                flush(path)
        old = self._place / "old"
        old.mkdir()
        moved: list[Path] = []
        try:
            for path in new:
                target = self._folder / path.name
                if target.exists():
                    _keep(target, old / path.name)
                moved.append(target)
                os.replace(path, target)
        except OSError:
            for target in moved:
                _take_back(target, old / target.name, self._place / target.name)
            raise
        flush(self._folder)


def _keep(path: Path, copy: Path) -> None:
    try:
        os.link(path, copy)
    except OSError:  # a file system without links
        shutil.copy2(path, copy)


def _take_back(target: Path, old: Path, staged: Path) -> None:
    if old.exists():
        os.replace(old, target)
    elif not staged.exists():  # it was moved, and there was none before
        target.unlink()
