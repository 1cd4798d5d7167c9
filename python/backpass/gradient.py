"""grad: the gradient of any ONNX model, as another ONNX model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backpass import _core
from backpass.session import Model, name_list

if TYPE_CHECKING:
    import onnx


def grad(
    model: Model | onnx.ModelProto,
    wrt: Sequence[str],
    outputs: Sequence[str] | None = None,
    *,
    seeds: bool = False,
    standard_only: bool = True,
) -> onnx.ModelProto:
    """A model whose outputs are ``outputs`` followed by ``<name>_grad`` for each name in ``wrt``.

    ``wrt`` names inputs, initializers or intermediate values; ``outputs`` is all outputs that hold floats when None.
    What is differentiated is the sum of all their elements; with ``seeds``, the gradients that arrive at the outputs
    are inputs ``<output>_grad`` instead. The result has standard operators only, so that any runtime can run it;
    ``standard_only=False`` allows those of ONNX Runtime's training graphs, which Backpass runs faster.
    """
    from backpass import _needs_onnx  # noqa: F401, I001
    import onnx

    request = _core.GradientRequest()
    request.wrt = name_list("wrt", wrt)
    request.outputs = name_list("outputs", outputs)
    request.seeds_as_inputs = seeds
    request.standard_only = standard_only
    if isinstance(model, onnx.ModelProto):
        model = model.SerializeToString()
    found = _core.grad_bytes(model, request) if isinstance(model, bytes) else _core.grad_path(os.fspath(model), request)
    return onnx.load_model_from_string(found)
