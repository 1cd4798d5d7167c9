"""ExportCache: exported models on disk, so that the next process need not capture the module again.

An entry is ``<key>.json``, which says how inputs and outputs belong to the module and names the model beside it by its
content, ``<sha256>.onnx``. Both are written elsewhere first and then moved, so that any number of processes may share
a folder. Weights are not part of an entry. What does not fit is ignored, with one warning, and exported anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import torch

from backpass._staging import Staging
from backpass.ortmodule import io
from backpass.ortmodule.description import NoKeyError
from backpass.ortmodule.fingerprint import fingerprint
from backpass.torch import callbacks
from backpass.torch.model import ExportedModel, Fallback, InputSpec, OutputSpec, Slot

if TYPE_CHECKING:
    from backpass.ortmodule.manager import Manager
    from backpass.ortmodule.variant import Call, Variant

_FORMAT = "backpass export 1"


class ExportCache:
    """Looks exports up in a folder and leaves new ones there; does nothing when the folder's name is empty."""

    def __init__(self, folder: str, logger: logging.Logger) -> None:
        self._folder = Path(folder) if folder else None
        self._logger = logger
        self._warned = False

    def key(self, manager: Manager, call: Call, varying: list[list[int]] | None) -> str | None:
        """What the export of this call is found by; None where nothing is kept. To be asked for before the capture, as
        the next process will: what forward sets the first time it runs is no part of it."""
        if self._folder is None:
            return None
        try:
            decisive = [
                varying,
                manager.options.onnx_opset_version,
                json.dumps(io.dump(call.arguments)),
                manager.input_names(call.arguments),
                [(tuple(t.shape), str(t.dtype)) for t in call.tensors],
                call.autocast,
                call.default_dtype,
            ]
            return fingerprint(manager.module, call.tree, decisive)
        except (NoKeyError, TypeError, OSError) as error:
            self._logger.info("exports of %s are not cached: %s", manager.name, error)
            return None

    def load(self, key: str | None, manager: Manager, arguments: io.Structure, dynamic: bool) -> Variant | None:
        """The export another process made of the same module for the same call, if there is one."""
        if key is None or self._folder is None:
            return None
        path = self._folder / f"{key}.json"
        try:
            entry = json.loads(path.read_text())
            if entry["format"] != _FORMAT or entry["key"] != key:
                raise ValueError("it was written by something else")
            data = (self._folder / f"{entry['model']}.onnx").read_bytes()
            if hashlib.sha256(data).hexdigest() != entry["model"]:
                raise ValueError("its model was changed")
            missing = callbacks.unresolved(entry["python_ops"])
            if missing:
                self._logger.info("the cached export needs %s, which cannot be imported", ", ".join(missing))
                return None
            variant = manager.variant(_read(entry, data), arguments, io.load(entry["result"]), dynamic)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            self._warn(f"the cached export {path} is ignored: {type(error).__name__}: {error}")
            return None
        variant.from_cache = True
        return variant

    def store(self, key: str | None, variant: Variant) -> None:
        """Writes an export, unless something in it means nothing to another process."""
        if key is None or self._folder is None:
            return
        try:
            data = variant.exported.proto.SerializeToString()
            entry = _written(variant, key, hashlib.sha256(data).hexdigest())
        except TypeError as error:
            self._logger.info("the export is not cached: %s", error)
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with Staging(self._folder) as staging:
                staging.write(f"{entry['model']}.onnx", data)
                staging.write(f"{key}.json", json.dumps(entry).encode())
        except OSError as error:
            self._warn(f"the export could not be cached in {self._folder}: {error}")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self._logger.warning("%s", text)


def _written(variant: Variant, key: str, model: str) -> dict[str, Any]:
    exported = variant.exported
    if exported.draft:
        raise TypeError("it holds decisions that depend on the contents of tensors")
    for node in exported.proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "arguments" and not callbacks.is_portable(attribute.s.decode()):
                raise TypeError(f"[{node.op_type} '{node.name}'] has an argument that only this process has")
    return {
        "format": _FORMAT,
        "key": key,
        "model": model,
        "result": io.dump(variant.result),
        "inputs": [[s.name, s.kind, s.target, _dtype(s.dtype), list(s.shape)] for s in exported.inputs],
        "outputs": [[s.name, s.kind, s.target, _dtype(s.dtype), list(s.shape)] for s in exported.outputs],
        "template": [asdict(slot) for slot in exported.output_template],
        "fallbacks": [asdict(fallback) for fallback in exported.fallbacks],
        "python_ops": list(exported.python_ops),
        "guards": exported.guards,
    }


def _dtype(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _read(entry: dict[str, Any], data: bytes) -> ExportedModel:
    def spec(kind: Any, row: list[Any]) -> Any:
        name, role, target, dtype, shape = row
        return kind(name, role, target, dtype=getattr(torch, dtype), shape=tuple(shape))

    return ExportedModel(
        proto=onnx.load_from_string(data),
        inputs=[spec(InputSpec, row) for row in entry["inputs"]],
        outputs=[spec(OutputSpec, row) for row in entry["outputs"]],
        output_template=[Slot(**slot) for slot in entry["template"]],
        fallbacks=[Fallback(**fallback) for fallback in entry["fallbacks"]],
        python_ops=entry["python_ops"],
        guards=[str(text) for text in entry["guards"]],
    )
