"""LSTM, GRU, RNN."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_case import FLOATS, Case, Row, case, data

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
        bench=layer("GRU", 64, 32, 128, 256, linear_before_reset=1),
    ),
    Row("RNN", common("RNN", ["Softplus"]), dtypes=("float32",), opset=(22, 14, 7), oracle="ort", outputs=2),
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
