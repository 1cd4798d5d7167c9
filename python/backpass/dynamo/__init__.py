"""``torch.compile(model, backend="backpass")``: graphs of torch.compile run by the engine."""

from backpass import _needs_torch  # noqa: F401

# isort: split

from backpass.dynamo.backend import backpass, make_aot_ort, record
from backpass.dynamo.dump import dump_onnx
from backpass.dynamo.options import CompileOptions
from backpass.dynamo.registration import register
from backpass.dynamo.report import CompileRecord, GraphReport
from backpass.dynamo.training import train_loop

__all__ = [
    "CompileOptions",
    "CompileRecord",
    "GraphReport",
    "backpass",
    "dump_onnx",
    "make_aot_ort",
    "record",
    "register",
    "train_loop",
]

register("backpass")
