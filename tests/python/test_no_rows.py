"""Networks of transformers over rows that data choose, of which there may be none: planned and optimised against node
by node, forward and backward; of no rows, gradients of parameters are 0."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from backpass import _core
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH, CLASSES, IGNORED = 6, 16, 11, -100
OPSETS = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("backpass", 1)]


class Net:
    """Nodes over the rows of x that have a label."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.places = self.op("LabelledRows", "labels", domain="backpass", ignore_index=IGNORED)
        self.rows = self.op("Gather", "x", self.places)
        flat = self.op("Reshape", "labels", self.constant(np.array([-1])))
        self.labels = self.op("Gather", flat, self.places)

    def op(self, name: str, *inputs: str, outputs: int = 1, which: int = 0, **attributes: Any) -> str:
        names = [f"{name.lower()}{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(name, list(inputs), names, name=f"n{len(self.nodes)}", **attributes))
        return names[which]

    def ms(self, name: str, *inputs: str, **more: Any) -> str:
        return self.op(name, *inputs, domain="com.microsoft", **more)

    def constant(self, value: Any, dtype: Any = None) -> str:
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = self.rng.standard_normal(shape).astype(np.float32)
        return name

    def model(self, result: str) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["r", WIDTH]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, ["r"]),
            *(helper.make_tensor_value_info(n, TensorProto.FLOAT, w.shape) for n, w in self.weights.items()),
        ]
        graph = helper.make_graph(self.nodes, "g", infos, [onnx.ValueInfoProto(name=result)], self.constants)
        return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def drop(n: Net, v: str, op: str, *more: str, **attributes: Any) -> str:
    ratio, training = n.constant(0.4, np.float32), n.constant(True)
    return n.op(op, v, ratio, training, *more, **attributes)


def linear(n: Net, v: str) -> str:
    return n.op("Add", n.op("MatMul", v, n.weight(WIDTH, WIDTH)), n.weight(WIDTH))


def heads(n: Net, v: str) -> str:
    """Each row attends to itself over its heads, by products of batches."""
    q, k, w = (n.op("Reshape", linear(n, v), n.constant([0, 4, 4])) for _ in range(3))
    scores = n.op("Softmax", n.op("MatMul", q, n.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    return n.op("Reshape", n.op("MatMul", scores, w), n.constant([0, WIDTH]))


def written_gelu(n: Net, v: str) -> str:
    half = n.op("Mul", v, n.constant(0.5, np.float32))
    one = n.op("Add", n.op("Erf", n.op("Div", v, n.constant(2**0.5, np.float32))), n.constant(1, np.float32))
    return n.op("Mul", half, one)


def written_norm(n: Net, v: str) -> str:
    last = n.constant([-1])
    centred = n.op("Sub", v, n.op("ReduceMean", v, last))
    variance = n.op("ReduceMean", n.op("Pow", centred, n.constant(2, np.float32)), last)
    deviation = n.op("Sqrt", n.op("Add", variance, n.constant(1e-5, np.float32)))
    return n.op("Add", n.op("Mul", n.op("Div", centred, deviation), n.weight(WIDTH)), n.weight(WIDTH))


def there_and_back(n: Net, v: str) -> str:
    whole = n.ms("PadAndUnflatten", v, n.places, n.constant([1, ROWS]))
    return n.ms("FlattenAndUnpad", n.op("Tanh", whole), n.places, outputs=2)


def split_and_joined(n: Net, v: str) -> str:
    a, b = n.op("Split", v, axis=1, num_outputs=2, outputs=2), ""
    b = n.nodes[-1].output[1]
    return n.op("Concat", n.op("Sigmoid", b), a, axis=1)


LAYERS: dict[str, Callable[[Net, str], str]] = {
    "MatMul": lambda n, v: n.op("MatMul", v, n.weight(WIDTH, WIDTH)),
    "linear": linear,
    "Gemm": lambda n, v: n.op("Gemm", v, n.weight(WIDTH, WIDTH), n.weight(WIDTH), alpha=0.5),
    "Gemm transposed": lambda n, v: n.op("Gemm", v, n.weight(WIDTH, WIDTH), n.weight(1, WIDTH), transB=1),
    "FusedMatMul": lambda n, v: n.ms("FusedMatMul", v, n.weight(WIDTH, WIDTH), transB=1, alpha=0.3),
    "linear Gelu": lambda n, v: linear(n, n.op("Gelu", linear(n, v))),
    "linear Relu": lambda n, v: linear(n, n.op("Relu", linear(n, v))),
    "Gelu": lambda n, v: n.op("Gelu", v),
    "Gelu tanh": lambda n, v: n.op("Gelu", v, approximate="tanh"),
    "written Gelu": written_gelu,
    "FastGelu": lambda n, v: n.ms("FastGelu", v, n.weight(WIDTH)),
    "BiasGelu": lambda n, v: n.ms("BiasGelu", v, n.weight(WIDTH)),
    "SiLU": lambda n, v: n.op("Mul", v, n.op("Sigmoid", v)),
    "LayerNormalization": lambda n, v: n.op("LayerNormalization", v, n.weight(WIDTH), n.weight(WIDTH)),
    "SkipLayerNormalization": lambda n, v: n.ms(
        "SkipLayerNormalization", v, n.op("Tanh", v), n.weight(WIDTH), n.weight(WIDTH)
    ),
    "SimplifiedLayerNormalization": lambda n, v: n.op("SimplifiedLayerNormalization", v, n.weight(WIDTH)),
    "written norm": written_norm,
    "Softmax": lambda n, v: n.op("Softmax", v),
    "Softmax of the first axis": lambda n, v: n.op("Softmax", v, axis=0),
    "LogSoftmax": lambda n, v: n.op("LogSoftmax", v),
    "Dropout": lambda n, v: drop(n, v, "Dropout"),
    "RowDropout": lambda n, v: drop(n, v, "RowDropout", n.places, domain="backpass", stream="whole"),
    "bias": lambda n, v: n.op("Add", v, n.weight(WIDTH)),
    "scale": lambda n, v: n.op("Mul", v, n.weight(1, WIDTH)),
    "residual": lambda n, v: n.op("Add", v, linear(n, v)),
    "heads": heads,
    "there and back": there_and_back,
    "split": split_and_joined,
    "Expand": lambda n, v: n.op("Mul", v, n.op("Expand", n.weight(1, WIDTH), n.op("Shape", v))),
    "Where": lambda n, v: n.op("Where", n.op("Greater", v, n.constant(0, np.float32)), v, n.weight(WIDTH)),
    "half": lambda n, v: n.op("Cast", n.op("Tanh", n.op("Cast", v, to=TensorProto.FLOAT16)), to=TensorProto.FLOAT),
}


def scores(n: Net, v: str) -> str:
    return n.op("Add", n.op("MatMul", v, n.weight(WIDTH, CLASSES)), n.weight(CLASSES))


def entropy(n: Net, v: str, reduction: str) -> str:
    loss = n.op("SoftmaxCrossEntropyLoss", scores(n, v), n.labels, reduction=reduction, ignore_index=IGNORED)
    return n.op("ReduceSum", loss, keepdims=0) if reduction == "none" else loss


def likelihood(n: Net, v: str, reduction: str) -> str:
    logs = n.op("LogSoftmax", scores(n, v), axis=-1)
    return n.op("NegativeLogLikelihoodLoss", logs, n.labels, reduction=reduction, ignore_index=IGNORED)


def microsoft(n: Net, v: str, reduction: str) -> str:
    return n.ms("SoftmaxCrossEntropyLossInternal", scores(n, v), n.labels, reduction=reduction, outputs=2)


def smoothed(n: Net, v: str, reduction: str) -> str:
    loss = functools.partial(n.op, "ReduceMean" if reduction == "mean" else "ReduceSum", keepdims=0)
    return loss(n.op("LogSoftmax", scores(n, v)))


LOSSES: dict[str, Callable[[Net, str], str]] = {
    "sum of squares": lambda n, v: n.op("ReduceSumSquare", v, keepdims=0),
    "mean of all": lambda n, v: n.op("ReduceMean", v, keepdims=0),
    "mean of rows": lambda n, v: n.op("ReduceSum", n.op("ReduceMean", v, n.constant([0])), keepdims=0),
}
KINDS = {"entropy": entropy, "likelihood": likelihood, "microsoft": microsoft, "smoothed": smoothed}
for _name, _loss in KINDS.items():
    for _reduction in ("mean", "sum", "none") if _loss is entropy else ("mean", "sum"):
        LOSSES[f"{_name}, {_reduction}"] = functools.partial(lambda n, v, f, r: f(n, v, r), f=_loss, r=_reduction)


def is_nan_of_nothing(loss: str) -> bool:
    """ONNX Runtime's own loss is 0 then."""
    return "mean" in loss and "microsoft" not in loss


def step(session: Any, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The loss, and the gradients of x and the weights."""
    (loss,), pending = session.forward(given, True, 3)
    gradient = torch.ones_like(torch.from_dlpack(loss))
    return [torch.from_dlpack(t).clone() for t in (loss, *session.backward(pending, [gradient]))]


def sessions(n: Net, model: onnx.ModelProto) -> list[Any]:
    wanted = ["x", *n.weights]
    options = [_core.SessionOptions(num_threads=1, reference=r) for r in (False, True)]
    return [_core.ModuleSession.from_bytes(model.SerializeToString(), wanted, o) for o in options]


def labels_with(count: int) -> torch.Tensor:
    labels = torch.full((ROWS,), IGNORED)
    labels[torch.arange(count) * 2 + 1] = torch.arange(count) * 3 % CLASSES
    return labels


def check(n: Net, result: str, empty_loss_is_nan: bool) -> None:
    planned, reference = sessions(n, n.model(result))
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32))
    weights = [torch.from_numpy(w) for w in n.weights.values()]
    for count in (2, 0, 1, 0):
        given = [x, labels_with(count), *weights]
        found, wanted = step(planned, given), step(reference, given)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)
        if count == 0:
            assert torch.isnan(found[0]).item() == empty_loss_is_nan
            assert empty_loss_is_nan or found[0].item() == 0
            assert [tuple(g.shape) for g in found[1:]] == [tuple(g.shape) for g in (x, *weights)]
            assert not any(g.any() for g in found[1:])  # NaN would be true


@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer: str) -> None:
    n = Net()
    first = n.op("Mul", n.rows, n.weight(WIDTH))  # something to differentiate before it
    v = LAYERS[layer](n, first)
    check(n, LOSSES["sum of squares"](n, n.op("Add", v, n.op("Mul", v, v))), empty_loss_is_nan=False)


@pytest.mark.parametrize("loss", LOSSES)
def test_losses(loss: str) -> None:
    n = Net()
    check(n, LOSSES[loss](n, linear(n, n.rows)), empty_loss_is_nan=is_nan_of_nothing(loss))


@pytest.mark.parametrize("seed", range(40))
def test_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = Net()
    v = n.rows
    for name in rng.choice(list(LAYERS), rng.integers(3, 9)):
        v = LAYERS[str(name)](n, v)
    loss = str(rng.choice(list(LOSSES)))
    check(n, LOSSES[loss](n, v), empty_loss_is_nan=is_nan_of_nothing(loss))
