"""The PyTorch side of Backpass: modules and fx graphs to ONNX."""

from backpass import _needs_torch  # noqa: F401

# isort: split

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.capture import capture
from backpass.torch.convert import create_input_names, to_onnx
from backpass.torch.dispatch import Dispatcher, lowers
from backpass.torch.exporter import export_graph, export_module
from backpass.torch.model import ExportedModel, Fallback, InputSpec, OutputSpec, Slot
from backpass.torch.optimize import OptimizationOptions

__all__ = [
    "Dispatcher",
    "ExportedModel",
    "Fallback",
    "GraphBuilder",
    "InputSpec",
    "NoLoweringError",
    "OptimizationOptions",
    "OutputSpec",
    "Slot",
    "Value",
    "capture",
    "create_input_names",
    "export_graph",
    "export_module",
    "lowers",
    "to_onnx",
]
