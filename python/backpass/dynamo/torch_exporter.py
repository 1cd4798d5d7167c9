"""Graphs exported by torch.onnx instead of Backpass's exporter."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import onnx
import torch

from backpass._core import Unsupported
from backpass.dynamo.exported import Exported
from backpass.dynamo.options import CompileOptions
from backpass.torch import Slot

# torch.onnx writes these down in their inference form, which gives other results without a word.
_WRONG_IN_TRAINING = ("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional", "rrelu_with_noise")
OPSET = 20


def export_by_torch(module: torch.fx.GraphModule, options: CompileOptions) -> Exported:
    """Raises Unsupported for graphs that torch.onnx exports wrongly, and whatever torch.onnx raises."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node in module.graph.nodes:
        if any(name in str(node.target) for name in _WRONG_IN_TRAINING):
            raise Unsupported(
                f"[{node.target} '{node.name}'] exporter='torch': torch.onnx exports it as in inference; "
                "use Backpass's exporter"
            )
    examples, shapes = _examples(placeholders)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.export.export(_Positional(module), examples, dynamic_shapes=shapes, strict=False)
        made = torch.onnx.export(program, opset_version=OPSET, optimize=options.optimize, verbose=False)
    assert made is not None
    proto = made.model_proto
    names = list(program.graph_signature.user_inputs)
    feeds = [names.index(value.name) for value in proto.graph.input]
    results = [Slot("output", i) for i in range(len(proto.graph.output))]
    return Exported(_without_metadata(proto), feeds, results, [])


class _Positional(torch.nn.Module):
    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__()
        self.graph_module = module

    def forward(self, *arguments: Any) -> Any:
        return self.graph_module(*arguments)


def _examples(placeholders: list[torch.fx.Node]) -> tuple[tuple[Any, ...], Any]:
    """Tensors of the extents torch.compile saw, and which of those vary."""
    examples: list[Any] = []
    varies: list[Any] = []
    for node in placeholders:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"[placeholder '{node.name}'] exporter='torch': sizes as inputs; use Backpass's exporter")
        extents = [d if isinstance(d, int) else d.node.hint for d in value.shape]
        examples.append(torch.zeros(extents, dtype=value.dtype))
        varies.append({i: torch.export.Dim.AUTO for i, d in enumerate(value.shape) if not isinstance(d, int)} or None)
    return tuple(examples), {"arguments": tuple(varies)} if any(varies) else None


def _without_metadata(proto: onnx.ModelProto) -> onnx.ModelProto:
    """torch.onnx writes stack traces beside each node."""
    for node in proto.graph.node:
        del node.metadata_props[:]
    return proto
