"""export_gradient_graph: a torch module, its loss and the gradients of its parameters in one file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch
from onnx import numpy_helper

from backpass._atomic_file import write_file
from backpass.gradient import grad
from backpass.torch.exporter import export_module
from backpass.torch.flat import FlatModule, varying_axes
from backpass.torch.model import ExportedModel

__all__ = ["export_gradient_graph"]

_NAMES = ("input", "labels")
_OLDEST_OPSET = 18


def export_gradient_graph(
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    example_input: torch.Tensor,
    example_labels: torch.Tensor,
    gradient_graph_path: str | os.PathLike[str],
    opset_version: int = 12,
) -> None:
    """Writes a model in standard operators that any runtime can run: inputs ``input``, ``labels`` and the parameters by
    name, outputs ``output``, ``loss`` and ``<parameter>_grad`` of those that require gradients.

    ``loss_fn(output, labels)`` is a number. The first dimensions of input and labels may vary. Opsets older than 18
    mean 18.
    """

    def forward(given: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(given)
        return output, loss_fn(output, labels)

    examples = example_input.detach(), example_labels.detach()
    with _training(model):
        exported = export_module(
            FlatModule(model, forward, _NAMES),
            examples,
            dynamic_shapes=varying_axes(_NAMES, [[0] if e.dim() else [] for e in examples]),
            target_opset=max(opset_version, _OLDEST_OPSET),
        )
    output = _arrange(exported, model)
    wanted = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = grad(exported.proto, wanted, ["loss"])
    found.graph.output.insert(0, output)
    write_file(gradient_graph_path, found.SerializeToString())


@contextlib.contextmanager
def _training(model: torch.nn.Module) -> Iterator[None]:
    """In training mode within; every part is in its own again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _arrange(exported: ExportedModel, model: torch.nn.Module) -> onnx.ValueInfoProto:
    """Gives the results their names, makes buffers constants, and leaves the loss as the only output; the other one is
    returned."""
    graph = exported.proto.graph
    found = [exported.outputs[slot.index].name for slot in exported.output_template]
    renamed = dict(zip(found, ("output", "loss"), strict=True))
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    infos = {renamed.get(info.name, info.name): info for info in graph.output}
    output = onnx.ValueInfoProto()
    output.CopyFrom(infos["output"])
    output.name = "output"
    loss = onnx.ValueInfoProto()
    loss.CopyFrom(infos["loss"])
    loss.name = "loss"
    del graph.output[:]
    graph.output.append(loss)
    buffers = dict(model.named_buffers())
    kept = [info for info in graph.input if info.name not in buffers]
    order = {name: place for place, name in enumerate((*_NAMES, *dict(model.named_parameters())))}
    graph.initializer.extend(
        numpy_helper.from_array(buffers[info.name].detach().numpy(), info.name)
        for info in graph.input
        if info.name in buffers
    )
    del graph.input[:]
    graph.input.extend(sorted(kept, key=lambda info: order[info.name]))
    return output
