"""Gradients of several steps are added up in place: right, and without memory for a second set of gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
import onnx
import pytest
from backpass import _core
from backpass._convert import to_engine
from backpass.api import CheckpointState, Module
from onnx import helper, numpy_helper, parser

CHAIN = "".join(f"h{i + 1} = MatMul(h{i}, w{i}) " for i in range(12))
NETWORKS = {
    "chain": ("h0 = Identity(x) " + CHAIN + "s = Mul(h12, h12) loss = ReduceMean<keepdims = 0>(s)", 12),
    # The parameter itself, twice, and one that has no gradient but zero.
    "shared": (
        "a = MatMul(x, w0) b = MatMul(a, w0) f = Ceil(w1) c = MatMul(b, f) s = Mul(c, c) "
        "loss = ReduceMean<keepdims = 0>(s)",
        2,
    ),
    # How many rows are left is known only when the step runs, so that the gradient cannot be planned.
    "late": (
        "f = ReduceMax<axes = [1], keepdims = 0>(x) p = Greater(f, one) c = Compress<axis = 0>(x, p) "
        "y = MatMul(c, w0) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s)",
        1,
    ),
}


def network(name: str, dtype: str, width: int) -> onnx.ModelProto:
    body, layers = NETWORKS[name]
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g ({dtype}[N,{width}] x) => ({dtype}[] loss) <{dtype} one = {{1}}> {{ {body} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for i in range(layers):
        weight = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(element(model))
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{i}"))
    return model


def element(model: onnx.ModelProto) -> Any:
    return helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)


def module_of(model: onnx.ModelProto) -> tuple[Module, CheckpointState]:
    core = _core.CheckpointState()
    weights = [t for t in model.graph.initializer if t.name.startswith("w")]
    for t in weights:
        core.add_parameter(t.name, to_engine(numpy_helper.to_array(t)), True)
    training, _ = _core.build_training_model(model.SerializeToString(), [t.name for t in weights], [], ["loss"])
    state = CheckpointState(core)
    return Module(training, state), state


def gradients(state: CheckpointState) -> list[np.ndarray]:
    return [np.array(p.grad) for _, p in state.parameters]


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "bfloat16"])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_sums_are_those_of_single_steps(name: str, dtype: str) -> None:
    model = network(name, dtype, 7)
    batches = [np.random.default_rng(i).standard_normal((5 + i, 7)).astype(element(model)) for i in range(4)]
    single = []
    for x in batches:
        module, state = module_of(model)
        module(x)
        single.append(gradients(state))
    module, state = module_of(model)
    for first, count in ((0, 3), (1, 2), (3, 1), (2, 2)):  # the first step of each replaces what it finds
        module.lazy_reset_grad()
        for x in batches[first : first + count]:
            module(x)
        for k, got in enumerate(gradients(state)):
            wanted = single[first][k]
            for later in single[first + 1 : first + count]:
                wanted = wanted + later[k]
            np.testing.assert_array_equal(got, wanted)
    assert ("  late [" in str(module.plan(batches[0]))) == (name == "late")


def test_no_second_set_of_gradients_is_planned() -> None:
    width, layers = 64, 12
    module, state = module_of(network("chain", "float", width))
    x = np.ones((2, width), np.float32)
    direct = module.plan(x).peak_bytes
    module(x)
    module(x)
    added = module.plan(x)
    gradient = 4 * width * width
    assert str(added).count("InPlaceAccumulatorV2") == layers
    assert direct < gradient  # gradients go straight to their buffers
    assert added.peak_bytes <= direct + gradient  # one at a time, not twelve
    module.lazy_reset_grad()
    module(x)
    once = gradients(state)
    module(x)
    for a, b in zip(gradients(state), once, strict=True):
        np.testing.assert_array_equal(a, 2 * b)


MEASURED = """
import ctypes, sys
sys.path.insert(0, {folder!r})
import numpy as np
from test_gradient_accumulation import module_of, network

def high_water():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

module, state = module_of(network("chain", "float", 1024))
x = np.ones((2, 1024), np.float32)
module(x)
ctypes.CDLL(None).malloc_trim(0)  # what making the model left behind
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the high-water mark starts anew from what is held now
before = high_water()
module(x)
module(x)
print(high_water() - before)
"""


def test_memory_grows_by_one_gradient_not_by_all() -> None:
    """Measured, not planned: twelve gradients of 4 MiB each."""
    script = MEASURED.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 12 * 1024
