"""LSTM, GRU, RNN."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from op_case import FLOATS, Case, Row, case, data
from op_oracle import from_torch

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(
    op: str,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    *,
    bias: bool = True,
    lengths: Any = None,
    initial: bool = False,
    peephole: bool = False,
    **attrs: Any,
) -> Case:
    both = 2 if attrs.get("direction") == "bidirectional" else 1
    width = GATES[op] * hidden
    small = {"low": -0.8, "high": 0.8}
    state = (batch, both, hidden) if attrs.get("layout") else (both, batch, hidden)
    values: list[Any] = [
        data(steps, batch, inputs),
        data(both, width, inputs, **small),
        data(both, width, hidden, **small),
        data(both, 2 * width, **small) if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        data(*state) if initial else None,
    ]
    if op == "LSTM":
        values += [data(*state) if initial else None, data(both, 3 * hidden) if peephole else None]
    while values[-1] is None:
        values.pop()
    return case(*values, hidden_size=hidden, **attrs)


def common(op: str, functions: list[str]) -> list[Case]:
    twice = {"direction": "bidirectional"}
    return [
        layer(op, 5, 3, 4, 7, initial=True),
        layer(op, 4, 2, 3, 16, bias=False, direction="reverse"),
        layer(op, 6, 3, 2, 5, lengths=[6, 1, 3], initial=True, **twice),
        layer(op, 1, 1, 1, 1),
        layer(op, 300, 2, 3, 4, lengths=[300, 211], direction="reverse"),
        layer(op, 3, 4, 2, 5, activations=functions * 2, clip=0.7, **twice),
        layer(op, 3, 4, 2, 5, activations=["LeakyRelu"] * len(functions), activation_alpha=[0.2] * len(functions)),
    ]


# Small ones for the gradient, and everything that changes it.
def differentiable(op: str, functions: list[str]) -> list[Case]:
    twice = {"direction": "bidirectional"}
    one = len(functions)
    return [
        layer(op, 3, 2, 2, 3, initial=True),
        layer(op, 4, 3, 2, 2, lengths=[4, 1, 3], initial=True, **twice),
        layer(op, 2, 3, 2, 2, activations=functions * 2, clip=0.7, **twice),
        layer(op, 2, 2, 2, 3, bias=False, direction="reverse", lengths=[1, 2]),
        layer(op, 2, 2, 2, 2, initial=True, layout=1, **twice),
        layer(op, 2, 2, 2, 2, activations=["LeakyRelu"] * one, activation_alpha=[0.2] * one),
        layer(op, 2, 2, 2, 2, activations=["ThresholdedRelu"] * one, activation_alpha=[-0.1] * one),
        layer(op, 2, 2, 2, 2, activations=["Relu", "Softplus", "Affine"][:one]),
        layer(
            op, 2, 2, 2, 2, activations=["ScaledTanh"] * one, activation_alpha=[0.8] * one, activation_beta=[1.3] * one
        ),
        layer(op, 1, 1, 1, 1),
    ]


ORDER = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}  # torch's gates among ONNX's
LAYERS = {"LSTM": torch._VF.lstm, "GRU": torch._VF.gru, "RNN": torch._VF.rnn_tanh}  # type: ignore[attr-defined]


def in_torch(op: str) -> Any:
    """torch's own layer, its gates in another order."""

    def gates(parameter: torch.Tensor) -> torch.Tensor:
        return torch.cat([parameter.chunk(GATES[op])[i] for i in ORDER[op]])

    def function(x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any = None, **attrs: Any) -> list[Any]:
        weights: list[torch.Tensor] = []
        for d in range(w.shape[0]):
            input_bias, hidden_bias = b[d].chunk(2)
            weights += [gates(p) for p in (w[d], r[d], input_bias, hidden_bias)]
        both = attrs.get("direction") == "bidirectional"
        state = h if c is None else (h, c)
        y, *states = LAYERS[op](x, state, weights, True, 1, 0.0, False, both, False)
        return [y.unflatten(2, (w.shape[0], -1)).transpose(1, 2), *states]

    return function


# onnx.reference knows neither sequence_lens, clip nor other activations.
ROWS = [
    Row(
        "LSTM",
        [
            *common("LSTM", ["HardSigmoid", "Softsign", "Elu"]),
            layer("LSTM", 4, 3, 2, 5, peephole=True, initial=True),
            layer("LSTM", 4, 3, 2, 5, input_forget=1),
        ],
        dtypes=("float32",),
        opset=(22, 14, 7),
        oracle="ort",
        outputs=3,
        grad=[0, 1, 2, 3, 5, 6, 7],
        grad_inputs=[
            layer("LSTM", 3, 2, 2, 2, peephole=True, initial=True),
            *differentiable("LSTM", ["HardSigmoid", "Softsign", "Elu"]),
            layer("LSTM", 2, 2, 2, 2, peephole=True, lengths=[1, 2], direction="bidirectional"),
            layer("LSTM", 2, 2, 2, 2, input_forget=1),
        ],
        bench=layer("LSTM", 64, 32, 128, 256),
    ),
    Row(
        "GRU",
        [
            *common("GRU", ["HardSigmoid", "Softsign"]),
            layer("GRU", 4, 3, 2, 5, linear_before_reset=1, initial=True),
            layer("GRU", 4, 3, 2, 5, linear_before_reset=1, bias=False, direction="bidirectional"),
        ],
        dtypes=("float32",),
        opset=(22, 14, 7),
        oracle="ort",
        outputs=2,
        grad=[0, 1, 2, 3, 5],
        grad_inputs=[
            layer("GRU", 2, 2, 2, 2, linear_before_reset=1, initial=True, lengths=[2, 1]),
            *differentiable("GRU", ["HardSigmoid", "Softsign"]),
            layer("GRU", 2, 2, 2, 2, linear_before_reset=1, bias=False, direction="bidirectional"),
        ],
        bench=layer("GRU", 64, 32, 128, 256, linear_before_reset=1),
    ),
    Row(
        "RNN",
        common("RNN", ["Softplus"]),
        dtypes=("float32",),
        opset=(22, 14, 7),
        oracle="ort",
        outputs=2,
        grad=[0, 1, 2, 3, 5],
        grad_inputs=differentiable("RNN", ["Softplus"]),
    ),
    *(
        Row(
            op,
            [
                layer(op, 3, 2, 3, 4, initial=True, **attrs),
                layer(op, 2, 3, 1, 2, initial=True, **attrs, direction="bidirectional"),
            ],
            dtypes=("float32", "float64"),
            oracle=from_torch(in_torch(op)),
            outputs=3 if op == "LSTM" else 2,
            grad=[0, 1, 2, 3, 5, 6],
            name=f"{op}-torch",
        )
        for op, attrs in (("LSTM", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {}))
    ),
    # Other types, and the layout that puts the batch first, against the reference.
    *(
        Row(
            op,
            [layer(op, 3, 3, 2, 5, initial=True, layout=1), layer(op, 4, 2, 3, 5, initial=True)],
            dtypes=FLOATS,
            outputs=3 if op == "LSTM" else 2,
            name=f"{op}-types",
        )
        for op in GATES
    ),
]
