"""LSTMGrad and GRUGrad against finite differences of LSTM and GRU, in double precision."""

from __future__ import annotations

import itertools
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from onnx import helper

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 2, 3
FORWARD = {"LSTM": ["y", "y_h", "y_c", "all_c", "gates"], "GRU": ["y", "y_h", "gates"]}
GRADIENTS = {"LSTM": ["dx", "dw", "dr", "db", "dh", "dc", "dp"], "GRU": ["dx", "dw", "dr", "db", "dh"]}
SOURCES = {"dx": "x0", "dw": "x1", "dr": "x2", "db": "x3", "dh": "x5", "dc": "x6", "dp": "x7"}


def session(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], outputs: list[str]) -> Any:
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()
    ]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    return backpass.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def layer_inputs(op: str, both: int, lengths: bool, peephole: bool, rng: np.random.Generator) -> dict[str, np.ndarray]:
    width = (4 if op == "LSTM" else 3) * HIDDEN
    shapes = [
        (STEPS, BATCH, INPUTS),
        (both, width, INPUTS),
        (both, width, HIDDEN),
        (both, 2 * width),
        None,
        (both, BATCH, HIDDEN),
    ]
    if op == "LSTM":
        shapes += [(both, BATCH, HIDDEN), (both, 3 * HIDDEN) if peephole else None]
    values = {f"x{i}": 0.7 * rng.standard_normal(s) for i, s in enumerate(shapes) if s is not None}
    if lengths:
        values["x4"] = np.array([4, 2, 1], np.int32)
    return values


CASES = [
    ("LSTM", direction, {}, lengths, peephole)
    for direction, lengths, peephole in itertools.product(
        ("forward", "reverse", "bidirectional"), (False, True), (False, True)
    )
] + [
    ("GRU", direction, {"linear_before_reset": after}, lengths, False)
    for direction, after, lengths in itertools.product(("forward", "bidirectional"), (0, 1), (False, True))
]


@pytest.mark.parametrize(("op", "direction", "attrs", "lengths", "peephole"), CASES)
def test_against_finite_differences(op: str, direction: str, attrs: dict, lengths: bool, peephole: bool) -> None:
    rng = np.random.default_rng(5)
    both = 2 if direction == "bidirectional" else 1
    feeds = layer_inputs(op, both, lengths, peephole, rng)
    names = [f"x{i}" if f"x{i}" in feeds else "" for i in range(8 if op == "LSTM" else 6)]
    state, sequence = (both, BATCH, HIDDEN), (STEPS, both, BATCH, HIDDEN)
    weights = {"gy": rng.standard_normal(sequence), "gh": rng.standard_normal(state)}
    if op == "LSTM":
        weights["gc"] = rng.standard_normal(state)
    attrs = {"hidden_size": HIDDEN, "direction": direction, **attrs}

    kept = ["y", "all_c", "gates"] if op == "LSTM" else ["y", "gates"]
    # ONNX Runtime's LSTMGrad reads no bias; peepholes, which it does not know, come last.
    reads = [*names[:3], *names[4:7], *kept, *weights, names[7]] if op == "LSTM" else [*names, *kept, *weights]
    wanted = [g for g in GRADIENTS[op] if SOURCES[g] in feeds]
    nodes = [
        helper.make_node(f"{op}Training", names, FORWARD[op], domain="com.microsoft", **attrs),
        helper.make_node(f"{op}Grad", reads, wanted, domain="com.microsoft", **attrs),
    ]
    found = dict(zip(wanted, session(nodes, {**feeds, **weights}, wanted).run(None, {**feeds, **weights}), strict=True))

    results = FORWARD[op][: len(weights)]
    forward = session([helper.make_node(op, names, results, **attrs)], feeds, results)

    def loss(values: dict[str, np.ndarray]) -> float:
        outputs = forward.run(None, values)
        return sum(float((o * w).sum()) for o, w in zip(outputs, weights.values(), strict=True))

    for name in wanted:
        at = feeds[SOURCES[name]]
        direction_of_step = rng.standard_normal(at.shape)
        step = 1e-6 * direction_of_step
        up, down = ({**feeds, SOURCES[name]: at + s} for s in (step, -step))
        slope = (loss(up) - loss(down)) / 2e-6
        assert np.isclose(slope, (found[name] * direction_of_step).sum(), rtol=1e-6, atol=1e-7), name


def test_other_activations_are_refused() -> None:
    feeds = layer_inputs("GRU", 1, False, False, np.random.default_rng(0))
    names = [f"x{i}" if f"x{i}" in feeds else "" for i in range(6)]
    feeds |= {"y": np.zeros((STEPS, 1, BATCH, HIDDEN)), "gates": np.zeros((STEPS, 1, BATCH, 3 * HIDDEN))}
    node = helper.make_node(
        "GRUGrad",
        [*names, "y", "gates"],
        ["dx"],
        domain="com.microsoft",
        hidden_size=HIDDEN,
        activations=["Relu", "Tanh"],
    )
    with pytest.raises(backpass.Unsupported, match="other activations"):
        session([node], feeds, ["dx"])
