"""Models given as a file or in memory; parameters too large to be copied about stay in their files."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from backpass._core import InvalidInput

Model = onnx.ModelProto | str | os.PathLike[str]
# Protobuf's limit for one message. What blocks and losses add must fit below it too.
LIMIT = 2**31
_ROOM = 2**24
BUFFER = "_grad.accumulation.buffer"


class Weights:
    """``model`` can be serialized; ``detached`` holds the parameters that had to be taken out for that.

    Those are inputs of ``model``, and their tensors refer to places in files. ``order`` is that of all initializers.
    """

    def __init__(self, source: Model, parameters: list[str]) -> None:
        self.detached: dict[str, TensorProto] = {}
        if isinstance(source, onnx.ModelProto):
            self.model = _in_memory(source)
            self.order = _names(self.model)
        elif isinstance(source, str | os.PathLike):
            self.model = onnx.load(source, load_external_data=False)
            self.order = _names(self.model)
            self._load(Path(source).resolve().parent, set(parameters))
        else:
            raise InvalidInput(f"model: got {type(source).__name__}, expected an onnx.ModelProto or the path of a file")

    def _load(self, folder: Path, parameters: set[str]) -> None:
        outside = [t for t in self.model.graph.initializer if external_data_helper.uses_external_data(t)]
        if self.model.ByteSize() + sum(map(_byte_count, outside)) > LIMIT - _ROOM:
            for tensor in outside:
                if tensor.name in parameters:
                    self._detach(tensor, folder)
            rest = self.model.ByteSize() + sum(_byte_count(t) for t in outside if t.name not in self.detached)
            if rest > LIMIT - _ROOM:
                raise InvalidInput(
                    f"constants of the model: got {rest} bytes, expected less than 2 GiB; name them in frozen_params, "
                    "which moves them to the checkpoint"
                )
        onnx.load_external_data_for_model(self.model, str(folder))

    def _detach(self, tensor: TensorProto, folder: Path) -> None:
        self.detached[tensor.name] = _anchored(tensor, folder)
        graph = self.model.graph
        taken = self.detached[tensor.name]
        graph.initializer.remove(tensor)
        for info in [i for i in graph.input if i.name == taken.name]:
            graph.input.remove(info)
        graph.input.append(helper.make_tensor_value_info(taken.name, taken.data_type, list(taken.dims)))

    def parameters(self, names: Iterable[str], present: Iterable[TensorProto]) -> list[TensorProto]:
        """The tensors of these names, detached or ``present``, in the order of the initializers."""
        tensors = {t.name: t for t in present} | self.detached
        wanted = set(names)
        return [tensors[name] for name in self.order if name in wanted and name in tensors]

    def sort_inputs(self, model: onnx.ModelProto) -> None:
        """Puts the detached parameters, and buffers made for them, where initializers would have been put."""
        if not self.detached:
            return
        place = {name: i for i, name in enumerate(self.order)}

        def rank(info: onnx.ValueInfoProto) -> tuple[int, int]:
            name = info.name.removesuffix(BUFFER)
            if name not in place:
                return 3 if name == "lazy_reset_grad" else 0, 0
            return 1 if name == info.name else 2, place[name]

        inputs = copy.deepcopy(sorted(model.graph.input, key=rank))
        del model.graph.input[:]
        model.graph.input.extend(inputs)


def array_of(tensor: TensorProto) -> np.ndarray[Any, Any]:
    """The elements of a tensor; those of a detached one are mapped, not read."""
    if not external_data_helper.uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    info = external_data_helper.ExternalDataInfo(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    if 0 in shape:
        return np.zeros(shape, dtype)  # what cannot be mapped
    return np.memmap(info.location, dtype, "r", offset=info.offset or 0, shape=shape or (1,)).reshape(shape)


def _in_memory(model: onnx.ModelProto) -> onnx.ModelProto:
    if model.ByteSize() > LIMIT:
        raise InvalidInput(
            f"model: got {model.ByteSize()} bytes, expected at most {LIMIT}; save it with its weights as external data "
            "and give the path of the file"
        )
    for tensor in model.graph.initializer:
        if external_data_helper.uses_external_data(tensor):
            raise InvalidInput(
                f"initializer {tensor.name!r}: got a reference to a file, expected its data; load the model with "
                "load_external_data=True, or give the path of the file"
            )
    return model


def _anchored(tensor: TensorProto, folder: Path) -> TensorProto:
    """A copy whose location is a whole path, after making sure that it lies in the folder of the model."""
    info = external_data_helper.ExternalDataInfo(tensor)
    path = (folder / info.location).resolve()
    if not path.is_relative_to(folder):
        raise InvalidInput(f"initializer {tensor.name!r}: data outside of the model's folder, in {str(path)!r}")
    end = (info.offset or 0) + _byte_count(tensor)
    if not path.is_file() or path.stat().st_size < end:
        raise InvalidInput(f"initializer {tensor.name!r}: expected a file of at least {end} bytes, {str(path)!r}")
    copied = copy.deepcopy(tensor)
    for entry in copied.external_data:
        if entry.key == "location":
            entry.value = str(path)
    return copied


def _byte_count(tensor: TensorProto) -> int:
    size = int(np.prod(list(tensor.dims), dtype=np.int64))
    return size * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _names(model: onnx.ModelProto) -> list[str]:
    return [tensor.name for tensor in model.graph.initializer]
