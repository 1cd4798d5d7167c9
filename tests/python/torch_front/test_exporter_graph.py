"""The exporter's frame: inputs, outputs, names, symbolic sizes, what stays as it was."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
from backpass.torch import GraphBuilder, Slot, Value, export_module
from exporter_check import Function, check_values, run


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor, factor: float = 2.0) -> Any:
        h = self.second(torch.tanh(self.first(x)))
        return {"y": h * factor, "x": x, "n": x.shape[0], "none": None, "twice": [h, h]}


def test_tied_weights_are_one_input_and_outputs_keep_their_structure() -> None:
    exported = check_values(Tied(), (torch.randn(2, 3, 4),))
    assert [i.name for i in exported.inputs] == ["first.weight", "first.bias", "second.bias", "x"]
    assert [i.kind for i in exported.inputs] == ["parameter", "parameter", "parameter", "user"]
    assert len(exported.outputs) == 2  # y and h: x is an input, h is given once
    assert exported.output_template[1] == Slot("input", 3)


def test_sizes_stay_symbolic() -> None:
    exported = check_values(Tied(), (torch.randn(2, 3, 4),), [(torch.randn(5, 1, 4),), (torch.randn(1, 7, 4),)])
    assert exported.inputs[-1].shape[2] == 4
    assert all(isinstance(d, str) for d in exported.inputs[-1].shape[:2])


def test_arguments_that_are_not_tensors_are_remembered() -> None:
    module = Tied()
    exported = export_module(module, (torch.randn(2, 4), 3.0))
    assert [(s.target, s.value) for s in exported.python_inputs] == [(1, 3.0)]


def test_the_same_tensor_given_twice_is_two_inputs() -> None:
    x, y = torch.randn(3), torch.randn(3)
    exported = check_values(lambda a, b: a - 2 * b, (x, x))
    result, _ = run(exported, Function(None), (x, y))
    assert torch.allclose(result, x - 2 * y)


def test_capture_leaves_module_and_random_state_alone() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).train()
    module[1].eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    x = torch.randn(2, 3)
    state = torch.get_rng_state()
    export_module(module, (x,))
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert not module[1].training
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_the_builder_knows_what_usual_results_are_like() -> None:
    b = GraphBuilder()
    x, row = Value("x", torch.float64, (3, 1)), Value("row", torch.float64, (4,))
    total = b.op("Add", x, row)
    below = b.op("Less", total, 2)
    chosen = b.op("Where", below, 0, total)
    assert (total.dtype, total.shape) == (chosen.dtype, chosen.shape) == (torch.float64, (3, 4))
    assert (below.dtype, below.shape) == (torch.bool, (3, 4))
    assert (b.op("Shape", x).dtype, b.op("MatMul", x, row).shape) == (torch.int64, None)
    assert {tensor.data_type for tensor in b.initializers.values()} == {onnx.TensorProto.DOUBLE}
    with pytest.raises(TypeError, match="Add: got the number 1 beside no tensor"):
        b.op("Add", "of unknown type", 1)
