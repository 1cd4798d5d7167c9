"""The engine's class behind both PyTorch front ends: forward now, backward later."""

import gc
import resource
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from backpass import _core
from onnx import TensorProto, helper


def model(ratio: float = 0.0) -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Add", ["h", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("Dropout", ["r", "ratio", "training"], ["d"]),
            helper.make_node("ReduceMean", ["d"], ["loss"], keepdims=0),
        ],
        "two outputs",
        [
            info("x", TensorProto.FLOAT, ["n", 4]),
            info("w", TensorProto.FLOAT, [4, 3]),
            info("b", TensorProto.FLOAT, [3]),
            info("unused", TensorProto.FLOAT, [2]),
        ],
        [info("loss", TensorProto.FLOAT, []), info("d", TensorProto.FLOAT, ["n", 3])],
        [
            helper.make_tensor("ratio", TensorProto.FLOAT, [], [ratio]),
            helper.make_tensor("training", TensorProto.BOOL, [], [True]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]).SerializeToString()


def session(ratio: float = 0.0, requires_grad=("x", "w", "b", "unused")):
    return _core.ModuleSession.from_bytes(model(ratio), list(requires_grad), _core.SessionOptions())


def feeds(n: int):
    return [torch.randn(n, 4), torch.randn(4, 3), torch.randn(3), torch.randn(2)]


def eager(inputs, seeds):
    leaves = [t.clone().requires_grad_() for t in inputs]
    hidden = torch.relu(leaves[0] @ leaves[1] + leaves[2])
    loss = hidden.mean()
    total = torch.zeros(())
    if seeds[0] is not None:
        total = total + loss * seeds[0]
    if seeds[1] is not None:
        total = total + (hidden * seeds[1]).sum()
    return loss.detach(), hidden.detach(), torch.autograd.grad(total, leaves, allow_unused=True)


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("n", [5, 1, 17])
def test_gradients_for_whichever_outputs_get_one(wanted, n):
    s = session()
    assert s.differentiable_outputs() == [True, True]
    for _ in range(2):  # the second time it is what the session expects
        inputs = feeds(n)
        seeds = [torch.tensor(2.0) if wanted[0] else None, torch.randn(3, n).t() if wanted[1] else None]
        (loss, hidden), pending = s.forward(inputs, True)
        gradients = s.backward(pending, seeds)
        expected = eager(inputs, seeds)
        torch.testing.assert_close(loss, expected[0])
        torch.testing.assert_close(hidden, expected[1])
        assert gradients[3] is None
        for got, want in zip(gradients[:3], expected[2][:3], strict=True):
            torch.testing.assert_close(got, want)


def test_several_passes_under_way():
    s = session()
    passes = []
    for n in (4, 2, 4):
        inputs = feeds(n)
        passes.append((inputs, s.forward(inputs, True)[1]))
    for inputs, pending in (passes[1], passes[0], passes[2]):
        gradients = s.backward(pending, [torch.tensor(1.0), None])
        for got, want in zip(gradients[:3], eager(inputs, [1.0, None])[2][:3], strict=True):
            torch.testing.assert_close(got, want)


def test_a_repeated_forward_draws_the_same_masks():
    """Gradients arrive for an output that was not expected: the pass is run again, with the same dropout."""
    s = session(ratio=0.5)
    x, w, b, unused = torch.ones(64, 4), torch.ones(4, 3), torch.ones(3), torch.ones(2)
    (_, kept), pending = s.forward([x, w, b, unused], True)
    seed = torch.ones(64, 3)
    (_, _, bias_gradient, _) = s.backward(pending, [None, seed])
    torch.testing.assert_close(bias_gradient, 2.0 * (kept != 0).sum(0).float())
    (_, again), _ = s.forward([x, w, b, unused], True)
    assert not torch.equal(kept, again)


def test_without_gradients():
    s = session(requires_grad=())
    inputs = feeds(3)
    (loss, _), pending = s.forward(inputs, False)
    assert pending is None
    torch.testing.assert_close(loss, eager(inputs, [1.0, None])[0])
    assert s.differentiable_outputs() == [False, False]


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_passes_that_never_go_back_leave_no_memory_behind():
    """Each has other extents, so that none can use the memory of the one before."""
    s = session()
    x, others = torch.zeros(2_000_100, 4), feeds(1)[1:]
    s.forward([x[:2_000_000], *others], True)
    before = resident_bytes()
    for n in range(30):  # 24 MB each
        s.forward([x[: 2_000_001 + n], *others], True)
    assert resident_bytes() - before < 300e6


def test_inputs_live_as_long_as_the_pass():
    s = session()
    inputs = feeds(3)
    expected = eager(inputs, [1.0, None])
    _, pending = s.forward(inputs, True)
    del inputs
    gc.collect()
    noise = [torch.full((3, 4), float("nan")) for _ in range(50)]
    gradients = s.backward(pending, [torch.tensor(1.0), None])
    torch.testing.assert_close(gradients[1], expected[2][1])
    assert noise[0].isnan().all()


def test_tensors_share_memory_with_torch():
    t = torch.arange(6.0).reshape(2, 3)
    there = _core.tensor_from_torch(t)
    back = _core.tensor_to_torch(there)
    back[0, 0] = 42
    assert t[0, 0] == 42
    assert _core.tensor_to_torch(_core.tensor_from_torch(t.t())).tolist() == t.t().tolist()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 1, 3)])
def test_every_element_type_crosses(dtype, shape):
    t = torch.randint(0, 2, shape).to(dtype)
    back = _core.tensor_to_torch(_core.tensor_from_torch(t))
    assert back.dtype == dtype
    assert back.shape == t.shape
    assert torch.equal(back, t)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ],
)
def test_floats_of_eight_bits_cross(dtype):
    t = torch.tensor([0.5, 1.0, 2.0, 8.0]).to(dtype)
    back = _core.tensor_to_torch(_core.tensor_from_torch(t))
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), t.view(torch.uint8))


def test_errors():
    s = session()
    inputs = feeds(3)
    _, pending = s.forward(inputs, True)
    s.backward(pending, [torch.tensor(1.0), None])
    with pytest.raises(_core.InvalidInput, match="has run already"):
        s.backward(pending, [torch.tensor(1.0), None])
    with pytest.raises(_core.InvalidInput, match=r"input 'x': got float32\[3,3\], expected float32\[n,4\]"):
        s.forward([torch.ones(3, 3), *inputs[1:]], True)
    with pytest.raises(_core.InvalidInput, match="number of inputs: got 1, expected 4"):
        s.forward(inputs[:1], True)
    with pytest.raises(_core.InvalidInput, match=r"expected a torch.Tensor"):
        s.forward([3, *inputs[1:]], True)
    with pytest.raises(_core.InvalidInput, match="requires_grad 'z'"):
        session(requires_grad=("z",))
    _, pending = s.forward(inputs, True)
    with pytest.raises(_core.InvalidInput, match=r"gradient of output 'loss': got float32\[3\]"):
        s.backward(pending, [torch.ones(3), None])


@pytest.mark.parametrize("rows", [1, 30000])
def test_a_gradient_has_the_extents_of_its_output(rows):
    """Where the model leaves them open, too."""
    s = session()
    _, pending = s.forward(feeds(30000 // rows), True)
    message = rf"gradient of output 'd': got float32\[{rows},3\], expected float32\[{30000 // rows},3\]"
    with pytest.raises(_core.InvalidInput, match=message):
        s.backward(pending, [None, torch.ones(rows, 3)])


def test_the_training_model_is_onnx():
    proto = onnx.load_model_from_string(session().training_model())
    assert "YieldOp" in [n.op_type for n in proto.graph.node]
    assert [o.name for o in proto.graph.output] == ["loss", "d", "x_grad", "w_grad", "b_grad"]


def test_gradients_that_follow_from_no_seed():
    """Rectangles have no gradient but zeros, so there is nothing to wait for; these are too many to be constants."""
    info, count = helper.make_tensor_value_info, 100000
    graph = helper.make_graph(
        [helper.make_node("RoiAlign", ["x", "r", "batch"], ["y"])],
        "zeros",
        [
            info("x", TensorProto.FLOAT, [1, 1, 4, 4]),
            info("r", TensorProto.FLOAT, [count, 4]),
            info("batch", TensorProto.INT64, [count]),
        ],
        [info("y", TensorProto.FLOAT, [count, 1, 1, 1])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    s = _core.ModuleSession.from_bytes(proto.SerializeToString(), ["r"], _core.SessionOptions())
    (y,), pending = s.forward([torch.ones(1, 1, 4, 4), torch.rand(count, 4), torch.zeros(count).long()], True)
    (gradient,) = s.backward(pending, [torch.ones(y.shape)])
    assert torch.equal(gradient, torch.zeros(count, 4))


def test_stop_gradient():
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("StopGradient", ["x"], ["s"], domain="backpass"),
            helper.make_node("Mul", ["s", "x"], ["y"]),
        ],
        "stop",
        [info("x", TensorProto.FLOAT, ["n"])],
        [info("y", TensorProto.FLOAT, ["n"])],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("backpass", 1)]
    proto = helper.make_model(graph, opset_imports=opsets)
    s = _core.ModuleSession.from_bytes(proto.SerializeToString(), ["x"], _core.SessionOptions())
    x = torch.tensor([1.0, 2.0, 3.0])
    (y,), pending = s.forward([x], True)
    assert y.tolist() == [1, 4, 9]
    assert s.backward(pending, [torch.ones(3)])[0].tolist() == [1, 2, 3]


DEADLOCK = """
import sys, threading, time
import backpass, torch
from backpass import _core
from onnx import TensorProto, helper

def types(x):
    time.sleep(0.3)
    return x

@backpass.register_operator("slow.domain", "Slow", types=types)
def slow(x):
    return x

@backpass.register_gradient("slow.domain", "Slow")
def slow_gradient(g):
    return g.dy()

info = helper.make_tensor_value_info
node = helper.make_node("Slow", ["x"], ["y"], domain="slow.domain")
float_n = ("n",)
graph = helper.make_graph([node], "g", [info("x", TensorProto.FLOAT, float_n)], [info("y", TensorProto.FLOAT, float_n)])
opsets = [helper.make_opsetid("", 23), helper.make_opsetid("slow.domain", 1)]
model = helper.make_model(graph, opset_imports=opsets).SerializeToString()
s = _core.ModuleSession.from_bytes(model, ["x"], _core.SessionOptions())
_, pending = s.forward([torch.ones(3)], True)
drops = sys.argv[1] == "drop"
other = threading.Thread(target=lambda: s.forward([torch.ones(4)], drops))
other.start()
time.sleep(0.1)  # the other one is inside the rule for types
if drops:
    del pending
else:
    s.graph_text()
other.join()
"""


@pytest.mark.parametrize("meanwhile", ["drop", "look"])
def test_rules_of_users_block_nobody(meanwhile):
    """A thread that binds new extents asks a rule, which needs the interpreter lock that this one holds."""
    subprocess.run([sys.executable, "-c", DEADLOCK, meanwhile], check=True, timeout=120)
