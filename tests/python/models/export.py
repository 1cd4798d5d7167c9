"""torch module -> model.onnx, kept under build/ so that it happens once per content of this package."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch

from models.network import Extents, Network

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Export:
    """How a network becomes a file: exporter ("dynamo" or "script"), opset, and whether extents may vary."""

    exporter: str
    opset: int
    dynamic: bool
    size: str = "test"

    def __str__(self) -> str:
        return f"{self.exporter}{self.opset}-{'dynamic' if self.dynamic else 'static'}"


def export(network: Network, how: Export, extents: Extents | None = None) -> Path:
    """The model file. `extents` are those of the example inputs: what a static export is fixed to."""
    extents = extents or network.shapes[0]
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{network.name}-{how.size}-{how}-{extents}-{_content_key()}.onnx"
    target = folder / name
    with _only_one(folder / f".{name}.lock"):
        if not target.exists():
            partial = folder / f".{os.getpid()}-{name}"
            _export_to(partial, network, how, extents)
            partial.replace(target)
    return target


def _export_to(path: Path, network: Network, how: Export, extents: Extents) -> None:
    example = tuple(torch.from_numpy(array) for array in network.example(how.size, extents).values())
    symbols = network.symbols(how.exporter) if how.dynamic else {}
    settings: dict[str, Any] = {
        "input_names": list(network.dynamic),
        "output_names": list(network.outputs),
        "opset_version": how.opset,
        "dynamo": how.exporter == "dynamo",
    }
    if how.exporter == "dynamo":
        dims = tuple({axis: torch.export.Dim(s) for axis, s in axes.items()} for axes in symbols.values())
        settings |= {"external_data": False, "verbose": False, "dynamic_shapes": dims or None}
    else:
        settings["dynamic_axes"] = symbols
    with _quiet(), torch.no_grad():
        torch.onnx.export(network.module(how.size), example, str(path), **settings)
    _check_file(path, how, symbols)


def _check_file(path: Path, how: Export, symbols: dict[str, dict[int, str]]) -> None:
    """Exporters fall back to fixed extents or to another opset with no more than a line in the log."""
    model = onnx.load(path)
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    inputs = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    lost = [s for name, axes in symbols.items() for axis, s in axes.items() if inputs[name][axis] != s]
    if opset != how.opset or lost:
        path.unlink()
        raise RuntimeError(f"asked torch for {how}: got opset {opset}, fixed extents instead of {lost}")


@functools.cache
def _content_key() -> str:
    """Changes with anything an export depends on."""
    digest = hashlib.sha256(f"{torch.__version__} {onnx.__version__}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _cache_folder() -> Path:
    return ROOT / "build" / "exports"


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Test processes running side by side wait for one export instead of each making its own."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters talk a lot on the way."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
