"""Checkpoint files of ORTTrainer: nested dicts of arrays in an HDF5 file, a group per dict, a dataset per array.

Names of weights may contain "/", which HDF5 keeps for itself: it is written as "%2F". HDF5 lets a program put what it
wants before its data, the user block: here that is a checksum of all that follows. Files of the original have none.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass._atomic_file import atomic_file
from backpass.trainer.checkpoint import UNREADABLE
from backpass.training._checkpoint_layout import STORED_AS, Layout
from backpass.training._needs_trainer import need
from backpass.training._user_dict import from_serialized_hex, to_serialized_hex

__all__ = ["from_serialized_hex", "load", "save", "to_serialized_hex"]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"  #: what all HDF5 begins with
_USER_BLOCK = 512  #: bytes before it, the fewest that HDF5 allows
_SEAL = "Backpass checkpoint: CRC-32 {:08x} of {} bytes\n"


def save(save_obj: Mapping[str, Any], save_path: str | os.PathLike[str]) -> None:
    """Writes a nested dict of arrays, tensors, numbers and text to a file that must not exist."""
    h5py = need("h5py", "a checkpoint file of ORTTrainer")
    if not isinstance(save_obj, Mapping):
        raise ValueError(f"got a {type(save_obj).__name__} to save, expected a dict")
    path = os.fspath(save_path)
    if os.path.exists(path):
        raise FileExistsError(f"'{path}' exists already; save to another path, or remove it first")
    tree = {_escaped(name): _storable(name, value) for name, value in save_obj.items()}
    layout = Layout(tree, h5py, _USER_BLOCK)
    checksum, length = 0, 0
    for piece in layout.pieces():
        checksum, length = zlib.crc32(piece, checksum), length + len(piece)
    with atomic_file(path) as file:
        file.write(_seal(checksum, length))
        for piece in layout.pieces():
            file.write(piece)


def load(path: str | os.PathLike[str], key: str | None = None) -> Any:
    """What `save` wrote: arrays, numpy scalars and str. With `key`, such as "model/full_precision", only that part."""
    h5py = need("h5py", "a checkpoint file of ORTTrainer")
    name = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no checkpoint file '{name}'")
    _check_seal(path)
    try:
        with h5py.File(path, "r") as file:
            return _part(file, key, h5py)
    except _MissingPartError:
        raise ValueError(f"'{name}' has no '{key}', expected a checkpoint file of ORTTrainer") from None
    except Exception as error:  # of a damaged file: h5py has no common class
        raise ValueError(f"'{name}' {UNREADABLE.format(error)}") from error


def _check_seal(path: str | os.PathLike[str]) -> None:
    """ValueError for a file that is no longer what was written, or no HDF5; before HDF5 itself, which may crash, reads
    it. The original's files have nothing to compare with."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        start, signature = file.read(_USER_BLOCK), file.read(len(_SIGNATURE))
        if start.startswith(_SIGNATURE):
            return
        if not start.startswith(_SEAL[:8].encode()) and signature != _SIGNATURE:
            raise ValueError(f"'{name}' is not a checkpoint file of ORTTrainer: it is not HDF5")
        length, found = len(signature), zlib.crc32(signature)
        while piece := file.read(1 << 22):
            length, found = length + len(piece), zlib.crc32(piece, found)
    if start != _seal(found, length):
        raise ValueError(f"'{name}' {UNREADABLE.format('its checksum is not that of its content')}")


def _seal(checksum: int, length: int) -> bytes:
    """The user block."""
    return _SEAL.format(checksum, length).encode().ljust(_USER_BLOCK, b"\0")


class _MissingPartError(Exception):
    """The file is whole, and has no such entry."""


def _part(file: Any, key: str | None, h5py: Any) -> Any:
    if not key:
        return _read(file, h5py)
    inside = "/".join(_escaped(part) for part in key.strip("/").split("/"))
    if inside not in file:
        raise _MissingPartError
    return _read(file[inside], h5py)


def _storable(path: str, value: Any) -> Any:
    """Dicts of arrays and text, by names that HDF5 takes; ValueError for anything else."""
    if isinstance(value, Mapping):
        return {_escaped(name): _storable(f"{path}/{name}", inner) for name, inner in value.items()}
    if isinstance(value, (str, bytes)):
        return value
    if hasattr(value, "detach"):  # a torch tensor
        value = _array_of(value.detach().cpu())
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise ValueError(f"'{path}': got {type(value).__name__}, expected arrays, tensors, numbers, text and dicts")
    return array


def _array_of(tensor: Any) -> np.ndarray[Any, Any]:
    if str(tensor.dtype) != "torch.bfloat16":
        return np.asarray(tensor.numpy())
    import ml_dtypes
    import torch

    return np.asarray(tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16))


def _read(item: Any, h5py: Any) -> Any:
    if isinstance(item, h5py.Group):
        return {_unescaped(name): _read(inner, h5py) for name, inner in item.items()}
    value = item[()]
    if item.attrs.get(STORED_AS) == "bfloat16":
        import ml_dtypes

        return value.view(ml_dtypes.bfloat16)
    return value.decode() if isinstance(value, bytes) else value


def _escaped(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"got {name!r} as a name to save under, expected a string that is not empty")
    escaped = name.replace("%", "%25").replace("/", "%2F")
    return "%2E" if escaped == "." else escaped


def _unescaped(name: str) -> str:
    return name.replace("%2E", ".").replace("%2F", "/").replace("%25", "%")
