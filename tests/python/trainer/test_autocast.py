"""Float32 models with casts to bfloat16, against torch's autocast and the float32 run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from backpass import InferenceSession, _core
from backpass.torch import export_module
from onnx import TensorProto, helper
from torch import nn

BFLOAT16, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.last(self.layer(x)), -1).mean(1)


def _modules() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(7, 33), nn.ReLU(), nn.LayerNorm(33), nn.Linear(33, 3), nn.Softmax(-1))
    conv = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4)
    )
    odd = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 17), nn.GELU(), nn.Linear(17, 1))
    return {
        "mlp": (mlp, torch.randn(5, 7)),
        "conv": (conv, torch.randn(2, 3, 8, 8)),
        "odd": (odd, torch.randn(3, 1)),
        "empty": (nn.Linear(4, 3), torch.randn(0, 4)),
        "attending": (Attending(), torch.randn(3, 6, 16)),
    }


def _as_file(module: nn.Module, x: torch.Tensor, opset: int | None = None) -> onnx.ModelProto:
    """A model with weights as initializers."""
    exported = export_module(module, (x,), stop_gradient=False, target_opset=opset)
    model, state = exported.proto, {**dict(module.named_parameters()), **dict(module.named_buffers())}
    kept = [v for v in model.graph.input if v.name not in state]
    for value in list(model.graph.input):
        if value.name in state:
            array = state[value.name].detach().numpy()
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def _types(model: onnx.ModelProto) -> dict[str, set[int]]:
    """Element types of the results of each kind of node, by shape inference."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.output)}
    found: dict[str, set[int]] = {}
    for node in inferred.node:
        found.setdefault(node.op_type, set()).add(known[node.output[0]])
    return found


@pytest.mark.parametrize("name", ["mlp", "conv", "odd", "empty", "attending"])
def test_follows_torch_autocast(name: str) -> None:
    module, x = _modules()[name]
    module.eval()
    model = _as_file(module, x)
    cast = onnx.load_from_string(_core.autocast_model(model.SerializeToString()))
    onnx.checker.check_model(cast, full_check=True)
    with torch.no_grad():
        exact = module(x)
        with torch.autocast("cpu", torch.bfloat16):
            theirs = module(x).float()
    (ours,) = InferenceSession(cast.SerializeToString()).run(None, {cast.graph.input[0].name: x.numpy()})
    assert ours.dtype == np.float32
    size = float(exact.abs().max()) if exact.numel() else 1.0
    limit = max(2 * float((theirs - exact).abs().max()) if exact.numel() else 0.0, 2**-7 * size)
    assert np.abs(ours - exact.numpy()).max(initial=0.0) <= limit


@pytest.mark.parametrize("opset", [None, 18])
def test_kinds_of_operators(opset: int | None) -> None:
    module, x = _modules()["mlp"]
    cast = onnx.load_from_string(_core.autocast_model(_as_file(module, x, opset).SerializeToString()))
    types = _types(cast)
    products = {op for op in types if op in ("MatMul", "Gemm")}
    assert products
    assert all(types[op] == {BFLOAT16} for op in products)
    assert types["Relu"] == {BFLOAT16}
    assert types["LayerNormalization"] == types["Softmax"] == {FLOAT}


@pytest.mark.parametrize("name", ["mlp", "conv", "attending"])
def test_gradients(name: str) -> None:
    """They are float32, and as far from the exact ones as torch's under autocast."""
    module, x = _modules()[name]
    module.train(name != "attending")
    weights = dict(module.named_parameters())
    scale = torch.randn_like(module(x))

    def gradients(narrow: bool) -> dict[str, torch.Tensor]:
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            (module(x).float() * scale).sum().backward()
        return {n: p.grad.clone() for n, p in weights.items() if p.grad is not None}

    model = _as_file(module, x)
    result = model.graph.output[-1].name  # behind new values of buffers
    model.graph.initializer.append(onnx.numpy_helper.from_array(scale.numpy(), "scale"))
    model.graph.node.append(helper.make_node("Mul", [result, "scale"], ["scaled"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["scaled"], ["loss"], keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", FLOAT, []))
    cast = _core.autocast_model(model.SerializeToString())
    state, options = _core.Trainer.state_of(cast, "loss", ["scale"]), _core.TrainerOptions()
    options.algorithm = "sgd"
    trainer = _core.Trainer(state, options)
    program = trainer.add_model(cast, "loss", ["loss"])
    trainer.train_step(program, _core.tensors_from_torch([x]), 1.0)
    assert trainer.trained == list(weights)
    exact, theirs = gradients(False), gradients(True)
    for weight in weights:
        ours = weights[weight].detach() - torch.from_numpy(state.parameter(weight).array())
        size = float(exact[weight].abs().max())
        limit = max(3 * float((theirs[weight] - exact[weight]).abs().max()), 2**-6 * size)
        assert float((ours - exact[weight]).abs().max()) <= limit, weight


def test_outer_values_of_subgraphs_stay_float32() -> None:
    """A branch reads the product: the product has its float32 form under its name."""
    inner = helper.make_graph(
        [helper.make_node("Exp", ["p"], ["r"])], "b", [], [helper.make_tensor_value_info("r", FLOAT, [2, 2])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["p"], ["q"])], "c", [], [helper.make_tensor_value_info("q", FLOAT, [2, 2])]
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "x"], ["p"]),
            helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=other),
        ],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2, 2]), helper.make_tensor_value_info("yes", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", FLOAT, [2, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    cast = _core.autocast_model(model.SerializeToString())
    x = np.array([[1, 2], [3, 0.5]], np.float32)
    (y,) = InferenceSession(cast).run(None, {"x": x, "yes": np.array(False)})
    np.testing.assert_array_equal(y, -(x @ x))


def test_what_is_not_float32_is_left() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [2, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    cast = onnx.load_from_string(_core.autocast_model(model.SerializeToString()))
    assert [node.op_type for node in cast.graph.node] == ["MatMul"]
