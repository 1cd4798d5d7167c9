"""Files of the first generation: one by torch.save, or one per rank where each holds a part of the optimizer."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backpass._atomic_file import atomic_file
from backpass._core import AtomicFile, InvalidInput
from backpass.trainer.flat_state import COUNT, STEP, counters_of, with_counters

PREFIX = "ORT_checkpoint"
ENDING = ".ort.pt"
UNREADABLE = (
    "is no checkpoint that can be read: it is damaged, cut short, or of another program ({}); "
    "load an older checkpoint, or copy the file again"
)
VIEW = "_view_"
_ZIP = b"PK\x03\x04"
_OF_A_STATE = (AssertionError, RuntimeError, ValueError, InvalidInput)  #: what checks of a state raise
_OF_OTHER_FORM = (AttributeError, IndexError, KeyError, TypeError)  #: what comes of entries that nobody expects
MOMENT = re.compile("^Moment_[12]_")


class MissingCheckpointError(FileNotFoundError, AssertionError):
    """AssertionError is what scripts catch that were written for the original."""


def checkpoint_name(prefix: str, rank: int | None = None, size: int = 1) -> str:
    """Of the only file, or of a rank's."""
    return f"{prefix}{ENDING}" if rank is None else f"{prefix}.ZeRO.{rank}.{size - 1}{ENDING}"


def save_checkpoint(
    model: Any,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = PREFIX,
    checkpoint_state_dict: Mapping[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Writes a trainer's state, with what else the caller wants to have back, to a file of the folder.

    The file takes the place of an older one once it is complete.
    """
    torch = _torch()
    folder = Path(checkpoint_dir)
    if not folder.is_dir():
        raise MissingCheckpointError(f"checkpoint_dir: {folder} is no folder; make it first")
    path = folder / checkpoint_name(checkpoint_prefix, *model.shard())
    if path.exists():
        warnings.warn(f"{path} is there already and is overwritten", stacklevel=2)
    state = model.state_dict(include_optimizer_state)
    contents = {"model": part_of(state, *model.shard()), **(checkpoint_state_dict or {})}
    with atomic_file(path) as file:
        writer = _Writer(file)
        torch.save(contents, writer)
        writer.check()


class _Writer:
    """Passes on what torch writes, up to the first failure, which it keeps: torch would tell of another one."""

    def __init__(self, file: AtomicFile) -> None:
        self._file = file
        self._failure: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        try:
            if self._failure is None:
                self._file.write(content)
        except OSError as failure:
            self._failure = failure
        return len(content)

    def flush(self) -> None:
        """That the file is whole is seen to when it is closed."""

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure


def load_checkpoint(
    model: Any,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = PREFIX,
    strict: bool = False,
) -> dict[str, Any]:
    """Loads what `save_checkpoint` wrote, one file or those of all ranks, and gives back what was stored beside it.

    Files are read with torch.load(weights_only=True): they cannot run code.
    """
    paths = checkpoint_files(checkpoint_dir, checkpoint_prefix)
    if len(paths) > 1:
        warnings.warn(f"{len(paths)} files of {checkpoint_prefix!r} are joined", stacklevel=2)
    contents = [read_checkpoint(path) for path in paths]
    states = [content.pop("model") for content in contents]
    with naming_files(paths):
        model.load_state_dict(states[0] if len(states) == 1 else join_shards(states), strict=strict)
    return dict(contents[0])


@contextmanager
def naming_files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[None]:
    """What is found to be wrong with a state that was read from files is an error of the same kind that names them."""
    try:
        yield
    except (AssertionError, RuntimeError, ValueError, *_OF_OTHER_FORM) as error:
        names = ", ".join(f"'{os.fspath(path)}'" for path in paths)
        if isinstance(error, _OF_OTHER_FORM):
            raise ValueError(f"{names} {UNREADABLE.format(repr(error))}") from error
        if type(error) not in _OF_A_STATE or names in str(error):
            raise
        raise type(error)(f"{names}: {error}") from error


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file of `save_checkpoint` holds. ValueError, with the file, for one that is damaged or something else."""
    torch = _torch()
    try:
        _check_sums(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # of zipfile, pickle and torch: there is no common class
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"'{os.fspath(path)}' {UNREADABLE.format(reason)}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
        found = sorted(content) if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(
            f"'{os.fspath(path)}': got {found}, expected 'model' with a state; save_checkpoint writes such"
        )
    return dict(content)


def _check_sums(path: str | os.PathLike[str]) -> None:
    """BadZipFile for values that are not those that were written. torch does not look at the sums it writes."""
    with open(path, "rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            return  # of torch before 1.6, which wrote none
        with zipfile.ZipFile(file) as entries:
            if damaged := entries.testzip():
                raise zipfile.BadZipFile(f"the checksum of '{damaged}' is another")


def checkpoint_files(checkpoint_dir: str | os.PathLike[str], prefix: str) -> list[Path]:
    """The only file of a prefix, or those of all ranks, by rank."""
    folder = Path(checkpoint_dir)
    single = folder / checkpoint_name(prefix)
    shards = _shards(folder, prefix) if folder.is_dir() else {}
    if single.exists() and shards:
        raise ValueError(f"{folder} has {single.name} and files of {len(shards)} ranks; remove those that are outdated")
    if single.exists():
        return [single]
    if not shards:
        raise MissingCheckpointError(f'No checkpoint files found with prefix "{prefix}" in directory {folder}.')
    sizes = {size for _, size in shards}
    if len(sizes) > 1:
        raise ValueError(
            f"{folder} has checkpoints {prefix!r} of runs with {sorted(sizes)} ranks; remove the outdated ones"
        )
    (size,) = sizes
    expected = [(rank, size) for rank in range(size)]
    if missing := [checkpoint_name(prefix, *key) for key in expected if key not in shards]:
        raise MissingCheckpointError(f"of {size} ranks' checkpoints {missing} are missing in directory {folder}")
    return [shards[key] for key in expected]


def _shards(folder: Path, prefix: str) -> dict[tuple[int, int], Path]:
    """By rank and number of ranks."""
    pattern = re.compile(rf"{re.escape(prefix)}\.ZeRO\.(\d+)\.(\d+){re.escape(ENDING)}")
    found = ((pattern.fullmatch(path.name), path) for path in folder.iterdir())
    return {(int(match[1]), int(match[2]) + 1): path for match, path in found if match}


def part_of(state: Mapping[str, Any], rank: int = 0, size: int = 1) -> Mapping[str, Any]:
    """What a rank stores: weights as they are, of each moment a flat piece."""
    if size == 1:
        return state
    mine: dict[str, Any] = {}
    for name, value in state.items():
        if MOMENT.match(name):
            mine[f"{name}{VIEW}{rank}"] = value.reshape(-1).tensor_split(size)[rank].clone()
        else:
            mine[name] = value
    return with_counters(mine, counters_of(state))


def join_shards(states: Sequence[Mapping[str, Any]]) -> OrderedDict[str, Any]:
    """One state from those of all ranks, in their order: pieces `<name>_view_<i>` are put together again."""
    whole: dict[str, Any] = {}
    pieces: dict[str, list[Any]] = {}
    for state in states:
        for name, value in state.items():
            stem, view, number = name.rpartition(VIEW)
            if view and number.isdigit():
                pieces.setdefault(stem, []).append(value)
            else:
                whole.setdefault(name, value)
    for name, parts in pieces.items():
        whole[name] = parts[0] if name.startswith((COUNT, STEP)) else _join(name, parts, whole)
    return with_counters(whole, counters_of(states[0]))


def _join(name: str, parts: Sequence[Any], whole: Mapping[str, Any]) -> Any:
    """Flat pieces take the shape of the weight they belong to, which every rank holds."""
    flat = _torch().cat([part.reshape(-1) for part in parts])
    weight = MOMENT.sub("", name)
    like = next((whole[key] for key in (weight, f"{weight}_fp16") if key in whole), None)
    if like is None:
        return flat
    if flat.numel() != like.numel():
        raise ValueError(
            f"[{name}] elements of all ranks: got {flat.numel()}, expected {like.numel()} as in {weight!r}"
        )
    return flat.reshape(like.shape)


def _torch() -> Any:
    from backpass._needs_onnx import need

    need("torch", "writes checkpoints with torch.save, and the package torch is")
    import torch

    return torch
