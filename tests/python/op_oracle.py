"""Who says what a row's outputs should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import op_case

ORT_NEWEST_OPSET = 26  # of onnxruntime 1.31


def expected(item: op_case.Instance) -> list[Any]:
    """Outputs by the row's oracle. 16-bit inputs are given to it as float32."""
    oracle = item.row.oracle
    if callable(oracle):
        result = oracle(*[op_case.widen(v) for v in item.values], **item.case.attrs)
    elif oracle == "torch":
        result = from_torch(_torch_function(item.row.op))(*[op_case.widen(v) for v in item.values], **item.case.attrs)
    elif oracle == "reference":
        result = _reference(item)
    elif oracle == "ort":
        result = ort_session(item.model(as_float32=True)).run(
            None, {k: op_case.widen(v) for k, v in item.feeds.items()}
        )
    else:
        raise ValueError(f"oracle {oracle!r}: expected 'reference', 'ort', 'torch' or a function")
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _reference(item: op_case.Instance) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        evaluator = ReferenceEvaluator(item.model(as_float32=True))
        return evaluator.run(None, {k: op_case.widen(v) for k, v in item.feeds.items()})


def ort_session(model: onnx.ModelProto, threads: int = 0) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = min(model.ir_version, 10)  # onnxruntime lags behind
    for opset in older.opset_import:
        if opset.domain == "":
            opset.version = min(opset.version, ORT_NEWEST_OPSET)
    return ort.InferenceSession(older.SerializeToString(), options, providers=["CPUExecutionProvider"])


def from_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """An oracle from a function of torch tensors. Omitted inputs arrive as None."""

    def oracle(*inputs: Any, **attrs: Any) -> list[np.ndarray]:
        import torch

        tensors = [None if v is None else torch.from_numpy(np.ascontiguousarray(v).reshape(v.shape)) for v in inputs]
        result = function(*tensors, **attrs)
        return [r.detach().numpy() for r in (result if isinstance(result, (list, tuple)) else [result])]

    oracle.torch_function = function  # type: ignore[attr-defined]  # for its derivative
    return oracle


def torch_function(row: op_case.Row) -> Callable[..., Any] | None:
    """The row's forward in torch, whose derivative is that of the operator; None when it has none."""
    if row.torch is not None:
        return row.torch or None
    if row.oracle == "torch":
        return _torch_function(row.op)
    found = getattr(row.oracle, "torch_function", None)
    if found is None and row.domain == "":
        import torch_functions

        found = torch_functions.FUNCTIONS.get(row.op)
    return found


def _torch_function(op: str) -> Callable[..., Any]:
    import torch

    name = op.lower()
    return getattr(torch, name, None) or getattr(torch.nn.functional, name)
