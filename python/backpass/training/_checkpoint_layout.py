"""An HDF5 file without a copy of its large arrays: HDF5 says where in the file they lie, and does not write them.

It works on a file in memory, because it ends the process where a disk is full. What it does not write there is a hole,
which takes no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STORED_AS = "stored_as"  #: attribute of a dataset whose element type HDF5 does not know
_LARGE = 1 << 14  #: bytes from which on an array is not copied
_PAGE = 1 << 12


class Layout:
    """The places of a nested dict of arrays and text in an HDF5 file that begins after `user_block` bytes."""

    def __init__(self, tree: Mapping[str, Any], h5py: Any, user_block: int) -> None:
        self._h5py, self._begin = h5py, user_block
        self._arrays: list[tuple[int, Array]] = []
        self._memory = _Memory()
        with h5py.File(self._memory, "w", userblock_size=user_block) as file:
            self._add(file, tree)
        self._arrays.sort(key=lambda placed: placed[0])

    def pieces(self) -> Iterator[Any]:
        """The bytes of the file after the user block, in order."""
        begin = self._begin
        for offset, array in self._arrays:
            yield self._memory.part(begin, offset)
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            begin = offset + array.nbytes
        yield self._memory.part(begin, self._memory.length)

    def _add(self, group: Any, tree: Mapping[str, Any]) -> None:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                self._add(group.create_group(name), value)
            elif isinstance(value, np.ndarray) and value.dtype.name == "bfloat16":
                self._add_value(group, name, value.view(np.uint16))
                group[name].attrs[STORED_AS] = "bfloat16"
            else:
                self._add_value(group, name, value)

    def _add_value(self, group: Any, name: str, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.nbytes >= _LARGE:
            self._arrays.append((self._reserve(group, name, value), value))
        else:
            group.create_dataset(name, data=value)

    def _reserve(self, group: Any, name: str, array: Array) -> int:
        """Makes a dataset that nothing is written to, and tells its place in the file."""
        h5 = self._h5py
        how = h5.h5p.create(h5.h5p.DATASET_CREATE)
        how.set_alloc_time(h5.h5d.ALLOC_TIME_EARLY)
        how.set_fill_time(h5.h5d.FILL_TIME_NEVER)
        kind = h5.h5t.py_create(array.dtype, logical=True)
        return int(h5.h5d.create(group.id, name.encode(), kind, h5.h5s.create_simple(array.shape), how).get_offset())


class _Memory:
    """A file as h5py wants it, which no system can refuse: zeros, but for the pages that were written to."""

    def __init__(self) -> None:
        self.length = 0
        self._position = 0
        self._pages: dict[int, bytearray] = {}

    def part(self, begin: int, end: int) -> bytes:
        found = bytearray(end - begin)
        for page, inside, here in _spans(begin, end):
            if page in self._pages:
                found[here] = self._pages[page][inside]
        return bytes(found)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.length)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int) -> bytes:
        found = self.part(self._position, self._position + count)
        self._position += count
        return found

    def readinto(self, target: Any) -> int:
        memoryview(target)[:] = self.read(len(target))
        return len(target)

    def write(self, content: Any) -> int:
        end = self._position + len(content)
        for page, inside, here in _spans(self._position, end):
            self._pages.setdefault(page, bytearray(_PAGE))[inside] = content[here]
        self._position, self.length = end, max(self.length, end)
        return len(content)

    def truncate(self, length: int) -> int:
        self.length = length
        return length

    def flush(self) -> None: ...


def _spans(begin: int, end: int) -> Iterator[tuple[int, slice, slice]]:
    """Of the bytes from begin to end: a page, which part of it, and which of the bytes these are."""
    at = begin
    while at < end:
        page, first = divmod(at, _PAGE)
        count = min(_PAGE - first, end - at)
        yield page, slice(first, first + count), slice(at - begin, at - begin + count)
        at += count
