"""to_onnx: complete models for any runtime, its options, users' own lowerings."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from backpass.torch import Dispatcher, GraphBuilder, OptimizationOptions, Value, create_input_names, to_onnx
from torch import fx, nn


class Block(nn.Module):
    """A bit of everything: tied weights, a buffer, a detached value, an input that comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("shift", torch.randn(8))

    def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> Any:
        x = self.norm(self.embedding(tokens) * scale + self.shift)
        y, _ = self.attention(x, x, x)
        return {"logits": self.head(x + y.detach()), "tokens": tokens, "none": None}


TOKENS, SCALE = torch.randint(0, 11, (2, 5)), torch.rand(8) + 0.5


def expected(module: nn.Module, *args: torch.Tensor) -> list[np.ndarray]:
    with torch.no_grad():
        found = module(*args)
    return [found["logits"].numpy(), found["tokens"].numpy()]


def close(ours: list[Any], eager: list[np.ndarray]) -> None:
    for mine, theirs in zip(ours, eager, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("opset", [18, None, *(pytest.param(v, marks=pytest.mark.slow) for v in (20, 22, 23))])
def test_runs_in_both_runtimes(opset: int | None) -> None:
    module = Block().eval()
    model = to_onnx(module, (TOKENS, SCALE), dynamic=True, target_opset=opset)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == (opset or 23)
    assert [i.name for i in model.graph.input] == ["tokens", "scale"]
    assert {"embedding.weight", "norm.weight", "shift"} <= {i.name for i in model.graph.initializer}
    assert "head.weight" not in {i.name for i in model.graph.initializer}
    onnx_session = onnxruntime.InferenceSession(model.SerializeToString())
    session = backpass.InferenceSession(model)
    for tokens in (TOKENS, torch.randint(0, 11, (3, 7))):
        feeds = {"tokens": tokens.numpy(), "scale": SCALE.numpy()}
        close(session.run(None, feeds), expected(module, tokens, SCALE))
        close(onnx_session.run(None, feeds), expected(module, tokens, SCALE))


def test_names_and_builder() -> None:
    module = Block().eval()
    names = create_input_names(module, (TOKENS, SCALE))
    assert names == ["tokens", "scale"]
    model, builder = to_onnx(
        module, (TOKENS, SCALE), input_names=["ids", "add"], output_names=["y", "same"], return_builder=True
    )
    assert [i.name for i in model.graph.input] == ["ids", "add"]
    assert [o.name for o in model.graph.output] == ["y", "same"]
    assert isinstance(builder, GraphBuilder)
    feeds = {"ids": TOKENS.numpy(), "add": SCALE.numpy()}
    close(backpass.InferenceSession(model).run(None, feeds), expected(module, TOKENS, SCALE))
    with pytest.raises(backpass.InvalidInput, match="input_names: got 1, expected 2"):
        to_onnx(module, (TOKENS, SCALE), input_names=["ids"])


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    module = Block().eval()
    plain = to_onnx(module, (TOKENS, SCALE), options=OptimizationOptions(remove_unused=False, patterns=None))
    less = to_onnx(module, (TOKENS, SCALE), options=OptimizationOptions(constant_folding=True, verbose=1), verbose=1)
    printed = capsys.readouterr().out
    assert "constant folding: " in printed
    assert "nodes, opset 23" in printed
    assert len(less.graph.node) < len(plain.graph.node)
    feeds = {"tokens": TOKENS.numpy(), "scale": SCALE.numpy()}
    for model in (plain, less):
        close(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds), expected(module, TOKENS, SCALE))
    with pytest.raises(ValueError, match="expected names among"):
        to_onnx(module, (TOKENS, SCALE), options=OptimizationOptions(patterns=["nonsense"]))


def test_patterns_shrink_what_they_should() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.transpose(0, 1).transpose(1, 2).contiguous(), x.reshape(6, 4).reshape(4, 6), x.exp() + x.exp()

    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    x = torch.randn(2, 3, 4)
    model = to_onnx(Module(), (x,))
    kinds = [n.op_type for n in model.graph.node]
    assert sorted(kinds) == ["Add", "Exp", "Reshape", "Transpose"]
    for mine, eager in zip(backpass.InferenceSession(model).run(None, {"x": x.numpy()}), function(x), strict=True):
        np.testing.assert_allclose(mine, eager.numpy(), rtol=1e-6)


def test_dispatcher_replaces_and_adds() -> None:
    dispatcher = Dispatcher()

    @dispatcher.register(torch.ops.aten.relu.default)
    def clipped(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
        return b.op("Clip", x, b.constant(0.0), b.constant(1.0))

    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.randn(2, 3) * 5
    model = to_onnx(module, (x,), dispatcher=dispatcher)
    assert [n.op_type for n in model.graph.node] == ["Gemm", "Clip"]
    found = backpass.InferenceSession(model).run(None, {"input": x.numpy()})[0]
    np.testing.assert_allclose(found, module(x).clamp(max=1).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert [n.op_type for n in to_onnx(module, (x,)).graph.node] == ["Gemm", "Relu"]


def test_graph_of_aten_operators_needs_no_capture() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w = torch.randn(2, 3), torch.randn(4, 3)
    graph = make_fx(lambda a, b: torch.relu(a @ b.t()) + 1, tracing_mode="fake")(x, w)
    model = to_onnx(graph, (x, w), input_names=create_input_names(graph, (x, w)))
    feeds = {name.name: value.numpy() for name, value in zip(model.graph.input, (x, w), strict=True)}
    np.testing.assert_allclose(
        backpass.InferenceSession(model).run(None, feeds)[0], (torch.relu(x @ w.t()) + 1).numpy(), rtol=1e-5
    )


def test_torchs_own_exporter() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    x = torch.randn(2, 3)
    model = to_onnx(module, (x,), exporter="torch", input_names=["input"])
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"input": x.numpy()})[0]
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(backpass.InvalidInput, match="exporter: got 'other'"):
        to_onnx(module, (x,), exporter="other")


def test_opsets_outside_the_range_are_refused() -> None:
    with pytest.raises(backpass.Unsupported, match="target_opset: got 12, expected 18 to 26"):
        to_onnx(nn.ReLU(), (torch.randn(2),), target_opset=12)


class Stopping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 2, padding_idx=0)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.embedding(tokens) * self.scale.detach() * self.scale).sum()


def test_gradients_stop_in_models_to_be_trained() -> None:
    module, tokens = Stopping(), torch.tensor([0, 1, 0])
    model = backpass.grad(to_onnx(module, (tokens,), stop_gradient=True), ["embedding.weight", "scale"])
    found = backpass.InferenceSession(model.SerializeToString()).run(None, {"tokens": tokens.numpy()})
    module(tokens).backward()
    for gradient, parameter in zip(found[1:], (module.embedding.weight, module.scale), strict=True):
        np.testing.assert_allclose(gradient, parameter.grad)


def test_by_torch_takes_dynamic_and_nothing_it_would_forget() -> None:
    module, x = nn.Linear(3, 2).eval(), torch.randn(4, 3)
    model = to_onnx(module, (x,), exporter="torch", dynamic=True)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for more in ({"dispatcher": Dispatcher()}, {"stop_gradient": True}):
        with pytest.raises(backpass.InvalidInput, match="exporter='torch'"):
            to_onnx(module, (x,), exporter="torch", **more)


@pytest.mark.parametrize("names", [{"input_names": ["a", "a"]}, {"input_names": ["a", "b"], "output_names": ["a"]}])
@pytest.mark.parametrize("exporter", ["backpass", "torch"])
def test_names_that_occur_twice(names: dict[str, list[str]], exporter: Any) -> None:
    with pytest.raises(backpass.InvalidInput, match="got 'a' twice"):
        to_onnx(torch.add, (torch.ones(2), torch.ones(2)), exporter=exporter, **names)


def test_functions_and_a_single_tensor() -> None:
    model = to_onnx(lambda x: x * 2 + 1, torch.ones(3))
    onnx.checker.check_model(model)
    assert [i.name for i in model.graph.input] == ["x"]
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(found, np.full(3, 3, np.float32))
    with pytest.raises(backpass.InvalidInput, match="module: got str, expected"):
        to_onnx("module", torch.ones(3))  # type: ignore[arg-type]


def test_branches_that_depend_on_data_are_said() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    with pytest.warns(UserWarning, match="branches that depend on data"):
        to_onnx(function, torch.ones(3))


def test_rewrites_leave_names_and_opset_as_they_are() -> None:
    module = Block().eval()
    plain, rewritten = (
        to_onnx(module, (TOKENS, SCALE), target_opset=18, options=options)
        for options in (OptimizationOptions(remove_unused=False, patterns=None), OptimizationOptions())
    )
    onnx.checker.check_model(rewritten, full_check=True)
    assert rewritten.opset_import == plain.opset_import
    assert rewritten.graph.input == plain.graph.input
    assert rewritten.graph.output == plain.graph.output
    before = {t.name: t for t in plain.graph.initializer}
    assert all(before[t.name] == t for t in rewritten.graph.initializer)
    assert {n for n, _ in module.named_parameters()} <= {t.name for t in rewritten.graph.initializer}
