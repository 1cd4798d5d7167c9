"""dump_onnx: files of every model that is compiled."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch

VARIABLE = "ONNXRT_DUMP_PATH"

_counters: dict[str, Iterator[int]] = {}


@contextlib.contextmanager
def dump_onnx(prefix: str, folder: str | os.PathLike[str] | None = None, clean: bool = False) -> Iterator[Path]:
    """Inside, each compiled graph is written as ``folder/prefixN.onnx`` with its fx graph in ``prefixN.txt``.

    ``clean`` empties the folder first. The prefix is handed on by the environment variable ``ONNXRT_DUMP_PATH``, which
    has its former value again afterwards.
    """
    place = Path(folder) if folder is not None else Path()
    if clean and folder is not None and place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)
    path = str(place / prefix)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = path
    _counters.pop(path, None)
    try:
        yield place
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def dump_model(model: onnx.ModelProto, graph: torch.fx.GraphModule) -> Path | None:
    """Writes a model where ``ONNXRT_DUMP_PATH`` says; None when it says nothing."""
    prefix = os.environ.get(VARIABLE)
    if not prefix:
        return None
    number = next(_counters.setdefault(prefix, itertools.count()))
    path = Path(f"{prefix}{number}.onnx")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    path.with_suffix(".txt").write_text(f"{graph.graph}\n\n{graph.print_readable(print_output=False)}\n")
    return path
